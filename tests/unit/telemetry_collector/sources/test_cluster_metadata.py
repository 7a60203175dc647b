"""What the cluster's metadata says and whom it is asked of, with the real protocol classes and no broker."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from evenload.telemetry_collector import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    PartitionSnapshot,
)
from evenload.telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from evenload.telemetry_collector.sources.observation import ClusterLayout
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.testing import FakeRequests

TOPIC_AUTHORIZATION_FAILED = 29
UNKNOWN_TOPIC = 3

_Broker = MetadataResponse.MetadataResponseBroker
_MetadataTopic = MetadataResponse.MetadataResponseTopic
_MetadataPartition = _MetadataTopic.MetadataResponsePartition


def _question(**fields: Any) -> Question:
    told = {"topics": None, "is_full": True, "layout": None, **fields}
    return Question(broker_id=None, timeout_s=1.0, **told)


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


def _metadata_source(answer: Callable[[int | str, Any], Any]) -> tuple[ClusterMetadataSource, FakeRequests]:
    requests = FakeRequests(answer)
    return ClusterMetadataSource(requests, hedge_delay_s=0.01, rng=random.Random(0)), requests  # type: ignore[arg-type]


def test_a_layout_keeps_the_order_of_replicas_and_says_where_no_leader_is() -> None:
    topics = [_metadata_topic("t", [(2, [2, 1]), (-1, [1, 2])])]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    assert asyncio.run(source.answer(_question())) == ClusterLayout(
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
    layout = asyncio.run(source.answer(_question(topics=topics, is_full=is_full)))
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
    asyncio.run(source.answer(_question(layout=layout)))
    assert [request.topics for _, request in requests.asked] == [[], None]
    assert len({node for node, _ in requests.asked}) == 1


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    topics = [_metadata_topic("t", [(1, [1])]), _metadata_topic("gone", [], error=UNKNOWN_TOPIC)]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    layout = asyncio.run(source.answer(_question(topics=frozenset({"t", "gone"}))))
    assert set(layout.topics or {}) == {"t"}


def test_a_topic_that_may_not_be_described_is_named_with_the_permission() -> None:
    topics = [_metadata_topic("secret", [], error=TOPIC_AUTHORIZATION_FAILED)]
    source, _ = _metadata_source(lambda *_: _metadata(topics))
    with pytest.raises(AccessRefusedError, match="'secret' may not be described; it needs DESCRIBE"):
        asyncio.run(source.answer(_question(topics=frozenset({"secret"}))))


def test_where_many_name_topics_one_that_may_not_be_described_keeps_nobody_from_the_others() -> None:
    topics = [
        _metadata_topic("t", [(1, [1])]),
        _metadata_topic("secret", [], error=TOPIC_AUTHORIZATION_FAILED),
    ]
    requests = FakeRequests(lambda *_: _metadata(topics))
    source = ClusterMetadataSource(
        requests,  # type: ignore[arg-type]
        hedge_delay_s=0.01,
        rng=random.Random(0),
        is_for_many=True,
    )
    layout = asyncio.run(source.answer(_question(topics=frozenset({"t", "secret"}))))
    assert set(layout.topics or {}) == {"t"}
    assert layout.warnings == ("topic 'secret' may not be described; it needs DESCRIBE on the topic",)


def test_a_broker_that_is_still_starting_gives_no_layout() -> None:
    source, _ = _metadata_source(lambda *_: MetadataResponse(brokers=[], cluster_id="c", topics=[]))
    with pytest.raises(BadAnswerError, match="is it still starting"):
        asyncio.run(source.answer(_question()))


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
            await source.answer(_question(layout=layout, is_full=False))
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
        asking = asyncio.ensure_future(source.answer(_question(layout=layout, is_full=False)))
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
    asyncio.run(source.answer(_question(layout=layout)))
    assert requests.asked[-1][0] == "bootstrap-0"


def test_when_everybody_refuses_the_last_refusal_is_the_reason() -> None:
    def answer(node: int | str, _: Any) -> Any:
        raise BrokerUnreachableError(node, "connection refused")

    source, _ = _metadata_source(answer)
    with pytest.raises(BrokerUnreachableError, match="broker bootstrap-0: connection refused"):
        asyncio.run(source.answer(_question()))
