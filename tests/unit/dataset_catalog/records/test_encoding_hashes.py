from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from evenload.dataset_catalog.errors import UnsupportedTypeError
from evenload.dataset_catalog.records.encoding import add_checksum, format_checksum, sample_hashes

# Manifests hold sums of these: a change here makes datasets that were loaded earlier fail to verify.
GOLDEN = {
    "i": ["f756bb3ba9f3400473411b368855924b", "3235aee7bf7979c3a6d87fa38aa71bcd"],
    "f": ["0626416d81bb5f6ca67e497e050cb471", "68dcadb98fa0fb9fd69c81a825e5f2d5"],
    "b": ["7eac76e8cf9de466bb195853b9b3284f", "14f2b009264c65de383303fc48731958"],
    "s": ["98c984b06b63c5ea9c773f6a36687d5c", "e795ed72e6844d425ca059d68b9a67ca"],
    "l": ["4e015801f7fdeaa3ff40f9b8b151e14e", "56c564f665bc9f86458ec63bd245cc56"],
    "t": ["561dddb1d1b33b24be83579c88940cf9", "3fbfd3a72f70fcac8fd493338930418e"],
    "n": ["1c1cb5786c570f0392b8551b46d102a5", "1f0019b8e67e61e6fb3b80cae426f693"],
    "st": ["3f797e1fdc3256585c19755be262d2a5", "d3d4bad791ebafa2fe54f19050b50db2"],
    "m": ["82bd1d29ef720d1321f268cf67296104", "3bb3c4b8728c54cfe343f40cd59ad2b8"],
    "d": ["74330e5e1511820b62b034eb9c269a31", "87ba83dceae6494489446bba91746853"],
    "u": ["340ec5a59e0e5c073c9423f072524afb", "d100484c68d90058b76fe839b0a7716d"],
    "z": ["220535647e15eed2defd6cb255a5f79d", "220535647e15eed2defd6cb255a5f79d"],
}


def _golden_batch() -> pa.RecordBatch:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    return pa.RecordBatch.from_pydict(
        {
            "i": pa.array([1, None], pa.int32()),
            "f": pa.array([0.5, -0.0]),
            "b": pa.array([True, False]),
            "s": pa.array(["grün", ""]),
            "l": pa.array([[1, None, 3], []], pa.list_(pa.int16())),
            "t": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
            "n": pa.array([[["a"], None], None], pa.list_(pa.list_(pa.string()))),
            "st": pa.array(
                [{"x": 1, "y": b"\x00"}, None], pa.struct([("x", pa.uint8()), ("y", pa.binary())])
            ),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "d": pa.array(["1.5", None], pa.string()).cast(pa.decimal128(5, 2)),
            "u": pa.array([datetime.datetime(2020, 1, 1), None], pa.timestamp("us")),
            "z": pa.nulls(2),
        }
    )


def _hex(batch: pa.RecordBatch) -> list[str]:
    return [f"{high:016x}{low:016x}" for low, high in sample_hashes(batch).tolist()]


@pytest.mark.parametrize("column", GOLDEN)
def test_hashes_never_change(column: str) -> None:
    assert _hex(_golden_batch().select([column])) == GOLDEN[column]


def test_the_checksum_of_all_columns_never_changes() -> None:
    total = add_checksum(0, sample_hashes(_golden_batch()))
    assert format_checksum(total) == "564d44c5534e2c5c505067cde8e1bd57"


def _reference_mix(bits: int) -> int:
    bits ^= bits >> 30
    bits = bits * 0xBF58476D1CE4E5B9 % 2**64
    bits ^= bits >> 27
    bits = bits * 0x94D049BB133111EB % 2**64
    return bits ^ bits >> 31


def test_a_row_hashes_as_the_rules_say_when_they_are_followed_by_hand() -> None:
    lanes = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
    batch = pa.RecordBatch.from_pydict({"label": pa.array([7]), "text": pa.array(["abc"])})
    words = xxhash.xxh3_128_intdigest(b"abc")
    columns = {
        "label": [_reference_mix(7 ^ lane) for lane in lanes],
        "text": [words % 2**64, words >> 64],
    }
    for lane, start in enumerate(lanes):
        state = start
        for name, hashes in columns.items():
            salt = xxhash.xxh3_128_intdigest(name.encode()) >> (64 * lane) & (2**64 - 1)
            state = _reference_mix((state * 0x9FB21C651E98DF25 + _reference_mix(hashes[lane] ^ salt)) % 2**64)
        assert sample_hashes(batch)[0, lane] == state


def test_splitmix_agrees_with_published_values() -> None:
    # The first outputs of SplittableRandom / splitmix64.c for seed 1234567.
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        outputs.append(_reference_mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_names_and_order_of_columns_count() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    others = [batch.rename_columns(["b", "a"]), batch.select(["b", "a"]), batch.select(["a"])]
    assert len({_hex(each)[0] for each in [batch, *others]}) == 4


def test_what_lies_under_a_null_does_not_count() -> None:
    valid = pa.py_buffer(b"\x05")
    one = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(np.array([1, 2, 3], np.int32))])
    two = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(np.array([1, 9, 3], np.int32))])
    for wrap in (lambda array: array, lambda array: pa.FixedSizeListArray.from_arrays(array, 3)):
        hashes = [_hex(pa.RecordBatch.from_arrays([wrap(array)], ["c"])) for array in (one, two)]
        assert hashes[0] == hashes[1]


def test_null_empty_and_zero_are_three_things() -> None:
    for items, kind in (
        ([None, "", "\x00"], pa.string()),
        ([None, [], [None], [0], [[]]][:4], pa.list_(pa.int8())),
        ([None, [], [None], [""], ["", ""]], pa.list_(pa.string())),
        ([None, {"a": None}, {"a": 0}], pa.struct([("a", pa.int8())])),
    ):
        hashes = _hex(pa.RecordBatch.from_arrays([pa.array(items, kind)], ["c"]))
        assert len(set(hashes)) == len(items)


def test_the_checksum_wraps_at_two_to_the_128() -> None:
    most = np.full((3, 2), 2**64 - 1, np.uint64)
    assert add_checksum(5, most) == (5 + 3 * (2**128 - 1)) % 2**128
    assert add_checksum(7, np.empty((0, 2), np.uint64)) == 7


def test_a_union_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    with pytest.raises(UnsupportedTypeError, match=r"column 'u' .* unions"):
        sample_hashes(pa.RecordBatch.from_arrays([union], ["u"]))


def test_images_are_hashed_without_a_loop_over_them(
    count_lines: Callable[[Callable[[], object]], int],
) -> None:
    def images(rows: int) -> pa.RecordBatch:
        pixels = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        images = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
        return pa.RecordBatch.from_arrays([images, pa.array(np.arange(rows))], ["image", "label"])

    few, many = images(20), images(20_000)
    sample_hashes(few)  # what is done once is done
    assert count_lines(lambda: sample_hashes(many)) < 2 * count_lines(lambda: sample_hashes(few))
    assert len(np.unique(sample_hashes(many), axis=0)) == 20_000
