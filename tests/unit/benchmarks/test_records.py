"""What benchmarks write is the same each time, and as large as they say."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.records import RandomRecords, Records, Rows, cifar10, cola, texts_and_images

ROWS = Rows("rows", [b"a", b"bb", b"ccc"])


@pytest.mark.parametrize("records", [ROWS, RandomRecords(100, 7)])
@pytest.mark.parametrize("num_records", [0, 1, 3, 10])
def test_values_are_as_large_as_they_say_and_the_same_each_time(records: Records, num_records: int) -> None:
    values = list(islice(records.values(), num_records))
    assert sum(map(len, values)) == records.num_bytes(num_records)
    assert values == list(islice(records.values(), num_records))


def test_an_image_comes_after_four_texts() -> None:
    mixed = texts_and_images(ROWS, Rows("images", [b"I" * 50, b"J" * 60]))
    assert [len(row) for row in mixed.rows] == [1, 2, 3, 1, 50, 2, 3, 1, 2, 60]


def test_the_java_tool_is_given_the_rows_as_lines(tmp_path: Path) -> None:
    arguments = ROWS.java_arguments(tmp_path)
    assert Path(arguments[arguments.index("--payload-file") + 1]).read_bytes() == b"a\nbb\nccc"


def test_real_rows_are_text_without_line_ends(shared_test_data: Path) -> None:
    texts, images = cola(shared_test_data), cifar10(shared_test_data)
    assert len(texts.rows) == 8551
    assert Counter(b"\n" in row for row in [*texts.rows, *images.rows]) == {False: 8551 + 4000}
