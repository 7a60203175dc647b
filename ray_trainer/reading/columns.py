"""How each kind of column is opened, and how its rows are read.

A column is opened once a block: nulls are looked for, odd layouts (bits for bool) are turned into bytes, and
the address of the first row is taken. Rows are then read many times, from many blocks at once.

Read next: gather.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.gather import gather, gather_parts
from evenload.ray_trainer.reading.image_decoding import ImageDecoder


class OpenColumn(NamedTuple):
    """One column of one block.

    Attributes:
        array: the column; it keeps the memory alive.
        address: of row 0's value; of row 0's offset, where values have different lengths.
        data: the bytes that offsets point into, where there are offsets.
    """

    array: Any
    address: int = 0
    data: memoryview | None = None


class _HasColumns(Protocol):
    @property
    def columns(self) -> tuple[OpenColumn, ...]: ...


class Rows(NamedTuple):
    """Rows of one column: row[i] of the block in slot[i].

    Attributes:
        column: number of the column in each block.
        address: [num_slots] int64, of each open block's column.
        blocks: by slot; None in slots that are free.
        slot, row: [n].
    """

    column: int
    address: npt.NDArray[np.int64]
    blocks: Sequence[_HasColumns | None]
    slot: npt.NDArray[np.integer[Any]]
    row: npt.NDArray[np.int64]

    def addresses(self, width: int) -> npt.NDArray[np.int64]:
        """Where each row's value lies, where values are `width` bytes each: [n]."""
        addresses: npt.NDArray[np.int64] = self.address[self.slot] + self.row * width
        return addresses

    def opened(self) -> Iterator[OpenColumn]:
        """Each row's column."""
        for slot in self.slot.tolist():
            block = self.blocks[slot]
            assert block is not None, "a row of a block that is not open"
            yield block.columns[self.column]


class Column(Protocol):
    """One kind of column.

    Attributes:
        width: bytes of a value, where an opened column is nothing but equally wide values at an address;
            else 0.
    """

    @property
    def width(self) -> int: ...

    def open(self, array: pa.Array) -> OpenColumn:
        """Any thread may call."""
        ...

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[torch.Tensor | list[Any]]:
        """One entry a row, in parts of these sizes; a part is decoded when it is asked for."""
        ...

    def close(self) -> None: ...


