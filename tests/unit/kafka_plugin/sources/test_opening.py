"""Whatever the source, samples have one order that can be begun anywhere; what can't be loaded is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from evenload.kafka_plugin.errors import (
    EmptySourceError,
    MalformedSourceError,
    MixedTypesError,
    SourceNotFoundError,
    UnknownColumnError,
    UnsupportedSourceError,
)
from evenload.kafka_plugin.sources.sample_order import written_order
from evenload.kafka_plugin.sources.sample_schema import class_names_of
from evenload.kafka_plugin.sources.source import Source, open_source

SAMPLES = pa.table({"n": range(100), "text": [f"sample {n}" for n in range(100)]})


def rows(source: Source, seed: int | None = None) -> list[dict[str, Any]]:
    return [row for batch in source.batches(samples_per_batch=7, seed=seed) for row in batch.to_pylist()]


def save(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=33)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".arrows":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)
    else:
        compression = "lz4" if path.suffix == ".feather" else None
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=9)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.arrow", "a.arrows", "a.feather"])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 100])
def test_every_format_gives_the_same_samples(tmp_path: Path, name: str, memory_bytes: int) -> None:
    source = open_source(save(SAMPLES, tmp_path / name), memory_bytes=memory_bytes)
    assert (source.num_samples, source.features) == (100, {"n": "int64", "text": "string"})
    assert rows(source) == SAMPLES.to_pylist()
    assert rows(source, seed=5) == SAMPLES.take(written_order(100, 5)).to_pylist()


def test_batches_from_any_start_are_the_same_remainder_with_the_same_borders(tmp_path: Path) -> None:
    source = open_source(save(SAMPLES, tmp_path / "a.parquet"), memory_bytes=100)
    whole = rows(source, seed=3)
    for start in range(101):
        batches = list(source.batches(start, samples_per_batch=7, seed=3))
        assert [row for batch in batches for row in batch.to_pylist()] == whole[start:]
        ends = start + np.cumsum([batch.num_rows for batch in batches])
        assert all(end % 7 == 0 or end == 100 for end in ends.tolist())


def test_a_start_beyond_the_end_is_refused(tmp_path: Path) -> None:
    source = open_source(save(SAMPLES, tmp_path / "a.csv"))
    with pytest.raises(ValueError, match="start_sample is 101, must be from 0 to 100"):
        next(source.batches(101, samples_per_batch=1, seed=0))


def test_files_are_one_after_the_other_as_given(tmp_path: Path) -> None:
    first = save(SAMPLES.slice(0, 40), tmp_path / "b.parquet")
    second = save(SAMPLES.slice(40), tmp_path / "a.csv")
    assert rows(open_source([first, second])) == SAMPLES.to_pylist()


def test_a_folder_of_files_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    save(SAMPLES.slice(40), tmp_path / "part-1.parquet")
    save(SAMPLES.slice(0, 40), tmp_path / "part-0.parquet")
    (tmp_path / ".part-2.parquet").write_bytes(b"half written by somebody")
    assert rows(open_source(tmp_path)) == SAMPLES.to_pylist()


def test_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    first = save(SAMPLES, tmp_path / "a.csv")
    second = save(SAMPLES.select(["text", "n"]), tmp_path / "b.csv")
    assert rows(open_source([first, second])) == SAMPLES.to_pylist() * 2


def test_mixed_types_between_files_are_refused_with_both_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nfine,1\n")
    (tmp_path / "b.csv").write_text("text,label\nbad,no\n")
    for one, other in (("a", "b"), ("b", "a")):
        paths = [tmp_path / f"{one}.csv", tmp_path / f"{other}.csv"]
        with pytest.raises(MixedTypesError, match="'label' is") as caught:
            open_source(paths)
        assert {caught.value.type_here, caught.value.type_there} == {"int64", "string"}
        assert (caught.value.path, caught.value.other_path) == (str(paths[1]), str(paths[0]))


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    first = save(SAMPLES, tmp_path / "a.csv")
    second = save(SAMPLES.select(["n"]), tmp_path / "b.parquet")
    for paths in ([first, second], [second, first]):
        with pytest.raises(MixedTypesError, match="column 'text' is"):
            open_source(paths)


def test_whole_numbers_in_one_text_file_and_decimals_in_another_are_decimals(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n900719925474099\n")
    (tmp_path / "b.csv").write_text("x\n0.5\n")
    values = [row["x"] for row in rows(open_source([tmp_path / "a.csv", tmp_path / "b.csv"]))]
    assert values == [1.0, 900719925474099.0, 0.5]


@pytest.mark.parametrize(
    ("blank", "full"), [("text,n\na,\n", "text,n\nb,7\n"), ('{"text": "a", "n": null}\n', None)]
)
def test_a_column_without_a_value_in_one_file_has_the_type_of_the_other(
    tmp_path: Path, blank: str, full: str | None
) -> None:
    (tmp_path / ("a.csv" if full else "a.jsonl")).write_text(blank)
    (tmp_path / "b.csv").write_text(full or "text,n\nb,7\n")
    for paths in (sorted(tmp_path.iterdir()), sorted(tmp_path.iterdir(), reverse=True)):
        source = open_source(paths)
        assert source.features == {"text": "string", "n": "int64"}
        assert sorted(rows(source), key=str) == [{"text": "a", "n": None}, {"text": "b", "n": 7}]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    twins = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    path = save(twins, tmp_path / name)
    for columns in (None, ["x"]):
        with pytest.raises(MalformedSourceError, match=rf"{name}': it has 2 columns named 'x'"):
            open_source(path, columns)
    assert rows(open_source(path, ["y"])) == [{"y": 3}]


def test_types_that_files_declare_are_never_changed(tmp_path: Path) -> None:
    whole = save(pa.table({"x": [1]}), tmp_path / "a.parquet")
    decimal = save(pa.table({"x": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(MixedTypesError, match=r"'x' is double, but in .* it is int64"):
        open_source([whole, decimal])


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    here = open_source(save(SAMPLES, tmp_path / "a.csv"))
    there = open_source(save(SAMPLES, tmp_path / "b.csv"))
    other = open_source(save(SAMPLES.slice(1), tmp_path / "c.csv"))
    part = open_source(tmp_path / "a.csv", ["n"])
    assert here.fingerprint == there.fingerprint == here.description["fingerprint"]
    assert len({here.fingerprint, other.fingerprint, part.fingerprint}) == 3
    swapped = open_source([tmp_path / "c.csv", tmp_path / "a.csv"]).fingerprint
    assert swapped != open_source([tmp_path / "a.csv", tmp_path / "c.csv"]).fingerprint


@pytest.mark.parametrize(
    ("name", "content", "error", "sentence"),
    [
        (None, b"", SourceNotFoundError, r"There is no file or folder .*a\.csv"),
        ("a.parquet", b"", EmptySourceError, r"a\.parquet' is empty"),
        ("a.parquet", b"PAR1 but no more", MalformedSourceError, "can't be read as Parquet"),
        ("a.arrow", b"ARROW? no.", MalformedSourceError, "can't be read as Arrow"),
        ("a.xlsx", b"PK", UnsupportedSourceError, r"of no kind that can be read \(\.csv, "),
        ("state.json", b"[]", MalformedSourceError, "not as `datasets` writes it"),
    ],
)
def test_what_cant_be_read_is_refused_in_a_sentence(
    tmp_path: Path, name: str | None, content: bytes, error: type[Exception], sentence: str
) -> None:
    path = tmp_path / (name or "a.csv")
    if name:
        path.write_bytes(content)
    with pytest.raises(error, match=sentence):
        open_source(tmp_path if name == "state.json" else path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptySourceError, match="a folder without a file that can be read"):
        open_source(tmp_path)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptySourceError, match="has no rows"):
        open_source(save(SAMPLES.slice(0, 0), tmp_path / "a.parquet"))


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    for path in (save(SAMPLES, tmp_path / "a.parquet"), save(SAMPLES, tmp_path / "a.arrow")):
        with pytest.raises(UnknownColumnError, match="no column 'label'; its columns are 'n', 'text'"):
            open_source(path, ["label"])
        assert rows(open_source(path, ["text"])) == SAMPLES.select(["text"]).to_pylist()


def image_folder(folder: Path) -> Path:
    for number, name in enumerate(["cat/2.png", "cat/1.png", "dog/deep/1.png"]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    (folder / "cat" / ".DS_Store").write_bytes(b"x")
    return folder


def test_a_folder_of_images_becomes_images_and_labels(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets")
    source = open_source(folder)
    assert source.features == {"image": "image", "label": "class label: cat, dog"}
    assert class_names_of(source.schema.field("label")) == ["cat", "dog"]
    assert source.num_bytes > sum(path.stat().st_size for path in folder.rglob("*.png"))
    samples = rows(source)
    assert [(row["image"]["path"], row["label"]) for row in samples] == [
        ("cat/1.png", 0),
        ("cat/2.png", 0),
        ("dog/deep/1.png", 1),
    ]
    assert all(row["image"]["bytes"] == (folder / row["image"]["path"]).read_bytes() for row in samples)
    assert [row["label"] for row in rows(open_source(folder, ["label"]))] == [0, 0, 1]


def test_a_flat_folder_of_images_has_no_labels(tmp_path: Path) -> None:
    Image.new("L", (2, 2)).save(tmp_path / "1.png")
    assert open_source(tmp_path).schema.names == ["image"]


def test_image_folders_that_would_lose_something_are_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets")
    (folder / "metadata.csv").write_text("file_name,text\n")
    with pytest.raises(UnsupportedSourceError, match=r"metadata\.csv' would be ignored"):
        open_source(folder)
    (folder / "metadata.csv").unlink()
    (folder / "bird").mkdir()
    with pytest.raises(EmptySourceError, match="bird' has no image in it"):
        open_source(folder)
    (folder / "bird").rmdir()
    Image.new("L", (2, 2)).save(folder / "stray.png")
    with pytest.raises(UnsupportedSourceError, match=r"images \(stray.png\) beside folders \(cat\)"):
        open_source(folder)


def test_an_image_of_no_bytes_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets")
    (folder / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(EmptySourceError, match=r"cat/1\.png' is an image of no bytes"):
        open_source(folder)


def test_an_image_that_vanishes_while_loading_is_named(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets")
    source = open_source(folder)
    (folder / "cat" / "1.png").unlink()
    with pytest.raises(MalformedSourceError, match=r"cat/1\.png': the image can't be read"):
        rows(source)


def test_arrays_become_columns_and_tensors() -> None:
    pixels: npt.NDArray[np.uint8] = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    source = open_source(
        {
            "pixels": np.asfortranarray(pixels),
            "mask": pixels % 2 == 0,
            "label": np.arange(5, dtype=">i4"),
            "word": np.array(["a", "", "ü", "d", "e"]),
            "list": [[1], [], [2, 3], None, [4]],
        }
    )
    assert source.features == {
        "pixels": "uint8[2, 3]",
        "mask": "uint8[2, 3]",
        "label": "int32",
        "word": "string",
        "list": "list<item: int64>",
    }
    (batch,) = source.batches(samples_per_batch=10, seed=2)
    order = written_order(5, 2)
    assert (batch.column("pixels").to_numpy_ndarray() == pixels[order]).all()
    assert (batch.column("mask").to_numpy_ndarray() == (pixels % 2 == 0)[order]).all()
    assert batch.column("label").to_pylist() == order.tolist()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, "'a' has 3, 'b' has 4"),
        ({"a": np.array(3)}, r"'a' has the shape \(\)"),
        ({"a": np.zeros((0, 3))}, r"'a' has the shape \(0, 3\)"),
        ({"a": np.array([1, "x", None], dtype=object)}, "'a' .* can't be loaded"),
        ({"a": np.zeros((2, 2), dtype="<U1")}, "'a' .* can't be loaded"),
        ({"a": np.zeros(2, dtype=complex)}, "'a' .* can't be loaded"),
    ],
)
def test_arrays_that_are_no_samples_are_refused(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MalformedSourceError, match=sentence):
        open_source(arrays)


def test_no_arrays_at_all_are_refused() -> None:
    with pytest.raises(EmptySourceError, match="has no columns"):
        open_source({})
    with pytest.raises(UnsupportedSourceError, match="int' can't be loaded; a path"):
        open_source(3)


def test_two_mappings_with_the_same_arrays_have_the_same_fingerprint() -> None:
    first = open_source({"a": np.arange(10)}).fingerprint
    assert first == open_source({"a": np.arange(10)}).fingerprint
    assert first != open_source({"a": np.arange(10)[::-1]}).fingerprint
    assert first != open_source({"b": np.arange(10)}).fingerprint


def test_cifar_is_images_and_labels(shared_test_data: Path) -> None:
    source = open_source(shared_test_data / "cifar10" / "test.parquet")
    assert source.num_samples == 4000
    assert source.features == {"image": "image", "label": "int64"}
    first = next(source.batches(samples_per_batch=2, seed=0)).to_pylist()[0]
    assert first["image"]["bytes"].startswith(b"\xff\xd8")
