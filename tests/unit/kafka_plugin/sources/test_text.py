"""Files of text: what is odd comes out right, what is wrong is named by file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evenload.kafka_plugin.errors import EmptySourceError, MalformedSourceError, UnknownColumnError
from evenload.kafka_plugin.sources.source import Source, open_source


def rows(source: Source) -> list[dict[str, Any]]:
    batches = source.batches(samples_per_batch=1000, seed=None)
    return [row for batch in batches for row in batch.to_pylist()]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_types_are_read_off_the_values(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label,weight\nfine,1,0.5\nbad,0,2\n")
    source = open_source(path)
    assert source.features == {"text": "string", "label": "int64", "weight": "double"}
    assert rows(source) == [
        {"text": "fine", "label": 1, "weight": 0.5},
        {"text": "bad", "label": 0, "weight": 2.0},
    ]


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
def test_quoted_fields_hold_commas_quotes_and_newlines(tmp_path: Path, memory_bytes: int) -> None:
    path = written(tmp_path / "a.csv", 'text,label\n"a, ""b""\nc",1\r\nžluť ☃,2\n"",3\n')
    texts = [row["text"] for row in rows(open_source(path, memory_bytes=memory_bytes))]
    assert texts == ['a, "b"\nc', "žluť ☃", ""]


def test_empty_strings_stay_empty_strings(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,mark,label\n,,1\nx,,2\n,,3\n")
    source = open_source(path)
    assert source.features["mark"] == "string"  # empty from top to bottom, and still text
    assert [(row["text"], row["mark"]) for row in rows(source)] == [("", ""), ("x", ""), ("", "")]


def test_in_a_single_column_an_empty_line_is_a_sample(tmp_path: Path) -> None:
    assert [row["text"] for row in rows(open_source(written(tmp_path / "a.csv", "text\nx\n\ny\n")))] == [
        "x",
        "",
        "y",
    ]
    assert [row["text"] for row in rows(open_source(written(tmp_path / "a.txt", "x\n\ny")))] == ["x", "", "y"]


def test_words_that_mean_null_elsewhere_are_words_in_a_text_column(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\nNA,1\nnull,2\nfine,\n")
    assert rows(open_source(path)) == [
        {"text": "NA", "label": 1},
        {"text": "null", "label": 2},
        {"text": "fine", "label": None},
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_row_of_a_mebibyte_comes_through(tmp_path: Path, suffix: str) -> None:
    long = "x" * (1 << 20)
    content = {
        ".csv": f"text,label\n{long},1\ny,2\n",
        ".tsv": f"text\tlabel\n{long}\t1\ny\t2\n",
        ".jsonl": f'{{"text": "{long}", "label": 1}}\n{{"text": "y", "label": 2}}\n',
    }[suffix]
    assert [row["text"] for row in rows(open_source(written(tmp_path / f"a{suffix}", content)))] == [
        long,
        "y",
    ]


def test_names_can_be_given_to_a_file_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "gj04\t1\t\tIt's fine.\ngj04\t0\t*\tFine it's.\n")
    source = open_source(path, ["source", "label", "mark", "text"])
    assert source.num_samples == 2
    assert rows(source)[0] == {"source": "gj04", "label": 1, "mark": "", "text": "It's fine."}


def test_names_that_are_all_in_the_first_row_pick_columns_from_it(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ",text,label\n0,a,1\n1,b,2\n")  # as pandas writes it, with its index
    assert rows(open_source(path, ["label", "text"])) == [
        {"label": 1, "text": "a"},
        {"label": 2, "text": "b"},
    ]


def test_a_name_that_the_header_lacks_is_refused_with_those_it_has(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\na,1\n")
    with pytest.raises(UnknownColumnError, match=r"a\.csv' has no column 'labels'.*'text', 'label'"):
        open_source(path, ["text", "labels"])


def test_too_few_names_are_refused_with_both_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a,1,x\n")
    with pytest.raises(MalformedSourceError, match="the first row has 3 fields, but 2 column names"):
        open_source(path, ["text", "label"])


def test_a_first_row_that_is_no_header_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = written(tmp_path / "train.tsv", "gj04\t1\t\tOur friends won't buy this.\n")
    with pytest.raises(MalformedSourceError, match=r"line 1: column 3 has no name.*--column"):
        open_source(path)
    with pytest.raises(MalformedSourceError, match=r"the name '1' stands 2 times.*--column"):
        open_source(written(tmp_path / "b.csv", "1,1\n2,3\n"))


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b\n1,2\n3\n4,5\n", 3, "this row has 1 field, but there are 2 columns"),
        ("a,b\n1,2\n3,4,5\n", 3, "this row has 3 fields, but there are 2 columns"),
        ('a,b\n"x\ny\nz",2\n3\n', 5, "this row has 1 field"),
        ('a,b\n1,x\n2,"y\n3,z\n', 3, "never closed"),
    ],
)
def test_ragged_rows_are_refused_with_file_and_line(
    tmp_path: Path, content: str, line: int, reason: str, memory_bytes: int
) -> None:
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(MalformedSourceError, match=rf"a\.csv', line {line}: .*{reason}") as caught:
        list(open_source(path, memory_bytes=memory_bytes).batches(samples_per_batch=9, seed=None))
    assert caught.value.line == line


def test_a_lone_quote_inside_a_field_is_no_open_quote(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,label\na 5" nail,1\nb,2\n')
    assert [row["text"] for row in rows(open_source(path))] == ['a 5" nail', "b"]


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", b"a,b\n1,x\n2,\xff\n"),
        ("a.txt", b"x\ny\n\xff\n"),
        ("a.jsonl", b'{}\n\n\xff"'),
    ):
        with pytest.raises(MalformedSourceError, match=r"line 3: byte 0xff.* is not UTF-8"):
            rows(open_source(written(tmp_path / name, content)))


def test_in_tsv_a_quote_is_a_character(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", 'text\tlabel\n"Shut up", she said.\t1\nSo "what"?\t0\n"\t1\n')
    assert [row["text"] for row in rows(open_source(path))] == ['"Shut up", she said.', 'So "what"?', '"']


def test_a_quoted_tsv_can_be_said_to_be_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", 'text\tlabel\n"a\tb\nc"\t1\n')
    assert rows(open_source(path, is_quoted=True)) == [{"text": "a\tb\nc", "label": 1}]


def test_compressed_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 2, "b": "y"}\n'))
    assert rows(open_source([tmp_path / "a.csv.gz", tmp_path / "b.jsonl.gz"])) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"\xef\xbb\xbfa,b\n1,2\n")
    assert open_source(path).schema.names == ["a", "b"]
    assert open_source(path, ["a"]).schema.names == ["a"]


def test_a_file_that_breaks_off_in_compression_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,x\n" * 10_000)[:50])
    with pytest.raises(MalformedSourceError, match=r"a\.csv\.gz"):
        open_source(tmp_path / "a.csv.gz")


def test_json_strings_that_look_like_dates_stay_strings(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"d": "2020-01-01", "n": [1, 2]}\n\n{"d": "2021-02-03", "n": []}\n')
    assert rows(open_source(path)) == [{"d": "2020-01-01", "n": [1, 2]}, {"d": "2021-02-03", "n": []}]


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
def test_json_strings_that_look_like_dates_stay_strings_however_deep(
    tmp_path: Path, memory_bytes: int
) -> None:
    deep = {"d": "2020-01-01", "l": ["2020-01-01 10:00:00"], "s": [{"d": "2020-01-01", "n": 1}]}
    path = written(tmp_path / "a.jsonl", json.dumps({"x": deep, "y": ["2020-01-01"]}))
    assert rows(open_source(path, memory_bytes=memory_bytes)) == [{"x": deep, "y": ["2020-01-01"]}]


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
@pytest.mark.parametrize("value", [b'"\xff"', b'["a", "\xff"]', b'{"b": {"c": "\xff"}}'])
def test_json_strings_that_are_not_utf8_are_refused_with_their_line(
    tmp_path: Path, value: bytes, memory_bytes: int
) -> None:
    path = written(tmp_path / "a.jsonl", b'{"n": 1}\n' * 2000 + b'{"n": 2, "a": ' + value + b"}\n")
    with pytest.raises(MalformedSourceError, match=r"line 2001: byte 0xff.* is not UTF-8"):
        open_source(path, memory_bytes=memory_bytes)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('{"a": 1}\n{"a":\n', 2, "not JSON"),
        ('{"a": 1}\n\n[1, 2]\n', 3, "a JSON array, but one object a line"),
        ('[{"a": 1}]', 1, "a JSON array, but one object a line"),
        ('{"a": 1}\n{"a": 2}\n{"a": "x"}\n', 3, "column 'a' is a string, but in line 1 it is a number"),
    ],
)
def test_json_that_cant_be_a_table_is_refused_with_its_line(
    tmp_path: Path, content: str, line: int, reason: str, memory_bytes: int
) -> None:
    path = written(tmp_path / "a.jsonl", content)
    with pytest.raises(MalformedSourceError, match=rf"a\.jsonl', line {line}: .*{reason}"):
        open_source(path, memory_bytes=memory_bytes)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 10])
def test_json_columns_can_be_picked(tmp_path: Path, memory_bytes: int) -> None:
    path = written(tmp_path / "a.jsonl", '{"a": 1, "b": "x"}\n{"b": "y", "a": null}\n')
    assert rows(open_source(path, ["b"], memory_bytes=memory_bytes)) == [{"b": "x"}, {"b": "y"}]
    with pytest.raises(UnknownColumnError, match="has no column 'c'"):
        open_source(path, ["c"], memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\n\n", "is empty"),
        ("a.csv", "a,b\n", "has no rows"),
        ("a.jsonl", "\n \n", "is empty"),
        ("a.txt", "", "is empty"),
    ],
)
def test_a_source_without_samples_is_refused(tmp_path: Path, name: str, content: str, reason: str) -> None:
    with pytest.raises(EmptySourceError, match=reason):
        open_source(written(tmp_path / name, content))


def test_cola_comes_out_whole(shared_test_data: Path) -> None:
    columns = ["source", "label", "mark", "sentence"]
    train = open_source(shared_test_data / "cola" / "train.tsv", columns)
    dev = open_source(shared_test_data / "cola" / "dev.tsv", columns)
    assert (train.num_samples, dev.num_samples) == (8551, 1043)
    assert train.features == {"source": "string", "label": "int64", "mark": "string", "sentence": "string"}
    sentences = [row["sentence"] for row in rows(train)]
    assert sentences[2604] == 'Susan whispered "Shut up".'
    assert {row["label"] for row in rows(train)} == {0, 1}
