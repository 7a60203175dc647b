"""What brokers' log dirs make of capacity and use, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse

from evenload.telemetry_collector import (
    AccessRefusedError,
    BadAnswerError,
    PartitionSnapshot,
    TopicPartition,
)
from evenload.telemetry_collector.snapshot import LogDirSnapshot
from evenload.telemetry_collector.sources.log_dirs import LogDirsSource
from evenload.telemetry_collector.sources.observation import BrokerStorage, ClusterLayout
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.testing import FakeRequests

CLUSTER_AUTHORIZATION_FAILED = 31
KAFKA_STORAGE_ERROR = 56

_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _LogDir.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition


def _question(**fields: Any) -> Question:
    told = {"topics": None, "is_full": True, "layout": None, **fields}
    return Question(broker_id=2, timeout_s=1.0, **told)


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


def _log_dirs(
    answer: Callable[[int | str, Any], Any], capacities: dict[int, int] | None = None
) -> tuple[LogDirsSource, FakeRequests]:
    requests = FakeRequests(answer)
    return LogDirsSource(requests, capacity_bytes_by_broker=capacities or {}), requests  # type: ignore[arg-type]


def _storage(response: Any, capacities: dict[int, int] | None = None, **question: Any) -> BrokerStorage:
    source, _ = _log_dirs(lambda *_: response, capacities)
    return asyncio.run(source.answer(_question(**question)))


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
        storage = asyncio.run(source.answer(_question(is_full=False)))
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
    storage = asyncio.run(source.answer(_question(layout=layout, **question)))
    ((node, request),) = requests.asked
    assert node == 2
    assert isinstance(request, DescribeLogDirsRequest)
    assert request.topics == asked or {t.topic: t.partitions for t in request.topics} == asked
    assert (storage.bytes_by_topic_partition is None) == (question == {"topics": None, "is_full": False})
