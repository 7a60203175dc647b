"""Sharded tensors in a checkpoint: every rank writes its part, and reads the part that it has later.

Who writes and who reads what is planned by torch.distributed.checkpoint, for any mesh and number of ranks.
The files are ours: torch's own say where each part lies in a pickle, which runs whatever is in it when it is
read.

    shards-00003.bin    what rank 3 has written: the bytes of one piece after the other
    shards.json         of which pieces each tensor is made, and where they lie (`ShardIndex`)

Both are listed in the checkpoint's index as its other files are, so it is valid with all of them or not at
all.

Invariants, checked in tests/unit/resume/test_sharded_files.py and tests/fault/resume/test_sharded_state.py:
1. What is read is what was written, into any mesh. A piece that is not is refused, and so is one that lies
   outside of its file or of its tensor, and a tensor that its pieces don't fill.
2. Where one rank fails, all ranks have an error.

Read next: checkpoint_writer.py and beginning.py, which call this.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from evenload.resume.checkpoint import Checkpoint, CheckpointStore
from evenload.resume.errors import CheckpointUnreadableError, InvalidCheckpointError
from evenload.resume.peers import Peers
from evenload.resume.storage import FileRecord, HashingWriter, checksum_of

__all__ = ["SHARD_INDEX_NAME", "ShardIndex", "read_shards", "write_shards"]

SHARD_INDEX_NAME: Final = "shards.json"

_DTYPES: Final = {
    str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)
}


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

    shape: tuple[NonNegativeInt, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]


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


def write_shards(
    store: CheckpointStore, folder: str, shards: Mapping[str, torch.Tensor], peers: Peers
) -> dict[str, FileRecord]:
    """Write sharded tensors into a checkpoint that does not count yet; all ranks, in the background.

    Args:
        shards: By where they are in the run's state; the same names on every rank.

    Returns:
        On rank 0 what all ranks have written, by file; nothing on the others.

    Raises:
        OSError: Some rank could not write its part; on every rank.
    """
    writer = _Writer(store, folder, rank=peers.rank)
    try:
        save(
            dict(shards),
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=peers.background_group,
        )
    except CheckpointException as error:
        raise OSError(_sentence(error)) from error
    return writer.files


def read_shards(
    store: CheckpointStore,
    checkpoint: Checkpoint,
    index: ShardIndex,
    targets: Mapping[str, torch.Tensor],
    peers: Peers,
) -> None:
    """Fill tensors from a checkpoint's pieces; all ranks, on the thread that trains.

    Args:
        targets: By where they are in the run's state: sharded on any mesh, or whole. The same names on every
            rank, each in the shape and dtype that was saved.

    Raises:
        CheckpointUnreadableError: Some rank could not read its part; on every rank.
    """
    with warnings.catch_warnings():
        # Said of a process that is alone, which is no mistake.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(
                dict(targets),
                storage_reader=_Reader(store, checkpoint, index),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=peers.control_group,
                no_dist=not dist.is_initialized(),
            )
        except CheckpointException as error:
            rank = min(error.failures)
            raise CheckpointUnreadableError(
                store.place(checkpoint.folder), rank=rank, host="its machine", reason=_sentence(error)
            ) from error


class _Writer(StorageWriter):
    """Writes what torch has planned for one rank."""

    def __init__(self, store: CheckpointStore, folder: str, *, rank: int) -> None:
        self._store = store
        self._folder = folder
        self._file = f"shards-{rank:05d}.bin"
        self.files: dict[str, FileRecord] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        del is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        pieces: list[tuple[MetadataIndex, Piece]] = []

        def write(sink: HashingWriter) -> None:
            start = 0
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor), "shards are tensors"
                content = _bytes_of(tensor)
                offsets = item.index.offset or ()
                pieces.append(
                    (
                        item.index,
                        Piece(
                            offsets=tuple(offsets),
                            sizes=tuple(tensor.shape),
                            file=self._file,
                            start=start,
                            checksum=checksum_of(content).checksum,
                        ),
                    )
                )
                start += sink.write(content)

        record = self._store.write_file(self._folder, self._file, write) if plan.items else None
        written: Future[list[WriteResult]] = Future()
        written.set_result([WriteResult(index, 0, storage_data=(piece, record)) for index, piece in pieces])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0."""
        pieces: dict[str, list[Piece]] = {}
        for result in (each for of_rank in results for each in of_rank):
            piece, record = result.storage_data
            pieces.setdefault(result.index.fqn, []).append(piece)
            self.files[piece.file] = record
        tensors = {}
        for path, said in metadata.state_dict_metadata.items():
            assert isinstance(said, TensorStorageMetadata), "shards are tensors"
            dtype = str(said.properties.dtype).removeprefix("torch.")
            tensors[path] = PiecewiseTensor(shape=tuple(said.size), dtype=dtype, pieces=tuple(pieces[path]))
        content = ShardIndex(tensors=tensors).model_dump_json().encode()
        ShardIndex.from_json(content, self.files)  # what couldn't be read again doesn't count

        def write(sink: HashingWriter) -> None:
            sink.write(content)

        self.files[SHARD_INDEX_NAME] = self._store.write_file(self._folder, SHARD_INDEX_NAME, write)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        del checkpoint_id
        return False  # a folder's name alone doesn't make one of these


class _Reader(StorageReader):
    """Reads what torch has planned for one rank."""

    def __init__(self, store: CheckpointStore, checkpoint: Checkpoint, index: ShardIndex) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._index = index
        self._pieces = {
            MetadataIndex(path, piece.offsets): piece
            for path, tensor in index.tensors.items()
            for piece in tensor.pieces
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return Metadata(
            {
                path: TensorStorageMetadata(
                    properties=TensorProperties(dtype=tensor.torch_dtype),
                    size=torch.Size(tensor.shape),
                    chunks=[
                        ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
                        for piece in tensor.pieces
                    ],
                )
                for path, tensor in self._index.tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        del metadata, is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for request in plan.items:
            tensor = self._read(request.storage_index)
            for dimension, (offset, size) in enumerate(
                zip(request.storage_offsets, request.lengths, strict=True)
            ):
                tensor = tensor.narrow(dimension, offset, size)
            target = planner.resolve_tensor(request).detach()
            target.copy_(tensor)
            planner.commit_tensor(request, target)
        read: Future[None] = Future()
        read.set_result(None)
        return read

    def _read(self, where: MetadataIndex) -> torch.Tensor:
        """Raises:
        InvalidCheckpointError: It isn't what was written.
        StorageUnreadableError: The storage does not say.
        """
        piece, dtype = self._pieces[where], self._index.tensors[where.fqn].torch_dtype
        size_bytes = piece.size_bytes(dtype)
        content = self._store.read_range(self._checkpoint, piece.file, piece.start, size_bytes)
        if len(content) != size_bytes or checksum_of(content).checksum != piece.checksum:
            reason = f"its file {piece.file} doesn't hold what was written of {where.fqn}"
            raise InvalidCheckpointError(self._store.place(self._checkpoint.folder), reason)
        if not content:  # of which there can be no tensor
            return torch.empty(piece.sizes, dtype=dtype)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).reshape(piece.sizes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        del checkpoint_id
        return False


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
    if sum(math.prod(piece.sizes) for piece in tensor.pieces) != math.prod(tensor.shape):
        raise ValueError(f"the pieces of {path} are not all of it")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _sentence(error: CheckpointException) -> str:
    """What went wrong on the first rank where anything did."""
    rank = min(error.failures)
    reason, _ = error.failures[rank]
    return f"rank {rank}: {str(reason) or type(reason).__name__}"
