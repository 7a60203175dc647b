"""What the sources make of Kafka's answers, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsResponse, DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from telemetry_collector import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    PartitionSnapshot,
    TopicPartition,
)
from telemetry_collector.observation import BrokerStorage, ClusterLayout, TopicLimits
from telemetry_collector.snapshot import LogDirSnapshot
from telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from telemetry_collector.sources.log_dirs import LogDirsSource
from telemetry_collector.sources.source import Question
from telemetry_collector.sources.topic_limits import TopicLimitsSource

_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _LogDir.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition

CLUSTER_AUTHORIZATION_FAILED = 31
KAFKA_STORAGE_ERROR = 56
TOPIC_AUTHORIZATION_FAILED = 29
UNKNOWN_TOPIC = 3


class _Requests:
    """Answers requests from a function, as `KafkaRequests` does from brokers."""

    bootstrap_nodes = ("bootstrap-0",)

    def __init__(self, answer: Callable[[int | str, Any], Any]) -> None:
        self._answer = answer
        self.asked: list[tuple[int | str, Any]] = []

    async def ask(self, node: int | str, request: Any, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append((node, request))
        answer = self._answer(node, request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def learn_brokers(self, metadata_response: Any) -> None:
        assert metadata_response.brokers

    def hang_up(self, node: int | str) -> None:
        assert isinstance(node, str)


def _log_dir(
    sizes: dict[tuple[str, int], int],
    *,
    path: str = "/d",
    total: int = -1,
    usable: int = -1,
    error: int = 0,
    is_cordoned: bool = False,
) -> Any:
    topics: dict[str, list[Any]] = {}
    for (topic, partition), size in sizes.items():
        row = _Partition(partition_index=partition, partition_size=size, offset_lag=0, is_future_key=False)
        topics.setdefault(topic, []).append(row)
    return _LogDir(
        error_code=error,
        log_dir=path,
        topics=[_Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=is_cordoned,
    )


def _answered(*log_dirs: Any, error: int = 0) -> Any:
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=error, results=list(log_dirs))


def _question(
    broker_id: int | None,
    *,
    topics: frozenset[str] | None = None,
    is_full: bool = True,
    layout: ClusterLayout | None = None,
) -> Question:
    return Question(broker_id=broker_id, topics=topics, is_full=is_full, layout=layout, timeout_s=1.0)


def _log_dirs(
    answer: Callable[[int | str, Any], Any], capacities: dict[int, int] | None = None
) -> tuple[LogDirsSource, _Requests]:
    requests = _Requests(answer)
    return LogDirsSource(requests, capacity_bytes_by_broker=capacities or {}), requests  # type: ignore[arg-type]


def _storage(response: Any, capacities: dict[int, int] | None = None, **question: Any) -> BrokerStorage:
    source, _ = _log_dirs(lambda *_: response, capacities)
    return asyncio.run(source.answer(_question(2, **question)))


def test_volumes_tell_capacity_and_use_and_several_log_dirs_add_up() -> None:
    response = _answered(
        _log_dir({("t", 0): 10, ("t", 1): 20}, total=1000, usable=700),
        _log_dir({("u", 0): 5}, path="/e", total=500, usable=400),
    )
    assert _storage(response) == BrokerStorage(
        capacity_bytes=1500,
        used_bytes=400,
        usable_bytes=1100,
        bytes_by_topic_partition={
            TopicPartition("t", 0): 10,
            TopicPartition("t", 1): 20,
            TopicPartition("u", 0): 5,
        },
        log_dirs={
            "/d": LogDirSnapshot(
                capacity_bytes=1000,
                used_bytes=300,
                topic_partitions=frozenset({TopicPartition("t", 0), TopicPartition("t", 1)}),
            ),
            "/e": LogDirSnapshot(
                capacity_bytes=500, used_bytes=100, topic_partitions=frozenset({TopicPartition("u", 0)})
            ),
        },
    )


def test_a_volume_that_two_log_dirs_share_is_counted_once() -> None:
    storage = _storage(
        _answered(
            _log_dir({("t", 0): 10}, total=1000, usable=700),
            _log_dir({("t", 1): 20}, path="/e", total=1000, usable=690),
        )
    )
    assert (storage.capacity_bytes, storage.used_bytes, storage.usable_bytes) == (1000, 310, 690)
    assert storage.log_dirs == {}


def test_a_copy_on_its_way_to_another_log_dir_lies_in_the_one_it_comes_from() -> None:
    moving = _log_dir({("t", 0): 4}, path="/e", total=500, usable=400)
    moving.topics[0].partitions[0].is_future_key = True
    storage = _storage(_answered(_log_dir({("t", 0): 10}, total=1000, usable=700), moving))
    lies_in = {path: log_dir.topic_partitions for path, log_dir in storage.log_dirs.items()}
    assert lies_in == {"/d": frozenset({TopicPartition("t", 0)}), "/e": frozenset()}


@pytest.mark.parametrize(
    ("is_cordoned", "errors", "expected"),
    [
        ((True, True), (0, 0), True),
        ((True, False), (0, 0), False),
        ((True, False), (0, KAFKA_STORAGE_ERROR), True),
    ],
)
def test_a_broker_is_cordoned_when_all_of_its_working_log_dirs_are(
    is_cordoned: tuple[bool, bool], errors: tuple[int, int], expected: bool
) -> None:
    told = zip("de", is_cordoned, errors, strict=True)
    log_dirs = [
        _log_dir({}, path=f"/{name}", total=10, usable=5, error=error, is_cordoned=cordoned)
        for name, cordoned, error in told
    ]
    assert _storage(_answered(*log_dirs)).is_cordoned == expected


@pytest.mark.parametrize(
    ("held", "total", "capacity", "warning"),
    [
        (90, 1000, 100, None),
        (150, 1000, 100, "it holds 150 bytes, more than its configured capacity of 100"),
        (90, 1000, 2000, "its configured capacity of 2000 bytes is more than the 1000 that its volumes have"),
        (90, -1, 2000, None),
        (90, -1, None, "its capacity isn't known"),
        (90, 0, None, "its capacity isn't known"),
        (90, 1000, None, None),
    ],
)
def test_a_capacity_that_is_missing_or_can_not_be_right_is_said_in_a_warning(
    held: int, total: int, capacity: int | None, warning: str | None
) -> None:
    response = _answered(_log_dir({("t", 0): held}, total=total, usable=total and total - 1))
    storage = _storage(response, {} if capacity is None else {2: capacity})
    assert storage.used_bytes >= 0
    if warning is None:
        assert storage.warnings == ()
    else:
        (said,) = storage.warnings
        assert said.startswith(warning)
        assert "capacity_bytes_by_broker" in said


def test_a_configured_capacity_counts_for_more_than_a_shared_volume() -> None:
    response = _answered(_log_dir({("t", 0): 10, ("t", 1): 20}, total=1000, usable=700))
    storage = _storage(response, {2: 100})
    assert (storage.capacity_bytes, storage.used_bytes, storage.usable_bytes) == (100, 30, 70)


def test_a_broker_over_its_configured_capacity_has_nothing_left() -> None:
    storage = _storage(_answered(_log_dir({("t", 0): 150})), {2: 100})
    assert (storage.used_bytes, storage.usable_bytes) == (150, 0)


def test_without_volumes_or_configuration_the_capacity_is_unknown_and_sizes_are_summed() -> None:
    storage = _storage(_answered(_log_dir({("t", 0): 10}), _log_dir({("t", 1): 20})))
    assert (storage.capacity_bytes, storage.used_bytes, storage.usable_bytes) == (None, 30, None)


def test_a_broker_that_tells_no_volumes_is_asked_for_all_sizes_from_then_on() -> None:
    source, requests = _log_dirs(lambda *_: _answered(_log_dir({("t", 0): 10})))
    for _ in range(3):
        storage = asyncio.run(source.answer(_question(2, is_full=False)))
        assert storage.used_bytes == 10
    assert [request.topics for _, request in requests.asked] == [[], None, None, None]


def test_a_log_dir_that_failed_does_not_count() -> None:
    response = _answered(
        _log_dir({}, total=1000, usable=1000, error=KAFKA_STORAGE_ERROR),
        _log_dir({("t", 0): 10}, path="/e", total=500, usable=400),
    )
    storage = _storage(response)
    assert (storage.capacity_bytes, storage.used_bytes) == (500, 100)
    assert storage.warnings == ("1 of its 2 log dirs have failed: /d",)


def test_a_copy_being_moved_between_log_dirs_takes_space_but_is_no_replica_yet() -> None:
    moving = _log_dir({("t", 0): 4})
    moving.topics[0].partitions[0].is_future_key = True
    storage = _storage(_answered(_log_dir({("t", 0): 10}), moving), {2: 100})
    assert storage.used_bytes == 14
    assert storage.bytes_by_topic_partition == {TopicPartition("t", 0): 10}


@pytest.mark.parametrize("response", [_answered(error=CLUSTER_AUTHORIZATION_FAILED), _answered()])
def test_a_refusal_names_the_permission_that_is_missing(response: Any) -> None:
    with pytest.raises(AccessRefusedError, match="it needs DESCRIBE on the cluster"):
        _storage(response)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (_answered(error=KAFKA_STORAGE_ERROR), "KafkaStorageError"),
        (_answered(_log_dir({}, error=KAFKA_STORAGE_ERROR)), "all of its log dirs have failed"),
        (_answered(_log_dir({}, total=10, usable=11)), "11 usable of 10 bytes"),
    ],
)
def test_what_cannot_be_is_no_answer(response: Any, reason: str) -> None:
    with pytest.raises(BadAnswerError, match=reason):
        _storage(response)


def _layout_of(topics: dict[str, dict[int, tuple[int, ...]]]) -> ClusterLayout:
    return ClusterLayout(
        cluster_id="c",
        racks={1: None, 2: None},
        topics={
            topic: {p: PartitionSnapshot(leader_id=r[0], replica_ids=r, isr_ids=r) for p, r in placed.items()}
            for topic, placed in topics.items()
        },
    )


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ({"topics": None, "is_full": True}, None),
        ({"topics": None, "is_full": False}, {}),
        ({"topics": frozenset(), "is_full": True}, {}),
        ({"topics": frozenset({"t"}), "is_full": True}, {"t": [0, 2]}),
        ({"topics": frozenset({"t", "absent"}), "is_full": False}, {"t": [0, 2]}),
        ({"topics": frozenset({"elsewhere"}), "is_full": False}, {}),
    ],
)
def test_only_the_sizes_that_are_needed_are_asked_for(
    question: dict[str, Any], asked: dict[str, list[int]] | None
) -> None:
    layout = _layout_of({"t": {0: (2, 1), 1: (1,), 2: (1, 2)}, "elsewhere": {0: (1,)}, "other": {0: (2,)}})
    source, requests = _log_dirs(lambda *_: _answered(_log_dir({}, total=10, usable=5)))
    storage = asyncio.run(source.answer(_question(2, layout=layout, **question)))
    ((node, request),) = requests.asked
    assert node == 2
    assert isinstance(request, DescribeLogDirsRequest)
    assert request.topics == asked or {t.topic: t.partitions for t in request.topics} == asked
    assert (storage.bytes_by_topic_partition is None) == (question == {"topics": None, "is_full": False})


# Topics' limits.

_Configs = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Configs.DescribeConfigsResourceResult


def _configs(topic: str, *, error: int = 0, **told: str) -> Any:
    configs = [_Config(name=name.replace("_", "."), value=value) for name, value in told.items()]
    return _Configs(error_code=error, resource_type=2, resource_name=topic, configs=configs)


def _limits(*results: Any) -> TopicLimits:
    requests = _Requests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=list(results)))
    source = TopicLimitsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]
    layout = _layout_of({"t": {0: (1,)}, "u": {0: (2,)}})
    return asyncio.run(source.answer(_question(None, layout=layout)))


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
    requests = _Requests(answer)
    source = TopicLimitsSource(requests, rng=random.Random(0), clock=lambda: now_s)  # type: ignore[arg-type]
    one, two = _layout_of({"t": {0: (1,)}}), _layout_of({"t": {0: (1,)}, "u": {0: (1,)}})

    async def ask() -> list[set[str]]:
        nonlocal now_s
        known = []
        for now_s, layout in ((1.0, None), (2.0, one), (3.0, one), (4.0, two), (400.0, two), (401.0, one)):  # noqa: B007
            known.append(set((await source.answer(_question(None, layout=layout))).partition_max_bytes))
        return known

    assert asyncio.run(ask()) == [set(), {"t"}, {"t"}, {"t", "u"}, {"t", "u"}, {"t"}]
    asked = [[resource.resource_name for resource in request.resources] for _, request in requests.asked]
    assert asked == [["t"], ["u"], ["t", "u"]]


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_for_again() -> None:
    answers = iter([_configs("t", error=UNKNOWN_TOPIC), _configs("t", retention_bytes="1")])
    requests = _Requests(lambda *_: DescribeConfigsResponse(throttle_time_ms=0, results=[next(answers)]))
    source = TopicLimitsSource(requests, rng=random.Random(0))  # type: ignore[arg-type]

    async def ask() -> None:
        for _ in range(3):
            await source.answer(_question(None, layout=_layout_of({"t": {0: (1,)}})))

    asyncio.run(ask())
    assert len(requests.asked) == 2


# Cluster metadata.

_Broker = MetadataResponse.MetadataResponseBroker
_MetadataTopic = MetadataResponse.MetadataResponseTopic
_MetadataPartition = _MetadataTopic.MetadataResponsePartition


def _metadata(topics: list[Any] | None = None, *, racks: dict[int, str | None] | None = None) -> Any:
    return MetadataResponse(
        brokers=[_Broker(i, "h", 9092, rack) for i, rack in (racks or {1: "a", 2: None}).items()],
        cluster_id="c",
        topics=topics or [],
    )


def _metadata_topic(name: str, placed: list[tuple[int, list[int]]], *, error: int = 0) -> Any:
    partitions = [
        _MetadataPartition(
            error_code=0, partition_index=n, leader_id=leader, replica_nodes=replicas, isr_nodes=replicas[:1]
        )
        for n, (leader, replicas) in enumerate(placed)
    ]
    return _MetadataTopic(error_code=error, name=name, partitions=partitions)


def _metadata_source(answer: Callable[[int | str, Any], Any]) -> tuple[ClusterMetadataSource, _Requests]:
    requests = _Requests(answer)
    return ClusterMetadataSource(requests, hedge_delay_s=0.01, rng=random.Random(0)), requests  # type: ignore[arg-type]


def test_a_layout_keeps_the_order_of_replicas_and_says_where_no_leader_is() -> None:
    topics = [_metadata_topic("t", [(2, [2, 1]), (-1, [1, 2])])]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    assert asyncio.run(source.answer(_question(None))) == ClusterLayout(
        cluster_id="c",
        racks={1: "a", 2: None},
        topics={
            "t": {
                0: PartitionSnapshot(leader_id=2, replica_ids=(2, 1), isr_ids=(2,)),
                1: PartitionSnapshot(leader_id=None, replica_ids=(1, 2), isr_ids=(1,)),
            }
        },
    )


@pytest.mark.parametrize(
    ("topics", "is_full", "asked", "is_known"),
    [
        (None, True, [[], None], True),
        (None, False, [[]], False),
        (frozenset(), True, [[]], True),
        (frozenset({"t", "s"}), False, [["s", "t"]], True),
    ],
)
def test_only_the_topics_that_are_needed_are_asked_for_and_none_is_created(
    topics: frozenset[str] | None, is_full: bool, asked: list[list[str] | None], is_known: bool
) -> None:
    source, requests = _metadata_source(lambda *_: _metadata())
    layout = asyncio.run(source.answer(_question(None, topics=topics, is_full=is_full)))
    sent = [request for _, request in requests.asked]
    assert all(isinstance(request, MetadataRequest) for request in sent)
    assert not any(request.allow_auto_topic_creation for request in sent)
    assert [r.topics if r.topics is None else [topic.name for topic in r.topics] for r in sent] == asked
    assert (layout.topics is not None) == is_known


def test_the_layout_of_all_topics_is_asked_of_one_broker_only_however_long_it_takes() -> None:
    layout = ClusterLayout(cluster_id="c", racks={1: None, 2: None, 3: None}, topics=None)

    async def slowly() -> Any:
        await asyncio.sleep(0.1)  # ten times the delay after which a small question goes to another
        return _metadata()

    source, requests = _metadata_source(
        lambda _, request: slowly() if request.topics is None else _metadata()
    )
    asyncio.run(source.answer(_question(None, layout=layout)))
    assert [request.topics for _, request in requests.asked] == [[], None]
    assert len({node for node, _ in requests.asked}) == 1


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    topics = [_metadata_topic("t", [(1, [1])]), _metadata_topic("gone", [], error=UNKNOWN_TOPIC)]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    layout = asyncio.run(source.answer(_question(None, topics=frozenset({"t", "gone"}))))
    assert set(layout.topics or {}) == {"t"}


def test_a_topic_that_may_not_be_described_is_named_with_the_permission() -> None:
    topics = [_metadata_topic("secret", [], error=TOPIC_AUTHORIZATION_FAILED)]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    with pytest.raises(AccessRefusedError, match="'secret' may not be described; it needs DESCRIBE"):
        asyncio.run(source.answer(_question(None, topics=frozenset({"secret"}))))


def test_where_many_name_topics_one_that_may_not_be_described_keeps_nobody_from_the_others() -> None:
    topics = [
        _metadata_topic("t", [(1, [1])]),
        _metadata_topic("secret", [], error=TOPIC_AUTHORIZATION_FAILED),
    ]
    requests = _Requests(lambda *_: _metadata(topics))
    source = ClusterMetadataSource(
        requests,  # type: ignore[arg-type]
        hedge_delay_s=0.01,
        rng=random.Random(0),
        is_for_many=True,
    )
    layout = asyncio.run(source.answer(_question(None, topics=frozenset({"t", "secret"}))))
    assert set(layout.topics or {}) == {"t"}
    assert layout.warnings == ("topic 'secret' may not be described; it needs DESCRIBE on the topic",)


def test_a_broker_that_is_still_starting_gives_no_layout() -> None:
    source, _ = _metadata_source(lambda *_: MetadataResponse(brokers=[], cluster_id="c", topics=[]))
    with pytest.raises(BadAnswerError, match="is it still starting"):
        asyncio.run(source.answer(_question(None)))


def test_another_broker_is_asked_at_once_when_one_fails_and_after_a_moment_when_one_is_silent() -> None:
    layout = ClusterLayout(cluster_id="c", racks={1: None, 2: None, 3: None}, topics=None)

    async def silence() -> Any:
        await asyncio.Event().wait()

    def answer(node: int | str, _: Any) -> Any:
        if node == 1:
            raise BrokerUnreachableError(node, "connection refused")
        return silence() if node == 2 else _metadata(racks={1: None, 2: None, 3: None})

    async def ask_three_times() -> list[list[int | str]]:
        source, requests = _metadata_source(answer)
        asked = []
        for _ in range(3):
            requests.asked.clear()
            await source.answer(_question(None, layout=layout, is_full=False))
            asked.append([node for node, _ in requests.asked])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return asked

    first, *later = asyncio.run(ask_three_times())
    assert first[-1] == 3
    assert later == [[3], [3]]  # who answered last is asked first


def test_a_failure_that_comes_together_with_an_answer_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    layout = ClusterLayout(cluster_id="c", racks=dict.fromkeys(range(1, 5)), topics=None)

    async def ask() -> None:
        all_at_once = asyncio.Event()

        async def later(node: int | str) -> Any:
            await all_at_once.wait()
            if node == 3:
                return _metadata()
            raise BrokerUnreachableError(node, "connection lost")

        source, requests = _metadata_source(lambda node, _: later(node))
        asking = asyncio.ensure_future(source.answer(_question(None, layout=layout, is_full=False)))
        while len(requests.asked) < 5:
            await asyncio.sleep(0)
        all_at_once.set()
        await asking

    asyncio.run(ask())
    gc.collect()
    assert caplog.records == []


def test_the_configured_address_is_asked_when_no_known_broker_answers() -> None:
    layout = ClusterLayout(cluster_id="c", racks={1: None, 2: None}, topics=None)

    def answer(node: int | str, _: Any) -> Any:
        if isinstance(node, int):
            raise BrokerUnreachableError(node, "connection refused")
        return _metadata()

    source, requests = _metadata_source(answer)
    asyncio.run(source.answer(_question(None, layout=layout)))
    assert requests.asked[-1][0] == "bootstrap-0"


def test_when_everybody_refuses_the_last_refusal_is_the_reason() -> None:
    def answer(node: int | str, _: Any) -> Any:
        raise BrokerUnreachableError(node, "connection refused")

    source, _ = _metadata_source(answer)
    with pytest.raises(BrokerUnreachableError, match="broker bootstrap-0: connection refused"):
        asyncio.run(source.answer(_question(None)))
