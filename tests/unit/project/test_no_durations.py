"""No test asserts that something was quick: how long it takes is up to whatever else the machine does.

What to do instead: pass a clock in and set it, wait for an event with a generous deadline, count work
(`count_lines` in conftest.py), or measure in benchmarks/. That something took *at least* so long may be
asserted: `assert time.monotonic() >= began_s + 1`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
STOPWATCHES = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
}


def _is_stopwatch(node: ast.AST) -> bool:
    """Whether it is `time.monotonic()` or the like."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name) | ast.Name(id=name)):
            return name in STOPWATCHES
    return False


def _is_wall_clock(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="time")):
            return True
    return False


def _reads_clock(node: ast.AST) -> bool:
    return any(_is_stopwatch(each) or _is_wall_clock(each) for each in ast.walk(node))


def _upper_bounds(compare: ast.Compare) -> Iterator[ast.expr]:
    """What has to be less than something else."""
    operands = [compare.left, *compare.comparators]
    for left, operator, right in zip(operands, compare.ops, operands[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right


def _durations(code: str) -> list[int]:
    """The lines that measure how long something took, or assert that some time hasn't come yet."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.BinOp(left=clock, op=ast.Sub()) if _is_stopwatch(clock):
                found.add(node.lineno)
            case ast.Assert(test=test):
                compares = [each for each in ast.walk(test) if isinstance(each, ast.Compare)]
                if any(_reads_clock(less) for each in compares for less in _upper_bounds(each)):
                    found.add(node.lineno)
    return sorted(found)


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("assert time.monotonic() - began_s < 5", True),
        ("assert 5 > time.perf_counter() - began_s", True),
        ("assert time.monotonic() < deadline_s, 'never'", True),
        ("assert 1 < time.time() - began_s < 5", True),
        ("took_s = perf_counter() - began_s", True),
        ("assert time.monotonic() >= began_s + 1", False),
        ("assert before_s <= record.time_s <= time.time()", False),
        ("wait(deadline_s - time.monotonic())", False),
        ("old_s = time.time() - age_s", False),
        ("assert loop.time() - came_back_s < 5", False),  # virtual
    ],
)
def test_an_upper_bound_on_time_that_passes_is_found(line: str, is_refused: bool) -> None:
    assert _durations(line) == ([1] if is_refused else [])


def test_no_test_asserts_that_something_was_quick() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in _durations(path.read_text())
    ]
    assert found == [], "how long something takes is up to whatever else the machine does"
