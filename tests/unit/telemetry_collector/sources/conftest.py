"""A measuring in virtual time (an hour of outages takes milliseconds), and brokers that are made up."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from evenload.telemetry_collector import ClusterSnapshot, CollectorConfig
from evenload.telemetry_collector.measuring import Measuring
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.sources.source import Source
from evenload.telemetry_collector.statistics import StatisticsCounter
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

WALL_BEGIN_S = 1e9
CONFIG = CollectorConfig(interval_s=5.0, full_interval_s=30.0, deadline_s=3.0, jitter=0.0)


@pytest.fixture
def measure() -> Callable[..., _Watched]:
    """Runs a scenario beside a measuring: `measure(sources, scenario, config=..., topics=...)`."""
    return _measure


@pytest.fixture
def cluster(new_cluster: Callable[[], FakeCluster]) -> FakeCluster:
    """One of them."""
    return new_cluster()


@pytest.fixture
def new_cluster() -> Callable[[], FakeCluster]:
    """Makes clusters of three brokers and two topics."""

    def new() -> FakeCluster:
        topics = {"t": [(1, 2), (2, 3)], "u": [(3, 1)]}
        stored = {("t", 0): 10, ("t", 1): 20, ("u", 0): 40}
        return FakeCluster(make_snapshot([100, 200, 300], topics=topics, stored_bytes=stored))

    return new


class _JumpingSelector(selectors.SelectSelector):
    """Where a loop would sleep until its next timer, its time jumps there instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class _Watched:
    """A measuring that runs, what it published, and when."""

    def __init__(
        self, sources: Sequence[Source], config: CollectorConfig, topics: Iterable[str] | None = None
    ) -> None:
        self.wall_jump_s = 0.0
        self.topics = None if topics is None else frozenset(topics)
        self.loop = asyncio.get_running_loop()
        self.published: list[tuple[float, Assembled]] = []
        self.counter = StatisticsCounter([source.name for source in sources])
        self.measuring = Measuring(
            sources,
            config,
            topics=lambda: self.topics,
            bootstrap_servers="b:1",
            capacity_bytes_by_broker={},
            publish=lambda assembled: self.published.append((self.loop.time(), assembled)),
            counter=self.counter,
            rng=random.Random(7),
            clock=self.loop.time,
            wall_clock=self.wall_now_s,
        )

    def wall_now_s(self) -> float:
        return WALL_BEGIN_S + self.loop.time() + self.wall_jump_s

    @property
    def latest(self) -> ClusterSnapshot:
        return self.published[-1][1].snapshot

    def reachable(self) -> set[int]:
        return {broker_id for broker_id, broker in self.latest.brokers.items() if broker.is_reachable}

    def ages_s(self) -> list[float]:
        """How old the latest snapshot got before each next one."""
        pairs = zip(self.published, self.published[1:], strict=False)
        return [next_at_s - assembled.measured_at_s for (_, assembled), (next_at_s, _) in pairs]


def _measure(
    sources: Sequence[Source],
    scenario: Callable[[_Watched], Awaitable[None]],
    *,
    config: CollectorConfig = CONFIG,
    topics: Iterable[str] | None = None,
) -> _Watched:
    """Run a scenario beside a measuring, in virtual time; demand that no task is left."""

    async def run() -> _Watched:
        watched = _Watched(sources, config, topics)
        running = asyncio.ensure_future(watched.measuring.run())
        try:
            await scenario(watched)
        finally:
            watched.measuring.stop()
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return watched

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(run())
