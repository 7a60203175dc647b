"""Run strategies on layouts: each on a fresh topic in a real cluster, one after the other.

One cluster for all layouts with the same number of brokers. A layout's held bytes are written once; of a run
(one_load.py) nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.layouts import Layout
from benchmarks.one_load import load_once
from benchmarks.outcome import Outcome
from benchmarks.records import RandomRecords, Records
from benchmarks.stage import BROKER_PROPERTIES, Stage
from benchmarks.strategies import Strategy
from evenload.local_cluster import temporary_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load of a layout.

    Attributes:
        fraction: Of the free capacity, all copies counted.
        record_bytes: Size of each record.
        seed: Of values, and of Python's `random` while it is written.
    """

    layout: Layout
    fraction: float
    record_bytes: int
    seed: int

    @property
    def records(self) -> Records:
        """What is written."""
        return RandomRecords(self.record_bytes, self.seed)

    @property
    def num_records(self) -> int:
        """An even number: it is written in two halves."""
        return self.layout.load_bytes(self.fraction) // self.record_bytes // 2 * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A strategy's outcome in a case."""

    case: Case
    strategy: str
    outcome: Outcome


def run_all(
    cases: Sequence[Case], strategies: Sequence[Strategy], started: Callable[[Case, str], None]
) -> Iterator[list[Run]]:
    """Run each strategy on each case.

    Args:
        cases: Those of one layout together.
        strategies: What to compare.
        started: Is told of each run when it begins.

    Yields:
        The runs of one layout.
    """
    by_size = sorted(cases, key=lambda case: len(case.layout.capacity_mib))
    for num_brokers, of_size in groupby(by_size, key=lambda case: len(case.layout.capacity_mib)):
        with temporary_cluster(num_brokers=num_brokers, broker_properties=BROKER_PROPERTIES) as cluster:
            for layout, of_layout in groupby(of_size, key=lambda case: case.layout):
                chosen = [strategy for strategy in strategies if strategy.is_for(layout)]
                if chosen:
                    with Stage(cluster, layout) as stage:
                        yield list(_run_layout(stage, list(of_layout), chosen, started))


def _run_layout(
    stage: Stage, cases: Sequence[Case], strategies: Sequence[Strategy], started: Callable[[Case, str], None]
) -> Iterator[Run]:
    for case in cases:
        for strategy in strategies:
            started(case, strategy.name)
            yield Run(case=case, strategy=strategy.name, outcome=load_once(stage, case, strategy))
