"""Wherever an epoch is gone on with, by however many ranks, it is one order, and gives each sample once."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.resume.epoch_sampler import EpochSampler

SEGMENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=4)


def steps_of(num_samples: int, batch: int, world_size: int, epoch: int, done: int) -> list[list[int]]:
    """What all ranks get in each step, in the order's own order."""
    samplers = [
        EpochSampler(num_samples, batch, seed=7, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.begin(epoch, done)
    by_rank = [list(sampler) for sampler in samplers]
    assert len({len(batches) for batches in by_rank}) == 1  # as many steps on each
    steps = []
    for parts in zip(*by_rank, strict=True):
        step = [0] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            step[rank::world_size] = part
        steps.append(step)
    return steps


@given(st.integers(30, 200), st.integers(1, 6), st.integers(0, 3), SEGMENTS)
def test_an_epoch_is_one_order_however_it_is_cut_up(
    num_samples: int, batch: int, epoch: int, segments: list[tuple[int, int]]
) -> None:
    order = [sample for step in steps_of(num_samples, batch, 1, epoch, 0) for sample in step]
    assert sorted(order) == list(range(num_samples))
    seen: list[int] = []
    for world_size, num_steps in segments:
        for step in islice(steps_of(num_samples, batch, world_size, epoch, len(seen)), num_steps):
            seen += step
    assert seen == order[: len(seen)]
    rest = [sample for step in steps_of(num_samples, batch, 1, epoch, len(seen)) for sample in step]
    assert seen + rest == order


@given(st.integers(30, 200), st.integers(1, 6), st.integers(2, 5))
def test_ranks_leave_out_less_than_a_step(num_samples: int, batch: int, world_size: int) -> None:
    steps = steps_of(num_samples, batch, world_size, 0, 0)
    assert {len(step) for step in steps} == {batch * world_size}
    assert num_samples - sum(map(len, steps)) < batch * world_size
    sampler = EpochSampler(num_samples, batch, seed=7, world_size=world_size)
    assert len(sampler) == len(steps)
    assert sampler.samples_of(0) == batch * world_size


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = EpochSampler(100, 10, seed=seed)
        sampler.begin(epoch, 0)
        return [sample for batch in sampler for sample in batch]

    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert order(1, 1) == order(1, 1)


@pytest.mark.parametrize(("num_samples", "batch", "world_size"), [(0, 1, 1), (5, 0, 1), (7, 4, 2)])
def test_what_fills_no_step_is_refused(num_samples: int, batch: int, world_size: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|don't fill one step"):
        EpochSampler(num_samples, batch, seed=0, world_size=world_size)
