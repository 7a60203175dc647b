"""What a broker's plugin hands on becomes figures about brokers; one client's garbage costs nobody else's."""

from __future__ import annotations

import math
import random

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from evenload.telemetry_collector.pushed.client_figures import ClientFigures, figures_of
from evenload.telemetry_collector.pushed.pushed_clients import PushingClient
from evenload.telemetry_collector.service.fake_pushes import java_push, librdkafka_push, request_of
from evenload.telemetry_collector.service.otlp import Push, pushes_in


def read(*told: ResourceMetrics) -> list[Push]:
    pushes = list(pushes_in(request_of(*told)))
    return [push for push in pushes if push is not None]


def figures(told: ResourceMetrics) -> ClientFigures | None:
    (push,) = read(told)
    return figures_of(push.points, brokers=range(1, 10), topics={"clicks"})


def test_what_a_java_producer_says() -> None:
    told = java_push(
        "a",
        {1: 3.5, 2: 40.0},
        sent_bytes_by_broker={1: 1000, 2: 5000},
        sent_bytes_by_topic={"clicks": 6000, "of another cluster": 1},
        queue_time_ms=7.0,
        cluster_id="C",
        push_interval_ms=10_000,
    )
    (push,) = read(told)
    assert push.who == PushingClient(instance_id="a", address="10.0.0.1", interval_s=10.0)
    assert (push.cluster_id, push.is_last) == ("C", False)
    assert figures(told) == ClientFigures(
        kind="java",
        latency_s_by_broker={1: pytest.approx(0.0035), 2: pytest.approx(0.04)},
        sent_bytes_per_s_by_broker={1: 100.0, 2: 500.0},
        sent_bytes_per_s_by_topic={"clicks": 600.0},
        queue_time_s=pytest.approx(0.007),
    )


def test_what_a_producer_of_librdkafkas_says() -> None:
    assert figures(librdkafka_push("b", {1: 2.0, 3: 5.0})) == ClientFigures(
        kind="librdkafka", latency_s_by_broker={1: pytest.approx(0.002), 3: pytest.approx(0.005)}
    )


def test_one_that_wrote_nothing_tells_nothing() -> None:
    assert figures(librdkafka_push("b", {1: 2.0, 3: 5.0}, written_ms=0.0)) is None


@pytest.mark.parametrize("broker_id", [-1, -2, 2**31 - 2, 2**31 - 1 - 3, 77])
def test_addresses_coordinators_and_inventions_are_no_brokers(broker_id: int) -> None:
    told = figures(java_push("a", {broker_id: 3.0, 1: 1.0, 2: 2.0}))
    assert told is not None
    assert set(told.latency_s_by_broker) == {1, 2}
    other = figures(librdkafka_push("b", {broker_id: 3.0, 1: 1.0, 2: 2.0}))
    assert other is not None
    assert set(other.latency_s_by_broker) == {1, 2}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_what_wasnt_measured_or_cant_be_is_left_out(value: float) -> None:
    told = figures(java_push("a", {1: value, 2: 2.0}))
    assert told is not None
    assert set(told.latency_s_by_broker) == {2}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
def test_a_rate_that_cant_be_is_left_out(value: float) -> None:
    told = figures(java_push("a", {1: 1.0}, sent_bytes_by_broker={1: value, 2: 10.0}))
    assert told is not None
    assert told.sent_bytes_per_s_by_broker == {2: 1.0}


def test_the_last_push_of_a_client_says_so() -> None:
    (push,) = read(java_push("a", {1: 1.0}, terminating=True))
    assert push.is_last


def test_nobody_poses_as_another() -> None:
    told = java_push("a", {1: 1.0}, principal="User:alice")
    # The plugin leaves these out; that the last of a name counts is a second wall.
    told.resource.attributes.insert(0, java_push("b", {}).resource.attributes[0])
    (push,) = read(told)
    assert push.who.instance_id == "a"


def test_one_clients_garbage_costs_nobody_elses_figures() -> None:
    good, other = request_of(java_push("a", {1: 1.0})), request_of(java_push("b", {1: 2.0}))
    garbage = b"\x0a\x04\x12\x02\xff\xff"  # a resource of which a scope can't be parsed
    pushes = list(pushes_in(good + garbage + other))
    assert [push and push.who.instance_id for push in pushes] == ["a", None, "b"]


def test_a_push_of_more_points_than_are_taken_counts_as_unreadable() -> None:
    assert list(pushes_in(request_of(java_push("a", dict.fromkeys(range(2001), 1.0))))) == [None]
    many = ResourceMetrics()
    many.CopyFrom(java_push("a", {}))
    for _ in range(10_001):
        many.scope_metrics[0].metrics.add()
    assert list(pushes_in(request_of(many))) == [None]
    assert read(java_push("a", dict.fromkeys(range(2000), 1.0)))


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05abc", b"<html>"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no OTLP request"):
        list(pushes_in(body))


def test_what_doesnt_come_from_the_plugin_is_refused() -> None:
    told = ResourceMetrics()
    with pytest.raises(ValueError, match="evenload's plugin"):
        list(pushes_in(request_of(told)))


def test_whatever_comes_is_read_or_refused() -> None:
    rng = random.Random(0)
    whole = request_of(
        java_push("a", {1: 3.5}, sent_bytes_by_broker={1: 5.0}), librdkafka_push("b", {1: 2.0})
    )
    refusals = []
    for _ in range(3000):
        body = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            if body:
                body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            for push in pushes_in(bytes(body)):
                if push is not None:
                    figures_of(push.points, brokers=range(10), topics=())
        except ValueError as error:
            refusals.append(str(error))
    assert 0 < len(refusals) < 3000
    assert all(refusal.startswith("it ") for refusal in refusals)
