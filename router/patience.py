"""How long functions that somebody else wrote may take over a decision.

Here they are asked in the thread of whoever decides, who then waits for one that doesn't come back. Who
can't gives the router a patience that asks in another thread (route_service/patience_in_thread.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from evenload.router.plugins import is_built_in

__all__ = ["OverdueError", "Patience"]

T = TypeVar("T")


class OverdueError(Exception):
    """A function took too long; the text says how long, as a predicate."""


class Patience:
    """Asks functions, and says of somebody else's when they take too long. The built-in ones take their time.

    Args:
        time_max_s: For a function of somebody else's, in seconds by `clock`; above 0.
        clock: Seconds that only grow.
    """

    def __init__(self, time_max_s: float = math.inf, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.time_max_s = time_max_s
        self._clock = clock

    def ask(self, function: object, answer: Callable[[Callable[[str], None]], T]) -> T:
        """What `answer` returns, which calls `function`.

        Args:
            function: Whom to be patient with.
            answer: Is given what to call in between, with how far it is: that ends it when it takes too long.

        Raises:
            OverdueError: It takes too long.
        """
        if is_built_in(function) or math.isinf(self.time_max_s):
            return answer(lambda _: None)
        began_at_s = self._clock()

        def check(progress: str) -> None:
            if (took_s := self._clock() - began_at_s) > self.time_max_s:
                raise OverdueError(f"took {took_s:.2g} s{progress}, where {self.time_max_s:g} s is allowed")

        found = self.wait_for(function, lambda: answer(check))
        check("")
        return found

    def wait_for(self, function: object, act: Callable[[], T]) -> T:  # noqa: ARG002 - for who waits otherwise
        """What `act` returns, which calls `function`."""
        return act()
