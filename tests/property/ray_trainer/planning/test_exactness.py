"""Nothing is lost or repeated, whatever the blocks, the batch, the ranks, and the changes of their number."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.lanes import LaneOrder
from evenload.ray_trainer.planning.needs import blocks_needed
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule, Step, StepShare, check_world_size
from evenload.ray_trainer.planning.steps import smallest_step

WORLD_SIZE_MAX = 300


@st.composite
def tables(draw: st.DrawFn) -> BlockTable:
    """A few partitions with gaps between runs, packed or a sample a record, from one sample on."""
    samples = st.sampled_from([1, 1, 2, 7, 20])
    run = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 40), samples)
    runs = np.array(sorted(draw(st.lists(run, min_size=1, max_size=12))), dtype=np.int64)
    return BlockTable.from_extents(
        partition=runs[:, 0],
        first_offset=np.cumsum(runs[:, 1] + runs[:, 2]) - runs[:, 2],
        num_records=runs[:, 2],
        samples_per_record=runs[:, 3],
        records_per_block=draw(st.integers(1, 10)),
    )


@st.composite
def plans(draw: st.DrawFn) -> EpochPlan:
    whole, shuffle = draw(st.sampled_from([(False, True)] * 4 + [(True, True), (False, False)]))
    lanes = st.sampled_from([1, 2, 5, 12, 24, 96, 384, 768])
    rule = PlanRule(
        num_lanes=draw(lanes) if shuffle and not whole else 1, block_bytes=1, whole=whole, shuffle=shuffle
    )
    return EpochPlan(
        draw(tables()), seed=draw(st.integers(0, 2**64 - 1)), epoch=draw(st.integers(0, 9)), rule=rule
    )


def shares_of(plan: EpochPlan, step: Step, world_size: int) -> list[StepShare]:
    views = [plan.rank_view(rank=rank, world_size=world_size) for rank in range(world_size)]
    return [view.share(step) for view in views]


@settings(max_examples=150)
@given(plan=plans(), size=st.integers(2, 700), data=st.data())
def test_ranks_that_come_and_go_consume_every_sample_once(
    plan: EpochPlan, size: int, data: st.DataObject
) -> None:
    consumed: list[np.ndarray] = []
    start = 0
    while start < plan.num_samples:
        most = min(WORLD_SIZE_MAX, smallest_step(plan.num_samples - start, size))
        world_size = data.draw(st.integers(1, most), label="world size")
        num_steps = data.draw(st.sampled_from([1, 2, 5, 1000]), label="steps until it changes")
        views = [plan.rank_view(rank=rank, world_size=world_size) for rank in range(world_size)]
        for step, _ in zip(plan.steps(size, start=start), range(num_steps), strict=False):
            shares = [view.share(step) for view in views]
            counts = [share.num_samples for share in shares]
            assert min(counts) >= 1
            assert max(counts) - min(counts) <= 1
            together = np.concatenate([share.index for share in shares])
            assert np.array_equal(
                np.sort(together), np.sort(plan.samples_at(np.arange(step.start, step.stop)))
            )
            for share in shares:
                assert np.array_equal(plan.table.first_sample[share.block] + share.row, share.index)
                assert np.all((share.row >= 0) & (share.row < plan.table.samples_in(share.block)))
            consumed.append(together)
            start = step.stop
    assert np.array_equal(np.sort(np.concatenate(consumed)), np.arange(plan.num_samples))


@settings(max_examples=100)
@given(plan=plans(), data=st.data())
def test_what_a_view_keeps_open_changes_nothing(plan: EpochPlan, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 9))
    view = plan.rank_view(rank=data.draw(st.integers(0, world_size - 1)), world_size=world_size)
    for _ in range(6):
        start = data.draw(st.integers(0, plan.num_samples))
        step = Step(start, data.draw(st.integers(start, min(plan.num_samples, start + 100))))
        fresh = plan.rank_samples(step.start, step.stop, view.rank, world_size)
        assert np.array_equal(view.share(step).index, fresh.index)


@settings(max_examples=100)
@given(plan=plans(), size=st.integers(2, 300), world_size=st.integers(1, WORLD_SIZE_MAX))
def test_every_restart_leaves_the_remainder_that_was_left(
    plan: EpochPlan, size: int, world_size: int
) -> None:
    world_size = min(world_size, smallest_step(plan.num_samples, size), max(1, size // 2))
    check_world_size(world_size, num_samples=plan.num_samples, global_batch_size=size)
    expected = plan.samples_at(np.arange(plan.num_samples))
    for step in list(plan.steps(size))[-4:]:
        again = EpochPlan(plan.table, seed=plan.seed, epoch=plan.epoch, rule=plan.rule)
        rest = [
            share.index
            for each in again.steps(size, start=step.start)
            for share in shares_of(again, each, world_size)
        ]
        assert np.array_equal(np.sort(np.concatenate(rest)), np.sort(expected[step.start :]))


@settings(max_examples=200)
@given(plan=plans(), size=st.integers(2, 300), data=st.data())
def test_blocks_are_announced_once_in_order_of_need_with_exact_counts(
    plan: EpochPlan, size: int, data: st.DataObject
) -> None:
    assume(isinstance(plan.order, LaneOrder))
    steps = list(plan.steps(size))
    steps = steps[data.draw(st.integers(0, len(steps) - 1), label="steps done") :]
    world_size = data.draw(st.integers(1, min(40, min(step.num_samples for step in steps))))
    rank = data.draw(st.integers(0, world_size - 1))
    announced = list(
        blocks_needed(
            plan.order,
            start=steps[0].start,
            global_batch_size=size,
            rank=rank,
            world_size=world_size,
            window_pieces=data.draw(st.sampled_from([1, 10, 4096])),
        )
    )
    view = plan.rank_view(rank=rank, world_size=world_size)
    taken: dict[int, int] = {}
    first_step: dict[int, int] = {}
    for at, step in enumerate(steps):
        for block in view.share(step).block.tolist():
            taken[block] = taken.get(block, 0) + 1
            first_step.setdefault(block, at)
    assert len(announced) == len(taken)
    assert {need.block: need.num_samples for need in announced} == taken
    stops = np.array([step.stop for step in steps])
    announced_step = np.searchsorted(stops, [need.number for need in announced], side="right").tolist()
    assert announced_step == [first_step[need.block] for need in announced]
    assert announced_step == sorted(announced_step)
