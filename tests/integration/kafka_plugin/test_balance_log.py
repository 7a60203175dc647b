"""The record of a balance on a real broker: one writes it at a time, and what can't be read is cleared."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource

from evenload.dataset_catalog.logs.internal_topics import ensure_internal_topics, write_plain
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.balancing import log as balance_log
from evenload.kafka_plugin.balancing.balance import execute_balance, forget_balance, preview_balance
from evenload.kafka_plugin.balancing.log import BALANCE_TOPIC, TRANSACTIONAL_ID, BalanceLog
from evenload.kafka_plugin.balancing.record import BalanceRecord, Target
from evenload.kafka_plugin.errors import BalanceCancelledError, BalanceError, BalanceInProgressError
from evenload.kafka_plugin.transaction_markers import ALL_PARTITIONS, TransactionMarkers
from evenload.local_cluster import LocalCluster, temporary_cluster

TIMEOUT_S = 20.0
RECENT_S = 30.0
SOMETHING = {"targets": (Target(topic="t", partition=0, replica_ids=(1,)),)}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with temporary_cluster(num_brokers=1) as running:
        yield running


@pytest.fixture
def new_log(cluster: LocalCluster) -> Iterator[Callable[[], BalanceLog]]:
    """Opens logs; afterwards nothing stands there."""
    opened = []

    def open_log() -> BalanceLog:
        opened.append(BalanceLog(cluster.connection, timeout_s=TIMEOUT_S))
        return opened[-1]

    yield open_log
    for log in opened:
        log.close()
    with closing(BalanceLog(cluster.connection, timeout_s=TIMEOUT_S)) as log:
        log.forget()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is looked at before, and nobody waits until another has noticed."""
    monkeypatch.setattr(balance_log, "LEASE_S", -1.0)
    monkeypatch.setattr(balance_log, "NOTICE_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_who_was_fenced_neither_writes_nor_changes_anything(new_log: Callable[[], BalanceLog]) -> None:
    first, second = new_log(), new_log()
    record = first.write(first.take(RECENT_S).model_copy(update=SOMETHING))
    with first.changing():
        pass
    taken = second.take(RECENT_S, from_the_living=True)
    assert [*taken.targets] == [*record.targets]
    with pytest.raises(BalanceCancelledError), first.changing():
        pytest.fail("nothing is sent")
    for attempt in (lambda: first.write(record), first.clear):
        with pytest.raises(BalanceCancelledError, match="of 1 partitions"):
            attempt()
    standing = second.read()
    assert standing is not None
    assert standing.run_id == taken.run_id
    with second.changing():
        pass
    second.clear()
    assert second.read() is None


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("attempt", range(4))
def test_of_two_that_start_in_the_same_moment_exactly_one_goes_on(
    new_log: Callable[[], BalanceLog], monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    both_have_looked = threading.Barrier(2)
    look = BalanceLog.read_unless_at_work

    def look_at_the_same_time(log: BalanceLog, recent_s: float) -> BalanceRecord | None:
        found = look(log, recent_s)
        both_have_looked.wait(TIMEOUT_S)
        return found

    monkeypatch.setattr(BalanceLog, "read_unless_at_work", look_at_the_same_time)
    went_on, stopped = [], []

    def begin(log: BalanceLog) -> BalanceRecord:
        record = log.take(RECENT_S)
        for _ in range(3 + attempt):
            record = log.write(record)
            with log.changing():
                pass
        return record

    def start(log: BalanceLog) -> None:
        try:
            try:
                record = begin(log)
            finally:
                # One may have done all that before the other has come so far as to take the id.
                both_have_begun.wait(TIMEOUT_S)
            went_on.append(log.write(record).run_id)
        except BalanceError as error:
            stopped.append(error)

    both_have_begun = threading.Barrier(2)
    threads = [threading.Thread(target=start, args=[new_log()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(went_on), len(stopped)) == (1, 1), stopped
    assert isinstance(stopped[0], BalanceCancelledError | BalanceInProgressError), stopped
    standing = new_log().read()
    assert standing is not None
    assert standing.run_id == went_on[0]


@pytest.mark.usefixtures("at_once")
def test_who_is_slow_to_take_over_wipes_out_nothing_that_the_other_wrote_meanwhile(
    new_log: Callable[[], BalanceLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance_log, "_SUCCESSOR_S", 0.0)  # the first one's patience is over at once
    first, second = new_log(), new_log()
    begun = first.take(RECENT_S)
    write = second.write

    def write_late(record: BalanceRecord) -> BalanceRecord:
        first.write(begun.model_copy(update=SOMETHING))
        return write(record)

    monkeypatch.setattr(second, "write", write_late)
    with pytest.raises(BalanceInProgressError):
        second.take(RECENT_S, from_the_living=True)
    standing = first.read()
    assert standing is not None
    assert (standing.run_id, [*standing.targets]) == (begun.run_id, [*SOMETHING["targets"]])
    with first.changing():
        pass


def test_a_second_one_in_the_same_process_is_refused(new_log: Callable[[], BalanceLog]) -> None:
    first, second = new_log(), new_log()
    first.take(RECENT_S)
    with pytest.raises(BalanceInProgressError, match=f"by process {os.getpid()}"):
        second.take(RECENT_S)
    first.close()
    second.take(RECENT_S)


@pytest.mark.usefixtures("at_once")
def test_a_record_that_its_writer_could_not_commit_holds_up_nobody(new_log: Callable[[], BalanceLog]) -> None:
    dead = new_log()
    record = dead.take(RECENT_S)
    writer = dead._writer
    writer.begin()
    writer.write(BALANCE_TOPIC, b"half", partition=0, num_samples=0, key=b"balance")
    writer.settle()
    second = new_log()
    left = second.read()
    assert left is not None
    assert left.run_id == record.run_id
    second.take(RECENT_S, from_the_living=True)
    second.clear()


def test_whose_transaction_brokers_gave_up_goes_on_when_nobody_else_has_come(
    cluster: LocalCluster, new_log: Callable[[], BalanceLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance_log, "_SUCCESSOR_S", 0.5)
    log = new_log()
    record = log.take(RECENT_S)
    log._writer.begin()
    log._writer.write(BALANCE_TOPIC, b"half", partition=0, num_samples=0, key=b"balance")
    log._writer.settle()
    with closing(TransactionMarkers(cluster.connection, TRANSACTIONAL_ID)) as markers:
        markers.end_earlier([TopicPartition(BALANCE_TOPIC, ALL_PARTITIONS)], TIMEOUT_S)
    begin = log._writer.begin
    begins = iter([lambda: None])  # the first time as if it had been suspended since
    monkeypatch.setattr(log._writer, "begin", lambda: next(begins, begin)())
    assert log.write(record).run_id == record.run_id
    standing = log.read()
    assert standing is not None
    assert standing.run_id == record.run_id


@pytest.mark.usefixtures("at_once")
def test_who_was_suspended_in_a_request_knows_that_it_was_late(
    new_log: Callable[[], BalanceLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    record = log.take(RECENT_S)
    monkeypatch.setattr(balance_log, "LEASE_S", 2.0)
    monkeypatch.setattr(balance_log, "NOTICE_S", 10.0)
    log.write(record)
    now_s = balance_log._now_s()
    with log.changing():
        monkeypatch.setattr(balance_log, "_now_s", lambda: now_s + 3600)
    assert log.is_late
    log.write(record)
    assert not log.is_late, "nobody had come in between"


def say(cluster: LocalCluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("evenload")), "balance", *arguments],
        env={**os.environ, "EVENLOAD_HOME": str(cluster.home)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


HOSTILE = [b"[" * 900_000, b'{"run_id": "' + b"9" * 5000 + b'"}', b"\x00\xff"]


@pytest.mark.parametrize(
    "value",
    [HOSTILE[0], *(pytest.param(value, marks=pytest.mark.torture) for value in HOSTILE[1:])],
    ids=["nested", "wrong", "bytes"],
)
def test_a_record_that_nobody_understands_is_said_and_cleared(
    cluster: LocalCluster, tmp_path: Path, value: bytes
) -> None:
    connection = cluster.connection
    ensure_internal_topics(connection, timeout_s=TIMEOUT_S, topics=(BALANCE_TOPIC,))
    write_plain(connection, BALANCE_TOPIC, [(b"balance", value)], timeout_s=TIMEOUT_S)
    rate = ConfigResource("broker", "1", {"leader.replication.throttled.rate": "77000"})
    with open_admin(connection) as admin:
        admin.alter_configs([rate], raise_on_unknown=False)
    dry = say(cluster, tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert f"can't be understood ({len(value)} bytes" in dry.stdout
    for refused in (say(cluster, tmp_path, "--execute"), say(cluster, tmp_path, "--cancel")):
        assert refused.returncode == 1, refused.stdout
        assert "evenload balance --forget" in refused.stderr
        assert "Traceback" not in refused.stderr
    told = say(cluster, tmp_path, "--forget")
    assert told.returncode == 0, told.stderr
    for words in (f"forgotten: a record that can't be understood ({len(value)}", "77000", "broker 1"):
        assert words in told.stdout
    again = forget_balance(connection)
    assert again.record is None
    assert [(each.of, each.value) for each in again.throttles] == [(1, "77000")]
    assert not execute_balance(connection).plan.moves
    with open_admin(connection) as admin:
        admin.alter_configs(
            [ConfigResource("broker", "1", {"leader.replication.throttled.rate": ("DELETE", None)})],
            raise_on_unknown=False,
        )


def test_what_can_be_understood_is_not_forgotten(
    cluster: LocalCluster, new_log: Callable[[], BalanceLog]
) -> None:
    log = new_log()
    log.take(RECENT_S)
    with pytest.raises(BalanceInProgressError):
        forget_balance(cluster.connection)
    log.close()
    with pytest.raises(BalanceError, match="--cancel"):
        forget_balance(cluster.connection)


def test_what_others_write_under_other_keys_is_not_kept(
    cluster: LocalCluster, new_log: Callable[[], BalanceLog]
) -> None:
    record = new_log().take(RECENT_S)
    producer = confluent_producer(cluster.connection)
    for number in range(2000):
        producer.produce(BALANCE_TOPIC, b"junk" * 25_000, f"key {number}".encode(), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    standing = new_log().read()
    assert standing is not None
    assert standing.run_id == record.run_id
    assert "already" in preview_balance(cluster.connection).notes[0]
