"""What unit tests measure with: work that is counted, as a clock counts what else the machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest


@pytest.fixture
def count_lines() -> Callable[[Callable[[], object]], int]:
    """Count the lines of Python that a call executes, in this thread: a loop counts each time it turns."""

    def count(act: Callable[[], object]) -> int:
        num_lines = 0

        def trace(_frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
            nonlocal num_lines
            num_lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            act()
        finally:
            sys.settrace(before)
        return num_lines

    return count
