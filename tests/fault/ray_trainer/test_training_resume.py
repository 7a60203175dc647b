"""Ranks killed and started again, also in other numbers: the same model, the same samples, once each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from evenload.ray_trainer.training.audit import AuditReport, audit_run, covered_steps
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.testing import rank_processes
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.storage import RunStorage

LOOP = Path(__file__).with_name("training_loop.py")
NUM_SAMPLES = 211


def run_loop(folder: Path, *, world_size: int, expect: str = "success", **arguments: Any) -> None:
    folder.mkdir(exist_ok=True)
    options = {"storage": str(folder / "storage"), "logs": str(folder), **arguments}
    with rank_processes(LOOP, "train", options, world_size=world_size) as ranks:
        codes = ranks.wait()
    assert (codes == [0] * world_size) == (expect == "success"), codes


def audit_of(folder: Path) -> AuditReport:
    storage = RunStorage(folder / "storage", "toy")
    return audit_run(storage, read_run(storage), num_samples=NUM_SAMPLES)


def log_entries(folder: Path) -> list[dict[str, Any]]:
    lines = [
        line for path in sorted(folder.glob("handed-out-*.jsonl")) for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines]


def samples_that_count(folder: Path) -> Counter[tuple[int, int]]:
    """From the loop's own log and the lineage: (epoch, sample) -> how often the final model saw it."""
    storage = RunStorage(folder / "storage", "toy")
    step_ranges, notes = covered_steps(storage, read_run(storage).run_id)
    assert notes == []
    return Counter(
        (entry["epoch"], sample)
        for entry in log_entries(folder)
        for step_range, _ in step_ranges
        if step_range.attempt == entry["attempt"] and step_range.covers(entry["step"])
        for sample in entry["index"]
    )


def assert_every_sample_once(folder: Path, *, epochs: int = 2) -> None:
    report = audit_of(folder)
    assert report.exactly_once, report
    assert [epoch.samples for epoch in report.epochs] == [NUM_SAMPLES] * epochs
    # What the loop itself wrote down agrees with the books.
    once = {(epoch, sample): 1 for epoch in range(epochs) for sample in range(NUM_SAMPLES)}
    assert samples_that_count(folder) == once


def losses_that_count(folder: Path) -> dict[tuple[int, str], str]:
    storage = RunStorage(folder / "storage", "toy")
    step_ranges, _ = covered_steps(storage, read_run(storage).run_id)
    counted = {}
    for path in sorted(folder.glob("handed-out-*.jsonl")):
        rank = path.stem.rpartition("-")[2]
        for entry in map(json.loads, path.read_text().splitlines()):
            if any(s.attempt == entry["attempt"] and s.covers(entry["step"]) for s, _ in step_ranges):
                counted[entry["step"], rank] = entry["loss"]
    return counted


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.torture)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, world_size: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_loop(whole, world_size=world_size)
    run_loop(broken, world_size=world_size, die_after=5, expect="failure")
    run_loop(broken, world_size=world_size, die_after=9, expect="failure")
    run_loop(broken, world_size=world_size)

    expected, found = torch.load(whole / "final.pt"), torch.load(broken / "final.pt")
    for name in expected:
        assert torch.equal(expected[name], found[name]), name
    assert losses_that_count(broken) == losses_that_count(whole)
    assert len(losses_that_count(whole)) == 24 * world_size
    assert_every_sample_once(broken)


def test_a_killed_worker_then_everything_killed_then_other_numbers_of_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_loop(folder, world_size=3, die_after=4, die_rank=1, expect="failure")
    run_loop(folder, world_size=2, die_after=5, expect="failure")
    run_loop(folder, world_size=1, die_after=3, expect="failure")
    run_loop(folder, world_size=3, die_after=4, die_rank=0, expect="failure")
    run_loop(folder, world_size=2)

    assert_every_sample_once(folder)
    assert len({entry["attempt"] for entry in log_entries(folder)}) == 5


def test_a_bad_newest_checkpoint_after_a_crash_of_several_ranks_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_loop(folder, world_size=2, die_after=8, expect="failure")
    storage = RunStorage(folder / "storage", "toy")
    newest = CheckpointStore(storage, None).folders()[0]
    storage.write(f"{newest.name}/state.pt", b"cut off")
    run_loop(folder, world_size=3)

    assert_every_sample_once(folder)
    starts = sorted(p.parent.name for p in Path(storage.path("ledger")).glob("*/start.json"))
    resumed = json.loads(storage.read(f"ledger/{starts[-1]}/start.json"))["resumed_from"]
    assert resumed["step"] < newest.step


@pytest.mark.parametrize(
    ("num_samples", "global_batch_size", "part_size"),
    [
        (37, 12, 2),  # ranks with 5 and 4 samples in parts of 2; the last two steps share 13
        (25, 24, 16),  # 25 samples: 13 and 12
        (7, 6, 1),  # parts of one sample, three ranks, 4 and 3
    ],
)
def test_gradients_of_uneven_ranks_and_parts_are_those_of_one_worker(
    tmp_path: Path, num_samples: int, global_batch_size: int, part_size: int
) -> None:
    found = {}
    for world_size in (1, 2, 3):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        options = {
            "logs": str(folder),
            "num_samples": num_samples,
            "global_batch_size": global_batch_size,
            "part_size": part_size,
        }
        with rank_processes(LOOP, "gradients", options, world_size=world_size) as ranks:
            assert ranks.wait() == [0] * world_size
        found[world_size] = [
            torch.load(folder / f"gradients-{world_size}-{rank}.pt") for rank in range(world_size)
        ]
    (alone,) = found[1]
    assert any(gradient.abs().max() > 1e-3 for gradient in alone[0])
    for world_size in (2, 3):
        for ranks_gradients in found[world_size]:
            assert len(ranks_gradients) == len(alone)
            for step, expected in zip(ranks_gradients, alone, strict=True):
                for gradient, reference in zip(step, expected, strict=True):
                    torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-12)
