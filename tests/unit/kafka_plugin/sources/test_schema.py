"""Columns are brought to plain types without changing a value; what they mean stays with them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from evenload.kafka_plugin.errors import MalformedSourceError, UnsupportedSourceError
from evenload.kafka_plugin.sources.sample_schema import (
    class_names_of,
    plain_batch,
    plain_schema,
    readable_features,
)
from evenload.kafka_plugin.sources.source import open_source


def plain(table: pa.Table) -> pa.RecordBatch:
    schema = plain_schema(table.schema, "table")
    return plain_batch(table.combine_chunks().to_batches()[0], schema, "table")


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array([b"a", None], pa.large_binary()), pa.binary()),
        (pa.array([None, None], pa.null()), pa.string()),
        (pa.array([[1], None, [2, 3]], pa.large_list(pa.int8())), pa.list_(pa.int8())),
        (pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), pa.list_(pa.string())),
        (pa.array([{"x": "a"}], pa.struct({"x": pa.large_string()})), pa.struct({"x": pa.string()})),
        (pa.array([1, 2], pa.uint8()), pa.uint8()),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), pa.list_(pa.float32(), 2)),
    ],
)
def test_types_become_plain_and_values_stay(column: pa.Array, wanted: pa.DataType) -> None:
    batch = plain(pa.table({"c": column}))
    assert batch.schema.field("c").type == wanted
    assert batch.column("c").to_pylist() == column.to_pylist()


def test_a_type_that_arrow_casts_wrongly_is_refused() -> None:
    table = pa.table({"c": pa.array([[1], [2]], pa.list_view(pa.int8()))})
    with pytest.raises(UnsupportedSourceError, match="column 'c' of type list_view"):
        plain_schema(table.schema, "table")


def with_features(table: pa.Table, features: dict[str, object]) -> pa.Table:
    content = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": content})


def test_class_names_of_the_datasets_library_are_kept(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["no", "yes"]}}
    table = with_features(pa.table({"label": [0, 1]}), features)
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    assert class_names_of(source.schema.field("label")) == ["no", "yes"]
    # and a file that evenload's own schema was written to keeps them again
    pq.write_table(pa.table({"label": [0, 1]}, schema=source.schema), tmp_path / "b.parquet")
    assert readable_features(open_source(tmp_path / "b.parquet").schema) == {"label": "class label: no, yes"}


def test_nested_lists_that_are_arrays_become_tensors() -> None:
    features = {"x": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"}}
    values = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]
    column = pa.array(values, pa.list_(pa.list_(pa.float32())))
    tensors = plain(with_features(pa.table({"x": column}), features)).column("x")
    assert tensors.type.shape == [2, 3]
    assert tensors.to_numpy_ndarray().tolist() == values


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[[1, 2, 3], [4, 5]]], r"not all arrays have the shape \(2, 3\)"),
        ([[[1, 2, 3], [4, 5, 6]], None], "1 of 2 arrays are null"),
        ([[[1, 2, 3], [4, 5, None]]], "an array has null in it"),
    ],
)
def test_lists_that_are_no_arrays_of_their_shape_are_refused(values: list[object], reason: str) -> None:
    features = {"x": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"}}
    table = with_features(pa.table({"x": pa.array(values, pa.list_(pa.list_(pa.float32())))}), features)
    with pytest.raises(MalformedSourceError, match=reason):
        plain(table)


def test_a_dataset_of_the_datasets_library_comes_through(tmp_path: Path) -> None:
    import datasets

    png = io.BytesIO()
    Image.new("L", (2, 2)).save(png, "PNG")
    (tmp_path / "1.png").write_bytes(png.getvalue())
    features = datasets.Features(
        {
            "x": datasets.Array2D((1, 2), "float32"),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "image": datasets.Image(),
            "n": datasets.Value("int32"),
        }
    )
    rows = {
        "x": [np.full((1, 2), number, np.float32) for number in range(4)],
        "label": [0, 1, 1, 0],
        "image": [str(tmp_path / "1.png"), {"bytes": b"inline", "path": None}, None, str(tmp_path / "1.png")],
        "n": [0, 1, 2, 3],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    source = open_source(dataset)
    assert source.features == {
        "x": "float[1, 2]",
        "label": "class label: a, b",
        "image": "image",
        "n": "int32",
    }
    (batch,) = source.batches(samples_per_batch=10, seed=None)
    assert batch.column("x").to_numpy_ndarray().tolist() == [[[n, n]] for n in range(4)]
    images = batch.column("image").to_pylist()
    assert images[0] == {"bytes": png.getvalue(), "path": "1.png"}
    assert images[1] == {"bytes": b"inline", "path": None}
    assert images[2] is None or images[2]["bytes"] is None

    picked = open_source(dataset.select([3, 1]))
    (batch,) = picked.batches(samples_per_batch=10, seed=None)
    assert batch.column("n").to_pylist() == [3, 1]

    dataset.save_to_disk(tmp_path / "saved")
    saved = open_source(tmp_path / "saved")
    (batch,) = saved.batches(samples_per_batch=10, seed=None)
    assert batch.column("n").to_pylist() == [0, 1, 2, 3]
    assert saved.features == source.features

    splits = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(UnsupportedSourceError, match=r"several splits.*'train', 'test'"):
        open_source(splits)
    splits.save_to_disk(tmp_path / "splits")
    with pytest.raises(UnsupportedSourceError, match=r"several splits; load them one by one: .*/splits/test"):
        open_source(tmp_path / "splits")
