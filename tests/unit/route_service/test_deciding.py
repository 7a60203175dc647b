"""One decision for all producers of a topic: what they say that they send counts, within bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from evenload.kafka_plugin.config import ProducerConfig
from evenload.route_service.deciding import TopicDeciding
from evenload.route_service.route_answer import RouteAnswer
from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.reports import RouteReport
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20
LAYOUT = {"t": [(1,), (2,), (3,)]}
UNBOUNDED = RouterConfig(safe_streams=False)


def snapshot(*used_mib: int, stored_mib: int = 0, taken_at_s: float = 1000.0) -> ClusterSnapshot:
    used = [each * MIB for each in used_mib]
    stored = {("t", number): stored_mib * MIB for number in range(3)}
    return make_snapshot(used, 1000 * MIB, topics=LAYOUT, stored_bytes=stored, taken_at_s=taken_at_s)


def report(producer: str = "a", sent_mib: dict[int, int] | None = None, **more: Any) -> RouteReport:
    sent = {number: each * MIB for number, each in (sent_mib or {}).items()}
    return RouteReport(producer=producer, topic="t", shares={}, sent_bytes_by_partition=sent, **more)


def deciding_of(topic: str, config: RouterConfig | None = None) -> TopicDeciding:
    return TopicDeciding(topic, Router(config), itertools.count(1).__next__)


def decide(
    deciding: TopicDeciding,
    measured: ClusterSnapshot | None,
    *reports: RouteReport,
    now_s: float = 10.0,
    age_s: float = 1.0,
    announced: dict[int, int] | None = None,
) -> RouteAnswer:
    cached = None if measured is None else CachedSnapshot(measured, age_s, age_s > 30)
    return deciding.decide(cached, reports, announced or {}, news=reports, now_s=now_s, poll_s=1.0)


def test_shares_are_for_all_partitions_and_the_version_grows_with_them() -> None:
    deciding = deciding_of("t")
    first = decide(deciding, snapshot(600, 600, 200))
    assert first.shares == pytest.approx((1 / 6, 1 / 6, 2 / 3))
    assert (first.version, first.cluster_id, first.reason) == (1, "test-cluster", None)
    assert decide(deciding, snapshot(600, 600, 200, taken_at_s=1001.0)) is first
    other = decide(deciding, snapshot(200, 600, 600, taken_at_s=1002.0))
    assert (other.version, other.shares) == (2, pytest.approx((2 / 3, 1 / 6, 1 / 6)))
    assert deciding.measured_at_s == 9.0


@pytest.mark.parametrize(
    ("measured", "age_s", "reason"),
    [(None, 0.0, "no_snapshot"), (snapshot(1, 1, 1), 31.0, "stale_snapshot")],
)
def test_without_anything_fresh_there_are_no_shares_but_a_reason(
    measured: ClusterSnapshot | None, age_s: float, reason: str
) -> None:
    answer = decide(deciding_of("t"), measured, age_s=age_s)
    assert (answer.shares, answer.reason) == ((), reason)


def test_a_topic_that_is_not_measured_has_no_shares() -> None:
    answer = decide(deciding_of("u"), snapshot(1, 1, 1))
    assert (answer.shares, answer.reason) == ((), "unknown_topic")


def test_what_all_producers_will_still_send_is_levelled_for() -> None:
    level = decide(
        deciding_of("t"),
        snapshot(600, 500, 400),
        report("a", remaining_bytes=100 * MIB),
        report("b", remaining_bytes=200 * MIB),
    )
    assert level.shares == pytest.approx((0, 1 / 3, 2 / 3))


def test_what_was_sent_since_the_measurement_counts_as_far_as_the_topic_grows() -> None:
    deciding = deciding_of("t", UNBOUNDED)
    even = decide(deciding, snapshot(300, 300, 300), report("a", {0: 0}), now_s=5.0)
    assert even.shares == pytest.approx((1 / 3,) * 3)
    # The topic grew by 30 MiB in ten seconds, so in one second 6 MiB may have come that nobody has measured.
    grown = snapshot(310, 310, 310, stored_mib=10, taken_at_s=1010.0)
    believed = decide(deciding, grown, report("a", {0: 6}), now_s=15.0)
    assert believed.shares[0] < believed.shares[1] == pytest.approx(believed.shares[2])
    unbelieved = deciding_of("t", UNBOUNDED)
    decide(unbelieved, snapshot(300, 300, 300), report("a", {0: 0}), now_s=5.0)
    lied = decide(unbelieved, grown, report("a", {0: 60_000}), now_s=15.0)
    assert lied.shares == pytest.approx(believed.shares, abs=1e-3)


def test_what_loads_into_other_topics_announce_is_taken_for_stored() -> None:
    level = decide(
        deciding_of("t"),
        snapshot(300, 300, 300),
        report(remaining_bytes=300 * MIB),
        announced={1: 100 * MIB, 9: 5},
    )
    assert level.shares == pytest.approx((1 / 9, 4 / 9, 4 / 9))


def test_many_producers_report_seldom_enough_and_often_enough() -> None:
    deciding = deciding_of("t")
    large = make_snapshot([0] * 3, 1 << 40, topics=LAYOUT)
    assert decide(deciding, large, report()).report_bytes == 1 << 30
    assert decide(deciding, large, *(report(str(n)) for n in range(100))).report_bytes == 1 << 23
    assert decide(deciding, snapshot(0, 0, 0), report()).report_bytes == 1 << 20
    assert decide(deciding_of("t"), None).report_bytes == 1 << 30


def test_turns_are_as_long_as_a_producer_that_decides_by_itself_would_make_them() -> None:
    large = make_snapshot([0] * 3, 1 << 40, topics=LAYOUT)
    assert decide(deciding_of("t"), large, report()).turn_max_bytes == ProducerConfig().batch_bytes


def test_new_partitions_get_their_part_though_brokers_are_even() -> None:
    deciding = deciding_of("t")
    assert len(decide(deciding, snapshot(300, 300, 300)).shares) == 3
    layout = {"t": LAYOUT["t"] * 2}
    grown = make_snapshot([300 * MIB] * 3, 1000 * MIB, topics=layout, taken_at_s=1001.0)
    assert decide(deciding, grown).shares == pytest.approx((1 / 6,) * 6)


@pytest.mark.parametrize("remaining_bytes", [0, 1, 2**80 - 1])
def test_what_one_producer_says_of_its_end_takes_the_bounds_off_for_nobody(remaining_bytes: int) -> None:
    streams = [report(str(number)) for number in range(4)]
    answer = decide(
        deciding_of("t"), snapshot(600, 600, 200), *streams, report("l", remaining_bytes=remaining_bytes)
    )
    assert max(answer.shares) <= 2 / 3 + 1e-6
    assert min(answer.shares) >= 1 / 30 - 1e-6
    assert answer.turn_max_bytes == 256 << 10


def test_a_topic_that_appears_has_not_grown() -> None:
    deciding = deciding_of("t", UNBOUNDED)
    decide(deciding, make_snapshot([0] * 3, 1000 * MIB), report("a", {0: 0}), now_s=5.0)
    appeared = snapshot(300, 300, 300, stored_mib=300, taken_at_s=1005.0)
    decide(deciding, appeared, report("a", {0: 1}), now_s=10.0)
    later = snapshot(300, 300, 300, stored_mib=300, taken_at_s=1006.0)
    answer = decide(deciding, later, report("a", {0: 60_000}), now_s=11.0)
    assert answer.shares == pytest.approx((1 / 3,) * 3, abs=0.02)
