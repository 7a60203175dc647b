from __future__ import annotations

import pytest

from evenload.sizes import bytes_text, parse_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_a_number_of_bytes_is_told_in_the_largest_unit_that_it_fills(
    num_bytes: int | None, text: str
) -> None:
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize("text", ["1024", "1k", "1KB", "1KiB", " 1 kib "])
def test_a_unit_may_be_written_in_any_way(text: str) -> None:
    assert parse_bytes(text) == 1024


@pytest.mark.parametrize("text", ["", "KiB", "1 XiB", "nan", "0", "-1MiB"])
def test_what_is_no_size_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)
