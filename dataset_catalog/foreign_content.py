"""What a record says is data: anybody who may write to a topic may have written it.

Whatever is decoded from a record goes through here, so that no decoder has to list what can go wrong with
content that was made to do harm. A decoder either returns a value that keeps its promises or raises its own
error; an error of Python, NumPy, pydantic or Arrow (RecursionError, MemoryError, OverflowError,
UnicodeDecodeError and so on) never gets past it. And what is said of such content is safe to print.

Invariants, checked in tests/property/dataset_catalog/logs/test_hostile_records.py:
1. A decoder raises nothing but its own error, whatever the bytes.
2. Its memory is bounded by its limits, not by what the bytes say.

Read next: parts.py, progress.py and encoding.py, which decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from evenload.dataset_catalog.errors import CatalogError

# More than any count of records, samples or bytes in a cluster; sums of two of them still fit into 64 bits.
NUMBER_MAX = (1 << 61) - 1
_TEXT_MAX = 300  # characters that are quoted of foreign text


@contextmanager
def refused_as(make_error: Callable[[str], CatalogError]) -> Iterator[None]:
    """Turns whatever is raised inside into a decoder's own error, made of a reason that can be printed.

    The error doesn't name what was raised as its cause: that would keep the frames, and with them all that
    was half decoded, alive for as long as the error is kept.
    """
    try:
        yield
    except CatalogError:
        raise
    except Exception as error:  # noqa: BLE001 - the content is foreign: nobody can list what it may provoke
        reason = reason_of(error)
    else:
        return
    raise make_error(reason)


def reason_of(error: BaseException) -> str:
    """What an error says, in one line that can be printed."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return printable(f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}")
    text = str(error).strip().partition("\n")[0]
    if not text or isinstance(error, KeyError):  # a KeyError's text is the key alone
        text = f"{type(error).__name__} {text}".strip()
    return printable(text)


def printable(text: str, *, max_chars: int = _TEXT_MAX) -> str:
    """Foreign text that may go to a terminal or a log: control characters escaped, at most so long.

    Without it, a name in a topic could move the cursor, set a terminal's title, or end a line and forge the
    next one.
    """
    shown = text if text.isprintable() else "".join(map(_escaped, text[: max_chars + 1]))
    return shown if len(shown) <= max_chars else shown[:max_chars] + "..."


def parse_json(text: bytes, *, max_values: int) -> Any:
    """JSON of bounded nesting and size, without NaN or infinity.

    An empty list takes two bytes of text and about 60 of memory; `max_values` bounds what comes of a text
    before anything is made of it.

    Raises:
        ValueError: It isn't, it is nested deeper than 200 levels, or it has more than `max_values` values.
    """
    num_values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if num_values > max_values:
        raise ValueError(f"its JSON has about {num_values} values, more than {max_values}")
    return from_json(text, allow_inf_nan=False, cache_strings="none")


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    # A lone surrogate (from bytes that were no UTF-8) is escaped too, as it can't be encoded.
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
