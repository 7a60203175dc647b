"""One answer for all who ask at about the same time, made once however many they are.

Belongs to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

__all__ = ["KeptAnswer"]


class KeptAnswer:
    """An answer that takes a while to make.

    Args:
        make: makes it.
        kept_s: for how long it is given out, from when its making began.
    """

    def __init__(self, make: Callable[[], Awaitable[bytes]], *, kept_s: float) -> None:
        self._make, self._kept_s = make, kept_s
        self._making: asyncio.Future[bytes] | None = None
        self._begun_s = -math.inf

    async def get(self, patience_s: float) -> bytes:
        """The answer, up to `kept_s` old.

        Raises:
            TimeoutError: it takes longer than that.
        """
        now_s = time.monotonic()
        if self._making is None or (self._making.done() and now_s - self._begun_s > self._kept_s):
            self._begun_s = now_s
            self._making = asyncio.ensure_future(self._make())
        # Others wait for it too, so that whoever goes away doesn't end it.
        return await asyncio.wait_for(asyncio.shield(self._making), patience_s)
