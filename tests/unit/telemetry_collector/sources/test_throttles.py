"""Which throttles are set, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListPartitionReassignmentsResponse,
)

from evenload.telemetry_collector.errors import BadAnswerError, BrokerUnreachableError, CollectorClosedError
from evenload.telemetry_collector.snapshot import ReplicationThrottles
from evenload.telemetry_collector.sources.observation import ClusterLayout, HeardThrottles
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.sources.throttles import ThrottlesSource
from evenload.telemetry_collector.testing import FakeRequests, make_snapshot

LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
CLUSTER_AUTHORIZATION_FAILED = 31
UNKNOWN_SERVER_ERROR = -1

_Configs = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Configs.DescribeConfigsResourceResult
_Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_Partition = _Topic.OngoingPartitionReassignment


class Cluster:
    """Brokers 1 and 2, and two topics."""

    def __init__(self) -> None:
        self.settings: dict[str, dict[str, str]] = {}
        self.moving: dict[str, list[int]] = {}
        self.refusing: set[str] = set()
        self.failing: set[str] = set()
        self.silent: set[int] = set()
        self.reassignments_error = 0
        self.requests = FakeRequests(self._answer)

    def _answer(self, asked: Any, request: Any) -> Any:
        if asked in self.silent:
            raise BrokerUnreachableError(asked, "no answer")
        if isinstance(request, DescribeConfigsRequest):
            return DescribeConfigsResponse(
                throttle_time_ms=0, results=[*map(self._result, request.resources)]
            )
        topics = [
            _Topic(name=name, partitions=[_Partition(partition_index=number) for number in numbers])
            for name, numbers in self.moving.items()
        ]
        return ListPartitionReassignmentsResponse(error_code=self.reassignments_error, topics=topics)

    def _result(self, resource: Any) -> Any:
        name = resource.resource_name
        error = CLUSTER_AUTHORIZATION_FAILED if name in self.refusing else 0
        error = UNKNOWN_SERVER_ERROR if name in self.failing else error
        told = {} if error else self.settings.get(name, {})
        return _Configs(
            error_code=error,
            resource_type=resource.resource_type,
            resource_name=name,
            configs=[_Config(name=key, value=told.get(key)) for key in resource.configuration_keys],
        )


LAYOUT = ClusterLayout(
    cluster_id="c",
    racks={1: None, 2: None},
    topics=make_snapshot([0, 0], topics={"t": [(1, 2), (2, 1)], "u": [(1, 2)]}).topics,
)


def ask(cluster: Cluster, layout: ClusterLayout | None = LAYOUT) -> HeardThrottles:
    source = ThrottlesSource(cluster.requests, rng=random.Random(0))  # type: ignore[arg-type]
    return asyncio.run(source.answer(_question(layout)))


class Asking:
    """Asks the same source again, a minute later each time."""

    def __init__(self, cluster: Cluster) -> None:
        self._now_s = 0.0
        self._source = ThrottlesSource(
            cluster.requests,  # type: ignore[arg-type]
            rng=random.Random(0),
            clock=lambda: self._now_s,
        )

    def again(self, layout: ClusterLayout = LAYOUT, *, after_s: float = 60.0) -> HeardThrottles:
        self._now_s += after_s
        return asyncio.run(self._source.answer(_question(layout)))


def _question(layout: ClusterLayout | None) -> Question:
    return Question(broker_id=None, topics=None, is_full=True, layout=layout, timeout_s=1.0)


def test_nothing_is_set() -> None:
    assert ask(Cluster()) == HeardThrottles(throttles=ReplicationThrottles(num_moving=0))


def test_nothing_is_known_before_the_layout_is() -> None:
    cluster = Cluster()
    assert ask(cluster, None).throttles is None
    assert cluster.requests.asked == []


def test_rates_are_told_by_broker_and_replicas_by_topic() -> None:
    cluster = Cluster()
    cluster.settings = {
        "1": {LEADER: "1000", FOLLOWER: "500"},
        "t": {LEADERS: "0:1,1:2", FOLLOWERS: "0:2,0:1"},
        "u": {LEADERS: "*"},
    }
    cluster.moving = {"t": [0, 1], "u": [0]}
    assert ask(cluster).throttles == ReplicationThrottles(
        bytes_per_s={1: 500}, num_replicas={"t": 3, "u": 2}, num_moving=3
    )


def test_each_broker_is_asked_for_its_own() -> None:
    cluster = Cluster()
    ask(cluster)
    asked = [
        (node, resource.resource_name)
        for node, request in cluster.requests.asked
        if isinstance(request, DescribeConfigsRequest)
        for resource in request.resources
    ]
    assert [each for each in asked if each[1].isdigit()] == [(1, "1"), (2, "2")]


@pytest.mark.parametrize(
    ("refusing", "throttles", "words"),
    [
        ({"1"}, ReplicationThrottles(bytes_per_s={2: 7}, num_moving=0), "of broker 1;"),
        ({"1", "2"}, None, "of broker 1 and 1 more;"),
    ],
)
def test_who_may_not_ask_hears_it_in_a_warning(
    refusing: set[str], throttles: ReplicationThrottles | None, words: str
) -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}, "2": {LEADER: "7"}}
    cluster.refusing = refusing
    heard = ask(cluster)
    assert heard.throttles == throttles
    assert words in heard.warnings[0]
    assert "it needs DESCRIBE_CONFIGS on the cluster" in heard.warnings[0]


def test_no_answer_from_any_broker_is_an_error_and_not_the_lack_of_throttles() -> None:
    cluster = Cluster()
    cluster.silent = {1, 2}
    with pytest.raises(BrokerUnreachableError):
        ask(cluster)
    cluster.silent, cluster.failing = set(), {"1", "2"}
    with pytest.raises(BadAnswerError, match="can't say"):
        ask(cluster)


@pytest.mark.parametrize("silent", [{1}, {2}])
def test_a_silent_broker_keeps_the_rate_that_it_told_last(silent: set[int]) -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}, "2": {LEADER: "7"}, "t": {LEADERS: "0:1"}}
    cluster.moving = {"t": [0]}
    asking = Asking(cluster)
    told = asking.again().throttles
    assert told == ReplicationThrottles(bytes_per_s={1: 5, 2: 7}, num_replicas={"t": 1}, num_moving=1)
    cluster.silent = silent
    assert [asking.again().throttles for _ in range(10)] == [told] * 10  # also what one that answers is asked
    cluster.silent = set()
    cluster.settings = {}
    assert asking.again().throttles == ReplicationThrottles(num_moving=1)


def test_after_silence_of_all_what_was_told_last_is_known_and_all_are_asked_again() -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}}
    asking = Asking(cluster)
    asking.again()
    cluster.silent = {1, 2}
    with pytest.raises(BrokerUnreachableError):
        asking.again()
    cluster.silent = {1}
    assert asking.again(after_s=0.0).throttles == ReplicationThrottles(bytes_per_s={1: 5}, num_moving=0)


def test_a_silent_broker_of_which_nothing_was_told_has_no_known_rate_and_others_have_theirs() -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}, "2": {LEADER: "7"}}
    cluster.silent = {2}
    throttles = ask(cluster).throttles
    assert throttles is not None
    assert throttles.bytes_per_s == {1: 5}


def test_when_all_that_answer_refuse_nothing_is_known() -> None:
    cluster = Cluster()
    cluster.refusing, cluster.silent = {"1"}, {2}
    heard = ask(cluster)
    assert heard.throttles is None
    assert "of broker 1;" in heard.warnings[0]


def test_a_refusal_and_a_fault_are_told_apart() -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}, "2": {LEADER: "7"}, "t": {LEADERS: "0:1"}}
    asking = Asking(cluster)
    asking.again()
    cluster.failing = {"1", "t"}
    cluster.refusing = {"2"}
    assert asking.again().throttles == ReplicationThrottles(
        bytes_per_s={1: 5}, num_replicas={"t": 1}, num_moving=0
    )


def test_what_is_gone_is_forgotten() -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "5"}, "2": {LEADER: "7"}, "t": {LEADERS: "0:1"}, "u": {LEADERS: "0:1"}}
    asking = Asking(cluster)
    asking.again()
    assert LAYOUT.topics is not None
    smaller = ClusterLayout(cluster_id="c", racks={2: None}, topics={"u": LAYOUT.topics["u"]})
    assert asking.again(smaller).throttles == ReplicationThrottles(
        bytes_per_s={2: 7}, num_replicas={"u": 1}, num_moving=0
    )


def test_what_is_not_told_of_reassignments_is_not_known() -> None:
    cluster = Cluster()
    cluster.reassignments_error = CLUSTER_AUTHORIZATION_FAILED
    throttles = ask(cluster).throttles
    assert throttles is not None
    assert throttles.num_moving is None


def test_brokers_are_asked_each_minute_and_not_after_closing() -> None:
    cluster = Cluster()
    now_s = 0.0
    source = ThrottlesSource(cluster.requests, rng=random.Random(0), clock=lambda: now_s)  # type: ignore[arg-type]

    async def scenario() -> list[int]:
        nonlocal now_s
        counts = []
        for now_s in (1.0, 30.0, 60.0, 61.0, 62.0):  # noqa: B007
            await source.answer(_question(LAYOUT))
            counts.append(len(cluster.requests.asked))
        await source.close()
        with pytest.raises(CollectorClosedError):
            await source.answer(_question(LAYOUT))
        return counts

    assert asyncio.run(scenario()) == [4, 4, 4, 8, 8]


def test_what_is_no_number_is_no_rate() -> None:
    cluster = Cluster()
    cluster.settings = {"1": {LEADER: "fast", FOLLOWER: "3"}}
    assert ask(cluster).throttles == ReplicationThrottles(bytes_per_s={1: 3}, num_moving=0)
