from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from evenload.dataset_catalog.catalog import LOADS_TOPIC, Catalog, UnfinishedLoad
from evenload.dataset_catalog.errors import LoadInProgressError, OpenTransactionError, UnknownDatasetError
from evenload.dataset_catalog.logs.internal_topics import wait_for_stable_end
from evenload.dataset_catalog.manifest import Extent
from evenload.dataset_catalog.progress import LoadProgress
from evenload.dataset_catalog.testing import create_topic, make_batch, make_manifest, make_progress
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer


def _begin(connection: Connection, topic: str) -> LoadProgress:
    """The first progress record of a load by a process that ended; its topic exists."""
    created = create_topic(connection, topic, num_partitions=1)
    Catalog(connection).ensure_internal_topics()
    return make_progress(name=topic, topic=topic, topic_id=created.topic_id, updated_at_s=time.time() - 3600)


def _next(last: LoadProgress, offset: int) -> LoadProgress:
    extents = {0: (Extent(offset, 2, 5),)}
    return replace(
        last,
        sequence=last.sequence + 1,
        num_samples=last.num_samples + 10,
        num_records=last.num_records + 2,
        extents=extents,
    )


@contextmanager
def _transaction(connection: Connection, name: str) -> Iterator[Producer]:
    """A transaction that the caller ends, or that is aborted."""
    producer = confluent_producer(connection, transactional_id=name)
    producer.init_transactions(30)
    producer.begin_transaction()
    try:
        yield producer
    finally:
        producer.close()  # aborts what is open


def _produce(producer: Producer, record: LoadProgress) -> None:
    key, value = record.to_record()
    producer.produce(LOADS_TOPIC, value, key, partition=0)
    assert producer.flush(60) == 0


def _commit(connection: Connection, *records: LoadProgress) -> None:
    for record in records:
        with _transaction(connection, f"test-{record.name}") as producer:
            _produce(producer, record)
            producer.commit_transaction(30)


def _unfinished(connection: Connection, name: str) -> list[UnfinishedLoad]:
    """Those of this name, once all that was committed can be read: a commit is answered a little earlier."""
    wait_for_stable_end(connection, LOADS_TOPIC, timeout_s=30, wait_s=60)
    return [load for load in Catalog(connection).unfinished() if load.last.name == name]


def test_progress_adds_up_over_transactions(connection: Connection, topic_name: str) -> None:
    begin = _begin(connection, topic_name)
    one = _next(begin, 0)
    two = _next(one, 3)
    _commit(connection, begin, one, two)
    state = Catalog(connection).load_state(topic_name, 1)
    assert state is not None
    assert state.last == two
    assert state.partitions[0].extents == (Extent(0, 2, 5), Extent(3, 2, 5))
    assert Catalog(connection).load_state(topic_name, 2) is None


def test_an_aborted_transaction_made_no_progress(connection: Connection, topic_name: str) -> None:
    begin = _begin(connection, topic_name)
    _commit(connection, begin)
    with _transaction(connection, f"test-{topic_name}") as producer:
        _produce(producer, _next(begin, 0))
        producer.abort_transaction(30)
    state = Catalog(connection).load_state(topic_name, 1)
    assert state is not None
    assert state.last == begin


def test_a_dead_loader_of_another_dataset_hides_nothing_from_who_lists(
    connection: Connection, topic_name: str
) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    _commit(connection, begin)
    with _transaction(connection, f"dead-{topic_name}") as dead:
        _produce(dead, replace(begin, name=f"{topic_name}-dead"))
        # Published after the dead loader's records, while its transaction is open.
        catalog.publish(make_manifest(make_batch(0), [], name=f"{topic_name}-other"))
        assert f"{topic_name}-other" in [each.name for each in catalog.list()]
        assert f"{topic_name}@1" in [load.id for load in catalog.unfinished()]
        dead.abort_transaction(30)  # it was open until now: nobody has waited for its end


def test_progress_behind_a_dead_loaders_transaction_is_waited_for(
    connection: Connection, topic_name: str
) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    with _transaction(connection, f"dead-{topic_name}") as dead:
        _produce(dead, replace(begin, name=f"{topic_name}-dead"))
        _commit(connection, begin)
        with pytest.raises(OpenTransactionError, match=r"hides offsets \d+ to \d+") as caught:
            catalog.load_state(topic_name, 1, wait_s=0.3)
        assert caught.value.last_stable_offset < caught.value.log_end_offset
        assert f"dead-{topic_name}" in caught.value.transactional_ids
        ends = threading.Timer(0.5, dead.abort_transaction, [30])
        ends.start()
        state = catalog.load_state(topic_name, 1, wait_s=30)
        ends.join()
    assert state is not None
    assert state.last == begin


def test_a_load_is_unfinished_until_its_manifest_is_published(
    connection: Connection, topic_name: str
) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    _commit(connection, begin, replace(_next(begin, 0), is_complete=True))
    (load,) = _unfinished(connection, topic_name)
    assert load.id == f"{topic_name}@1"
    assert (load.problem, load.last.is_complete, load.last.num_samples) == (None, True, 10)
    with pytest.raises(UnknownDatasetError, match=r"its load .*@1 was never completed"):
        catalog.get(topic_name)
    catalog.publish(make_manifest(make_batch(0), [], name=topic_name))
    assert _unfinished(connection, topic_name) == []


def test_forgotten_progress_is_gone(connection: Connection, topic_name: str) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    _commit(connection, begin, _next(begin, 0))
    assert catalog.load_state(topic_name, 1) is not None  # all of it can be seen, as when it is published
    catalog.forget_progress(topic_name, 1)
    assert catalog.load_state(topic_name, 1) is None
    assert _unfinished(connection, topic_name) == []


def test_an_unfinished_load_is_dropped_with_its_topic(connection: Connection, topic_name: str) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    _commit(connection, begin, _next(begin, 0))
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]
    assert catalog.load_state(topic_name, 1) is None
    with TopicAdmin(connection, timeout_s=60) as admin:
        assert admin.describe(topic_name) is None


def test_a_load_behind_a_dead_loaders_transaction_is_found_and_dropped(
    connection: Connection, topic_name: str
) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    with _transaction(connection, f"dead-{topic_name}") as dead:
        _produce(dead, replace(begin, name=f"{topic_name}-dead"))
        _commit(connection, begin)
        with pytest.raises(OpenTransactionError):
            catalog.drop(topic_name, wait_s=0.3)
        ends = threading.Timer(0.5, dead.abort_transaction, [30])
        ends.start()
        assert list(catalog.drop(topic_name, wait_s=30)) == [f"{topic_name}@1"]
        ends.join()
    assert catalog.load_state(topic_name, 1) is None


def test_a_load_that_somebody_works_on_is_dropped_only_by_force(
    connection: Connection, topic_name: str
) -> None:
    catalog = Catalog(connection)
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "updated_at_s": time.time()}
    _commit(connection, replace(_begin(connection, topic_name), **mine))
    with pytest.raises(LoadInProgressError, match=f"process {os.getpid()} on {socket.gethostname()}"):
        catalog.drop(topic_name)
    assert list(catalog.drop(topic_name, force=True)) == [f"{topic_name}@1"]


def test_progress_with_a_hole_is_listed_with_its_problem_and_can_be_dropped(
    connection: Connection, topic_name: str
) -> None:
    catalog, begin = Catalog(connection), _begin(connection, topic_name)
    one = _next(begin, 0)
    _commit(connection, begin, _next(one, 3))
    (load,) = _unfinished(connection, topic_name)
    assert load.problem == "record 1 is missing before record 2"
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]
    assert _unfinished(connection, topic_name) == []
