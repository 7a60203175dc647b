"""A dataset without Kafka, for tests of loops: the interface and the order of the real one, arrays instead.

`MemoryReader` cuts, orders and divides by the same plan as `DatasetReader`; it only fetches nothing. What is
tested with it about steps, cursors and books holds for the real one as far as the contract test that runs
against both says so (tests/integration/ray_trainer/test_training_reader_contract.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.cursor import Cursor
from evenload.ray_trainer.planning.plan import EpochPlan
from evenload.ray_trainer.planning.rule import PlanRule, earlier_rule, plan_facts, plan_fingerprint
from evenload.ray_trainer.planning.steps import num_steps, steps
from evenload.ray_trainer.reading.batch import Batch

__all__ = ["MemoryDataset", "MemoryReader"]


@dataclass(frozen=True)
class MemoryDataset:
    """What stands for a manifest."""

    name: str
    version: int
    num_samples: int

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def fingerprint(self) -> str:
        return f"memory-{self.id}-{self.num_samples}"


class MemoryReader:
    """The samples of arrays, in the order that a topic with the same blocks would give.

    Args:
        columns: Arrays of equal length; a sample is one row of each.
        lanes: Of the plan's rule; more than 1 exercises cuts and lanes.
        samples_per_block: All blocks but the last have so many.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
        *,
        global_batch_size: int,
        seed: int = 0,
        name: str = "memory",
        version: int = 1,
        lanes: int = 4,
        samples_per_block: int = 3,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._columns = {name: torch.as_tensor(np.asarray(column)) for name, column in columns.items()}
        num_samples = len(next(iter(self._columns.values())))
        self.dataset = MemoryDataset(name, version, num_samples)
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        is_distributed = dist.is_available() and dist.is_initialized()
        own_rank, own_world_size = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
        self.rank = own_rank if rank is None else rank
        self.world_size = own_world_size if world_size is None else world_size
        self._take_rule(PlanRule(num_lanes=lanes, block_bytes=samples_per_block, whole=False, shuffle=True))
        self.epoch = 0
        self._samples_consumed = 0

    def __len__(self) -> int:
        return num_steps(self.num_samples, self.global_batch_size)

    @property
    def plan(self) -> EpochPlan:
        return EpochPlan(self._table, seed=self.seed, epoch=self.epoch, rule=self._rule)

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.epoch, self._samples_consumed, self.plan_fingerprint)

    def __iter__(self) -> Iterator[Batch]:
        view = self.plan.rank_view(rank=self.rank, world_size=self.world_size)
        for step in steps(self.num_samples, self.global_batch_size, self._samples_consumed):
            index = torch.from_numpy(view.share(step).index)
            self._samples_consumed = step.stop
            yield Batch(
                {name: column[index] for name, column in self._columns.items()},
                index=index,
                seed=self.seed,
                global_num_samples=step.num_samples,
                cursor=self.cursor,
                world_size=self.world_size,
            )
        self.epoch += 1
        self._samples_consumed = 0

    def adopt_plan(self, facts: Mapping[str, Any]) -> None:
        rule = earlier_rule(facts, self._facts, asked={"shuffle": True, "whole": False})
        if rule is not None:
            self._take_rule(rule)

    def _take_rule(self, rule: PlanRule) -> None:
        self._rule = rule
        self._table = _table(self.num_samples, rule.block_bytes)
        self._facts = plan_facts(self.dataset.fingerprint, self.seed, rule)
        self.plan_fingerprint = plan_fingerprint(self._facts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "cursor": self.cursor.to_dict(),
            "global_batch_size": self.global_batch_size,
            "plan": dict(self._facts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        cursor = Cursor.from_dict(state["cursor"])
        self.adopt_plan(state["plan"])
        cursor.check(self.plan_fingerprint, facts_then=state["plan"], facts_now=self._facts)
        self.epoch, self._samples_consumed = cursor.epoch, cursor.samples_consumed
        if self._samples_consumed >= self.num_samples:
            self.epoch, self._samples_consumed = self.epoch + 1, 0


def _table(num_samples: int, samples_per_block: int) -> BlockTable:
    full, rest = divmod(num_samples, samples_per_block)
    sizes = [samples_per_block] * full + ([rest] if rest else [])
    return BlockTable.from_extents(
        partition=np.zeros(len(sizes), np.int64),
        first_offset=np.arange(len(sizes)),
        num_records=np.ones(len(sizes), np.int64),
        samples_per_record=np.array(sizes),
    )
