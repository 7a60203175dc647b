"""Restored from every step in turn, with any number of ranks, an epoch's remainder is the same."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from evenload.ray_trainer.planning.needs import blocks_needed
from evenload.ray_trainer.planning.plan import BlockTable, EpochPlan, PlanRule, Step

BATCH = 64
WORLD_SIZES = [*range(1, 9), 11, 13, 32]  # 5, 7, 11 and 13 divide nothing here
RULES = {
    "packed": PlanRule(num_lanes=96, block_bytes=1, whole=False, shuffle=True),
    "packed, 384 lanes": PlanRule(num_lanes=384, block_bytes=1, whole=False, shuffle=True),
    "record": PlanRule(num_lanes=48, block_bytes=1, whole=False, shuffle=True),
    "whole": PlanRule(num_lanes=1, block_bytes=1, whole=True, shuffle=True),
    "unshuffled": PlanRule(num_lanes=1, block_bytes=1, whole=False, shuffle=False),
}


def make_plan(kind: str, *, epoch: int = 1) -> EpochPlan:
    samples = 1 if kind == "record" else 11
    records = np.array([40, 3, 30, 17, 61]) * (11 // samples)
    table = BlockTable.from_extents(
        partition=np.array([0, 0, 1, 2, 2]),
        first_offset=np.array([0, 1000, 7, 0, 2000]),
        num_records=records,
        samples_per_record=np.array([samples, samples, samples, samples, 1]),
        records_per_block=11,
    )
    return EpochPlan(table, seed=7, epoch=epoch, rule=RULES[kind])


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_remainder_after_each_step_is_the_same(kind: str, world_size: int) -> None:
    plan = make_plan(kind)
    uninterrupted = plan.samples_at(np.arange(plan.num_samples))
    steps = list(plan.steps(BATCH))
    for done, first in enumerate(steps):
        views = [make_plan(kind).rank_view(rank=rank, world_size=world_size) for rank in range(world_size)]
        for step in plan.steps(BATCH, start=first.start):
            together = np.concatenate([view.share(step).index for view in views])
            assert np.array_equal(np.sort(together), np.sort(uninterrupted[step.start : step.stop]))
        assert list(plan.steps(BATCH, start=first.start)) == steps[done:]


@pytest.mark.parametrize(
    ("kind", "first", "digest"),
    [
        ("packed", [1040, 45, 879, 980, 522, 934], "97b50c3d10ed0bff"),
        ("packed, 384 lanes", [1040, 45, 879, 980, 517, 934], "3a83430e703e0c3d"),
        ("record", [1048, 1649, 1582, 173, 1484, 1044], "b32b343641ad47fe"),
        ("whole", [738, 95, 303, 86, 842, 148], "3477f57bd2cb1acf"),
        ("unshuffled", [0, 1, 2, 3, 4, 5], "961f3723b60b1806"),
    ],
)
def test_the_order_is_fixed_for_ever(kind: str, first: list[int], digest: str) -> None:
    # A run that was begun before a change of the code has to go on in its order: when this fails, either the
    # change is a mistake or PLAN_VERSION has to grow.
    plan = make_plan(kind)
    order = plan.samples_at(np.arange(plan.num_samples))
    assert order[:6].tolist() == first
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("kind", "world_size", "digest"),
    [
        ("packed", 2, "758da5f62cf9934f"),
        ("packed", 5, "3cd040a2bda007e8"),
        ("whole", 2, "ce0ad7145b091c7d"),
        ("unshuffled", 3, "fe24c1b99feba17f"),
    ],
)
def test_which_rank_gets_which_samples_is_fixed_for_ever(kind: str, world_size: int, digest: str) -> None:
    # Not needed for exactness, but a run resumed with as many ranks is to be equal bit for bit.
    shares = [make_plan(kind).rank_samples(64, 128, rank, world_size).index for rank in range(world_size)]
    assert hashlib.sha256(np.concatenate(shares).astype("<i8").tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("kind", ["packed", "record", "whole"])
def test_epochs_differ(kind: str) -> None:
    everything = np.arange(make_plan(kind).num_samples)
    one, two = (make_plan(kind, epoch=epoch).samples_at(everything) for epoch in (1, 2))
    assert np.mean(one == two) < 0.05


def test_ranks_that_divide_the_lanes_keep_their_lanes_and_read_hardly_a_block_twice() -> None:
    table = BlockTable.from_extents(
        partition=np.array([0]),
        first_offset=np.array([0]),
        num_records=np.array([2290]),
        samples_per_record=np.array([85]),
    )
    plan = EpochPlan(table, seed=1, epoch=0, rule=RULES["packed, 384 lanes"])
    read = {
        world_size: sum(
            1
            for rank in range(world_size)
            for _ in plan.blocks_needed(start=0, global_batch_size=256, rank=rank, world_size=world_size)
        )
        / table.num_blocks
        for world_size in (1, 2, 3, 4, 8, 5, 7, 10)
    }
    assert read[1] == 1.0
    assert max(read[world_size] for world_size in (2, 3, 4, 8)) < 1.02
    assert max(read[world_size] for world_size in (5, 7, 10)) < 1.12


def test_a_dataset_held_whole_is_not_fetched_by_blocks() -> None:
    with pytest.raises(ValueError, match="held whole"):
        make_plan("whole").blocks_needed(start=0, global_batch_size=64, rank=0, world_size=1)


def test_at_the_end_of_an_epoch_nothing_is_needed() -> None:
    plan = make_plan("packed")
    end = plan.num_samples
    assert list(plan.blocks_needed(start=end, global_batch_size=64, rank=0, world_size=2)) == []
    assert list(plan.steps(BATCH, start=end)) == []
    assert plan.num_steps(BATCH, start=end) == 0


@pytest.mark.parametrize("step", [Step(-1, 5), Step(0, 10_000), Step(5, 4)])
def test_a_step_beyond_the_epoch_is_refused(step: Step) -> None:
    with pytest.raises(ValueError, match="is not within the epoch"):
        make_plan("packed").rank_view(rank=0, world_size=1).share(step)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    plan = make_plan("packed")
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        plan.rank_view(rank=2, world_size=2)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        next(blocks_needed(plan.order, start=0, global_batch_size=8, rank=2, world_size=2))  # type: ignore[arg-type]
