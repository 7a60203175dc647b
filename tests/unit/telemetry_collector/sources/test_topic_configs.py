"""What topics' configurations say, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsResponse

from evenload.telemetry_collector.snapshot import TopicConfig
from evenload.telemetry_collector.sources.observation import ClusterLayout, HeardConfigs
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.sources.topic_configs import TopicConfigsSource
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


def _heard(*results: Any) -> HeardConfigs:
    requests = FakeRequests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=list(results)))
    source = TopicConfigsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]
    layout = _layout("t", "u")
    return asyncio.run(source.answer(_question(layout)))


@pytest.mark.parametrize(
    ("policy", "retention", "limit"),
    [
        ("delete", "1000", 1100),
        ("compact,delete", "1000", 1100),
        ("delete", "0", 100),
        ("delete", "-1", None),
        ("compact", "1000", None),
    ],
)
def test_a_replica_holds_at_most_what_retention_leaves_and_one_segment(
    policy: str, retention: str, limit: int | None
) -> None:
    told = _configs("t", cleanup_policy=policy, retention_bytes=retention, segment_bytes="100")
    config = TopicConfig(partition_max_bytes=limit, segment_bytes=100)
    assert _heard(told) == HeardConfigs(topic_configs={"t": config})


@pytest.mark.parametrize(
    ("is_tiered", "local_bytes", "local_ms", "max_bytes", "max_age_s"),
    [
        ("true", "50", "2000", 150, 2.0),
        ("true", "-2", "-2", 1100, 9.0),  # as retention says
        ("true", "-1", "-1", None, None),
        ("false", "50", "2000", 1100, 9.0),
    ],
)
def test_of_a_topic_whose_old_segments_move_away_a_disk_holds_what_local_retention_leaves(
    is_tiered: str, local_bytes: str, local_ms: str, max_bytes: int | None, max_age_s: float | None
) -> None:
    told = _configs(
        "t",
        cleanup_policy="delete",
        segment_bytes="100",
        retention_bytes="1000",
        retention_ms="9000",
        remote_storage_enable=is_tiered,
        local_retention_bytes=local_bytes,
        local_retention_ms=local_ms,
    )
    config = TopicConfig(partition_max_bytes=max_bytes, max_age_s=max_age_s, segment_bytes=100)
    assert _heard(told).topic_configs == {"t": config}


@pytest.mark.parametrize(("policy", "max_age_s"), [("delete", 604800.0), ("compact", None)])
def test_how_old_records_get_and_how_many_replicas_have_to_be_in_sync_is_told(
    policy: str, max_age_s: float | None
) -> None:
    told = _configs("t", cleanup_policy=policy, retention_ms="604800000", min_insync_replicas="2")
    assert _heard(told).topic_configs == {"t": TopicConfig(max_age_s=max_age_s, min_in_sync=2)}


def test_a_topic_whose_configuration_is_hidden_has_no_known_limit_and_the_others_have_theirs() -> None:
    told = _configs("t", cleanup_policy="delete", retention_bytes="1000", segment_bytes="100")
    heard = _heard(told, _configs("u", error=TOPIC_AUTHORIZATION_FAILED))
    assert heard.topic_configs == {"t": TopicConfig(partition_max_bytes=1100, segment_bytes=100)}
    assert heard.warnings == (
        "the configuration of topic 'u' may not be described; it needs DESCRIBE_CONFIGS on the topic",
    )


def test_configurations_of_new_topics_are_asked_at_once_and_those_of_all_now_and_then() -> None:
    def answer(_: object, request: Any) -> Any:
        told = {"cleanup_policy": "delete", "retention_bytes": "900", "segment_bytes": "100"}
        results = [_configs(resource.resource_name, **told) for resource in request.resources]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    now_s = 1.0
    requests = FakeRequests(answer)
    source = TopicConfigsSource(requests, rng=random.Random(0), clock=lambda: now_s)  # type: ignore[arg-type]
    one, two = _layout("t"), _layout("t", "u")

    async def ask() -> list[set[str]]:
        nonlocal now_s
        known = []
        for now_s, layout in ((1.0, None), (2.0, one), (3.0, one), (4.0, two), (400.0, two), (401.0, one)):  # noqa: B007
            known.append(set((await source.answer(_question(layout))).topic_configs))
        return known

    assert asyncio.run(ask()) == [set(), {"t"}, {"t"}, {"t", "u"}, {"t", "u"}, {"t"}]
    asked = [[resource.resource_name for resource in request.resources] for _, request in requests.asked]
    assert asked == [["t"], ["u"], ["t", "u"]]


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_for_again() -> None:
    answers = iter([_configs("t", error=UNKNOWN_TOPIC), _configs("t", min_insync_replicas="1")])
    requests = FakeRequests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=[next(answers)]))
    source = TopicConfigsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]

    async def ask() -> None:
        for _ in range(3):
            await source.answer(_question(_layout("t")))

    asyncio.run(ask())
    assert len(requests.asked) == 2
