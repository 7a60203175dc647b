"""A Ray cluster as an engine: each stint is a Ray job, and a slot is a CPU or a GPU.

Ray takes each submission id once, so starting a stint twice is starting it once, whoever asks. What became of
a stint that has ended is asked of its run's storage, as Ray says STOPPED either way.

Slots that others hold (placement groups, actors and tasks of jobs that the governor didn't start) are counted
out. What comes and goes within some seconds isn't: a policy that followed it would do nothing but resize.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

import requests
from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobStatus
from ray.util.state import StateApiClient
from ray.util.state.common import ListApiOptions, StateResource
from ray.util.state.exception import RayStateApiException
from requests.exceptions import RequestException

from evenload.governor.errors import EngineUnreachableError, StintRefusedError
from evenload.governor.governing.engine import Observed, Outcome, Stint, StintId, StintSeen
from evenload.governor.on_ray.reports import Reports
from evenload.governor.on_ray.runs import JOB_KEY, OWNER_KEY, PLAIN_KEY, STINT_KEY, Left
from evenload.ray_trainer.training.on_ray.errors import JobError
from evenload.ray_trainer.training.on_ray.submit import connect
from evenload.resume.errors import RunError

_NUMBER: Final = re.compile("[0-9]{1,9}")
_LOG_BYTES_MAX: Final = 16 << 20
_LIST_MAX: Final = 10_000  # Ray lists no more
_TIMEOUT_S: Final = 10
_UNREAD_MAX_S: Final = 600.0  # that storage may keep what a stint has left behind to itself
# A run's driver succeeds only when all is done.
_OUTCOMES: Final = {
    JobStatus.SUCCEEDED: Outcome.FINISHED,
    JobStatus.STOPPED: Outcome.STOPPED,
    JobStatus.FAILED: Outcome.FAILED,
}
_LOOKS_OF_OTHERS: Final = 5  # what others hold in all of these is theirs

# The last two: an answer of another version than is installed here.
_CANT_ASK: Final = (
    RayError,
    RayStateApiException,
    RequestException,
    RuntimeError,
    OSError,
    JobError,
    ValueError,
    LookupError,
)

_log = logging.getLogger(__name__)


class RayJobs:
    """Stints as jobs of a Ray cluster. For one thread.

    Args:
        address: Of its dashboard, http://HOST:8265.
        slot: The resource of which each worker takes one.
        owner: The governor's journal; stints of another's are jobs of others.
        submission: What Ray is sent for a stint, with the metadata by which `stint_of` knows it.
        left_by: What a stint that has ended has left behind, by the environment that Ray was sent for it.
        reports: What drivers say.

    Raises:
        EngineUnreachableError: No cluster answers there.
    """

    def __init__(
        self,
        address: str | None,
        *,
        slot: Literal["CPU", "GPU"],
        owner: str,
        submission: Callable[[Stint], dict[str, Any]],
        left_by: Callable[[Mapping[str, str]], Left],
        reports: Reports,
    ) -> None:
        self._slot, self._owner = slot, owner
        self._submission, self._left_by, self._reports = submission, left_by, reports
        with _translated():
            self._client = connect(address, answer_s=_TIMEOUT_S)
            self._state = StateApiClient(self._client.get_address())
        self._left: dict[StintId, Left] = {}
        self._unread_since_s: dict[StintId, float] = {}
        self._held_by_others: deque[float] = deque(maxlen=_LOOKS_OF_OTHERS)

    def look(self, current: Collection[StintId]) -> Observed:
        """What there is now."""
        with _translated():
            cluster_id = self._session_name()
            jobs = self._client.list_jobs()
            own = {stint_id: job for job in jobs if (stint_id := stint_of(job.metadata, self._owner))}
            own_ids = {job.job_id for job in own.values() if job.job_id}
            num_slots = self._num_slots(own_ids)
        stints = {
            stint_id: self._seen(stint_id, job, is_current=stint_id in current)
            for stint_id, job in own.items()
        }
        return Observed(cluster_id=cluster_id, num_slots=num_slots, stints=stints)

    def start(self, stint: Stint) -> None:
        """Begins a stint, unless one of its id was begun."""
        try:
            submission = self._submission(stint)
        except (ValueError, LookupError, TypeError) as error:
            # What was submitted to an earlier version, say. It would be the same at every try.
            raise StintRefusedError(f"it can't be made a Ray job: {error}"[:500]) from error
        with _translated():
            try:
                self._client.submit_job(**submission)
            except RuntimeError as error:  # the cluster has answered, and says so in its text alone
                if "already exists" not in str(error):
                    raise StintRefusedError(f"the Ray cluster doesn't take it: {error}"[:500]) from error
                there = self._client.get_job_info(stint.id.submission_id)
                if stint_of(there.metadata, self._owner) != stint.id:
                    taken = f"the Ray cluster has a job {stint.id.submission_id!r} of another governor"
                    raise StintRefusedError(f"{taken}; give the job another name") from error

    def stop(self, stint_id: StintId) -> None:
        """Interrupts its driver, which ends after a checkpoint."""
        with _translated():
            try:
                self._client.stop_job(stint_id.submission_id)
            except RuntimeError as error:
                if "does not exist" not in str(error):
                    raise

    def _seen(self, stint_id: StintId, job: JobDetails, *, is_current: bool) -> StintSeen:
        if not job.status.is_terminal():
            return self._seen_alive(stint_id, job)
        outcome = _OUTCOMES[job.status]
        has_trained = PLAIN_KEY in (job.metadata or {}) or self._reports.progress(stint_id) is not None
        if PLAIN_KEY in (job.metadata or {}) or not is_current:
            self._left.pop(stint_id, None)
            self._reports.forget(stint_id)
            return StintSeen(samples_done=0.0, has_trained=has_trained, outcome=outcome)
        left = self._left.get(stint_id) or self._look_what_is_left(stint_id, job)
        if left is None:
            return StintSeen(samples_done=0.0, has_trained=has_trained)
        self._left[stint_id] = left
        if left.is_finished:
            outcome = Outcome.FINISHED
        return StintSeen(samples_done=left.samples_done, has_trained=has_trained, outcome=outcome)

    def _seen_alive(self, stint_id: StintId, job: JobDetails) -> StintSeen:
        if PLAIN_KEY in (job.metadata or {}):
            return StintSeen(samples_done=0.0, has_trained=job.status is not JobStatus.PENDING)
        progress = self._reports.progress(stint_id)
        if progress is None:
            return StintSeen(samples_done=0.0, has_trained=False)
        return StintSeen(
            samples_done=progress.samples_done, has_trained=True, samples_per_s=progress.samples_per_s
        )

    def _look_what_is_left(self, stint_id: StintId, job: JobDetails) -> Left | None:
        """What a stint that has ended left behind; None: that isn't known yet, and is asked again."""
        try:
            return self._left_by((job.runtime_env or {}).get("env_vars", {}))
        except RunError as error:
            _log.warning("what stint %s has left behind isn't known: %s", stint_id.submission_id, error)
            since_s = self._unread_since_s.setdefault(stint_id, time.monotonic())
            # Not knowing what came of it is no reason to call it failed; but slots aren't held for ever.
            if error.retriable and time.monotonic() - since_s < _UNREAD_MAX_S:
                return None
        except ValueError as error:
            _log.warning("stint %s is no run's: %s", stint_id.submission_id, error)
        return Left(is_finished=False, samples_done=0.0)

    def _session_name(self) -> str:
        """What the cluster calls itself from its start to its end."""
        # Ray's own clients ask for this when they begin, and don't keep it; there is no public way to it.
        answer = self._client._do_request("GET", "/api/version")
        if answer.status_code != 200:
            raise RuntimeError(f"asked for its version, it answered {answer.status_code}")
        return str(answer.json()["session_name"])

    def _num_slots(self, own_ids: set[str]) -> int:
        # An answer that isn't whole would look as if slots were lost, and jobs would be stopped for it.
        nodes = self._list(StateResource.NODES, ("state", "=", "ALIVE"), is_whole=True)
        total = sum(node["resources_total"].get(self._slot, 0.0) for node in nodes)
        self._held_by_others.append(self._others(own_ids))
        return max(0, int(total - min(self._held_by_others)))

    def _others(self, own_ids: set[str]) -> float:
        """Slots that other jobs hold now."""
        held = 0.0
        for group in self._list(StateResource.PLACEMENT_GROUPS, ("state", "=", "CREATED")):
            if group["creator_job_id"] not in own_ids:
                held += sum(
                    bundle.get("unit_resources", {}).get(self._slot, 0.0) for bundle in group["bundles"]
                )
        for resource, state in ((StateResource.ACTORS, "ALIVE"), (StateResource.TASKS, "RUNNING")):
            for each in self._list(resource, ("state", "=", state)):
                # What is in a placement group was counted with it.
                if each["job_id"] not in own_ids and not each.get("placement_group_id"):
                    held += (each.get("required_resources") or {}).get(self._slot, 0.0)
        return held

    def _list(
        self, resource: StateResource, where: tuple[str, str, str], *, is_whole: bool = False
    ) -> list[Any]:
        options = ListApiOptions(limit=_LIST_MAX, timeout=_TIMEOUT_S, filters=[where], detail=True)
        return list(self._state.list(resource, options=options, raise_on_missing_output=is_whole))


