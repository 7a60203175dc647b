"""Asks a goal or score function in a thread, so that nobody waits for one that doesn't come back.

Python can't end what runs in a thread, so such a function is left to itself there. It isn't asked again
before it has come back: it costs one thread at the most.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from evenload.router.patience import OverdueError, Patience

T = TypeVar("T")

# So many times as long as is allowed is waited for: one that does come back is told how long it took.
_LEFT_AFTER = 2.0


class PatienceInThread(Patience):
    """A `Patience` that ends. Made and used as that; for any thread."""

    def __init__(self, time_max_s: float = math.inf, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(time_max_s, clock)
        self._left: dict[int, tuple[object, Future[Any]]] = {}  # by id: not all that can be called has a hash

    def wait_for(self, function: object, act: Callable[[], T]) -> T:
        """What `act` returns, which calls `function`.

        Raises:
            OverdueError: It doesn't return soon, or hasn't yet since it was asked before.
        """
        _, left = self._left.get(id(function), (None, None))
        if left is not None and not left.done():
            raise OverdueError("still hasn't come back from when it was asked before")
        answered = _in_thread(act)
        if not wait([answered], _LEFT_AFTER * self.time_max_s).done:
            self._left[id(function)] = function, answered
            raise OverdueError(
                f"hasn't come back, where {self.time_max_s:g} s is allowed; it is left to itself"
            )
        return answered.result()


def _in_thread(act: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="evenload-function", daemon=True).start()
    return future
