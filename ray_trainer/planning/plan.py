"""The order of an epoch, the same for every world size, and each rank's part of it.

An epoch is one sequence of samples, decided by (manifest, seed, epoch, rule). A step is a stretch of it, a
rank has a part of each step, and a cursor is a number of samples consumed; so a run may stop at any step and
go on with another number of ranks, and nothing is lost or repeated.

Example:
    rule = choose_rule(manifest)
    plan = EpochPlan.of_manifest(manifest, seed=7, epoch=0, rule=rule)
    reader = plan.rank_view(rank=0, world_size=2)
    for step in plan.steps(256, start=cursor.samples_consumed):
        share = reader.share(step)          # share.block, share.row, share.index

Invariants, checked in tests/property/ray_trainer/planning/test_exactness.py:
1. The shares of all ranks in a step are the samples of that stretch of the order, each once.
2. The order does not depend on world size, global batch size, or where reading started.

Read next: rule.py (the choice of a rule), blocks.py, lanes.py (the order), steps.py, ranks.py (the division),
needs.py (what to fetch, and when to let go of it), cursor.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.errors import CursorMismatchError, TooManyWorkersError
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.lanes import LaneLayout, LaneOrder, WholeOrder
from evenload.ray_trainer.planning.needs import BlockNeed, blocks_needed
from evenload.ray_trainer.planning.ranks import check_rank, rank_numbers
from evenload.ray_trainer.planning.rule import PlanRule, choose_rule, plan_facts, plan_fingerprint
from evenload.ray_trainer.planning.steps import (
    Step,
    check_rest_of_epoch,
    check_world_size,
    microbatch_bounds,
    num_microbatches,
    num_steps,
    steps,
)

__all__ = [
    "BlockNeed",
    "BlockTable",
    "CursorMismatchError",
    "EpochPlan",
    "PlanRule",
    "RankView",
    "Step",
    "StepShare",
    "TooManyWorkersError",
    "check_rest_of_epoch",
    "check_world_size",
    "choose_rule",
    "microbatch_bounds",
    "num_microbatches",
    "plan_facts",
    "plan_fingerprint",
]


@dataclass(frozen=True, slots=True, eq=False)
class StepShare:
    """One rank's samples of a step, in the order to be handed out. Arrays of one entry a sample.

    Attributes:
        step: the whole step; step.num_samples counts the samples of all ranks.
        block: [n] int64, place in the BlockTable.
        row: [n] int64, row within the block.
        index: [n] int64, position in manifest order; always table.first_sample[block] + row.
    """

    step: Step
    block: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        """Samples of this rank."""
        return len(self.index)


class EpochPlan:
    """The order of one epoch. Immutable; any thread may use it.

    Args:
        table: the dataset's blocks; one table serves all epochs.
        seed: 0 to 2**64 - 1.
        epoch: 0 or more.
        rule: from choose_rule, or as kept in the run.
    """

    def __init__(self, table: BlockTable, *, seed: int, epoch: int, rule: PlanRule) -> None:
        self.table = table
        self.seed = seed
        self.epoch = epoch
        self.rule = rule
        self.order = _make_order(table, seed=seed, epoch=epoch, rule=rule)

    @classmethod
    def of_manifest(cls, manifest: DatasetManifest, *, seed: int, epoch: int, rule: PlanRule) -> EpochPlan:
        """The plan with a table of its own; keep plan.table for the next epoch."""
        table = BlockTable.from_manifest(manifest, block_bytes=rule.block_bytes)
        return cls(table, seed=seed, epoch=epoch, rule=rule)

    @property
    def num_samples(self) -> int:
        """Samples of the epoch over all ranks."""
        return self.table.num_samples

    @property
    def layout(self) -> LaneLayout:
        """The lanes; of a dataset held whole, the only one."""
        return self.order.layout

    def steps(self, global_batch_size: int, *, start: int = 0) -> Iterator[Step]:
        """Steps from sample number `start` of the order on, lazily."""
        return steps(self.num_samples, global_batch_size, start)

    def num_steps(self, global_batch_size: int, *, start: int = 0) -> int:
        """How many steps are left from sample number `start` on."""
        return num_steps(self.num_samples - start, global_batch_size)

    def rank_samples(self, start: int, stop: int, rank: int, world_size: int) -> StepShare:
        """A rank's samples of one step, without anything kept from step to step.

        For many steps in turn rank_view is faster: it keeps the shuffled rows of open pieces.
        """
        return self.rank_view(rank=rank, world_size=world_size).share(Step(start, stop))

    def rank_view(self, *, rank: int, world_size: int) -> RankView:
        """What one rank reads of this epoch, from any step on."""
        return RankView(self, rank=rank, world_size=world_size)

    def blocks_needed(
        self, *, start: int, global_batch_size: int, rank: int, world_size: int
    ) -> Iterator[BlockNeed]:
        """The blocks that a rank needs from a step on, each once, in order of first need; lazily.

        Args:
            start: number of the first sample of the next step.
            global_batch_size: of the steps to come.
            rank: 0 to world_size - 1.
            world_size: at least 1.

        Raises:
            ValueError: a dataset held whole is not fetched by blocks.
        """
        if isinstance(self.order, WholeOrder):
            raise ValueError("the dataset is held whole: all of it is needed from the first step on")
        return blocks_needed(
            self.order,
            start=start,
            global_batch_size=global_batch_size,
            rank=rank,
            world_size=world_size,
        )

    def samples_at(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions in manifest order of the given samples of the epoch's order (ascending)."""
        block, row = self.order.locate(numbers, self.order.open_pieces())
        index: npt.NDArray[np.int64] = self.table.first_sample[block] + row
        return index


class RankView:
    """What one rank reads of an epoch. For one thread at a time: it keeps the open pieces' shuffled rows.

    Steps may be asked for in any order; in turn is fastest.
    """

    def __init__(self, plan: EpochPlan, *, rank: int, world_size: int) -> None:
        check_rank(rank, world_size)
        self._plan = plan
        self.rank = rank
        self.world_size = world_size
        self._pieces = plan.order.open_pieces()

    def share(self, step: Step) -> StepShare:
        """This rank's samples of a step.

        Raises:
            ValueError: the step reaches beyond the epoch.
        """
        plan = self._plan
        if not 0 <= step.start <= step.stop <= plan.num_samples:
            raise ValueError(f"{step} is not within the epoch's {plan.num_samples} samples")
        numbers = rank_numbers(step, plan.layout, rank=self.rank, world_size=self.world_size)
        block, row = plan.order.locate(numbers, self._pieces)
        return StepShare(step=step, block=block, row=row, index=plan.table.first_sample[block] + row)


def _make_order(table: BlockTable, *, seed: int, epoch: int, rule: PlanRule) -> LaneOrder | WholeOrder:
    if not rule.shuffle:
        return LaneOrder.stored(table)
    if rule.whole:
        return WholeOrder.shuffled(table, seed=seed, epoch=epoch)
    return LaneOrder.shuffled(table, num_lanes=rule.num_lanes, seed=seed, epoch=epoch)
