"""Calls that may never come back, in threads that nobody waits for.

asyncio waits for its own pool of threads when its loop ends, and Python waits for it again when the process
ends. So a user's score function that hangs would keep a stopped service from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["in_daemon_thread"]

T = TypeVar("T")


async def in_daemon_thread(function: Callable[[], T], *, name: str) -> T:
    """What `function` returns or raises; whoever is cancelled while waiting leaves it to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(future.set_result, function())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # it took so long that the loop has ended
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
