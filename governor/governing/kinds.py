"""What is known of jobs of one kind: how fast they are at each size, and what a resize costs them.

Jobs are of one kind if they train the same model on the same data with the same global batch on the same
device: what was measured of one holds for the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from pydantic import ConfigDict

from evenload.governor.governing.engine import SIZE_MAX, StintId

RESIZE_COST_S = 15.0  # until one was measured
NUM_KEPT = 9  # measurements of each thing: the median of few forgets an outlier, and what is long ago
SPEED_MAX, COST_MAX_S = 1e15, 1e6
CHANGE_MIN = 0.05  # of a speed: less is noise


class MeasuredSpeed(NamedTuple):
    """What a stint came to."""

    stint_id: StintId
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Measurements of one kind of job; a value."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    speeds: Mapping[int, tuple[MeasuredSpeed, ...]] = field(default_factory=dict)  # by size, newest last
    resize_costs_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(1 <= size <= SIZE_MAX and speeds for size, speeds in self.speeds.items()):
            raise ValueError(
                f"a kind was measured at sizes from 1 to {SIZE_MAX:,}, not {list(self.speeds)[:5]}"
            )
        if not all(0 < each.samples_per_s <= SPEED_MAX for speeds in self.speeds.values() for each in speeds):
            raise ValueError(f"a speed is above 0, to {SPEED_MAX:g} samples/s")
        if not all(0 <= cost_s <= COST_MAX_S for cost_s in self.resize_costs_s):
            raise ValueError(f"a resize costs from 0 to {COST_MAX_S:g} s, not {self.resize_costs_s[:5]}")

    @property
    def measured(self) -> dict[int, float]:
        """Samples/s by size, the median of what was measured."""
        return {size: median(each.samples_per_s for each in speeds) for size, speeds in self.speeds.items()}

    @property
    def resize_cost_s(self) -> float:
        """From a stop to the first step at another size."""
        return median(self.resize_costs_s) if self.resize_costs_s else RESIZE_COST_S

    def with_speed(self, size: int, stint_id: StintId, samples_per_s: float) -> Kind:
        """After a stint was measured, or measured for longer; itself where that says nothing new."""
        if not 0 < samples_per_s <= SPEED_MAX:
            return self  # nobody is so fast; the rest of what is known stays
        speeds = self.speeds.get(size, ())
        for known in speeds:
            if known.stint_id == stint_id and abs(samples_per_s / known.samples_per_s - 1) < CHANGE_MIN:
                return self
        others = [each for each in speeds if each.stint_id != stint_id]
        newest_last = (*others, MeasuredSpeed(stint_id, samples_per_s))
        return replace(self, speeds={**self.speeds, size: newest_last[-NUM_KEPT:]})

    def with_resize(self, cost_s: float) -> Kind:
        """After a resize was measured."""
        return replace(self, resize_costs_s=(*self.resize_costs_s, cost_s)[-NUM_KEPT:])
