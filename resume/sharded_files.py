"""Sharded tensors in a checkpoint: every rank writes its part, and reads the part that it has later.

Who writes and who reads what is planned by torch.distributed.checkpoint, for any mesh and number of ranks;
the files are ours (shard_index.py).

Invariants, checked in tests/unit/resume/test_sharded_files.py and tests/fault/resume/test_sharded_state.py:
1. What is read is what was written, into any mesh; a piece that is not is refused.
2. Where one rank fails, all ranks have an error.

Imported only where something is sharded: torch's part takes a second.

Read next: checkpoint_writer.py and beginning.py, which call this.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
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
from evenload.resume.errors import CheckpointUnreadableError, InvalidCheckpointError, RunError
from evenload.resume.peers import Peers
from evenload.resume.shard_index import SHARD_INDEX_NAME, Piece, PiecewiseTensor, ShardIndex, dtype_name
from evenload.resume.state_copy import bytes_of
from evenload.resume.storage import FileRecord, HashingWriter, checksum_of

__all__ = ["read_shards", "write_shards"]


def write_shards(
    store: CheckpointStore, folder: str, shards: Mapping[str, torch.Tensor], peers: Peers
) -> dict[str, FileRecord]:
    """Write sharded tensors into a checkpoint that does not count yet; all ranks, in the background.

    Args:
        shards: By where they are in the run's state; the same names, shapes and dtypes on every rank.

    Returns:
        On rank 0 what all ranks have written, by file; nothing on the others.

    Raises:
        OSError: Some rank could not write its part; on every rank.
    """
    dims = {path: _shard_dims(tensor) for path, tensor in shards.items()}
    writer = _Writer(store, folder, dims, rank=peers.rank)
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
    shards: Mapping[str, PiecewiseTensor],
    targets: Mapping[str, torch.Tensor],
    peers: Peers,
) -> None:
    """Fill tensors from a checkpoint's pieces; all ranks, on the thread that trains.

    Args:
        shards: All of the checkpoint, as its index of shards says.
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
                storage_reader=_Reader(store, checkpoint, shards),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=peers.control_group,
                no_dist=not dist.is_initialized(),
            )
        except CheckpointException as error:
            rank = min(error.failures)
            reason, _ = error.failures[rank]
            host = reason.host if isinstance(reason, _FailedError) else "its machine"
            raise CheckpointUnreadableError(
                store.place(checkpoint.folder), rank=rank, host=host, reason=_text(reason)
            ) from error


class _FailedError(Exception):
    """What went wrong on one rank, as a sentence: other errors may not reach the other ranks."""

    def __init__(self, text: str, host: str) -> None:
        super().__init__(text, host)
        self.text = text
        self.host = host

    @classmethod
    def of(cls, error: Exception) -> _FailedError:
        reason = getattr(error, "reason", "") or str(error) or type(error).__name__
        return cls(reason, socket.gethostname())


class _Writer(StorageWriter):
    """Writes what torch has planned for one rank."""

    def __init__(
        self, store: CheckpointStore, folder: str, dims: Mapping[str, tuple[int | None, ...]], *, rank: int
    ) -> None:
        self._store = store
        self._dims = dims
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
                content = bytes_of(tensor)
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

        try:
            record = self._store.write_file(self._folder, self._file, write) if plan.items else None
        except (OSError, RunError, RuntimeError) as error:
            raise _FailedError.of(error) from error
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
        self._require_shared()
        tensors = {}
        for path, said in metadata.state_dict_metadata.items():
            assert isinstance(said, TensorStorageMetadata), "shards are tensors"
            tensors[path] = PiecewiseTensor(
                shape=tuple(said.size),
                dtype=dtype_name(said.properties.dtype),
                shard_dims=self._dims[path],
                pieces=tuple(pieces[path]),
            )
        content = ShardIndex(tensors=tensors).model_dump_json().encode()
        ShardIndex.from_json(content, self.files)  # what couldn't be read again doesn't count

        def write(sink: HashingWriter) -> None:
            sink.write(content)

        self.files[SHARD_INDEX_NAME] = self._store.write_file(self._folder, SHARD_INDEX_NAME, write)

    def _require_shared(self) -> None:
        """Or the checkpoint would count, and nobody could load it."""
        for name, record in self.files.items():
            if self._store.size_of(self._folder, name) != record.size_bytes:
                raise OSError(
                    f"rank 0 doesn't find {name} as another rank has written it: ranks on several machines "
                    "need a storage that all of them share"
                )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        del checkpoint_id
        return False  # a folder's name alone doesn't make one of these


class _Reader(StorageReader):
    """Reads what torch has planned for one rank."""

    def __init__(
        self, store: CheckpointStore, checkpoint: Checkpoint, shards: Mapping[str, PiecewiseTensor]
    ) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._shards = shards
        self._pieces = {
            MetadataIndex(path, piece.offsets): piece
            for path, tensor in shards.items()
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
                for path, tensor in self._shards.items()
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
            try:
                tensor = self._read(request.storage_index)
            except (OSError, RunError) as error:
                raise _FailedError.of(error) from error
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
        piece, dtype = self._pieces[where], self._shards[where.fqn].torch_dtype
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


def _shard_dims(tensor: Any) -> tuple[int | None, ...]:
    return tuple(
        placement.dim if placement.is_shard() else None for placement in getattr(tensor, "placements", ())
    )


def _sentence(error: CheckpointException) -> str:
    """What went wrong on the first rank where anything did."""
    rank = min(error.failures)
    return f"rank {rank}: {_text(error.failures[rank][0])}"


def _text(error: BaseException) -> str:
    return error.text if isinstance(error, _FailedError) else str(error) or type(error).__name__
