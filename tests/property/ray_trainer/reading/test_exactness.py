"""Reading through blocks gives every sample once over all ranks, with the right content, resumed anywhere.

No brokers: what lies between the plan and the loop, over a fetcher in memory that answers out of order.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.dataset_catalog.testing import PlacedRecord, make_batch, make_manifest, make_records
from evenload.ray_trainer.fetching.testing import MemoryFetcher
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.sample_split import SampleSplit, SplitTable
from evenload.ray_trainer.reading.step_source import FetchedBlocks
from evenload.ray_trainer.reading.step_stream import StepStream, group_steps


def place(records: list[Any], *, partitions: int, gap: int, seed: int) -> list[PlacedRecord]:
    """Records over partitions, with gaps in their offsets as transaction markers leave them."""
    random = np.random.default_rng(seed)
    next_offset = [0] * partitions
    placed = []
    for record in records:
        partition = int(random.integers(partitions))
        next_offset[partition] += int(random.integers(1, gap + 2))
        placed.append(PlacedRecord(partition, next_offset[partition], record))
    return placed


Case = dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world_size = draw(st.integers(1, 8))
    return {
        "num_samples": draw(st.integers(2 * world_size, 120)),
        "global_batch_size": draw(st.integers(2 * world_size, 40)),
        "world_size": world_size,
        "encoding": draw(st.sampled_from(["packed", "record"])),
        "value_format": draw(st.sampled_from(["arrow", "json"])),
        "num_lanes": draw(st.sampled_from([1, 2, 3, 6, 12])),
        "shuffle": draw(st.booleans()),
        "block_bytes": draw(st.integers(1, 2000)),
        "split": draw(st.sampled_from([None, (0.5, 3), (-0.5, 3)])),
        "prefetch_bytes": draw(st.sampled_from([1, 500, 1 << 20])),
        "num_samples_max": draw(st.sampled_from([1, 50, 1000])),
        "seed": draw(st.integers(0, 5)),
    }


class Dataset:
    """One drawn case, ready to be read by any rank from any step on."""

    def __init__(self, case: Case) -> None:
        self.case = case
        value_format: Literal["arrow", "json"] = case["value_format"]
        encoding: Literal["packed", "record"] = case["encoding"]
        if encoding == "packed":
            value_format = "arrow"
        batch = make_batch(case["num_samples"])
        if value_format == "json":
            batch = batch.select(["text", "label"])
        records = make_records(batch, encoding=encoding, value_format=value_format)
        self.placed = place(records, partitions=3, gap=2, seed=case["seed"])
        self.manifest = make_manifest(batch, self.placed, encoding=encoding, value_format=value_format)
        self.rows = self._in_manifest_order(batch)
        self.numbers = self._in_manifest_order(pa.RecordBatch.from_pydict({"n": range(batch.num_rows)}))
        self.rule = PlanRule(
            num_lanes=case["num_lanes"] if case["shuffle"] else 1,
            block_bytes=case["block_bytes"],
            whole=False,
            shuffle=case["shuffle"],
        )
        table = BlockTable.from_manifest(self.manifest, block_bytes=self.rule.block_bytes)
        self.split = SplitTable(table, SampleSplit(*case["split"])) if case["split"] else None
        self.expected = np.arange(len(self.rows)) if self.split is None else self.split.all_index()
        table = table if self.split is None else self.split.table
        self.plan = EpochPlan(table, seed=case["seed"], epoch=1, rule=self.rule)

    def _in_manifest_order(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        rows = batch.to_pylist()
        ordered = sorted(self.placed, key=lambda each: (each.partition, each.offset))
        starts = [(each.record.first_sample, each.record.num_samples) for each in ordered]
        return [rows[row] for first, count in starts for row in range(first, first + count)]

    def read(self, rank: int, start: int = 0) -> list[tuple[int, list[int]]]:
        """By step, where it ends and what the rank got; its contents are checked."""
        case = self.case
        decoder = BatchDecoder(self.manifest)
        source = FetchedBlocks(
            self.manifest,
            self.plan,
            split=self.split,
            start=start,
            global_batch_size=case["global_batch_size"],
            rank=rank,
            world_size=case["world_size"],
            decoder=decoder,
            fetcher=MemoryFetcher.of_records(self.placed, seed=case["seed"]),
            prefetch_bytes=case["prefetch_bytes"],
        )
        groups = group_steps(
            self.plan.steps(case["global_batch_size"], start=start),
            num_lanes=self.plan.layout.num_lanes,
            world_size=case["world_size"],
            num_samples_max=case["num_samples_max"],
        )
        view = self.plan.rank_view(rank=rank, world_size=case["world_size"])
        steps = []
        with StepStream(groups, view=view, source=source, decoder=decoder) as stream:
            for decoded in stream:
                self._check(decoded.columns, decoded.index.tolist())
                assert decoded.number.tolist() == [self.numbers[at]["n"] for at in decoded.index]
                steps.append((decoded.step.stop, decoded.index.tolist()))
        return steps

    def _check(self, columns: dict[str, Any], index: list[int]) -> None:
        assert columns["text"] == [self.rows[at]["text"] for at in index]
        assert columns["label"].tolist() == [self.rows[at]["label"] for at in index]
        if "pixels" in columns:
            flat = [np.ravel(self.rows[at]["pixels"]).tolist() for at in index]
            assert [each.ravel().tolist() for each in columns["pixels"].numpy()] == flat


@settings(max_examples=40)
@given(cases())
def test_all_ranks_together_read_every_sample_once_from_any_step_on(case: Case) -> None:
    if case["split"]:
        chosen = SampleSplit(*case["split"]).selects(np.arange(case["num_samples"])).sum()
        assume(chosen >= 2 * case["world_size"])  # fewer are refused before anything is read
    dataset = Dataset(case)
    by_rank = [dataset.read(rank) for rank in range(case["world_size"])]
    assert len({tuple(stop for stop, _ in steps) for steps in by_rank}) == 1
    seen = sorted(at for steps in by_rank for _, index in steps for at in index)
    assert seen == dataset.expected.tolist()
    resumed_at = by_rank[0][len(by_rank[0]) // 2][0]
    for rank, steps in enumerate(by_rank):
        rest = [step for step in steps if step[0] > resumed_at]
        assert dataset.read(rank, start=resumed_at) == rest
