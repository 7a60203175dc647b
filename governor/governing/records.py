"""What is written down, and how: jobs, kinds and the cluster, each as JSON under a key of its own.

Whoever may write to the topic decides what stands there, so whatever is read is checked as a whole: a record
that isn't one of ours is refused with its reason, and hides nothing but itself.

Invariants, checked in tests/property/governor/governing/test_records.py:
1. What was written is read as it was.
2. Whatever stands there, reading it raises nothing but `RecordError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from evenload.dataset_catalog.foreign_content import reason_of
from evenload.governor.deciding.state import Team
from evenload.governor.errors import RecordError
from evenload.governor.governing.engine import SIZE_MAX
from evenload.governor.governing.jobs import Job
from evenload.governor.governing.kinds import Kind
from evenload.governor.governing.orders import Phase

_CLUSTER_KEY: Final = b"cluster"
_POLICY_KEY: Final = b"policy"
_WRITER_KEY: Final = b"writer"
_RECORD_BYTES_MAX: Final = 1 << 20
_STINTS_MAX: Final = 10**9
_SUM_MAX: Final = 1e18
_TIME_MAX_S: Final = 1e11  # seconds since 1970: the year 5138


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided at a moment, where it changed something."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    at_s: float  # seconds since 1970
    policy: str
    num_slots: int
    sizes: Mapping[str, int]  # of all jobs that may run, as decided; those with none too
    changed: Mapping[str, int]  # their sizes before, where these were others
    notes: Mapping[str, str]  # why jobs have another size than the policy wished for


class Records(NamedTuple):
    """What is written down: all that there is, or what has changed."""

    jobs: Mapping[str, Job]
    kinds: Mapping[str, Kind]
    cluster_id: str | None  # of the cluster that stints were started on; None: none, or no news
    policy: str | None = None  # that somebody has set; None: nobody has, or no news
    decision: Decision | None = None  # that changed something; None: no news
    teams: Mapping[str, Team] = MappingProxyType({})  # of which something was set
    forgotten: tuple[str, ...] = ()  # jobs that ended long ago, and are kept no more


NOTHING = Records({}, {}, None)
_JOB, _KIND, _TEXT = TypeAdapter(Job), TypeAdapter(Kind), TypeAdapter(str)
_DECISION, _TEAM = TypeAdapter(Decision), TypeAdapter(Team)


def encoded(records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values; None takes away what stood there."""
    for job_id in records.forgotten:
        yield f"job:{job_id}".encode(), None
    for job_id, job in records.jobs.items():
        yield f"job:{job_id}".encode(), _JOB.dump_json(job)
    for kind_id, kind in records.kinds.items():
        yield f"kind:{kind_id}".encode(), _KIND.dump_json(kind)
    for name, team in records.teams.items():
        yield f"team:{name}".encode(), _TEAM.dump_json(team)
    if records.cluster_id is not None:
        yield _CLUSTER_KEY, _TEXT.dump_json(records.cluster_id)
    if records.policy is not None:
        yield _POLICY_KEY, _TEXT.dump_json(records.policy)


def decoded(stored: Mapping[bytes, bytes]) -> tuple[Records, list[RecordError]]:
    """What stands there, and what can't be understood of it.

    Args:
        stored: The latest value of each key.
    """
    jobs: dict[str, Job] = {}
    kinds: dict[str, Kind] = {}
    teams: dict[str, Team] = {}
    texts: dict[bytes, str] = {}
    errors: list[RecordError] = []
    for key, value in stored.items():
        try:
            if len(value) > _RECORD_BYTES_MAX:
                raise ValueError(f"it has {len(value):,} bytes")
            what, _, name = key.decode().partition(":")
            if what == "job":
                jobs[name] = _checked(name, _JOB.validate_json(value))
            elif what == "kind":
                kinds[name] = _KIND.validate_json(value)
            elif what == "team":
                teams[name] = _TEAM.validate_json(value)
            elif key in (_CLUSTER_KEY, _POLICY_KEY):
                texts[key] = _TEXT.validate_json(value)
            elif key != _WRITER_KEY:
                raise ValueError("no record has such a key")
        except Exception as error:  # noqa: BLE001 - the content is foreign: nobody can list what it may provoke
            errors.append(RecordError(repr(key)[:100], reason_of(error)))
    found = Records(jobs, kinds, texts.get(_CLUSTER_KEY), texts.get(_POLICY_KEY), teams=teams)
    return found, errors


def encoded_decision(decision: Decision) -> bytes:
    """As it is kept."""
    return _DECISION.dump_json(decision)


def decoded_decision(value: bytes) -> Decision | None:
    """What was kept; None: it can't be understood, and is worth no more than its absence."""
    try:
        return _DECISION.validate_json(value) if len(value) <= _RECORD_BYTES_MAX else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes the journal, as it says every few seconds."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    process: str  # as process_identity has it
    host: str
    at_s: float  # seconds since 1970

    def encoded(self) -> tuple[bytes, bytes]:
        """Key and value."""
        return _WRITER_KEY, _WRITER.dump_json(self)


_WRITER = TypeAdapter(Writer)


def writer_in(stored: Mapping[bytes, bytes]) -> Writer | None:
    """Who wrote last; None: nobody has, or it can't be understood."""
    try:
        return _WRITER.validate_json(stored[_WRITER_KEY])
    except (KeyError, ValueError):
        return None


def _checked(name: str, job: Job) -> Job:
    """What no type says."""
    if job.job_id != name:
        raise ValueError("it is of another job than its key says")
    if (job.size > 0) != (job.phase is not Phase.WAITING) or not (
        0 <= job.size <= SIZE_MAX and 0 <= job.wanted <= SIZE_MAX and 0 <= job.stint <= _STINTS_MAX
    ):
        raise ValueError(f"it is {job.phase.value} with {job.size} slots in stint {job.stint}")
    if job.bounds is not None:
        job.bounded(*job.bounds)
    times = (job.submitted_s, job.size_since_s, job.wanted_since_s, job.since_s, job.ended_s)
    if not all(0 <= time <= _TIME_MAX_S for time in times):
        raise ValueError("one of its times is none")
    sums = (job.slot_seconds, job.samples_done, job.waited_s, job.longest_wait_s)
    if not all(0 <= each <= _SUM_MAX for each in sums):
        raise ValueError("one of its sums is none")
    return job
