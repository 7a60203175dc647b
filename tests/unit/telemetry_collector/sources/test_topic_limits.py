"""How much partitions will hold at most, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsResponse

from evenload.telemetry_collector.sources.observation import ClusterLayout, TopicLimits
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.sources.topic_limits import TopicLimitsSource
from evenload.telemetry_collector.testing import FakeRequests, make_snapshot

TOPIC_AUTHORIZATION_FAILED = 29
UNKNOWN_TOPIC = 3

_Configs = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Configs.DescribeConfigsResourceResult


def _question(layout: ClusterLayout | None) -> Question:
    return Question(broker_id=None, topics=None, is_full=True, layout=layout, timeout_s=1.0)


def _layout(*topics: str) -> ClusterLayout:
    placed = make_snapshot([0], topics={topic: [(1,)] for topic in topics}).topics
    return ClusterLayout(cluster_id="c", racks={1: None}, topics=placed)


def _configs(topic: str, *, error: int = 0, **told: str) -> Any:
    configs = [_Config(name=name.replace("_", "."), value=value) for name, value in told.items()]
    return _Configs(error_code=error, resource_type=2, resource_name=topic, configs=configs)


def _limits(*results: Any) -> TopicLimits:
    requests = FakeRequests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=list(results)))
    source = TopicLimitsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]
    layout = _layout("t", "u")
    return asyncio.run(source.answer(_question(layout)))


@pytest.mark.parametrize(
    ("policy", "retention", "limit"),
    [
        ("delete", "1000", {"t": 1100}),
        ("compact,delete", "1000", {"t": 1100}),
        ("delete", "0", {"t": 100}),
        ("delete", "-1", {}),
        ("compact", "1000", {}),
    ],
)
def test_a_replica_holds_at_most_what_retention_leaves_and_one_segment(
    policy: str, retention: str, limit: dict[str, int]
) -> None:
    told = _configs("t", cleanup_policy=policy, retention_bytes=retention, segment_bytes="100")
    assert _limits(told) == TopicLimits(partition_max_bytes=limit)


def test_a_topic_whose_configuration_is_hidden_has_no_known_limit_and_the_others_have_theirs() -> None:
    told = _configs("t", cleanup_policy="delete", retention_bytes="1000", segment_bytes="100")
    limits = _limits(told, _configs("u", error=TOPIC_AUTHORIZATION_FAILED))
    assert limits.partition_max_bytes == {"t": 1100}
    assert limits.warnings == (
        "the configuration of topic 'u' may not be described; it needs DESCRIBE_CONFIGS on the topic",
    )


def test_limits_of_new_topics_are_asked_at_once_and_those_of_all_now_and_then() -> None:
    def answer(_: object, request: Any) -> Any:
        told = {"cleanup_policy": "delete", "retention_bytes": "900", "segment_bytes": "100"}
        results = [_configs(resource.resource_name, **told) for resource in request.resources]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    now_s = 1.0
    requests = FakeRequests(answer)
    source = TopicLimitsSource(requests, rng=random.Random(0), clock=lambda: now_s)  # type: ignore[arg-type]
    one, two = _layout("t"), _layout("t", "u")

    async def ask() -> list[set[str]]:
        nonlocal now_s
        known = []
        for now_s, layout in ((1.0, None), (2.0, one), (3.0, one), (4.0, two), (400.0, two), (401.0, one)):  # noqa: B007
            known.append(set((await source.answer(_question(layout))).partition_max_bytes))
        return known

    assert asyncio.run(ask()) == [set(), {"t"}, {"t"}, {"t", "u"}, {"t", "u"}, {"t"}]
    asked = [[resource.resource_name for resource in request.resources] for _, request in requests.asked]
    assert asked == [["t"], ["u"], ["t", "u"]]


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_for_again() -> None:
    answers = iter([_configs("t", error=UNKNOWN_TOPIC), _configs("t", retention_bytes="1")])
    requests = FakeRequests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=[next(answers)]))
    source = TopicLimitsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]

    async def ask() -> None:
        for _ in range(3):
            await source.answer(_question(_layout("t")))

    asyncio.run(ask())
    assert len(requests.asked) == 2
