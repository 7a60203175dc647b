"""Write one load into a situation in one way, and measure what came out.

It makes its topic, writes it, measures, and takes it away again, with the other load that came in between.
"""

from __future__ import annotations

import random
from contextlib import closing
from typing import Protocol

from benchmarks.layouts import Layout
from benchmarks.outcome import Outcome, judge
from benchmarks.records import Records
from benchmarks.stage import Stage
from benchmarks.strategies import Assignment, Strategy
from benchmarks.writers import Load
from evenload.telemetry_collector.collector import sample_once

# A load that changes half-way has to last long enough that the change can be measured while it lasts.
CHANGING_LOAD_S = 3.0


class Case(Protocol):
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


def load_once(stage: Stage, case: Case, strategy: Strategy) -> Outcome:
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


def _assignment(stage: Stage, case: Case, strategy: Strategy) -> Assignment:
    if strategy.place is None:
        return case.layout.assignment
    num_bytes = case.records.num_bytes(case.num_records)
    return strategy.place(sample_once(stage.connection), case.layout.replication, num_bytes)
