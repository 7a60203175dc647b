"""What a source of measurements is: something that answers one question within a time.

The idea: the collector owns when to ask, how long to wait, what to do about silence, and how answers become
a snapshot; a source only knows how to ask. So a new kind of measurement is one class with `answer` and
`close`, and every source keeps the same contract, which the fake of testing.py keeps too
(tests/integration/test_collector_source_contract.py):

1. `answer` returns an observation or raises a `SourceError`, within about `timeout_s`.
2. Questions to different brokers don't wait for each other.
3. Cancelling `answer` is safe; what it left behind ends by itself within `timeout_s`.
4. After `close`, which may be called twice, nothing of it runs, and `answer` raises `CollectorClosedError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from telemetry_collector.observation import BrokerStorage, ClusterLayout

__all__ = ["Observation", "Question", "Source"]

Observation = ClusterLayout | BrokerStorage


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
    """

    name: str
    is_per_broker: bool

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
