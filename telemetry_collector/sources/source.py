"""What a source of measurements is: something that answers one question within a time.

The idea: the collector owns when to ask, how long to wait, what to do about silence, and how answers become
a snapshot; a source only knows how to ask. Who is there, what brokers hold and where partitions are is known
from the cluster's own answers alone. A source of anything else (`is_essential` is False) adds figures when it
has some: it is never waited for, and its failures are counted, no more.

So a new kind of measurement is one class with `answer` and `close`, and every source keeps the same contract,
which the fakes of testing.py keep too
(tests/integration/telemetry_collector/test_collector_source_contract.py):

1. `answer` returns an observation or raises a `SourceError`, within about `timeout_s`.
2. Questions to different brokers don't wait for each other.
3. Cancelling `answer` is safe; what it left behind ends by itself within `timeout_s`.
4. After `close`, which may be called twice, nothing of it runs, and `answer` raises `CollectorClosedError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.observation import (
    BrokerStorage,
    ClusterLayout,
    HeardConfigs,
    HeardThrottles,
)

__all__ = ["Observation", "Question", "Source"]

Observation = ClusterLayout | BrokerStorage | HeardConfigs | HeardThrottles | BrokerMetrics
"""Of the cluster and of a broker: first what is essential, then what isn't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the collector wants to know from a source, and what it knows already.

    Attributes:
        broker_id: which broker to ask; None for the cluster as a whole.
        topics: the topics that matter; None: all of them.
        is_full: whether the expensive figures (all partitions) are due as well.
        layout: what is known about the cluster, None at first.
        timeout_s: how long the answer may take; above 0.
    """

    broker_id: int | None
    topics: frozenset[str] | None
    is_full: bool
    layout: ClusterLayout | None
    timeout_s: float


class Source(Protocol):
    """One way to measure a cluster. Used from one asyncio loop only.

    Attributes:
        name: short and fixed, as it becomes a metric's label.
        is_per_broker: whether each broker is asked, or the cluster as a whole.
        is_essential: whether a broker of which it gets no answer counts as unreachable.
    """

    name: str
    is_per_broker: bool
    is_essential: bool

    async def answer(self, question: Question) -> Observation:
        """Ask, and wait for the answer.

        Raises:
            SourceError: there was none, or none that can be used.
            CollectorClosedError: the source has been closed.
        """
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...
