"""The same training as a job on a running Ray cluster: submitted, followed, stopped, its exit code passed on.

The job's driver is `python -m evenload.ray_trainer.training.on_ray.job_driver` on the cluster's head, with
this configuration; from there on it is `train`, with the workers on the cluster's machines. evenload has to
be installed there, and storage has to be a place that all machines share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient
from requests.exceptions import RequestException

from evenload.ray_trainer.training.on_ray.errors import JobError, JobLostError
from evenload.ray_trainer.training.on_ray.job_driver import RESULT_PREFIX
from evenload.ray_trainer.training.on_ray.ray_internals import use_token_at_hand
from evenload.ray_trainer.training.on_ray.submission import make_submission, resolved
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.stop_signal import stop_on_signal

__all__ = ["SubmittedJob", "connect", "submit"]

_log = logging.getLogger(__name__)

STOPPED_EXIT_CODE: Final = 130
_LOOK_S: Final = 0.2
_STATUS_S: Final = 1.0
_TALKATIVE_LOGGERS: Final = ("ray._private.authentication", "ray.dashboard.modules.job.sdk")


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """What became of a job.

    Attributes:
        job_id: Ray's name for it.
        status: SUCCEEDED, FAILED or STOPPED.
        exit_code: Of the job's driver; 130 when it was stopped.
        result: What `train` returned there, as `TrainResult.to_dict`; None when it did not.
    """

    job_id: str
    run: str
    status: str
    exit_code: int
    result: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: the result's own fields, and the job's."""
        return {**(self.result or {}), **{k: v for k, v in asdict(self).items() if k != "result"}}


def submit(
    recipe: str,
    config: TrainConfig,
    *,
    address: str | None = None,
    tell: Callable[[str], None] = print,
    working_dir: Path | None = None,
) -> SubmittedJob:
    """Run `train(recipe, config)` as a Ray job, and follow it to its end.

    In the main thread, the first SIGINT stops the job after a checkpoint and waits for that; the second
    leaves it to itself (KeyboardInterrupt).

    Args:
        address: Of the cluster's dashboard (http://HOST:8265); None: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or
            the cluster that was started on this machine.
        tell: Gets each line of the job's log.
        working_dir: A checkout of evenload to send along, where it is not installed on the cluster.

    Raises:
        JobError: No cluster answers there, or it refuses the job.
        JobLostError: The cluster no longer answers while the job runs.
        UnknownRecipeError: There is no such recipe.
    """
    config = resolved(recipe, config)
    assert config.run is not None
    client = connect(address)
    job_id = f"evenload-{config.run}-{uuid.uuid4().hex[:8]}"
    submission = make_submission(recipe, config, job_id, working_dir=working_dir)
    with _translated(address):
        client.submit_job(**submission)
    tell(f"job {job_id} submitted, waiting for it to begin")
    try:
        return _follow(client, job_id, config.run, tell)
    except (RuntimeError, ConnectionError, RequestException) as error:
        raise JobLostError(job_id, _one_line(error)) from error


def _follow(client: JobSubmissionClient, job_id: str, run: str, tell: Callable[[str], None]) -> SubmittedJob:
    asked = threading.Event()
    lines = _LogLines(client, job_id)
    result: dict[str, Any] | None = None
    is_stopping = False
    with stop_on_signal(asked.set, even_if_handled=True):
        for line in lines.until_end():
            if line.startswith(RESULT_PREFIX):
                result = json.loads(line[len(RESULT_PREFIX) :])
            elif line:
                tell(line)
            if asked.is_set() and not is_stopping:
                is_stopping = True
                tell("stopping the job after a checkpoint")
                client.stop_job(job_id)
    details = client.get_job_info(job_id)
    exit_code = details.driver_exit_code
    if details.status == JobStatus.STOPPED:
        exit_code = STOPPED_EXIT_CODE
    elif exit_code is None:
        exit_code = 0 if details.status == JobStatus.SUCCEEDED else 1
        tell(details.message or "")
    return SubmittedJob(job_id, run, str(details.status.value), int(exit_code), result)


class _LogLines:
    """A job's log, line by line, while it runs. The log is followed on a thread of its own."""

    def __init__(self, client: JobSubmissionClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._chunks: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=lambda: asyncio.run(self._tail()), name="job-log", daemon=True).start()

    def until_end(self) -> Iterator[str]:
        """Whole lines as they come, and an empty one whenever none has come for a moment."""
        num_seen, rest, looked_at_s = 0, "", time.monotonic()
        while True:
            chunk = self._next_chunk()
            num_seen += len(chunk)
            *lines, rest = (rest + chunk).split("\n")
            yield from lines
            if chunk:
                continue
            yield ""
            if time.monotonic() - looked_at_s >= _STATUS_S:
                looked_at_s = time.monotonic()
                if self._client.get_job_status(self._job_id).is_terminal():
                    break
        # Following lags behind by seconds, or has broken off; the whole log has what did not come.
        yield from (rest + self._client.get_job_logs(self._job_id)[num_seen:]).split("\n")

    def _next_chunk(self) -> str:
        with suppress(queue.Empty):
            return self._chunks.get(timeout=_LOOK_S)
        return ""

    async def _tail(self) -> None:
        try:
            async for chunk in self._client.tail_job_logs(self._job_id):
                self._chunks.put(chunk)
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            _log.warning("the log of job %s comes at its end, it can't be followed: %s", self._job_id, error)


class _PatientClient(JobSubmissionClient):
    """Ray's own waits for an answer for ever."""

    answer_s: float | None = None

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": self.answer_s, **kwargs})


def connect(address: str | None, *, answer_s: float | None = None) -> JobSubmissionClient:
    """A client of the cluster's jobs.

    Args:
        address: As `submit` takes it.
        answer_s: How long it may take over an answer, in seconds; None: as long as it likes.

    Raises:
        JobError: No cluster answers there.
    """
    for name in _TALKATIVE_LOGGERS:  # about the token, and the log's connection
        logging.getLogger(name).setLevel(logging.ERROR)
    with _translated(address):
        use_token_at_hand()
        client = _PatientClient(address)
        client.answer_s = answer_s
        return client


@contextmanager
def _translated(address: str | None) -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        reason = (
            f"it asks for a token that is not here ({str(error).splitlines()[0]}); see `ray get-auth-token`"
        )
        raise JobError(address or "the default address", reason) from error
    except (RuntimeError, ConnectionError, RequestException, ValueError) as error:
        raise JobError(address or "the default address", _one_line(error)) from error


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()[:300]
