"""What a checkpoint says of its sharded tensors: of which pieces each is made, and where they lie.

    shards-00003.bin    what rank 3 has written: the bytes of one piece after the other
    shards.json         a `ShardIndex`

Both are listed in the checkpoint's index as its other files are, so it is valid with all of them or not at
all. Torch's own file system writer says the same in a pickle, which runs whatever is in it when it is read.

Invariants, checked in tests/unit/resume/test_shard_index.py:
1. An index that is read speaks only of pieces within their files and tensors, of which each tensor is filled,
   each element once.

Read next: sharded_files.py, which writes and reads the pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from evenload.resume.storage import FileRecord

__all__ = ["SHARD_INDEX_NAME", "Piece", "PiecewiseTensor", "ShardIndex", "dtype_name"]

SHARD_INDEX_NAME: Final = "shards.json"

_DIMENSIONS_MAX: Final = 16
_CELLS_PER_PIECE_MAX: Final = 64


def dtype_name(dtype: torch.dtype) -> str:
    """As an index has it: float32, bfloat16, ..."""
    return str(dtype).removeprefix("torch.")


_DTYPES: Final = {dtype_name(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


class Piece(BaseModel):
    """A box of a tensor, in the bytes of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offsets: tuple[NonNegativeInt, ...] = Field(description="Where it begins in the tensor.")
    sizes: tuple[NonNegativeInt, ...]
    file: str
    start: NonNegativeInt = Field(description="Its first byte in the file.")
    checksum: str = Field(description="Of its bytes.")

    def size_bytes(self, dtype: torch.dtype) -> int:
        return math.prod(self.sizes) * dtype.itemsize


class PiecewiseTensor(BaseModel):
    """A tensor as its pieces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[NonNegativeInt, ...] = Field(max_length=_DIMENSIONS_MAX)
    dtype: str
    shard_dims: tuple[NonNegativeInt | None, ...] = Field(
        description="For each dimension of the mesh, along which of its own it was divided; None: none."
    )
    pieces: tuple[Piece, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def fact(self) -> str:
        """For people: shape and dtype."""
        return f"{list(self.shape)} {self.dtype}"


class ShardIndex(BaseModel):
    """What `shards.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensors: dict[str, PiecewiseTensor] = Field(description="By where each is in the run's state.")

    @classmethod
    def from_json(cls, text: bytes, files: Mapping[str, FileRecord]) -> ShardIndex:
        """
        Args:
            text: The file's content.
            files: Of the checkpoint, as its index lists them.

        Raises:
            ValueError: It is none, or speaks of what can't be; says what.
        """
        try:
            index = cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        for path, tensor in index.tensors.items():
            _check(path, tensor, files)
        return index


def _check(path: str, tensor: PiecewiseTensor, files: Mapping[str, FileRecord]) -> None:
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"{path} is of {tensor.dtype}, which is no type of a tensor")
    for piece in tensor.pieces:
        if len(piece.offsets) != len(tensor.shape) or len(piece.sizes) != len(tensor.shape):
            raise ValueError(f"a piece of {path} has other dimensions than {path}")
        if any(o + s > n for o, s, n in zip(piece.offsets, piece.sizes, tensor.shape, strict=True)):
            raise ValueError(f"a piece of {path} is not within it")
        record = files.get(piece.file)
        if record is None or piece.start + piece.size_bytes(tensor.torch_dtype) > record.size_bytes:
            raise ValueError(f"a piece of {path} is not within the file {piece.file}")
    if not _is_filled(tensor):
        raise ValueError(f"the pieces of {path} are not all of it, each part once")


def _is_filled(tensor: PiecewiseTensor) -> bool:
    """Whether each element is in exactly one piece: counted in the cells of the grid of their edges."""
    pieces = [piece for piece in tensor.pieces if math.prod(piece.sizes)]
    if not math.prod(tensor.shape):
        return True
    edges = [
        sorted({0, size, *(e for p in pieces for e in (p.offsets[d], p.offsets[d] + p.sizes[d]))})
        for d, size in enumerate(tensor.shape)
    ]
    num_cells = [len(each) - 1 for each in edges]
    if math.prod(num_cells) > _CELLS_PER_PIECE_MAX * (len(pieces) + 1):
        return False  # no way in which a mesh divides a tensor
    times = np.zeros(num_cells, np.int64)
    for piece in pieces:
        begins = [edge.index(offset) for edge, offset in zip(edges, piece.offsets, strict=True)]
        ends = [
            edge.index(offset + size)
            for edge, offset, size in zip(edges, piece.offsets, piece.sizes, strict=True)
        ]
        times[tuple(slice(begin, end) for begin, end in zip(begins, ends, strict=True))] += 1
    return bool((times == 1).all())
