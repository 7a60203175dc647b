"""The journal in real Kafka: kept, read anew, and written by one governor at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from evenload.dataset_catalog.logs.internal_topics import latest_records, write_plain
from evenload.governor.errors import GovernorAtWorkError, JournalError, JournalTakenError
from evenload.governor.governing.jobs import Job, Wish
from evenload.governor.governing.journal import JOBS_TOPIC, KafkaJournal
from evenload.governor.governing.kinds import Kind
from evenload.governor.governing.records import Decision, Records, Writer
from evenload.kafka_connection import Connection


def job(job_id: str) -> Job:
    wish = Wish(job_id=job_id, kind="k", samples=5.0, asked_size=2, max_size=4, entry={"recipe": "r"})
    return Job(wish=wish, submitted_s=1.0, wanted_since_s=1.0, since_s=1.0)


@pytest.fixture
def journal(connection: Connection) -> Iterator[KafkaJournal]:
    """A journal, in which nothing stands afterwards: governors of other tests would have it run."""
    with closing(KafkaJournal(connection)) as journal:
        yield journal
    left = latest_records(connection, JOBS_TOPIC, timeout_s=30.0)
    write_plain(connection, JOBS_TOPIC, [(key, None) for key in left], timeout_s=30.0)


def test_what_was_written_is_there_for_the_next_one_and_the_newest_counts(
    journal: KafkaJournal, connection: Connection
) -> None:
    journal.open()
    kind = Kind().with_speed(2, job("a").stint_id, 10.0)
    journal.write(Records({"a": job("a"), "b": job("b")}, {"k": kind}, "session-1"))
    held = replace(job("a"), is_held=True)
    journal.write(Records({"a": held}, {}, None))
    journal.write(Records({}, {}, None))
    with closing(KafkaJournal(connection)) as successor:
        records, damaged = successor.open()
    assert not damaged
    assert records.jobs["a"] == held
    assert records.jobs["b"] == job("b")
    assert (records.kinds["k"], records.cluster_id) == (kind, "session-1")


def test_decisions_are_kept_in_their_order(journal: KafkaJournal) -> None:
    journal.open()
    made = [
        Decision(at_s=at_s, policy="fifo", num_slots=4, sizes={"a": 2}, changed={"a": 0}, notes={})
        for at_s in (1.0, 2.0, 3.0)
    ]
    for decision in made:
        journal.write(Records({}, {}, None, decision=decision))
    assert journal.decisions(100)[-3:] == made
    assert journal.decisions(2) == made[-2:]


def test_the_one_before_is_fenced_and_keeps_nothing_more(
    journal: KafkaJournal, connection: Connection
) -> None:
    journal.open()
    with closing(KafkaJournal(connection, take_over=True)) as successor:
        successor.open()
        with pytest.raises(JournalTakenError, match="another governor has taken over"):
            journal.write(Records({"late": job("late")}, {}, None))
        successor.write(Records({"new": job("new")}, {}, None))
        records, _ = successor.open()
    assert "new" in records.jobs
    assert "late" not in records.jobs


def test_one_that_is_at_work_is_left_alone_unless_that_is_asked_for(
    journal: KafkaJournal, connection: Connection
) -> None:
    journal.identify()
    for at_s, is_at_work in ((time.time(), True), (time.time() - 60.0, False)):
        elsewhere = Writer(process="of nobody here", host="elsewhere", at_s=at_s)
        write_plain(connection, JOBS_TOPIC, [elsewhere.encoded()], timeout_s=30.0)
        if is_at_work:
            with pytest.raises(GovernorAtWorkError, match=r"is at work on 'elsewhere': it wrote . s ago"):
                journal.open()
            with closing(KafkaJournal(connection, take_over=True)) as successor:
                successor.open()
        else:
            journal.open()
    journal.open()  # what this process wrote itself holds nobody up


def test_what_somebody_else_writes_there_hides_only_itself(
    journal: KafkaJournal, connection: Connection
) -> None:
    journal.open()
    journal.write(Records({"c": job("c")}, {}, None))
    hostile = [(b"job:evil", b'{"wish":' * 10_000), (b"job:d", b"{}"), (b"\xff", b"x")]
    write_plain(connection, JOBS_TOPIC, hostile, timeout_s=30.0)
    try:
        records, damaged = journal.open()
        assert records.jobs["c"] == job("c")
        assert {error.key for error in damaged} == {"b'job:evil'", "b'job:d'", "b'\\xff'"}
    finally:
        write_plain(connection, JOBS_TOPIC, [(key, None) for key, _ in hostile], timeout_s=30.0)


def test_brokers_that_dont_answer_are_an_error_that_may_pass() -> None:
    with closing(KafkaJournal(Connection(bootstrap_servers="127.0.0.1:9"), timeout_s=2.0)) as journal:
        with pytest.raises(JournalError, match="the journal can't be opened") as caught:
            journal.open()
        assert caught.value.retriable
