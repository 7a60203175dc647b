"""Make docs/live-page-*.png: the live page of a made-up evening, drawn by the real page from real decisions.

    python docs/live_page.py            # needs Chromium: apt-get install chromium
    python docs/live_page.py FOLDER     # every width and colour scheme, to look at

Five brokers of three sizes. A load levels them for an hour by the product's own routes, while another
application fills broker 2, broker 4 is slow, and a producer has no fresh snapshot. What is measured is made
up; routes, willingness, overview and page are the product's. Nothing is served: the browser's requests are
answered here.
"""

from __future__ import annotations

from dataclasses import replace

from page_pictures import make_pictures

from evenload.router.config import RouterConfig
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.router.scoring import ScoreContext
from evenload.telemetry_collector import BrokerSnapshot, CachedSnapshot, ClusterSnapshot
from evenload.telemetry_collector.pushed.client_figures import Kind
from evenload.telemetry_collector.pushed.felt import FeltByProducers
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.service.page.live_page import load_page
from evenload.telemetry_collector.service.page.overview import Explanation, make_overview
from evenload.telemetry_collector.statistics import CollectorStatistics
from evenload.telemetry_collector.testing import make_snapshot
from evenload.telemetry_collector.weights import Weights

GIB = 1 << 30
MIB = 1 << 20
STEP_S = 10
CAPACITIES = [2000 * GIB, 2000 * GIB, 1000 * GIB, 2000 * GIB, 4000 * GIB]
RACKS = ["a", "b", "c", "a", "b"]
LOAD, LOAD_BYTES_PER_S, TO_LOAD = "imagenet-21k", 420 * MIB, 2400 * GIB
OTHER_BYTES_PER_S = 41 * MIB  # of another application, all to broker 2
# By topic: its partitions, and what each of their replicas holds at first.
TOPICS: dict[str, tuple[list[tuple[int, ...]], int]] = {
    "clicks": ([(1, 2), (2, 1), (2, 4), (4, 2), (5, 4), (5, 1)], 60 * GIB),
    "cctv-frames": ([(2,), (2,), (2,), (4,), (4,), (1,)], 330 * GIB),
    LOAD: ([(1,), (2,), (3,), (4,), (5,)] * 4, 0),
    "orders": ([(3, 1), (1, 4), (4, 3)], 41 * GIB),
    "cola": ([(1,), (3,), (5,)], 140 * MIB),
}

# Of those that push: broker 4 is slow for them, too.
FELT: dict[Kind, FeltByProducers] = {
    "java": FeltByProducers(
        num_clients=38,
        latency_s_by_broker={1: 0.0031, 2: 0.0046, 3: 0.0028, 4: 0.052, 5: 0.0035},
        queue_time_s=0.0062,
        num_throttled=2,
    ),
    "librdkafka": FeltByProducers(
        num_clients=11,
        latency_s_by_broker={1: 0.0024, 2: 0.0038, 3: 0.0022, 4: 0.041, 5: 0.0027},
        queue_time_s=0.0001,
    ),
}


