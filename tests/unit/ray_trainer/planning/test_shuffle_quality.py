"""How well an epoch is shuffled, on data that is sorted by class: the worst case."""

from __future__ import annotations

import numpy as np
import pytest

from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule

NUM_CLASSES = 10


def chi_square_per_batch(plan: EpochPlan, batch_size: int) -> float:
    """Mean over batches of the chi-square of their classes, over what independent draws give (1.0)."""
    num_samples = plan.num_samples
    label = np.arange(num_samples) * NUM_CLASSES // num_samples
    label = label[plan.samples_at(np.arange(num_samples))]
    num_batches = num_samples // batch_size
    batches = label[: num_batches * batch_size].reshape(num_batches, batch_size)
    counts = np.stack([np.bincount(batch, minlength=NUM_CLASSES) for batch in batches])
    expected = batch_size / NUM_CLASSES
    return float((((counts - expected) ** 2 / expected).sum(axis=1) / (NUM_CLASSES - 1)).mean())


def make_table(*, num_blocks: int, samples_per_block: int) -> BlockTable:
    one = np.ones(1, dtype=np.int64)
    return BlockTable.from_extents(
        partition=one,
        first_offset=one,
        num_records=num_blocks * one,
        samples_per_record=samples_per_block * one,
    )


@pytest.mark.parametrize("num_lanes", [240, 384])
def test_batches_of_sorted_data_are_as_mixed_as_independent_draws(num_lanes: int) -> None:
    # Blocks of 256 KiB with samples of 3 KB. A lane is of few blocks, so the number can be below 1.
    table = make_table(num_blocks=2400, samples_per_block=85)
    rule = PlanRule(num_lanes=num_lanes, block_bytes=256 << 10, whole=False, shuffle=True)
    ratios = [chi_square_per_batch(EpochPlan(table, seed=1, epoch=e, rule=rule), 256) for e in range(3)]
    assert 0.5 < np.mean(ratios) < 1.2


def test_few_large_lanes_are_worse_so_the_measure_measures() -> None:
    table = make_table(num_blocks=200, samples_per_block=1365)  # 4 MiB
    rule = PlanRule(num_lanes=64, block_bytes=4 << 20, whole=False, shuffle=True)
    assert chi_square_per_batch(EpochPlan(table, seed=1, epoch=0, rule=rule), 256) > 2


def test_a_small_batch_has_samples_of_all_the_dataset() -> None:
    # 27 blocks: neighbouring lanes lie in one block; numbered as they lie, a batch of 32 would see 3 of them.
    table = make_table(num_blocks=27, samples_per_block=317)
    rule = PlanRule(num_lanes=384, block_bytes=16 << 10, whole=False, shuffle=True)
    plan = EpochPlan(table, seed=1, epoch=0, rule=rule)
    first = plan.samples_at(np.arange(32))
    assert len(np.unique(table.block_of(first))) >= 20
    assert chi_square_per_batch(plan, 32) < 1.2


def test_held_whole_every_sample_meets_every_other() -> None:
    table = make_table(num_blocks=500, samples_per_block=100)
    rule = PlanRule(num_lanes=1, block_bytes=256 << 10, whole=True, shuffle=True)
    assert 0.85 < chi_square_per_batch(EpochPlan(table, seed=1, epoch=0, rule=rule), 256) < 1.15


@pytest.mark.parametrize(("num_lanes", "whole"), [(96, False), (1, True)])
def test_epochs_and_seeds_give_unrelated_orders(num_lanes: int, whole: bool) -> None:
    table = make_table(num_blocks=200, samples_per_block=20)
    rule = PlanRule(num_lanes=num_lanes, block_bytes=1, whole=whole, shuffle=True)
    everything = np.arange(table.num_samples)
    orders = [
        EpochPlan(table, seed=seed, epoch=epoch, rule=rule).samples_at(everything)
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    at_the_same_place = [np.mean(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(at_the_same_place) < 0.01
