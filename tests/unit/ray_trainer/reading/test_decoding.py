"""Each kind of column becomes what the documentation says, wherever in memory its rows lie."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.records.encoding import decode_samples, encode_samples
from evenload.dataset_catalog.testing import make_manifest
from evenload.ray_trainer.reading.decoding import BatchDecoder, Decoded
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.gather import gather


def manifest_of(batch: pa.RecordBatch, **features: str) -> DatasetManifest:
    kinds = {field.name: str(field.type) for field in batch.schema}
    return make_manifest(batch, [], features=kinds | features, num_samples=0)


def decode(batches: list[pa.RecordBatch], places: list[tuple[int, int]], **options: Any) -> Decoded:
    """Rows (batch, row) of several batches, each as it would come out of a record."""
    features = options.pop("features", {})
    decoder = BatchDecoder(manifest_of(batches[0], **features), **options)
    blocks = decoder.no_blocks()
    slots = [
        blocks.put(decoder.open(decode_samples(encode_samples(batch), batch.schema))) for batch in batches
    ]
    slot = np.array([slots[batch] for batch, _ in places], dtype=np.int32)
    row = np.array([row for _, row in places], dtype=np.int64)
    try:
        return next(decoder.decode(blocks, slot, row, sizes=[len(places)]))
    finally:
        decoder.close()


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("arrow_type", "torch_type"),
    [
        (pa.uint8(), torch.uint8),
        (pa.int16(), torch.int16),
        (pa.int32(), torch.int32),
        (pa.int64(), torch.int64),
        (pa.uint32(), torch.uint32),
        (pa.float16(), torch.float16),
        (pa.float32(), torch.float32),
        (pa.float64(), torch.float64),
    ],
)
def test_numbers_become_a_tensor_of_their_type(arrow_type: pa.DataType, torch_type: torch.dtype) -> None:
    values = np.arange(6).astype(arrow_type.to_pandas_dtype())
    batches = [batch_of(x=pa.array(values, arrow_type)), batch_of(x=pa.array(values + 6, arrow_type))]
    (x,) = decode(batches, [(1, 5), (0, 0), (1, 0), (0, 3)]).values()
    assert isinstance(x, torch.Tensor)
    assert x.dtype == torch_type
    assert x.tolist() == [11, 0, 6, 3]


def test_bools_become_a_bool_tensor() -> None:
    values = [True, False, False, True, True] * 5
    (x,) = decode([batch_of(x=pa.array(values))], [(0, row) for row in range(25)]).values()
    assert isinstance(x, torch.Tensor)
    assert x.dtype == torch.bool
    assert x.tolist() == values


def test_times_become_their_integers() -> None:
    batch = batch_of(day=pa.array([19000, 19001], pa.date32()), at=pa.array([5, 10**15], pa.timestamp("us")))
    decoded = decode([batch], [(0, 1), (0, 0)])
    assert decoded["day"].tolist() == [19001, 19000]  # type: ignore[union-attr]
    assert decoded["at"].tolist() == [10**15, 5]  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 1000, (7, *shape)).astype(np.int32)
    batch = batch_of(x=pa.FixedShapeTensorArray.from_numpy_ndarray(values))
    (x,) = decode([batch.slice(2, 4)], [(0, 3), (0, 0)]).values()
    assert isinstance(x, torch.Tensor)
    assert np.array_equal(x.numpy(), values[[5, 2]])


def test_a_tensor_with_permuted_dimensions_is_seen_as_it_is_meant() -> None:
    kind = pa.fixed_shape_tensor(pa.uint8(), (3, 2), permutation=[1, 0])
    storage = pa.array([list(range(6)), list(range(6, 12))], kind.storage_type)
    array = pa.ExtensionArray.from_storage(kind, storage)
    (x,) = decode([batch_of(x=array)], [(0, 1)]).values()
    assert isinstance(x, torch.Tensor)
    assert np.array_equal(x.numpy()[0], array.to_numpy_ndarray()[1])


def test_lists_of_fixed_size_nest() -> None:
    kind = pa.list_(pa.list_(pa.bool_(), 2), 3)
    values = [[[True, False], [False, False], [True, True]], [[False, False], [True, False], [True, True]]]
    (x,) = decode([batch_of(x=pa.array(values, kind))], [(0, 1), (0, 0)]).values()
    assert isinstance(x, torch.Tensor)
    assert x.dtype == torch.bool
    assert x.tolist() == values[::-1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_become_a_list_with_none_for_null(kind: pa.DataType) -> None:
    batches = [
        batch_of(x=pa.array(["", "ä\nb", None], kind)),
        batch_of(x=pa.array(["x" * 5000, "日本"], kind)),
    ]
    (x,) = decode(batches, [(1, 1), (0, 2), (0, 0), (1, 0), (0, 1)]).values()
    assert x == ["日本", None, "", "x" * 5000, "ä\nb"]


def test_binary_becomes_a_list_of_bytes() -> None:
    (x,) = decode(
        [batch_of(x=pa.array([b"\x00\xff", b"", None], pa.binary()))], [(0, 0), (0, 2), (0, 1)]
    ).values()
    assert x == [b"\x00\xff", None, b""]


def test_lists_of_numbers_become_a_list_of_tensors() -> None:
    first = pa.array([[1, 2, 3], [], None, [4]], pa.list_(pa.int64()))
    second = pa.array([[-7, -8]], pa.list_(pa.int64()))
    (x,) = decode([batch_of(x=first), batch_of(x=second)], [(0, 3), (1, 0), (0, 1), (0, 2), (0, 0)]).values()
    assert isinstance(x, list)
    assert [None if each is None else each.tolist() for each in x] == [[4], [-7, -8], [], None, [1, 2, 3]]
    assert all(each is None or each.dtype == torch.int64 for each in x)


def test_anything_else_becomes_python_objects() -> None:
    values = [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]
    (x,) = decode([batch_of(x=pa.array(values))], [(0, 1), (0, 0)]).values()
    assert x == values[::-1]


def test_slices_of_larger_arrays_are_read_at_their_own_place() -> None:
    batch = batch_of(
        n=pa.array(range(100)),
        text=pa.array([str(n) for n in range(100)]),
        items=pa.array([list(range(n % 4)) for n in range(100)], pa.list_(pa.int32())),
        flag=pa.array([n % 3 == 0 for n in range(100)]),
    ).slice(37, 20)
    decoder = BatchDecoder(manifest_of(batch))
    blocks = decoder.no_blocks()
    slot = blocks.put(decoder.open(batch))  # not through a record: the slice itself
    (decoded,) = decoder.decode(blocks, np.full(20, slot), np.arange(20), sizes=[20])
    decoder.close()
    assert decoded["n"].tolist() == list(range(37, 57))  # type: ignore[union-attr]
    assert decoded["text"] == [str(n) for n in range(37, 57)]
    assert [each.tolist() for each in decoded["items"]] == [list(range(n % 4)) for n in range(37, 57)]
    assert decoded["flag"].tolist() == [n % 3 == 0 for n in range(37, 57)]  # type: ignore[union-attr]


def test_what_is_decoded_in_parts_is_what_is_decoded_at_once() -> None:
    batch = batch_of(
        n=pa.array(range(10)),
        nothing=pa.array([[]] * 10, pa.list_(pa.int32(), 0)),
        text=pa.array([None, *map(str, range(9))]),
        items=pa.array([None if n == 5 else list(range(n % 4)) for n in range(10)], pa.list_(pa.int32())),
        thing=pa.array([{"a": n} for n in range(10)]),
        image=pa.array([encoded_image((1 + n, 2), "L") for n in range(10)]),
    )
    decoder = BatchDecoder(manifest_of(batch, image="image"), has_transform=True)
    blocks = decoder.no_blocks()
    slot = np.full(10, blocks.put(decoder.open(batch)))
    row = np.random.default_rng(1).permutation(10)
    (whole,) = decoder.decode(blocks, slot, row, sizes=[10])
    sizes = [1, 4, 3, 2]
    parts = list(decoder.decode(blocks, slot, row, sizes=sizes))
    decoder.close()
    for name in batch.schema.names:
        assert [len(part[name]) for part in parts] == sizes
        joined = [entry for part in parts for entry in part[name]]
        for entry, expected in zip(joined, whole[name], strict=True):
            is_tensor = isinstance(expected, torch.Tensor)
            assert torch.equal(entry, expected) if is_tensor else entry == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None]),
        pa.array([True, None]),
        pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        pa.array([[1, None]], pa.list_(pa.int32(), 2)),
        pa.array([[1, None]], pa.list_(pa.int32())),
        pa.array([5, None], pa.timestamp("us")),
    ],
)
def test_a_null_where_a_tensor_is_to_be_names_the_column(array: pa.Array) -> None:
    with pytest.raises(UndecodableColumnError, match=r"column 'x'.*null"):
        decode([batch_of(x=array)], [(0, 0)])


def test_only_the_columns_asked_for_are_decoded_in_the_order_asked_for() -> None:
    batch = batch_of(a=pa.array([1]), b=pa.array([None], pa.int64()), c=pa.array(["x"]))
    assert list(decode([batch], [(0, 0)], names=["c", "a"])) == ["c", "a"]


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"\['z'\].*a, b"):
        BatchDecoder(manifest_of(batch_of(a=pa.array([1]), b=pa.array([1]))), names=["a", "z"])


def test_what_is_decoded_may_be_written_to_and_outlives_its_block() -> None:
    batch = batch_of(x=pa.array([1, 2, 3]), items=pa.array([[1], [2], [3]], pa.list_(pa.int64())))
    decoded = decode([batch], [(0, 0), (0, 2)])
    decoded["x"].add_(1)  # type: ignore[union-attr]
    decoded["items"][0].add_(1)
    assert decoded["x"].tolist() == [2, 4]  # type: ignore[union-attr]
    assert decoded["items"][0].tolist() == [2]


def encoded_image(size: tuple[int, int], mode: str, *, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind)
    return stream.getvalue()


def image_batch(*images: bytes | None) -> pa.RecordBatch:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return batch_of(image=pa.array([{"bytes": image, "path": None} for image in images], kind))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)])
def test_images_become_channels_rows_columns(mode: str, channels: int) -> None:
    image = encoded_image((5, 4), mode)
    (x,) = decode([image_batch(image, image)], [(0, 0), (0, 1)], features={"image": "image"}).values()
    assert isinstance(x, torch.Tensor)
    assert x.dtype == torch.uint8
    assert x.shape == (2, channels, 4, 5)
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("L" if channels == 1 else "RGB"))
    expected = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    assert np.array_equal(x[1].numpy(), expected)


def test_many_images_keep_their_order() -> None:
    images = [encoded_image((2 + n % 2, 3), "L") for n in range(50)]
    x = decode(
        [image_batch(*images)], [(0, n) for n in range(50)], features={"image": "image"}, has_transform=True
    )["image"]
    assert [each.shape for each in x] == [(1, 3, 2 + n % 2) for n in range(50)]


def test_images_of_different_sizes_need_a_transform() -> None:
    batch = image_batch(encoded_image((5, 4), "RGB"), encoded_image((6, 4), "RGB"))
    with pytest.raises(UndecodableColumnError, match=r"\[3, 4, 5\], \[3, 4, 6\].*transform"):
        decode([batch], [(0, 0), (0, 1)], features={"image": "image"})
    x = decode([batch], [(0, 0), (0, 1)], features={"image": "image"}, has_transform=True)["image"]
    assert isinstance(x, list)


@pytest.mark.parametrize("image", [b"no image", b"", encoded_image((40, 40), "RGB")[:200]])
def test_bytes_that_are_no_image_name_the_column(image: bytes) -> None:
    with pytest.raises(UndecodableColumnError, match="column 'image'"):
        decode([image_batch(image)], [(0, 0)], features={"image": "image"})


def test_images_of_sixteen_bits_are_refused_instead_of_ruined() -> None:
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40000, dtype=np.uint16)).save(stream, "PNG")
    with pytest.raises(UndecodableColumnError, match="8 bits"):
        decode([image_batch(stream.getvalue())], [(0, 0)], features={"image": "image"})


def test_colours_of_sixteen_bits_are_refused_though_pillow_would_cut_them() -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\0" + b"\x12\x34" * 3 * 4  # the filter's number, then four pixels
    pixels = zlib.compress(row * 4)
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    assert Image.open(io.BytesIO(png)).mode == "RGB"
    with pytest.raises(UndecodableColumnError, match="more than 8 bits a channel"):
        decode([image_batch(png)], [(0, 0)], features={"image": "image"})


def test_a_palette_with_transparent_colours_is_resolved_without_a_warning() -> None:
    stream = io.BytesIO()
    image = Image.new("P", (4, 4))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.save(stream, "PNG", transparency=b"\x00\xff")
    decoded = decode([image_batch(stream.getvalue())], [(0, 0)], features={"image": "image"})
    assert decoded["image"][0, :, 0, 0].tolist() == [255, 0, 0]


def test_a_missing_image_names_the_column() -> None:
    with pytest.raises(UndecodableColumnError, match=r"column 'image'.*null"):
        decode([image_batch(None)], [(0, 0)], features={"image": "image"})


def test_gathering_copies_rows_from_anywhere() -> None:
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 256, 1000, dtype=np.uint8) for _ in range(20)]
    places = [(int(random.integers(20)), int(random.integers(900))) for _ in range(300)]
    addresses = np.array([arrays[a].__array_interface__["data"][0] + at for a, at in places])
    gathered = gather(addresses, 100)
    assert all(
        np.array_equal(row, arrays[a][at : at + 100]) for row, (a, at) in zip(gathered, places, strict=True)
    )
    assert gather(addresses[:0], 100).shape == (0, 100)
    assert gathered.flags.writeable
    assert gathered.flags.c_contiguous
