"""The order of an epoch is the one that lanes.py's words give, done slowly and in plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog import keyed_order
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.lanes import LaneLayout, LaneOrder, WholeOrder, reversed_digits
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule

MASK = (1 << 64) - 1

SAMPLES_BY_BLOCK = st.lists(st.integers(1, 30), min_size=1, max_size=60)
LANES = st.sampled_from([1, 2, 3, 5, 7, 12, 24, 96, 384])
SEEDS = st.integers(0, MASK)
EPOCHS = st.integers(0, 1000)


def make_table(samples_by_block: list[int]) -> BlockTable:
    samples = np.array(samples_by_block, dtype=np.int64)
    return BlockTable.from_extents(
        partition=np.zeros(len(samples), dtype=np.int64),
        first_offset=np.arange(len(samples)) * 2,
        num_records=np.ones(len(samples), dtype=np.int64),
        samples_per_record=samples,
    )


def splitmix64(start: int, number: int) -> int:
    """Output `number` (from 0) of the generator started at `start`."""
    z = (start + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow_order(table: BlockTable, num_lanes: int, seed: int, epoch: int) -> list[int]:
    block_state, sample_state = (
        keyed_order.stream_state(purpose, seed, epoch)
        for purpose in (keyed_order.BLOCK_ORDER, keyed_order.SAMPLE_ORDER)
    )
    row = [
        (block, sample)
        for block in sorted(range(table.num_blocks), key=lambda block: splitmix64(block_state, block))
        for sample in range(int(table.first_sample[block]), int(table.first_sample[block + 1]))
    ]
    short, num_longer = divmod(len(row), num_lanes)
    lane_of_segment = {segment: lane for lane, segment in enumerate(reversed_digits(num_lanes).tolist())}
    lanes: list[list[int]] = [[] for _ in range(num_lanes)]
    low = 0
    for segment in range(num_lanes):
        lane = lane_of_segment[segment]
        high = low + short + (lane < num_longer)
        pieces: dict[int, list[int]] = {}
        for block, sample in row[low:high]:
            pieces.setdefault(block, []).append(sample)
        placed = [
            sample
            for piece in pieces.values()
            for sample in sorted(piece, key=lambda sample: splitmix64(sample_state, sample))
        ]
        lanes[lane] = placed if segment % 2 == 0 else placed[::-1]
        low = high
    return [lanes[number % num_lanes][number // num_lanes] for number in range(len(row))]


@given(samples=SAMPLES_BY_BLOCK, num_lanes=LANES, seed=SEEDS, epoch=EPOCHS)
def test_lanes_give_the_order_that_the_words_give(
    samples: list[int], num_lanes: int, seed: int, epoch: int
) -> None:
    table = make_table(samples)
    rule = PlanRule(num_lanes=num_lanes, block_bytes=1, whole=False, shuffle=True)
    plan = EpochPlan(table, seed=seed, epoch=epoch, rule=rule)
    assert plan.samples_at(np.arange(table.num_samples)).tolist() == slow_order(table, num_lanes, seed, epoch)


@given(samples=SAMPLES_BY_BLOCK, seed=SEEDS, epoch=EPOCHS)
def test_held_whole_the_order_is_that_of_samples_as_blocks(samples: list[int], seed: int, epoch: int) -> None:
    table = make_table(samples)
    as_blocks = make_table([1] * table.num_samples)
    found = WholeOrder.shuffled(table, seed=seed, epoch=epoch).sample_order
    assert found.tolist() == slow_order(as_blocks, 1, seed, epoch)


@given(samples=SAMPLES_BY_BLOCK)
def test_unshuffled_the_order_is_the_manifests(samples: list[int]) -> None:
    table = make_table(samples)
    rule = PlanRule(num_lanes=1, block_bytes=1, whole=False, shuffle=False)
    plan = EpochPlan(table, seed=0, epoch=3, rule=rule)
    assert plan.samples_at(np.arange(table.num_samples)).tolist() == list(range(table.num_samples))


@given(samples=SAMPLES_BY_BLOCK, num_lanes=LANES)
def test_each_lane_has_one_piece_open_at_a_time(samples: list[int], num_lanes: int) -> None:
    table = make_table(samples)
    order = LaneOrder.shuffled(table, num_lanes=num_lanes, seed=1, epoch=1)
    blocks, _ = order.locate(np.arange(table.num_samples), order.open_pieces())
    for lane in range(num_lanes):
        in_lane = blocks[lane::num_lanes]
        changes = 1 + np.count_nonzero(np.diff(in_lane)) if len(in_lane) else 0
        assert changes == len(np.unique(in_lane))


@given(num_samples=st.integers(0, 5000), num_lanes=st.integers(1, 400))
def test_lanes_tile_the_row_and_differ_by_at_most_one_sample(num_samples: int, num_lanes: int) -> None:
    layout = LaneLayout.of(num_samples, num_lanes)
    by_segment = np.argsort(layout.segment)
    assert layout.segment[by_segment].tolist() == list(range(num_lanes))
    assert layout.low[by_segment].tolist() == [0, *layout.high[by_segment][:-1].tolist()]
    assert layout.high[by_segment][-1] == num_samples
    lengths = layout.high - layout.low
    assert lengths.max() - lengths.min() <= 1
    # Lane i mod C has a place i div C for every sample i, and no other.
    assert lengths.tolist() == [len(range(lane, num_samples, num_lanes)) for lane in range(num_lanes)]


def test_lanes_of_a_rank_are_neighbours_and_lanes_of_a_step_are_spread() -> None:
    segment = reversed_digits(384)
    assert segment[:8].tolist() == [0, 128, 256, 64, 192, 320, 32, 160]
    for world_size in (2, 3, 4, 6, 8, 12, 16, 24):
        mine = np.sort(segment[::world_size])
        assert np.count_nonzero(np.diff(mine) == 1) >= len(mine) * 7 // 8
    for first in range(0, 384, 7):
        step = np.sort(segment[np.arange(first, first + 48) % 384])
        assert np.diff(step).max() <= 24  # three times the 8 of a perfect spread