def make_column(of: pa.Field, *, is_image: bool, may_differ: bool) -> Column:
    """The way to read such a column.

    Args:
        is_image: it holds encoded images, as bytes or as a struct with `bytes`.
        may_differ: images of different sizes are no error.
    """
    name, kind = of.name, of.type
    if is_image:
        return ImageColumn(name, ImageDecoder(name, may_differ=may_differ))
    if (layout := FixedLayout.of(kind)) is not None:
        return FixedColumn(name, layout)
    if _is_bytes(kind) or _is_text(kind):
        return BytesColumn(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = FixedLayout.of(kind.value_type)
        if items is not None:
            return ListColumn(name, items, kind)
    return ObjectColumn()


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """A value of fixed width: its numbers' type and its shape.

    Attributes:
        dtype: of the numbers as they lie in memory once opened.
        shape: of one value; () for a number.
        permutation: the order of dimensions in which a value is to be seen; None: as it lies.
        is_bool: bits, to be spread to bytes.
        width: bytes of one value.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    permutation: tuple[int, ...] | None = None
    is_bool: bool = False
    width: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.dtype.itemsize * math.prod(self.shape))

    @classmethod
    def of(cls, kind: pa.DataType) -> FixedLayout | None:
        """None when the type has no fixed width that a tensor could hold."""
        if isinstance(kind, pa.FixedShapeTensorType):
            numbers = cls.of(kind.value_type)
            permutation = None if kind.permutation is None else tuple(kind.permutation)
            if permutation == tuple(range(len(kind.shape))):
                permutation = None
            return numbers and replace(numbers, shape=tuple(kind.shape), permutation=permutation)
        if pa.types.is_fixed_size_list(kind):
            items = cls.of(kind.value_type)
            return items and replace(items, shape=(kind.list_size, *items.shape))
        if pa.types.is_boolean(kind):
            return cls(np.dtype(np.uint8), is_bool=True)
        if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            return cls(np.dtype(f"i{kind.bit_width // 8}"))
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return cls(np.dtype(kind.to_pandas_dtype()))
        return None

    def numbers(self, array: pa.Array) -> tuple[pa.Array, int]:
        """All the numbers of an array of this layout, and where the first one lies.

        Raises:
            ValueError: with the number of nulls in it.
        """
        while isinstance(array, pa.ExtensionArray | pa.FixedSizeListArray):
            if array.null_count:
                raise ValueError(array.null_count)
            array = array.storage if isinstance(array, pa.ExtensionArray) else array.flatten()
        if array.null_count:
            raise ValueError(array.null_count)
        if self.is_bool:
            array = array.cast(pa.uint8())
        values = array.buffers()[1]
        address = 0 if values is None else values.address + array.offset * self.dtype.itemsize
        return array, address

    def tensor(self, values: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Values as gathered, [n, width], as a tensor [n, *shape]."""
        numbers = values.view(torch_dtype_of(self)).reshape(len(values), *self.shape)
        made = torch.from_numpy(numbers)
        if self.permutation is None:
            return made
        return made.permute(0, *(1 + dimension for dimension in self.permutation))


def torch_dtype_of(layout: FixedLayout) -> np.dtype[Any]:
    """NumPy's name of the tensor's type."""
    return np.dtype(np.bool_) if layout.is_bool else layout.dtype


class FixedColumn:
    """Numbers, and arrays of them with one shape."""

    def __init__(self, name: str, layout: FixedLayout) -> None:
        self._name = name
        self._layout = layout
        self.width = 0 if layout.is_bool else layout.width

    def open(self, array: pa.Array) -> OpenColumn:
        try:
            numbers, address = self._layout.numbers(array)
        except ValueError as error:
            raise _nulls(self._name, error) from None
        return OpenColumn(numbers, address)

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        width = self._layout.width
        return map(self._layout.tensor, gather_parts(rows.addresses(width), width, sizes))

    def close(self) -> None:
        pass


class BytesColumn:
    """Strings and binary, with their offsets."""

    width = 0

    def __init__(self, kind: pa.DataType) -> None:
        self._is_text = _is_text(kind)
        self._offset = _offset_dtype(kind)

    def open(self, array: pa.Array) -> OpenColumn:
        _, offsets, data = array.buffers()
        address = 0 if offsets is None else offsets.address + array.offset * self._offset.itemsize
        return OpenColumn(array, address, memoryview(data) if data is not None else memoryview(b""))

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[list[Any]]:
        views = self.views(rows)
        for size in sizes:
            part = islice(views, size)
            if self._is_text:
                yield [None if view is None else str(view, "utf-8") for view in part]
            else:
                yield [None if view is None else bytes(view) for view in part]

    def views(self, rows: Rows) -> Iterator[memoryview | None]:
        """Each row's bytes, not copied."""
        for opened, row, (start, stop) in zip(
            rows.opened(), rows.row.tolist(), _bounds(rows, self._offset), strict=True
        ):
            if opened.array.null_count and not opened.array[row].is_valid:
                yield None
            else:
                assert opened.data is not None
                yield opened.data[start:stop]

    def close(self) -> None:
        pass


class ListColumn:
    """Lists of numbers, of any length."""

    width = 0

    def __init__(self, name: str, items: FixedLayout, kind: pa.DataType) -> None:
        self._name = name
        self._items = items
        self._offset = _offset_dtype(kind)

    def open(self, array: pa.Array) -> OpenColumn:
        try:
            numbers, first = self._items.numbers(array.values)
        except ValueError as error:
            raise _nulls(self._name, error) from None
        offsets = array.buffers()[1]
        address = 0 if offsets is None else offsets.address + array.offset * self._offset.itemsize
        values = numbers.buffers()[1]
        data = memoryview(values)[first - values.address :] if values is not None else memoryview(b"")
        return OpenColumn(array, address, data)

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[list[torch.Tensor | None]]:
        lists = self._lists(rows)
        return (list(islice(lists, size)) for size in sizes)

    def _lists(self, rows: Rows) -> Iterator[torch.Tensor | None]:
        width = self._items.width
        for opened, row, (start, stop) in zip(
            rows.opened(), rows.row.tolist(), _bounds(rows, self._offset), strict=True
        ):
            if opened.array.null_count and not opened.array[row].is_valid:
                yield None
                continue
            assert opened.data is not None
            values = np.frombuffer(opened.data[start * width : stop * width], dtype=np.uint8)
            yield self._items.tensor(values.reshape(stop - start, width).copy())

    def close(self) -> None:
        pass


class ImageColumn:
    """Encoded images: bytes, or the `datasets` library's struct of bytes and path."""

    width = 0

    def __init__(self, name: str, decoder: ImageDecoder) -> None:
        self._name = name
        self._decoder = decoder
        self._bytes = BytesColumn(pa.binary())

    def open(self, array: pa.Array) -> OpenColumn:
        encoded = array
        if pa.types.is_struct(array.type):
            if array.null_count:
                raise _nulls(self._name, ValueError(array.null_count))
            encoded = array.field("bytes")
        if encoded.null_count:
            raise _nulls(self._name, ValueError(encoded.null_count))
        return self._bytes.open(encoded.cast(pa.binary()))

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        views = self._bytes.views(rows)
        for size in sizes:
            yield self._decoder.decode([view for view in islice(views, size) if view is not None])

    def close(self) -> None:
        self._decoder.close()


class ObjectColumn:
    """Whatever no other kind reads: Python objects, one by one; slow, but nothing is lost."""

    width = 0

    def open(self, array: pa.Array) -> OpenColumn:
        return OpenColumn(array)

    def decode(self, rows: Rows, sizes: Sequence[int]) -> Iterator[list[Any]]:
        values = (
            opened.array[row].as_py() for opened, row in zip(rows.opened(), rows.row.tolist(), strict=True)
        )
        return (list(islice(values, size)) for size in sizes)

    def close(self) -> None:
        pass


def _bounds(rows: Rows, offset: np.dtype[Any]) -> list[list[int]]:
    """Where each row's bytes begin and end: its own offset and the next one, which lies beside it."""
    width = offset.itemsize
    both = gather(rows.addresses(width), 2 * width)
    bounds: list[list[int]] = both.view(offset).tolist()
    return bounds


def _offset_dtype(kind: pa.DataType) -> np.dtype[Any]:
    is_large = (
        pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    )
    return np.dtype(np.int64 if is_large else np.int32)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _nulls(column: str, count: ValueError) -> UndecodableColumnError:
    return UndecodableColumnError(
        column=column,
        reason=f"{count} of its values in one block are null, and a tensor has no null; fill or drop them "
        "before loading the dataset, or leave the column out (columns=...)",
    )
