"""What can go wrong in sizing runs.

GovernorError
+-- PolicyError              a policy that is named can't be had
+-- StuckError               a policy starts nothing, though all slots are free
+-- TokenFileError           a file of tokens can't be understood
+-- TraceError               a trace of jobs can't be understood
+-- JobUnknownError          there is no job of this name
+-- QueueFullError           there are very many jobs
+-- StintRefusedError        the cluster won't ever start a stint
+-- JobConflictError         there is one of this name that is something else
+-- EngineUnreachableError   what the cluster does can't be known now; later it can
+-- JournalError             what was written down may be kept or not
|   +-- JournalTakenError    another governor writes it now
|   +-- JournalGoneError     it was deleted, and made anew
|   +-- GovernorAtWorkError  another governor writes it, and hasn't been told to stop
+-- GovernorUnreachableError no governor answers at a URL
+-- GovernorRefusedError     a governor says no
+-- GovernorBusyError        something wasn't begun in time, and won't be
+-- GovernorEndedError       nothing is governed here any more
+-- RecordError              what stands in the journal isn't one of its records
"""

from __future__ import annotations

from typing import Any, ClassVar


class GovernorError(Exception):
    """Root of the errors of this package; its attributes are the facts, and it survives pickling."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[GovernorError], args: tuple[Any, ...], facts: dict[str, Any]) -> GovernorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class PolicyError(GovernorError):
    """A policy is named that can't be had.

    Attributes:
        name: The name that was asked for.
        known: The names that there are.
        reason: Why it can't be had.
    """

    def __init__(self, name: str, known: tuple[str, ...], reason: str) -> None:
        self.name, self.known, self.reason = name, known, reason
        super().__init__(f"policy {name!r} {reason}. There are: {', '.join(known) or 'none'}.")


class StuckError(GovernorError):
    """A simulation would never end: its policy starts nothing, though all slots are free.

    Attributes:
        waiting: The ids of the jobs that wait.
        num_slots: What there is.
    """

    def __init__(self, waiting: tuple[str, ...], num_slots: int) -> None:
        self.waiting, self.num_slots = waiting, num_slots
        named = ", ".join(waiting[:5]) + (", ..." if len(waiting) > 5 else "")
        super().__init__(
            f"the policy starts none of the {len(waiting)} jobs that wait ({named}) on {num_slots} free "
            "slots: was one asked to have more?"
        )


class TokenFileError(GovernorError):
    """A file of tokens can't be understood; the message says where, and quotes no token."""


class TraceError(GovernorError):
    """A trace of jobs, or a file of their speeds, can't be understood; the message says where."""


class JobUnknownError(GovernorError):
    """There is no job of this name.

    Attributes:
        job_id: The name.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id!r}")


class QueueFullError(GovernorError):
    """There are very many jobs.

    Attributes:
        num_max: No more are taken.
    """

    retriable = True

    def __init__(self, num_max: int) -> None:
        self.num_max = num_max
        super().__init__(f"{num_max:,} jobs wait or run, and no more are taken; submit it later")


class StintRefusedError(GovernorError):
    """The cluster won't ever start a stint; the message says why."""


class JobConflictError(GovernorError):
    """A job of this name was submitted before, and is something else.

    Attributes:
        job_id: The name.
        differing: What it is and what was asked for now, by field.
    """

    def __init__(self, job_id: str, differing: dict[str, tuple[object, object]]) -> None:
        self.job_id, self.differing = job_id, differing
        told = "; ".join(f"{field} {known!r}, now {asked!r}" for field, (known, asked) in differing.items())
        super().__init__(f"there is a job {job_id!r} that differs: {told[:500]}. Give this one another name.")


class EngineUnreachableError(GovernorError):
    """What the cluster does can't be known now, or an order may have arrived or not."""

    retriable = True


class JournalError(GovernorError):
    """What was to be written down may be kept or not: only beginning anew with what was kept tells."""

    retriable = True


class JournalTakenError(JournalError):
    """Another governor has taken the journal; this one does nothing any more."""

    retriable = False

    def __init__(self) -> None:
        super().__init__(
            "another governor has taken over: it writes the journal now, and this one stops. Two at a time "
            "would start jobs twice."
        )


class JournalGoneError(JournalError):
    """The journal was deleted and made anew while a governor was at work.

    Attributes:
        topic: Where it is.
    """

    retriable = False

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} was deleted and made anew, and with it all that was queued. Started again, the "
            "governor begins with an empty queue; runs that train go on as they are."
        )


class GovernorAtWorkError(JournalError):
    """Another governor is at work.

    Attributes:
        host: Where it is.
        silent_s: Seconds since it wrote.
    """

    retriable = False

    def __init__(self, host: str, silent_s: float) -> None:
        self.host, self.silent_s = host, silent_s
        super().__init__(
            f"another governor is at work on {host!r}: it wrote {silent_s:.0f} s ago. With --take-over, this "
            "one takes over, and that one stops."
        )


class RecordError(GovernorError):
    """What stands in the journal's topic can't be understood.

    Attributes:
        key: Its key, as it can be printed.
        reason: Why it can't.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(f"the journal's record {key} can't be understood: {reason}")


class GovernorEndedError(GovernorError):
    """Nothing is governed here any more: the service ends, or another one has taken over."""

    def __init__(self) -> None:
        super().__init__("the governor has ended; ask the one that runs now")


class GovernorBusyError(GovernorError):
    """Something wasn't begun in time, and won't be."""

    retriable = True

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the governor was busy for {waited_s:.0f} s; nothing was done")


class GovernorUnreachableError(GovernorError):
    """No governor answers at a URL.

    Attributes:
        url: Where it was asked.
        reason: What happened.
    """

    retriable = True

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"no governor answers at {url}: {reason[:500]}. Does `evenload governor` run?")


class GovernorRefusedError(GovernorError):
    """A governor says no, in its own words.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        self.retriable = status == 503  # type: ignore[misc]  # of this one: it may pass
        super().__init__(sentence)
