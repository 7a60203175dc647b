"""What a checkpoint can't hold is refused on every rank before the first step: two real gloo processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evenload.ray_trainer.training.audit import audit_run, covered_steps
from evenload.ray_trainer.training.books.loss_curve import read_curve
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.testing import rank_processes
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.storage import RunStorage

LOOPS = Path(__file__).with_name("training_state_loops.py")

SPREAD = {
    "fsdp": "model is a FullyShardedDataParallel",
    "zero": "optimizer is a ZeroRedundancyOptimizer",
    "in an object": "mine.all is a DTensor",
    "partial": "mine.sum is a DTensor",
}
SHARDED = ("fully_shard", "tensor_parallel", "ema", "nested")
DIFFERENT = {
    "shapes": "model.2.bias is [4] float32 on rank 0 and [5] float32 on rank 1",
    "dtypes": "model.0.weight is [8, 24] float32 on rank 0 and [8, 24] bfloat16 on rank 1",
    "names": "ema.module.0.bias is absent on rank 0 and [8] float32 on rank 1",
}


def run_on_two(folder: Path, function: str, **arguments: Any) -> None:
    """Both processes have to end by themselves, whatever a session told them."""
    options = {"storage": str(folder / "storage"), "logs": str(folder), **arguments}
    with rank_processes(LOOPS, function, options, world_size=2) as ranks:
        assert ranks.wait() == [0, 0]


def errors_of(folder: Path, name: str) -> list[dict[str, str]]:
    return [json.loads((folder / f"error-{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of every kind were made, one after the other; none of them may have written a checkpoint."""
    folder = tmp_path_factory.mktemp("made")
    run_on_two(folder, "refused_when_made", kinds=[*SPREAD, *DIFFERENT])
    assert CheckpointStore(RunStorage(folder / "storage", "r"), None).folders() == []
    return folder


@pytest.mark.parametrize("kind", SPREAD)
def test_state_that_cant_be_put_together_is_refused_in_a_sentence(made: Path, kind: str) -> None:
    for error in errors_of(made, kind):
        assert error["type"] == "ShardedStateError", error
        assert SPREAD[kind] in error["text"]
        assert "spread over ranks" in error["text"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each kind that can be kept, a run was trained, interrupted and gone on with."""
    folder = tmp_path_factory.mktemp("trained")
    run_on_two(folder, "trained_and_gone_on_with", kinds=SHARDED)
    return folder


@pytest.mark.parametrize("kind", SHARDED)
def test_sharded_state_is_kept_and_the_books_have_each_sample_once(trained: Path, kind: str) -> None:
    for error in errors_of(trained, kind):
        assert error["type"] == "", error["trace"]
    storage = RunStorage(trained / "storage", kind)
    report = audit_run(storage, read_run(storage), num_samples=40)
    assert report.exactly_once, report
    assert report.notes == ()


@pytest.mark.parametrize("kind", DIFFERENT)
def test_ranks_whose_state_differs_are_refused_with_the_values(made: Path, kind: str) -> None:
    for error in errors_of(made, kind):
        assert error["type"] == "RanksDifferError", error
        assert DIFFERENT[kind] in error["text"]


def test_however_a_model_is_shared_it_trains_as_one_alone_and_tells_the_same_losses(tmp_path: Path) -> None:
    for layout, world_size in (("whole", 1), ("fully_shard", 2), ("tensor_parallel", 2), ("both", 4)):
        options = {"layout": layout, "storage": str(tmp_path / "storage"), "logs": str(tmp_path)}
        with rank_processes(LOOPS, "trained_as", options, world_size=world_size) as ranks:
            assert ranks.wait() == [0] * world_size
        storage = RunStorage(tmp_path / "storage", layout)
        record = read_run(storage)
        assert audit_run(storage, record, num_samples=40).exactly_once
        step_ranges, _ = covered_steps(storage, record.run_id)
        state = torch.load(tmp_path / f"{layout}.pt", weights_only=True)
        losses = [each.loss for each in read_curve(storage, [steps for steps, _ in step_ranges])]
        if layout == "whole":
            expected, told = state, losses
        assert len(losses) == 5
        assert losses == pytest.approx(told, rel=1e-4)
        for name, each in state.items():
            assert torch.allclose(each, expected[name], atol=1e-5), (layout, name)


def test_what_would_be_trained_wrongly_is_refused(tmp_path: Path) -> None:
    run_on_two(tmp_path, "left_as_they_are")
    for name, said in (
        ("gradients", "nobody averages its gradients"),
        ("axis", "say along which axis"),
        ("axis of two", "say along which axis"),
        ("strangers", "it holds none of the model's parameters"),
        ("reader", "has a reader that reads part 0 of 1"),
    ):
        for error in errors_of(tmp_path, name):
            assert said in error["text"], error


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failed")
    run_on_two(folder, "without_a_state")
    return folder


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lookup", "KeyError: 'step'"),
        ("unpicklable", "UnpicklableError: mine is out of order"),
        ("silent", "RuntimeError"),
    ],
)
def test_every_rank_hears_that_the_state_of_one_can_not_be_had(
    failed: Path, name: str, reason: str, rank: int
) -> None:
    for error in errors_of(failed, f"{name}-{rank}"):
        assert error["type"] == "StateUnavailableError", error
        assert f"the state of mine can't be had on rank {rank}: {reason}. " in error["text"]


@pytest.mark.parametrize("rank", range(2))
def test_a_type_error_of_one_rank_that_does_not_pickle_reaches_every_rank(failed: Path, rank: int) -> None:
    for error in errors_of(failed, f"type-{rank}"):
        assert error["type"] == "TypeError", error
        assert "lock" in error["text"]


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("resume", "the state of mine can't be had on rank 1: KeyError: 'step'. "),
        ("checkpoint", "the state of mine can't be had on rank 0: UnpicklableError: mine is out of order. "),
    ],
)
def test_a_state_that_can_not_be_had_later_on_one_rank_ends_the_loop_on_all(
    failed: Path, when: str, said: str
) -> None:
    for error in errors_of(failed, when):
        assert error["type"] == "StateUnavailableError", error
        assert said in error["text"]


def test_a_whole_model_is_trained_and_its_sessions_leave_no_process_group_behind(tmp_path: Path) -> None:
    run_on_two(tmp_path, "groups_left")
    assert [error["text"] for error in errors_of(tmp_path, "trains")] == ["", ""]
    assert CheckpointStore(RunStorage(tmp_path / "storage", "r"), None).newest_valid().checkpoint is not None
    for rank in range(2):
        counts = json.loads((tmp_path / f"groups-{rank}.json").read_text())
        assert len(set(counts)) == 1, counts
