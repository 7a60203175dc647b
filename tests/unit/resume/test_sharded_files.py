"""Sharded tensors as files, on one rank: what is written comes back, and what was changed is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from evenload.resume.checkpoint import Checkpoint, CheckpointIndex, CheckpointStore
from evenload.resume.errors import CheckpointUnreadableError
from evenload.resume.peers import Peers
from evenload.resume.shard_index import SHARD_INDEX_NAME, PiecewiseTensor, ShardIndex
from evenload.resume.sharded_files import read_shards, write_shards
from evenload.resume.storage import RunStorage

FOLDER = "attempt-000001/checkpoint-000001-000000000001"
TENSORS = {
    "float32": torch.randn(5, 3),
    "bfloat16": torch.randn(4, 2).to(torch.bfloat16),
    "float8": torch.randn(4, 2).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "int64": torch.arange(7),
    "complex": torch.randn(3, dtype=torch.complex64),
    "not contiguous": torch.randn(3, 4).t(),
    "a number": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A world of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(RunStorage(tmp_path, "run", patience_s=0), None)


def sharded(tensor: torch.Tensor) -> DTensor:
    placement = Shard(0) if tensor.ndim else Replicate()
    return DTensor.from_local(tensor, init_device_mesh("cpu", (1,)), [placement])


def written(store: CheckpointStore, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    shards = {name: sharded(tensor) for name, tensor in tensors.items()}
    files = write_shards(store, FOLDER, shards, Peers())
    index = CheckpointIndex(
        run_id="r",
        attempt=1,
        step=1,
        epoch=0,
        samples_consumed=0,
        position={},
        identity={},
        world_size=1,
        torch_threads=1,
        files=files,
        created_at_s=0,
    )
    return store.finish(FOLDER, index)


def shards_of(store: CheckpointStore, checkpoint: Checkpoint) -> Mapping[str, PiecewiseTensor]:
    with store.open_file(checkpoint, SHARD_INDEX_NAME) as path:
        return ShardIndex.from_json(path.read_bytes(), checkpoint.index.files).tensors


@pytest.mark.parametrize("is_sharded", [True, False])
def test_what_is_read_is_what_was_written(store: CheckpointStore, *, is_sharded: bool) -> None:
    checkpoint = written(store, TENSORS)
    store.verify(checkpoint)
    targets = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    if is_sharded:
        targets = {name: sharded(target) for name, target in targets.items()}
    read_shards(store, checkpoint, shards_of(store, checkpoint), targets, Peers())
    for name, target in targets.items():
        found = target.full_tensor() if isinstance(target, DTensor) else target
        assert found.dtype == TENSORS[name].dtype
        assert torch.equal(found.reshape(-1).view(torch.uint8), _bytes(TENSORS[name])), name


def test_a_part_alone_can_be_read(store: CheckpointStore) -> None:
    checkpoint = written(store, TENSORS)
    target = torch.empty(5, 3)
    read_shards(store, checkpoint, shards_of(store, checkpoint), {"float32": target}, Peers())
    assert torch.equal(target, TENSORS["float32"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], "doesn't hold what was written of"),
        (lambda content: bytes([content[0] ^ 1]) + content[1:], "doesn't hold what was written of"),
        (None, "is missing"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    store: CheckpointStore, tmp_path: Path, damage: Callable[[bytes], bytes] | None, said: str
) -> None:
    checkpoint = written(store, {"float32": TENSORS["float32"]})
    shards = shards_of(store, checkpoint)
    path = tmp_path / "run" / FOLDER / "shards-00000.bin"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointUnreadableError, match=said):
        read_shards(store, checkpoint, shards, {"float32": torch.empty(5, 3)}, Peers())


def test_another_shape_and_a_name_that_isnt_there_are_refused(store: CheckpointStore) -> None:
    checkpoint = written(store, {"float32": TENSORS["float32"]})
    shards = shards_of(store, checkpoint)
    for targets in ({"float32": torch.empty(3, 5)}, {"other": torch.empty(5, 3)}):
        with pytest.raises(CheckpointUnreadableError):
            read_shards(store, checkpoint, shards, targets, Peers())


def test_a_storage_that_is_full_is_an_error_of_the_system(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")  # of a folder
    with pytest.raises(OSError, match="rank 0: "):
        write_shards(store, FOLDER, {"float32": sharded(TENSORS["float32"])}, Peers())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
