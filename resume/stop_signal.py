"""Ctrl-C as a wish: the first asks for a stop after a checkpoint, the second interrupts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signal"]


@contextmanager
def stop_on_signal(
    ask_stop: Callable[[], None], *signals: signal.Signals, even_if_handled: bool = False
) -> Iterator[None]:
    """Within the block, the first of `signals` (SIGINT, unless given) calls `ask_stop`, the next interrupts.

    Outside of the main thread, where no signal arrives, it changes nothing.

    Args:
        ask_stop: Called within the signal's handler: it may set a flag, and not much more.
        even_if_handled: Also where somebody else handles the signal already (as Ray does SIGTERM).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt(f"signal {number} came twice")
        asked = True
        ask_stop()
        del frame

    before = {}
    for number in signals or (signal.SIGINT,):
        if even_if_handled or signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
