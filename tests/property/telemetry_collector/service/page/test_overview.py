"""What the live page shows, made from anything that a collector may know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector import CachedSnapshot, ClusterSnapshot
from evenload.telemetry_collector.pushed.client_figures import Kind
from evenload.telemetry_collector.pushed.felt import FeltByProducers
from evenload.telemetry_collector.reports import JAVA_PRODUCER, Intent, RouteReport
from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.service.page.overview import (
    MAX_FAILURES,
    MAX_HOLDERS,
    MAX_ROUTES,
    MAX_TOPICS,
    Explanation,
    make_overview,
)
from evenload.telemetry_collector.service.page.overview_model import Overview
from evenload.telemetry_collector.snapshot import ReplicationThrottles
from evenload.telemetry_collector.statistics import CollectorStatistics
from evenload.telemetry_collector.testing import make_snapshot
from evenload.telemetry_collector.weights import Weights

URGENCY = ["critical", "warning", "notice", "fine"]
names = st.text(min_size=1, max_size=12)
parts = st.floats(0, 1)
broker_ids = st.integers(1, 5)


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    num_brokers = draw(st.sampled_from([0, 1, 2, 4, 5]))
    topics = draw(
        st.dictionaries(
            names, st.lists(st.lists(broker_ids, min_size=1, max_size=3, unique=True), max_size=4), max_size=4
        )
    )
    made = make_snapshot(
        draw(st.lists(st.integers(0, 3000), min_size=num_brokers, max_size=num_brokers)),
        draw(st.lists(st.none() | st.integers(0, 2000), min_size=num_brokers, max_size=num_brokers)),
        topics=topics,
        stored_bytes={
            (name, p): draw(st.integers(0, 500))
            for name, layout in topics.items()
            for p in range(len(layout))
        },
        unreachable=draw(st.sets(broker_ids)),
        leaderless=[(name, 0) for name in topics if draw(st.booleans())],
    )
    brokers = {
        broker_id: replace(
            broker,
            usable_bytes=draw(st.none() | st.integers(0, 2000)),
            ingest_bytes_per_s=draw(st.none() | st.floats(-10, 1e6)),
            is_cordoned=draw(st.booleans()),
        )
        for broker_id, broker in made.brokers.items()
    }
    throttles = st.builds(
        ReplicationThrottles,
        bytes_per_s=st.dictionaries(broker_ids, st.integers(0, 2**63)),
        num_replicas=st.dictionaries(names, st.integers(1, 9)),
        num_moving=st.none() | st.integers(0, 9),
    )
    return replace(made, brokers=brokers, throttles=draw(st.none() | throttles))


reports = st.lists(
    st.builds(
        RouteReport,
        producer=names,
        topic=names,
        shares=st.dictionaries(st.integers(0, 9), parts, max_size=6),
        reason=st.none() | names,
        notes=st.lists(names, max_size=3).map(tuple),
        put_aside=st.dictionaries(names, names, max_size=2),
        remaining_bytes=st.none() | st.integers(0, 1 << 40),
    ),
    max_size=5,
)
intents = st.lists(
    st.builds(
        Intent, load=names, topic=names, bytes_by_broker=st.dictionaries(broker_ids, st.integers(0, 3000))
    ),
    max_size=4,
)
explanations = st.builds(
    Explanation,
    willingness=st.dictionaries(broker_ids, parts),
    scores=st.dictionaries(names, st.dictionaries(broker_ids, parts), max_size=3),
    put_aside=st.dictionaries(names, names, max_size=2),
)
known = st.fixed_dictionaries(
    {
        "snapshot": st.none() | snapshots(),
        "age_s": st.floats(0, 100),
        "failures": st.dictionaries(names, names, max_size=3),
        "reports": reports,
        "intents": intents,
        "weights": st.builds(Weights, brokers=st.dictionaries(broker_ids, parts)),
        "explanation": explanations,
    }
)


NOW_S = 5000.0


def overview_of(
    snapshot: ClusterSnapshot | None,
    *,
    age_s: float = 1.0,
    failures: dict[str, str] | None = None,
    reports: list[RouteReport] | None = None,
    intents: list[Intent] | None = None,
    weights: Weights | None = None,
    explanation: Explanation | None = None,
    history: History | None = None,
    felt: dict[Kind, FeltByProducers] | None = None,
) -> Overview:
    history = history or History()
    if snapshot is not None:
        history.add(snapshot, NOW_S)
    return make_overview(
        None if snapshot is None else CachedSnapshot(snapshot, age_s, age_s > 30),
        CollectorStatistics(
            num_answers={}, num_failures={}, num_faults={}, num_snapshots=1, failures=failures or {}
        ),
        history,
        reports=reports or [],
        intents=intents or [],
        weights=weights or Weights(),
        felt=felt,
        explain=lambda _: explanation or Explanation(),
        now_s=NOW_S,
    )


@given(known)
def test_the_json_of_an_overview_reads_back_as_the_same(known: dict[str, Any]) -> None:
    overview = overview_of(**known)
    assert Overview.model_validate_json(overview.model_dump_json()) == overview


@given(known)
def test_a_forecast_is_what_is_used_and_announced_over_the_capacity(known: dict[str, Any]) -> None:
    for broker in overview_of(**known).brokers:
        announced = sum(intent.bytes_by_broker.get(broker.broker_id, 0) for intent in known["intents"])
        assert broker.announced_bytes == announced
        if broker.capacity_bytes:
            assert broker.forecast_utilisation == pytest.approx(
                (broker.used_bytes + announced) / broker.capacity_bytes
            )
        else:
            assert broker.forecast_utilisation is None


@given(known)
def test_bytes_of_a_topic_over_brokers_are_those_of_the_snapshot(known: dict[str, Any]) -> None:
    snapshot = known["snapshot"]
    overview = overview_of(**known)
    assert {topic.topic for topic in overview.topics} == set(snapshot.topics if snapshot else ())
    for topic in overview.topics:
        stored = {
            broker_id: sum(
                size for (name, _), size in broker.bytes_by_topic_partition.items() if name == topic.topic
            )
            for broker_id, broker in snapshot.brokers.items()
        }
        assert topic.stored_bytes == sum(stored.values())
        assert topic.stored_bytes_by_broker == {b: size for b, size in stored.items() if size}
        led = snapshot.leader_bytes(topic.topic)
        assert topic.leader_bytes_by_broker == {b: size for b, size in led.items() if size}


@given(known)
def test_there_is_always_something_to_say_and_the_most_urgent_comes_first(known: dict[str, Any]) -> None:
    findings = overview_of(**known).findings
    urgency = [URGENCY.index(finding.severity) for finding in findings]
    assert urgency == sorted(urgency)
    assert findings
    if any(finding.severity == "fine" for finding in findings):
        assert [finding.kind for finding in findings] == ["fine"]
        assert known["age_s"] <= 30
        assert not known["failures"]


@given(known)
def test_a_broker_that_does_not_answer_or_is_full_is_named_as_critical(known: dict[str, Any]) -> None:
    overview = overview_of(**known)
    named = {b for finding in overview.findings if finding.severity == "critical" for b in finding.broker_ids}
    for broker in overview.brokers:
        if not broker.is_reachable or (broker.utilisation or 0) >= 1:
            assert broker.broker_id in named


def first(snapshot: ClusterSnapshot | None, **known: Any) -> tuple[str, str]:
    finding = overview_of(snapshot, **known).findings[0]
    return finding.severity, finding.text


def filling(rate: float, **changes: Any) -> ClusterSnapshot:
    """Broker 2 of three holds 400 of 1,000 bytes and gets `rate` bytes a second."""
    made = make_snapshot([400, 400, 400], 1000)
    second = replace(made.brokers[2], ingest_bytes_per_s=rate, **changes)
    return replace(made, brokers={**made.brokers, 2: second})


def test_sentences_as_an_operator_reads_them() -> None:
    fine = make_snapshot([410, 430, 420], 1000)
    assert first(fine) == ("fine", "All is well: 3 brokers, from 41% to 43% full.")
    assert first(fine, age_s=90.0) == (
        "critical",
        "Measurements are 90 s old; producers don't decide from them any more.",
    )
    assert first(make_snapshot([1, 2, 3], 1000, unreachable=[2]), age_s=7.0) == (
        "critical",
        "Broker 2 hasn't answered for 7 s.",
    )
    assert first(make_snapshot([1] * 9, 1000, unreachable=range(2, 9))) == (
        "critical",
        "Brokers 2, 3, 4 and 4 others haven't answered for 1 s.",
    )
    assert first(filling(600 / 18_000)) == ("warning", "Broker 2 will be full in 5 h.")
    assert first(filling(600 / 5_400)) == ("critical", "Broker 2 will be full in 90 min.")
    assert first(make_snapshot([1001, 20, 30], 1000)) == ("critical", "Broker 1 is full.")
    assert first(make_snapshot([930, 900, 910], 1000)) == (
        "warning",
        "Brokers 1 and 3 are more than 90% full.",
    )
    assert first(make_snapshot([500, 380, 200], 1000)) == (
        "warning",
        "Brokers are uneven by 30 points: broker 1 is 50% full, broker 3 20%.",
    )
    assert first(make_snapshot([500, 500], [1000, None])) == ("warning", "Broker 2 has no known capacity.")
    assert first(fine, weights=Weights(brokers={3: 0.0})) == (
        "notice",
        "Broker 3 is drained by its operator.",
    )
    left = {1: 10 << 20, 2: 50 << 20}
    throttled = replace(fine, throttles=ReplicationThrottles(bytes_per_s=left, num_moving=0))
    assert first(throttled) == (
        "warning",
        "Replication is throttled to 10.0 MiB/s on brokers 1 and 2 (0 replicas of the measured topics "
        "named), and nothing moves under it: `evenload balance` takes off what a dead balance has left; what "
        "somebody else has set, kafka-configs.sh takes off.",
    )
    used = ReplicationThrottles(bytes_per_s={1: 1000}, num_replicas={"t": 3}, num_moving=1)
    assert first(replace(fine, throttles=used)) == (
        "notice",
        "Replication is throttled to 1000 B/s on broker 1 (3 replicas of the measured topics named), and "
        "1 partition is being moved.",
    )
    unknown = ReplicationThrottles(bytes_per_s={1: 1000})
    severity, text = first(replace(fine, throttles=unknown))
    assert severity == "warning"
    assert "whether anything moves isn't known" in text
    listed = ReplicationThrottles(num_replicas={"t": 3, "u": 2}, num_moving=0)
    assert first(replace(fine, throttles=listed)) == (
        "notice",
        "5 replicas of the measured topics are named for a throttle, and no broker is known to have a rate: "
        "nothing is held back, but the next rate that is set will hold them too. "
        "kafka-configs.sh takes the lists off.",
    )
    nothing = ReplicationThrottles(num_moving=3)
    assert first(replace(fine, throttles=nothing))[0] == "fine"
    assert first(None) == ("notice", "Nothing has been measured yet.")
    assert first(None, failures={"layout": "not allowed"}) == (
        "critical",
        "Nothing has been measured yet: layout: not allowed.",
    )
    assert first(fine, failures={"layout": "not allowed", "log_dirs of broker 1": "no answer"}) == (
        "warning",
        "Not measured: layout: not allowed (and 1 more).",
    )
    assert first(fine, explanation=Explanation(put_aside={"latency": "returned nan"})) == (
        "warning",
        "'latency' has been put aside: it returned nan.",
    )
    even = RouteReport(producer="p", topic="t", shares={0: 1}, reason="stale_snapshot")
    assert first(fine, reports=[even, RouteReport(producer="q", topic="t", shares={0: 1})]) == (
        "warning",
        "1 of 2 routes is a fallback to even shares: stale snapshot.",
    )
    too_much = [Intent(load="a", topic="t", bytes_by_broker={1: 700})]
    assert first(fine, intents=too_much) == (
        "critical",
        "Broker 1 has no room for what loads have announced.",
    )


def test_a_volume_that_others_fill_too_is_full_when_the_volume_is() -> None:
    assert overview_of(filling(1.0, usable_bytes=50)).brokers[1].full_in_s == 50
    assert overview_of(filling(1.0)).brokers[1].full_in_s == 600


def test_a_load_that_has_said_where_it_ends_is_no_disaster() -> None:
    announced = [Intent(load="a", topic="t", bytes_by_broker={2: 100})]
    broker = overview_of(filling(1.0), intents=announced).brokers[1]
    assert (broker.full_in_s, broker.forecast_utilisation) == (None, 0.5)
    little = [Intent(load="a", topic="t", bytes_by_broker={2: 50})]
    assert overview_of(filling(1.0), intents=little).brokers[1].full_in_s == 600


def test_why_one_is_unwilling_names_the_lowest_first_and_leaves_out_what_is_not_against_it() -> None:
    explained = Explanation(
        willingness={1: 0.2, 2: 1.0},
        scores={"a": {1: 0.5, 2: 1.0}, "b": {1: 0.4, 2: 1.0}, "c": {1: 1.0, 2: 1.0}},
    )
    one, two = overview_of(
        make_snapshot([1, 2], 10), explanation=explained, weights=Weights(brokers={1: 0.5})
    ).brokers
    assert (one.willingness, one.why) == (0.2, "its operator's weight is 0.5; b says 0.40; a says 0.50")
    assert one.scores == {"a": 0.5, "b": 0.4, "c": 1.0}
    assert (two.willingness, two.why) == (1.0, "")


def test_shares_are_counted_for_the_broker_that_leads_the_partition() -> None:
    snapshot = make_snapshot([1, 2], 10, topics={"t": [(1, 2), (2, 1), (1,), (2,)]}, leaderless=[("t", 3)])
    report = RouteReport(producer="p", topic="t", shares={0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1})
    (route,) = overview_of(snapshot, reports=[report]).routes
    assert route.shares_by_broker == {1: pytest.approx(0.6), 2: pytest.approx(0.3)}
    assert overview_of(None, reports=[report]).routes[0].shares_by_broker == {}


def test_lists_are_bounded_and_say_how_many_there_are() -> None:
    topics = {f"t{n:03}": [(1,)] for n in range(200)}
    snapshot = make_snapshot(
        [1], 10, topics=topics, stored_bytes={(name, 0): n for n, name in enumerate(topics)}
    )
    reports = [RouteReport(producer=f"p{n}", topic="t", shares={0: 1}) for n in range(200)]
    reports.append(
        RouteReport(
            producer="last", topic="t", shares=dict.fromkeys(range(3000), 1 / 3000), reason="x" * 9999
        )
    )
    overview = overview_of(snapshot, reports=reports, failures={f"q{n}": "y" * 9999 for n in range(200)})
    assert (len(overview.topics), overview.num_topics) == (MAX_TOPICS, 200)
    everywhere = make_snapshot(
        [9] * 99, 10, topics={"t": [range(1, 100)]}, stored_bytes={("t", 0): 9}, taken_at_s=1.0
    )
    (topic,) = overview_of(everywhere).topics
    assert (len(topic.stored_bytes_by_broker), topic.num_brokers, topic.stored_bytes) == (
        MAX_HOLDERS,
        99,
        891,
    )
    assert overview.topics[0].topic == "t199"
    assert (len(overview.routes), overview.num_routes, overview.num_fallback_routes) == (MAX_ROUTES, 201, 1)
    assert overview.routes[0].producer == "last"  # a fallback comes first
    assert overview.routes[0].num_partitions == 3000
    assert (len(overview.failures), overview.num_failures) == (MAX_FAILURES, 200)
    assert len(overview.model_dump_json()) < 100_000


def test_many_brokers_are_shown_in_the_order_of_trouble_and_few_by_their_id() -> None:
    used = [10, 900, 20, 500]
    assert [b.broker_id for b in overview_of(make_snapshot(used, 1000, unreachable=[3])).brokers] == [
        1,
        2,
        3,
        4,
    ]
    many = overview_of(make_snapshot(used * 5, 1000, unreachable=[7])).brokers
    assert [b.broker_id for b in many[:4]] == [7, 2, 6, 10]


def test_an_answer_that_looks_wrong_is_a_notice() -> None:
    statistics = CollectorStatistics(
        num_answers={},
        num_failures={},
        num_faults={},
        num_snapshots=1,
        failures={},
        warnings={"log_dirs of broker 2": "more is used than may be."},
    )
    overview = make_overview(
        None,
        statistics,
        History(),
        reports=(),
        intents=(),
        weights=Weights(),
        explain=lambda _: Explanation(),
        now_s=0.0,
    )
    assert [finding.text for finding in overview.findings if finding.kind.startswith("odd")] == [
        "log_dirs of broker 2: more is used than may be."
    ]


def test_a_minutes_burst_is_no_trend() -> None:
    """Broker 2 got 60 of its 1,000 bytes in the last minute, and nothing in the nine before."""
    history = History()
    for ago_s in range(600, 60, -10):
        history.add(make_snapshot([400, 340, 400], 1000), NOW_S - ago_s)
    (second,) = [b for b in overview_of(filling(1.0), history=history).brokers if b.broker_id == 2]
    assert second.full_in_s == pytest.approx(6000, rel=1e-3)  # 600 bytes are free, 0.1 a second come


def test_what_producers_feel_is_shown_by_kind_and_bounded() -> None:
    felt: dict[Kind, FeltByProducers] = {
        "java": FeltByProducers(
            num_clients=40,
            latency_s_by_broker={broker_id: float(broker_id) for broker_id in range(1, 101)},
            queue_time_s=0.005,
            num_throttled=3,
        ),
        "librdkafka": FeltByProducers(),
    }
    (java,) = overview_of(make_snapshot([1, 2]), felt=felt).producers
    assert (java.client, java.num_clients, java.queue_time_s, java.num_throttled) == ("java", 40, 0.005, 3)
    assert java.num_brokers == 100
    assert set(java.latency_s_by_broker) == set(range(69, 101))  # where they take longest


def test_java_producers_that_write_a_routed_topic_without_its_route_are_found() -> None:
    felt: dict[Kind, FeltByProducers] = {
        "java": FeltByProducers(num_clients=5, num_writing_by_topic={"routed": 5, "not routed": 5})
    }
    reports = [
        RouteReport(producer=f"{JAVA_PRODUCER}host/1/client#1", topic="routed", shares={0: 1.0}),
        RouteReport(producer="host/2/python", topic="routed", shares={0: 1.0}),
    ]
    overview = overview_of(make_snapshot([1, 2]), felt=felt, reports=reports)
    assert overview.num_unrouted_by_topic == {"routed": 4}
    (found,) = [finding for finding in overview.findings if finding.kind == "unrouted routed"]
    assert found.text.startswith("4 Java producers write topic 'routed' without following its shares")
    reports *= 5
    assert not overview_of(make_snapshot([1, 2]), felt=felt, reports=reports).num_unrouted_by_topic
