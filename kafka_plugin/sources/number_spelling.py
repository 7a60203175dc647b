"""Whole numbers in text that reading them as numbers would change without a word.

Arrow reads 9007199254740993 beside 0.5 as 9007199254740992.0, 18446744073709551615 as 1.8446744073709552e19,
and the zip code 01234 as 1234. A whole number of up to 15 digits is exact as a double; one of 16 may not be.

All functions are pure. A file is searched as bytes first, as that costs little (0.2 to 0.6 GB/s); only where
there may be something, columns are looked at as they are written.

Read next: text_files.py, which uses this.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

FIELD_BYTES = 1024  # no number is longer
_EXACT_MAX = 1 << 53
_LONG_DIGITS = 16
_ALL_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
# Written so that both begin with what they look for, which Python finds fast: what must not stand before
# it comes after.
_LEADING_ZERO = re.compile(rb"0(?<![\w.:/]0)(?<!\w[+-]0)[0-9xX]\w*(?![\w.:/+-])")
_LONG = re.compile(b"0" * _LONG_DIGITS + rb"(?<![0.]0{%d})" % _LONG_DIGITS)


def may_be_changed(text: bytes) -> bool:
    """Whether there may be a field with a whole number of 16 digits or more, or with leading zeros.

    Fields begin at a comma, tab, quote, space or line; one that is cut off at an end of `text` may be missed.
    """
    return bool(_LEADING_ZERO.search(text) or _LONG.search(text.translate(_ALL_ZEROS)))


def has_leading_zeros(fields: pa.Array) -> bool:
    """Whether a string is a whole number that begins with 0: a code, such as 007 or 0x1F."""
    return bool(pc.any(pc.match_substring_regex(fields, r"^\s*[+-]?0[0-9xX]\w*\s*$")).as_py())


def has_long_integers(fields: pa.Array) -> bool:
    """Whether a string is a whole number that a double may change."""
    return bool(pc.any(pc.match_substring_regex(fields, rf"^\s*[+-]?\d{{{_LONG_DIGITS},}}\s*$")).as_py())


def has_large_doubles(column: pa.Array) -> bool:
    """Whether one of its doubles, however deep, may have been another whole number."""
    if pat.is_list(column.type):
        return has_large_doubles(column.flatten())
    if pat.is_struct(column.type):
        return any(map(has_large_doubles, column.flatten()))
    if not pat.is_floating(column.type):
        return False
    found = pc.min_max(column).as_py()
    return any(abs(end) >= _EXACT_MAX for end in found.values() if end is not None)


def changed_integer(value: Any, kind: pa.DataType) -> int | None:
    """A whole number in a JSON value that a double of this type, however deep, may change."""
    parts: list[tuple[Any, pa.DataType]] = []
    if pat.is_list(kind):
        parts = [(item, kind.value_type) for item in value or ()]
    elif pat.is_struct(kind):
        parts = [((value or {}).get(field.name), field.type) for field in kind]
    elif pat.is_floating(kind) and type(value) is int and abs(value) > _EXACT_MAX:
        return value
    return next((found for part in parts if (found := changed_integer(*part)) is not None), None)
