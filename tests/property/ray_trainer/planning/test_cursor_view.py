"""A cursor in Kafka's words agrees with counting the samples one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.cursor import Cursor, kafka_view
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule


@given(
    extents=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 30), st.sampled_from([1, 1, 3, 20])),
        min_size=1,
        max_size=12,
    ),
    records_per_block=st.integers(1, 10),
    num_lanes=st.sampled_from([1, 2, 5, 24, 384]),
    mode=st.sampled_from(["lanes", "whole", "stored"]),
    part=st.floats(0, 1),
)
def test_records_and_partial_blocks_are_those_found_by_counting(
    extents: list[tuple[int, int, int]], records_per_block: int, num_lanes: int, mode: str, part: float
) -> None:
    partition, num_records, samples = np.array(sorted(extents), dtype=np.int64).T
    table = BlockTable.from_extents(
        partition=partition,
        first_offset=np.cumsum(num_records + 3) - num_records,
        num_records=num_records,
        samples_per_record=samples,
        records_per_block=records_per_block,
    )
    rule = PlanRule(
        num_lanes=num_lanes if mode == "lanes" else 1,
        block_bytes=1,
        whole=mode == "whole",
        shuffle=mode != "stored",
    )
    plan = EpochPlan(table, seed=5, epoch=2, rule=rule)
    num_consumed = round(part * plan.num_samples)
    view = kafka_view(plan, Cursor(2, num_consumed, "f"))

    blocks = table.block_of(plan.samples_at(np.arange(num_consumed)))
    by_block = Counter(blocks.tolist())
    records: Counter[int] = Counter()
    partial_blocks = []
    for block in range(table.num_blocks):
        num_samples = int(table.first_sample[block + 1] - table.first_sample[block])
        place = (int(table.partition[block]), int(table.offset[block]))
        records[place[0]] += by_block[block] * int(table.num_records[block]) // num_samples
        if 0 < by_block[block] < num_samples:
            partial_blocks.append((*place, by_block[block]))
    assert dict(view.records_consumed) == dict(records)
    assert list(view.partial_blocks) == partial_blocks
    first_offsets = {int(p): int(table.offset[table.partition == p][0]) for p in np.unique(partition)}
    assert view.group_offset == {p: first_offsets[p] + records[p] for p in first_offsets}
