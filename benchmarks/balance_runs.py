"""Run strategies on layouts: each on a fresh topic in a real cluster, one after the other.

One cluster for all layouts with the same number of brokers. A layout's held bytes are written once; each run
makes its topic, writes it, is measured, and takes it away again, with its intrusion.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from benchmarks.layouts import Layout
from benchmarks.outcome import Outcome, judge
from benchmarks.records import RandomRecords, Records
from benchmarks.stage import BROKER_PROPERTIES, Stage
from benchmarks.strategies import Assignment, Strategy
from benchmarks.writers import Load
from evenload.local_cluster import temporary_cluster
from evenload.telemetry_collector.collector import sample_once

# A load that changes half-way has to last long enough that the change can be measured while it lasts.
CHANGING_LOAD_S = 3.0


class AnyCase(Protocol):
    """What running a load needs to know of it."""

    @property
    def layout(self) -> Layout:
        """The situation it comes into."""

    @property
    def seed(self) -> int:
        """Of Python's `random` while it is written."""

    @property
    def records(self) -> Records:
        """What is written."""

    @property
    def num_records(self) -> int:
        """How many; an even number."""


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
                with Stage(cluster, layout) as stage:
                    yield list(_run_layout(stage, list(of_layout), strategies, started))


def _run_layout(
    stage: Stage, cases: Sequence[Case], strategies: Sequence[Strategy], started: Callable[[Case, str], None]
) -> Iterator[Run]:
    for case in cases:
        for strategy in strategies:
            started(case, strategy.name)
            yield Run(case=case, strategy=strategy.name, outcome=run_once(stage, case, strategy))


def run_once(stage: Stage, case: AnyCase, strategy: Strategy) -> Outcome:
    """Write one load in one way, and measure what came out; nothing of it is left on the stage."""
    random.seed(case.seed)
    assignment = _assignment(stage, case, strategy)
    changes = bool(case.layout.intrusion_mib)
    topic = stage.make_topic(assignment)
    intrusion = None
    load = Load(
        connection=stage.connection,
        topic=topic,
        assignment=assignment,
        num_records=case.num_records,
        records=case.records,
        records_per_s=case.num_records / CHANGING_LOAD_S if changes else None,
    )
    with closing(strategy.open(load)) as writer:
        if changes:
            writer.write(load.num_records // 2)
            intrusion = stage.intrude()
        writer.write(load.num_records // (2 if changes else 1))
    outcome = judge(case.layout, topic, held=stage.measure(), leaders=stage.leaders(topic))
    stage.delete_topics(*(name for name in (topic, intrusion) if name is not None))
    return outcome


def _assignment(stage: Stage, case: AnyCase, strategy: Strategy) -> Assignment:
    if strategy.place is None:
        return case.layout.assignment
    num_bytes = case.records.num_bytes(case.num_records)
    return strategy.place(sample_once(stage.connection), case.layout.replication, num_bytes)
