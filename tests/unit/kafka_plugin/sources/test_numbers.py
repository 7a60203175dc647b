"""No number comes out of a text file as another one: it stays text, or the file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenload.kafka_plugin.errors import MalformedSourceError, MixedTypesError
from evenload.kafka_plugin.sources import text_files
from evenload.kafka_plugin.sources.number_spelling import may_be_changed
from evenload.kafka_plugin.sources.source import open_source


def column(source: Any, **kwargs: Any) -> list[Any]:
    batches = open_source(source, **kwargs).batches(samples_per_batch=1000, seed=None)
    return [row["x"] for batch in batches for row in batch.to_pylist()]


def written(path: Path, *values: object) -> Path:
    """A CSV, TSV or JSON lines file with these as they are, in a column x."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"x": {value}, "y": "text"}}\n' for value in values))
    else:
        delimiter = "," if path.suffix == ".csv" else "\t"
        path.write_text(f"x{delimiter}y\n" + "".join(f"{value}{delimiter}text\n" for value in values))
    return path


MANY = ["7"] * 20_000  # more than two blocks of a streaming reader, as small as `limits` makes them


@pytest.fixture(params=["whole", "streamed"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A file that is held as it is read, and one that is read block by block."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1 << 16)
    return {"memory_bytes": 1 << 30 if request.param == "whole" else 10}


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("odd", ["007", "-007", "00", " 01", "0x1F"])
def test_whole_numbers_that_begin_with_zero_are_text(
    tmp_path: Path, limits: dict[str, int], suffix: str, odd: str
) -> None:
    values = [*MANY, odd, "12"]
    assert column(written(tmp_path / f"a{suffix}", *values), **limits) == values


@pytest.mark.parametrize("long", ["9007199254740993", "18446744073709551615", "-12345678901234567890"])
def test_whole_numbers_that_decimals_would_change_are_text(
    tmp_path: Path, limits: dict[str, int], long: str
) -> None:
    values = ["0.5", *MANY, long]
    assert column(written(tmp_path / "a.csv", *values), **limits) == values


def test_other_numbers_are_numbers(tmp_path: Path, limits: dict[str, int]) -> None:
    whole = ["9007199254740993", "0", "-12", "10"]
    assert column(written(tmp_path / "a.csv", *whole), **limits) == [int(value) for value in whole]
    decimals = ["0.1234567890123456789", "-0.5", "0", "1e-07", "007.5", "123456789012345"]
    assert column(written(tmp_path / "b.csv", *decimals), **limits) == [float(value) for value in decimals]


@pytest.mark.parametrize(
    ("here", "there"),
    [(["007"], ["12"]), (["9007199254740993"], ["0.5"]), (["007"], ["9007199254740993"])],
)
def test_what_is_text_in_one_file_is_text_in_all(tmp_path: Path, here: list[str], there: list[str]) -> None:
    paths = [written(tmp_path / "a.csv", *here), written(tmp_path / "b.csv", *there)]
    assert column(paths) == here + there
    assert column(paths[::-1]) == there + here


def test_a_real_word_among_numbers_of_other_files_is_still_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.csv", "no"), written(tmp_path / "b.csv", "9007199254740993")]
    with pytest.raises(MixedTypesError, match=r"'x' is int64, but in .* it is string"):
        open_source(paths)


def test_numbers_that_json_cant_have_as_text_are_refused(tmp_path: Path) -> None:
    text = written(tmp_path / "a.csv", "007")
    numbers = written(tmp_path / "b.jsonl", 7)
    with pytest.raises(MixedTypesError, match=r"'x' is int64, but in .* it is string"):
        open_source([text, numbers])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["1", "9223372036854775808"], 2),
        (["0.5", "1", "-9007199254740993"], 3),
        (["[0.5]", "[1, 9007199254740993]"], 2),
        (["null", '{"y": {"z": 0.5}}', '{"y": {"z": 9007199254740993}}'], 3),
    ],
)
@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
def test_json_integers_that_decimals_would_change_are_refused_with_their_line(
    tmp_path: Path, values: list[str], line: int, memory_bytes: int
) -> None:
    with pytest.raises(
        MalformedSourceError, match=rf"line {line}: column 'x' has decimals, and -?9"
    ) as caught:
        open_source(written(tmp_path / "a.jsonl", *values), memory_bytes=memory_bytes)
    assert caught.value.line == line


def test_json_integers_that_are_decimals_in_another_file_are_refused_too(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.csv", "0.5"), written(tmp_path / "b.jsonl", 9007199254740993)]
    with pytest.raises(MalformedSourceError, match=r"b\.jsonl', line 1: .*9007199254740993"):
        open_source(paths)


def test_json_numbers_that_are_exact_come_through(tmp_path: Path) -> None:
    assert column(written(tmp_path / "a.jsonl", 1 << 62, 1)) == [1 << 62, 1]
    assert column(written(tmp_path / "b.jsonl", 0.5, 1 << 53, "1e300", "1e20")) == [0.5, 2.0**53, 1e300, 1e20]


@pytest.mark.parametrize(
    "text",
    ["007", ",007,", "\t-007\r\n", '"007"', ",00,", ", 01 ,", ",0x1F\n", "1" * 16, ",-" + "8" * 20 + ","],
)
def test_a_search_of_the_bytes_misses_nothing(text: str) -> None:
    assert may_be_changed(text.encode())


@pytest.mark.parametrize(
    "text", [",0,", ",0.5,10,", "2020-01-05 07:08:09", "01/02/03", "1e-07", "0." + "1" * 20, "v007", "1" * 15]
)
def test_a_search_of_the_bytes_is_not_alarmed_by_usual_numbers(text: str) -> None:
    assert not may_be_changed(text.encode())


def test_a_number_across_two_blocks_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.csv", *["7"] * 20, "007")
    for block_bytes in range(1, path.stat().st_size):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block_bytes)
        file = object.__new__(text_files.DelimitedFile)
        file.path = str(path)
        assert file._scan() == (0, True)