def stint_of(metadata: Mapping[str, str] | None, owner: str) -> StintId | None:
    """Which stint a Ray job is, by its metadata; None: it isn't one of this owner's."""
    said = metadata or {}
    job_id, number = said.get(JOB_KEY), said.get(STINT_KEY, "")
    if said.get(OWNER_KEY) != owner or not job_id or not _NUMBER.fullmatch(number):
        return None
    return StintId(job_id, int(number))


def log_of(address: str | None, stint_id: StintId) -> str:
    """What a stint has said so far. From any thread.

    Raises:
        EngineUnreachableError: It can't be had now.
    """
    with _translated():
        client = connect(address, answer_s=_TIMEOUT_S)
        # Ray sends all of it in one piece, and its client reads that whatever its size.
        url = f"{client.get_address()}/api/jobs/{stint_id.submission_id}/logs"
        with requests.get(url, headers=client._headers, timeout=_TIMEOUT_S, stream=True) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"asked for the log, it answered {answer.status_code}")
            content = answer.raw.read(_LOG_BYTES_MAX + 1, decode_content=True)
        if len(content) > _LOG_BYTES_MAX:
            return f"it is larger than is fetched here; `ray job logs {stint_id.submission_id}` shows it\n"
        return str(json.loads(content)["logs"])


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _CANT_ASK as error:
        raise EngineUnreachableError(f"the Ray cluster can't be asked: {error}"[:500]) from error
