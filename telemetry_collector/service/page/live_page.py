"""The live page of one service: the page itself, and the overview that it asks for each two seconds.

An overview is made when somebody looks, once a second however many do, in a thread: with a thousand brokers
it takes a fraction of a second, for which producers shall not wait. The last hour is remembered from each
snapshot as it is published, whether anybody looks or not.

Read next: overview.py, which makes it; page.html, which shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Protocol

from evenload.http_edge.kept_answer import KeptAnswer
from evenload.http_edge.sealed_page import Page, sealed
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.daemon_thread import in_daemon_thread
from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.service.page.overview import Explanation, make_overview
from evenload.telemetry_collector.service.page.overview_model import Overview
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.weights import Weights

__all__ = ["ExplainWith", "LivePage", "load_page"]


class ExplainWith(Protocol):
    """What lies above this package, as it asks the router."""

    def __call__(self, snapshot: ClusterSnapshot, weights: Weights) -> Explanation:
        """How willing one should be to send to each broker with these weights in force. Doesn't raise."""
        ...


def load_page() -> Page:
    """Read the page from the package."""
    html = files("evenload.telemetry_collector.service.page").joinpath("page.html")
    return sealed(html.read_text(encoding="utf-8"))


_KEPT_S = 1.0
_PATIENCE_S = 4.0  # the page's is 5


class LivePage:
    """The page of one service. Belongs to one asyncio loop, but for `remember`.

    Args:
        explain: asked once for each overview.

    Attributes:
        sent: what a browser gets.
    """

    def __init__(self, explain: ExplainWith) -> None:
        self.sent = load_page()
        self._explain = explain
        self._history = History()
        self._kept: KeptAnswer | None = None

    def remember(self, assembled: Assembled) -> None:
        """Keep what a new snapshot says for the last hour's picture; from the collector's thread."""
        self._history.add(assembled.snapshot, time.monotonic())

    async def overview(self, service: CollectorService) -> bytes:
        """What the page shows, as JSON; up to a second old.

        Raises:
            TimeoutError: it takes longer than whoever looks has patience.
        """
        if self._kept is None:
            self._kept = KeptAnswer(partial(self._make, service), kept_s=_KEPT_S)
        return await self._kept.get(_PATIENCE_S)

    async def _make(self, service: CollectorService) -> bytes:
        weights = service.weights or Weights()
        latest, statistics = service.latest, service.collector.statistics
        reports, intents = [*service.decided, *service.reports], service.intents

        def make() -> Overview:
            return make_overview(
                latest,
                statistics,
                self._history,
                reports=reports,
                intents=intents,
                weights=weights,
                felt=service.pushed.felt(),
                explain=partial(self._explain, weights=weights),
                now_s=time.monotonic(),
            )

        return await in_daemon_thread(partial(_encode, make), name="evenload-overview")


def _encode(make: Callable[[], Overview]) -> bytes:
    return make().model_dump_json().encode()
