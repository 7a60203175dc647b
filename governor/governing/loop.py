"""Cycles on a thread of its own, and requests from any other, each answered once it is written down.

When the journal can't be written, nobody knows what it holds: it is opened and read anew, and the governor
begins with that. When another governor has taken it, this one ends.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Final, Protocol, TypeVar

from evenload.governor.deciding.plugins import DEFAULT, FALLBACK
from evenload.governor.deciding.state import ClusterState, Sizes
from evenload.governor.errors import (
    GovernorBusyError,
    GovernorEndedError,
    GovernorError,
    JournalError,
    PolicyError,
    RecordError,
)
from evenload.governor.governing.cycle import Journal, run_cycle
from evenload.governor.governing.engine import Engine
from evenload.governor.governing.governor import DECISIONS_MAX, Governor
from evenload.governor.governing.orders import Phase
from evenload.governor.governing.records import Decision, Records

LOOK_S: Final = 3.0
_CLOSE_S: Final = 15.0  # for a cycle to end; then the process ends without it
_OPEN_AGAIN_MIN_S, _OPEN_AGAIN_MAX_S = 1.0, 30.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ClosablePolicy(Protocol):
    """A policy that may have something of its own, which ends with it."""

    def __call__(self, state: ClusterState) -> Sizes:
        """What it wishes."""

    @property
    def fault(self) -> str | None:
        """What was wrong with it, so that another decides."""

    def close(self) -> None:
        """Ends what it has."""


class OpenJournal(Journal, Protocol):
    """A journal that can be taken, read and let go of."""

    def open(self) -> tuple[Records, list[RecordError]]:
        """Takes it, and reads it.

        Raises:
            JournalError: Not now.
        """

    def decisions(self, num_max: int) -> list[Decision]:
        """The newest that stand there, oldest first.

        Raises:
            JournalError: Not now.
        """

    def close(self) -> None:
        """Lets go of it."""


class Governing:
    """A governor at work, once it is started. Any thread may ask; `close` ends it and leaves stints alone.

    Args:
        journal: Is opened and closed here.
        engine: Likewise used by one thread alone.
        policies: A policy of a name; raises PolicyError where there is none.
        policy: The name of the one that decides; None: that somebody has set, else the default.
        wait_max_s: As `decide` takes it.
        look_s: The engine is looked at again after so long, or a third of it while something is on its way.
        awaits_reads_s: So long nothing is decided at first, unless `tell_reads` is called.
        wall_s: Seconds since 1970, asked once: from then on time goes by `clock`, which nobody sets.
        clock: Monotonic seconds.

    Attributes:
        policy: The name of the policy that decides, and itself; None: nothing is decided yet.
        damaged: What can't be understood of the journal.
        policy_fault: Why another policy decides than was set, where the policy doesn't say so itself.
        unreachable: Why the engine can't be asked now; None: it can.
        unready: The same, or why there is no governor yet.
        has_ended: Set once nothing is done any more.
        fault: What ended it; None where it was closed.
    """

    def __init__(
        self,
        journal: OpenJournal,
        engine: Engine,
        policies: Callable[[str], ClosablePolicy],
        policy: str | None = None,
        *,
        wait_max_s: float = math.inf,
        look_s: float = LOOK_S,
        awaits_reads_s: float = 0.0,
        wall_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._engine = journal, engine
        self._policies, self._policy, self._wait_max_s = policies, policy, wait_max_s
        self._look_s, self._clock = look_s, clock
        self._awaits_reads_s = awaits_reads_s
        self._reads: tuple[Mapping[str, Mapping[int, float]], Mapping[int, float]] | None = None
        self._offset_s = wall_s() - clock()
        self._changed = threading.Condition()
        self._requests: list[tuple[Callable[[Governor, float], Any], Future[Any]]] = []
        self._is_closing = False
        self._watchers: list[Callable[[Governor, float], None]] = []
        self._looked_s = -math.inf  # when the last cycle ended, by the clock
        self.policy: tuple[str, ClosablePolicy] | None = None
        self.damaged: list[RecordError] = []
        self.unreachable: str | None = None
        self.unready: str | None = "the journal isn't read yet"
        self.policy_fault: str | None = None
        self.has_ended = threading.Event()
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="governing", daemon=True)

    def start(self) -> None:
        """Takes the journal, and governs from then on."""
        self._thread.start()

    def ask(self, request: Callable[[Governor, float], T], *, timeout_s: float = 30.0) -> T:
        """Does something with the governor, and waits until what it changed is written down.

        Args:
            request: Called on the governor's thread, with the time.

        Raises:
            GovernorError: As `request` raises it, or the journal.
            GovernorEndedError: There is no governor any more.
            GovernorBusyError: It wasn't begun in time, and won't be.
            TimeoutError: It isn't known whether it was done.
        """
        answer: Future[T] = Future()
        with self._changed:
            if self._is_closing or self.has_ended.is_set():
                raise GovernorEndedError
            self._requests.append((request, answer))
            self._changed.notify()
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            if answer.cancel():
                raise GovernorBusyError(timeout_s) from error
            raise

    def watch(self, told: Callable[[Governor, float], None]) -> None:
        """Has `told` called after each cycle, on the governor's thread, with the time."""
        self._watchers.append(told)

    def close(self) -> None:
        """Ends it after the cycle that is under way."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def now_s(self) -> float:
        """Seconds since 1970, as the governor takes it."""
        return self._offset_s + self._clock()

    @property
    def put_aside(self) -> str | None:
        """Why another policy decides than the one that is set."""
        return self.policy_fault or (self.policy[1].fault if self.policy else None)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                governor = self._open()
                if governor is not None:
                    self._go_on(governor)
                    # What can't be written once may be refused again and again.
                    self._pause(_OPEN_AGAIN_MIN_S)
        except BaseException as error:  # noqa: BLE001 - told to whoever looks: this is a thread's end
            self.fault = error
            if not isinstance(error, JournalError):
                _log.exception("the governor has failed")
        finally:
            self._journal.close()
            if self.policy:
                self.policy[1].close()
            with self._changed:
                self.has_ended.set()
                for _, answer in self._requests:
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(GovernorEndedError())
                self._requests.clear()

    def _open(self) -> Governor | None:
        """Begins with what stands in the journal; None: it was closed before that could be read."""
        wait_s = _OPEN_AGAIN_MIN_S
        while not self._is_closing:
            try:
                records, self.damaged = self._journal.open()
                decisions = self._journal.decisions(DECISIONS_MAX)
            except JournalError as error:
                if not error.retriable:
                    raise
                _log.warning("%s; trying again in %.0f s", error, wait_s)
                self.unready = str(error)
                self._pause(wait_s)
                wait_s = min(2 * wait_s, _OPEN_AGAIN_MAX_S)
            else:
                for each in self.damaged:
                    _log.warning("%s", each)
                return self._begin(records, decisions)
        return None

    def _pause(self, wait_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, timeout=wait_s)

    def _begin(self, records: Records, decisions: list[Decision]) -> Governor:
        asked, self._policy = self._policy, None  # from then on, what was set over HTTP counts
        name = asked or records.policy or DEFAULT
        self.policy_fault = None
        try:
            policy = self._policies(name)
        except PolicyError as error:
            # Its package may be missing for the moment. Runs are governed all the same, and it stays set.
            self.policy_fault = f"{error} {FALLBACK} decides."
            _log.warning("%s", self.policy_fault)
            policy = self._policies(FALLBACK)
        if self.policy:
            self.policy[1].close()
        governor = Governor(
            policy,
            policy_name=name,
            wait_max_s=self._wait_max_s,
            records=records,
            decisions=decisions,
        )
        if self._reads is not None:
            governor.set_reads(*self._reads, self.now_s())
        elif self._awaits_reads_s:
            # Without budgets, runs would be resized now and again once they are known.
            governor.decides_from_s = self.now_s() + self._awaits_reads_s
        self._looked_s = -math.inf
        if name != records.policy and self.policy_fault is None:
            governor.set_policy(name, policy, self.now_s())
        self.policy = name, policy
        return governor

    def set_policy(self, name: str) -> None:
        """Has another policy decide from now on.

        Raises:
            PolicyError: There is none of this name; the one that decides stays.
            GovernorError: As `ask`.
        """
        policy = self._policies(name)

        def set_it(governor: Governor, now_s: float) -> None:
            governor.set_policy(name, policy, now_s)
            if self.policy:
                self.policy[1].close()
            self.policy, self.policy_fault = (name, policy), None

        try:
            self.ask(set_it)
        except GovernorError:  # so it wasn't done, nor will it be
            policy.close()
            raise

    def tell_reads(self, reads: Mapping[str, Mapping[int, float]], budgets: Mapping[int, float]) -> None:
        """Has decisions go by what runs read from brokers, as `Governor.set_reads`.

        Raises:
            GovernorError, TimeoutError: As `ask`.
        """
        self._reads = reads, budgets
        self.ask(lambda governor, now_s: governor.set_reads(reads, budgets, now_s))

    def preview(self, name: str) -> tuple[dict[str, tuple[int, int]], str | None]:
        """What another policy would change now, and what was wrong with it, so that another answered.

        Raises:
            PolicyError: There is none of this name.
            GovernorError: As `ask`.
        """
        with closing(self._policies(name)) as policy:
            changes = self.ask(lambda governor, now_s: governor.preview(policy, now_s))
            return changes, policy.fault

    def _go_on(self, governor: Governor) -> None:
        """Cycles, until closed or the journal fails."""
        while not self._is_closing:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._requests or self._is_closing, timeout=self._wait_s(governor)
                )
                requests, self._requests = self._requests, []
            # From here on, none can be taken back.
            requests = [each for each in requests if each[1].set_running_or_notify_cancel()]
            answers = [(answer, _answered(request, governor, self.now_s())) for request, answer in requests]
            try:
                unreachable = self._work(governor)
            except BaseException as error:
                for answer, _ in answers:
                    answer.set_exception(error)
                if not isinstance(error, JournalError) or not error.retriable:
                    raise
                _log.warning("%s", error)
                self.unready = str(error)  # until the journal is read anew, and a cycle has ended
                return
            if unreachable and unreachable != self.unreachable:
                _log.warning("%s", unreachable)
            self.unreachable = self.unready = unreachable
            for answer, (result, refusal) in answers:
                if refusal is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(refusal)

    def _work(self, governor: Governor) -> str | None:
        """A cycle if it is time for one; else only what was asked for is written down."""
        if self._wait_s(governor) > 0:
            self._journal.write(governor.take_changes())
            return self.unreachable
        unreachable = run_cycle(governor, self._journal, self._engine, self.now_s())
        self._looked_s = self._clock()
        for told in self._watchers:
            told(governor, self.now_s())
        return unreachable

    def _wait_s(self, governor: Governor) -> float:
        """Until the next cycle."""
        since_s = self._clock() - self._looked_s
        if self.unreachable:
            return max(0.0, self._look_s - since_s)  # a decision that is due stays due
        is_moving = any(
            job.phase in (Phase.STARTING, Phase.STOPPING) or job.wanted != job.size
            for job in governor.jobs.values()
        )
        look_s = self._look_s / 3 if is_moving else self._look_s
        return max(0.0, min(look_s - since_s, governor.due_s - self.now_s()))


def _answered(
    request: Callable[[Governor, float], T], governor: Governor, now_s: float
) -> tuple[T | None, Exception | None]:
    try:
        return request(governor, now_s), None
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        return None, error