def slow_broker(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001 - a score function
    """From 1 at 10 ms down: what a score function on latency may say."""
    return min(1.0, 0.010 / max(0.010, broker.latency_s or 0.0))


WEIGHTS = {"latency": 1.0, "reachability": 1.0}


class Evening:
    """An hour that ends now: brokers that fill, routes that follow."""

    def __init__(self) -> None:
        self.history = History()
        self.now_s = 0.0
        self._stored = {
            (topic, partition): float(size)
            for topic, (layout, size) in TOPICS.items()
            for partition in range(len(layout))
        }
        config = RouterConfig(score_functions=WEIGHTS, dead_band=0.0)
        self.router = Router(config, score_functions={"latency": slow_broker})
        self.route: Route | None = None
        self.to_come = float(TO_LOAD)

    def snapshot(self) -> ClusterSnapshot:
        """What a collector would have measured."""
        layouts = {topic: layout for topic, (layout, _) in TOPICS.items()}
        used = [0] * len(CAPACITIES)
        for (topic, partition), size in self._stored.items():
            for broker_id in layouts[topic][partition]:
                used[broker_id - 1] += int(size)
        made = make_snapshot(
            used,
            CAPACITIES,
            topics=layouts,
            racks=RACKS,
            stored_bytes={key: int(size) for key, size in self._stored.items()},
            latency_s={1: 0.0021, 2: 0.0034, 3: 0.0019, 4: 0.031, 5: 0.0024},
            taken_at_s=self.now_s,
            cluster_id="4L6g3nShT-eMCtK--X86sw",
        )
        return replace(
            made, brokers={b: replace(s, ingest_bytes_per_s=self.ingest(b)) for b, s in made.brokers.items()}
        )

    def ingest(self, broker_id: int) -> float:
        """Bytes a second to a broker: its part of the load, and the other application's."""
        shares = self.route.shares if self.route else {}
        layout = TOPICS[LOAD][0]
        part = sum(share for partition, share in shares.items() if layout[partition] == (broker_id,))
        return part * LOAD_BYTES_PER_S + (OTHER_BYTES_PER_S if broker_id == 2 else 0)

    def pass_by(self, seconds: int) -> None:
        """Let time go by: bytes come, the route follows."""
        for _ in range(seconds // STEP_S):
            snapshot = self.snapshot()
            self.history.add(snapshot, self.now_s)
            self.route = self.router.route(
                snapshot,
                LOAD,
                num_partitions=20,
                remaining_bytes=int(self.to_come),
                now_s=self.now_s,
                previous=self.route,
            )
            for partition, share in self.route.shares.items():
                self._stored[LOAD, partition] += share * LOAD_BYTES_PER_S * STEP_S
            self.to_come -= LOAD_BYTES_PER_S * STEP_S
            for partition in range(3):
                self._stored["cctv-frames", partition] += OTHER_BYTES_PER_S * STEP_S / 3
            self.now_s += STEP_S

    def overview_json(self) -> str:
        """What `/v1/overview` would say now."""
        assert self.route is not None
        snapshot = self.snapshot()
        even = self.router.route(None, "clicks", num_partitions=6, remaining_bytes=None, now_s=self.now_s)
        layout = TOPICS[LOAD][0]
        announced = {layout[p][0]: 0 for p in self.route.shares}
        for partition, share in self.route.shares.items():
            announced[layout[partition][0]] += int(share * self.to_come)
        return make_overview(
            CachedSnapshot(snapshot, 2.4, False),
            CollectorStatistics(
                num_answers={}, num_failures={}, num_faults={}, num_snapshots=361, failures={}
            ),
            self.history,
            reports=[
                report(
                    f"loader-3/4711/{LOAD}",
                    LOAD,
                    self.route,
                    sent=TO_LOAD - int(self.to_come),
                    to_come=int(self.to_come),
                ),
                report("web-17/2210/clicks", "clicks", even, sent=3 * GIB, to_come=None),
            ],
            intents=[Intent(load=f"loader-3/{LOAD}", topic=LOAD, bytes_by_broker=announced)],
            felt=FELT,
            weights=Weights(score_functions=WEIGHTS),
            explain=self.explain,
            now_s=self.now_s,
        ).model_dump_json()

    def explain(self, snapshot: ClusterSnapshot) -> Explanation:
        """What the router's score functions make of a snapshot."""
        told = self.router.explain(snapshot, LOAD, now_s=self.now_s)
        return Explanation(willingness=told.by_broker, scores=told.scores)


def report(producer: str, topic: str, route: Route, *, sent: int, to_come: int | None) -> RouteReport:
    """What a producer tells of its route."""
    return RouteReport(
        producer=producer,
        topic=topic,
        shares=dict(route.shares),
        reason=route.reason,
        notes=route.notes,
        sent_bytes=sent,
        remaining_bytes=to_come,
        num_fallbacks=12 if route.is_fallback else 0,
    )


def main() -> None:
    """Make the pictures."""
    evening = Evening()
    evening.pass_by(3600)
    make_pictures("live-page", load_page(), evening.overview_json(), ready="#brokers tbody tr")


if __name__ == "__main__":
    main()
