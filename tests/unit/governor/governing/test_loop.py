"""Requests and cycles on threads: what is answered is written down, and what fails is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from evenload.governor.errors import (
    GovernorEndedError,
    JobUnknownError,
    JournalError,
    JournalTakenError,
    PolicyError,
    RecordError,
)
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Job, Wish
from evenload.governor.governing.loop import Governing
from evenload.governor.governing.orders import Phase
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.governing.records import Records
from evenload.governor.testing import MemoryJournal, StillEngine

WISH = Wish(job_id="a", kind="k", samples=100.0, asked_size=2, max_size=2)


def name_of(governing: Governing) -> str | None:
    return governing.policy[0] if governing.policy else None


class MoodyJournal(MemoryJournal):
    """Fails once when it is told to, after it has kept what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: JournalError | None = None
        self.num_opened = 0
        self.governing: Governing | None = None
        self.unready_at_open: str | None = None

    def open(self) -> tuple[Records, list[RecordError]]:
        self.num_opened += 1
        self.unready_at_open = self.governing.unready if self.governing else None
        return super().open()

    def write(self, changes: Records) -> None:
        super().write(changes)
        failure, self.failure = self.failure, None
        if failure:
            raise failure


class Site:
    def __init__(self) -> None:
        self.journal, self.engine = MoodyJournal(), StillEngine(4)
        self.governing = Governing(self.journal, self.engine, governing_policy, look_s=0.03)
        self.journal.governing = self.governing
        self.governing.start()

    def submit(self) -> Job:
        return self.governing.ask(lambda governor, now_s: governor.submit(WISH, now_s))

    def wait_for_phase(self, phase: Phase) -> None:
        seen = threading.Event()

        def look(governor: Governor, _: float) -> None:
            if governor.jobs["a"].phase is phase:
                seen.set()

        while not seen.is_set():
            self.governing.ask(look)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.governing.close()


def test_what_is_answered_is_written_down(site: Site) -> None:
    job = site.submit()
    assert site.journal.read().jobs == {"a": job}
    site.wait_for_phase(Phase.RUNNING)
    assert site.journal.read().jobs["a"].phase is Phase.RUNNING


def test_what_cant_be_done_is_told_to_who_asked_and_others_go_on(site: Site) -> None:
    with pytest.raises(JobUnknownError):
        site.governing.ask(lambda governor, now_s: governor.cancel("b", now_s))
    assert site.submit().job_id == "a"


def test_when_a_write_fails_it_begins_with_what_the_journal_has(site: Site) -> None:
    site.journal.failure = JournalError("no answer")
    with pytest.raises(JournalError, match="no answer"):
        site.submit()
    assert site.governing.ask(lambda governor, _: governor.jobs["a"].wish) == WISH
    assert site.journal.num_opened == 2
    assert site.journal.unready_at_open == "no answer"


def test_when_another_has_taken_the_journal_nothing_is_done_any_more(site: Site) -> None:
    site.journal.failure = JournalTakenError()
    with pytest.raises(JournalTakenError):
        site.submit()
    assert site.governing.has_ended.wait(60)
    assert isinstance(site.governing.fault, JournalTakenError)
    with pytest.raises(GovernorEndedError):
        site.submit()


def test_while_the_cluster_doesnt_answer_requests_are_taken_and_it_is_said(site: Site) -> None:
    site.engine.unreachable = "no answer from 10.0.0.1"
    site.submit()
    while site.governing.unreachable is None:
        site.governing.ask(lambda *_: None)
    assert site.governing.unreachable == "no answer from 10.0.0.1"
    site.engine.unreachable = None
    site.wait_for_phase(Phase.RUNNING)
    assert site.governing.unreachable is None


def test_a_policy_that_was_set_decides_after_the_next_start_too(site: Site) -> None:
    site.submit()
    changes, fault = site.governing.preview("elastic_fifo")
    assert changes.keys() <= {"a"}
    assert fault is None
    site.governing.set_policy("fifo")
    assert name_of(site.governing) == "fifo"
    with pytest.raises(PolicyError, match="'magic' is not known"):
        site.governing.set_policy("magic")
    site.governing.close()
    assert site.journal.read().policy == "fifo"
    successor = Governing(site.journal, site.engine, governing_policy, look_s=0.03)
    successor.start()
    successor.ask(lambda *_: None)
    assert name_of(successor) == "fifo"
    successor.close()


def test_where_a_policy_is_gone_the_simplest_elastic_one_decides(site: Site) -> None:
    site.governing.close()
    site.journal.write(Records({}, {}, None, "uninstalled"))
    successor = Governing(site.journal, site.engine, governing_policy, look_s=0.03)
    successor.start()
    successor.ask(lambda *_: None)
    assert successor.policy_fault is not None
    assert successor.policy_fault.endswith("elastic_fifo decides.")
    successor.close()
    assert site.journal.read().policy == "uninstalled"  # it may be back at the next start


def test_closing_leaves_stints_as_they_are(site: Site) -> None:
    site.submit()
    site.wait_for_phase(Phase.RUNNING)
    site.governing.close()
    assert not site.engine.look().stints[site.journal.read().jobs["a"].stint_id].outcome
    with pytest.raises(GovernorEndedError):
        site.submit()


def test_one_that_was_never_started_can_be_closed() -> None:
    Governing(MemoryJournal(), StillEngine(4), governing_policy).close()


def test_nothing_is_decided_before_it_is_known_what_runs_read() -> None:
    journal = MoodyJournal()
    governing = Governing(journal, StillEngine(4), governing_policy, look_s=0.03, awaits_reads_s=1e6)
    governing.start()
    try:
        governing.ask(lambda governor, now_s: governor.submit(WISH, now_s))
        assert governing.ask(lambda governor, now_s: governor.due_s - now_s) > 1e5
        governing.tell_reads({"a": {1: 1000.0}}, {1: 5000.0})
        while governing.ask(lambda governor, _: governor.jobs["a"].phase) is not Phase.RUNNING:
            pass
        journal.failure = JournalError("it is gone for a moment")
        with pytest.raises(JournalError):
            governing.ask(lambda governor, now_s: governor.hold("a", now_s))
        # The governor that begins with what was written still knows it.
        budgets = governing.ask(lambda governor, now_s: governor.state(now_s).read_budgets)
        assert (journal.num_opened, budgets) == (2, {1: 5000.0})
    finally:
        governing.close()
