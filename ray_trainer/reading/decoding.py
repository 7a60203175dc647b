"""From rows of open blocks to what a training loop holds: tensors, or lists where tensors can't be.

A step takes a sample here and a sample there, from up to hundreds of blocks, so anything done per sample in
Python would cost more than the copying. When a block is opened, the address of its first row is noted for
each column; a column of fixed width is then gathered with one NumPy expression over (address, row).

What becomes of a column:

    numbers, bool, dates and times   Tensor [n]; dates and times as their integers
    fixed_shape_tensor, fixed lists  Tensor [n, *shape]
    string, binary                   list of str or bytes; None for null
    list of numbers                  list of Tensor; None for null
    image                            Tensor [n, C, H, W] uint8, or a list (see image_decoding.py)
    anything else                    list of Python objects, as Arrow gives them

A null has no tensor: in a column that becomes one it is refused when its block is opened.

Read next: columns.py (how each kind is read), gather.py (the copying).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evenload.dataset_catalog.foreign_content import reason_of
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.errors import ReadError
from evenload.ray_trainer.reading.columns import Column, OpenColumn, Rows, make_column
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.gather import gather

_Part = TypeVar("_Part")
Decoded = dict[str, torch.Tensor | list[Any]]


class OpenBlock(NamedTuple):
    """A block whose columns can be read; it keeps their memory alive.

    Attributes:
        columns: as the decoder has them.
        numbers: int64, the numbers that the records' headers give: of each record's first sample, or of each
            row; None where that is not kept.
        rows: [num_rows] int64, which row of the block as it was fetched each row is, where only a
            part of it is open.
    """

    columns: tuple[OpenColumn, ...]
    numbers: npt.NDArray[np.int64] | None = None
    rows: npt.NDArray[np.int64] | None = None


class OpenBlocks:
    """The blocks that are open, each in a slot; what a decoder takes rows from.

    Not thread-safe: block_cache.py guards it.
    """

    def __init__(self, num_columns: int) -> None:
        self.blocks: list[OpenBlock | None] = []
        # Of each column's first row; then of what is known of each block's samples: `numbers` and `rows`.
        self._address = np.zeros((num_columns + 2, 16), dtype=np.int64)
        self._free: list[int] = []

    def put(self, block: OpenBlock) -> int:
        """Keep a block; the slot that it got."""
        if not self._free:
            self._free.append(len(self.blocks))
            self.blocks.append(None)
            if len(self.blocks) > self._address.shape[1]:
                self._address = np.concatenate([self._address, np.zeros_like(self._address)], axis=1)
        slot = self._free.pop()
        self.blocks[slot] = block
        self._address[:, slot] = [
            *[column.address for column in block.columns],
            _address(block.numbers),
            _address(block.rows),
        ]
        return slot

    def remove(self, slot: int) -> None:
        """Let go of the block in a slot."""
        self.blocks[slot] = None
        self._free.append(slot)

    def rows(self, column: int, slot: npt.NDArray[np.integer[Any]], row: npt.NDArray[np.int64]) -> Rows:
        """Rows of one column: row[i] of the block in slot[i]."""
        return Rows(column=column, address=self._address[column], blocks=self.blocks, slot=slot, row=row)

    def numbers(self, slot: npt.NDArray[np.integer[Any]], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Entry at[i] of the `numbers` of the block in slot[i]; all of these blocks have some."""
        return _gather_int64(self._address[-2][slot], at)

    def rows_in_block(
        self, slot: npt.NDArray[np.integer[Any]], at: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Entry at[i] of the `rows` of the block in slot[i]; all of these blocks have some."""
        return _gather_int64(self._address[-1][slot], at)


class BatchDecoder:
    """Opens blocks, and decodes rows of open ones. For one thread at a time, except `open`. Close it.

    Args:
        manifest: of the dataset.
        names: the columns wanted, in this order; None: all.
        has_transform: a transform comes after, which can deal with images of different sizes.

    Raises:
        ValueError: no such column.
    """

    def __init__(
        self, manifest: DatasetManifest, *, names: Sequence[str] | None = None, has_transform: bool = False
    ) -> None:
        schema = manifest.arrow_schema
        self.names = tuple(schema.names if names is None else names)
        unknown = [name for name in self.names if name not in schema.names]
        if unknown or not self.names:
            raise ValueError(
                f"columns {unknown or 'asked for'} are not in dataset {manifest.id}, "
                f"which has {', '.join(schema.names)}"
            )
        self._columns: list[Column] = [
            make_column(
                schema.field(name),
                is_image=manifest.features.get(name) == "image",
                may_differ=has_transform,
            )
            for name in self.names
        ]

    @property
    def widths(self) -> tuple[int, ...]:
        """Of each column: bytes of a value, where values lie one after the other; else 0."""
        return tuple(column.width for column in self._columns)

    def no_blocks(self) -> OpenBlocks:
        """A place for blocks of this decoder."""
        return OpenBlocks(len(self._columns))

    def open(self, batch: pa.RecordBatch) -> OpenBlock:
        """Make a block's rows readable. Any thread may call.

        Raises:
            UndecodableColumnError: a null in a column that becomes a tensor, or what can't be opened at all.
        """
        opened = []
        for name, column in zip(self.names, self._columns, strict=True):
            try:
                opened.append(column.open(batch.column(name)))
            except UndecodableColumnError:
                raise
            except Exception as error:
                raise UndecodableColumnError(column=name, reason=reason_of(error)) from error
        return OpenBlock(tuple(opened))

    def decode(
        self,
        blocks: OpenBlocks,
        slot: npt.NDArray[np.integer[Any]],
        row: npt.NDArray[np.int64],
        *,
        sizes: Sequence[int],
    ) -> Iterator[Decoded]:
        """The samples at row[i] of the block in slot[i], in this order and in parts of these sizes.

        A part is decoded when it is asked for; looking up where everything lies is done for all at once.

        Raises:
            UndecodableColumnError: bytes that are no image, and the like.
        """
        by_column = [
            _refused(name, column.decode(blocks.rows(number, slot, row), sizes))
            for number, (name, column) in enumerate(zip(self.names, self._columns, strict=True))
        ]
        for part in zip(*by_column, strict=True):
            yield dict(zip(self.names, part, strict=True))

    def close(self) -> None:
        """End the threads that decode images."""
        for column in self._columns:
            column.close()


def _refused(column: str, parts: Iterator[_Part]) -> Iterator[_Part]:
    """The same; what goes wrong is said of the column. Values are foreign: text that is no UTF-8, a date that
    Python has no name for, and what nobody thought of."""
    try:
        yield from parts
    except ReadError:
        raise
    except Exception as error:
        raise UndecodableColumnError(column=column, reason=reason_of(error)) from error


def _address(array: npt.NDArray[np.int64] | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def _gather_int64(address: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return gather(address + 8 * at, 8).view(np.int64).reshape(-1)
