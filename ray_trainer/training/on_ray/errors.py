"""What can go wrong with the Ray cluster, its workers, and jobs on it.

TrainerError
├── RayUnavailableError         no Ray cluster answers, or none can be started
├── WorkersUnavailableError     the Ray cluster has no place for the workers
├── TrainingFailedError         the workers failed, and restarting did not help
├── JobError                    no Ray cluster takes the job
└── JobLostError                a Ray cluster that took a job does not answer any more
"""

from __future__ import annotations

from collections.abc import Mapping

from evenload.ray_trainer.errors import TrainerError


class RayUnavailableError(TrainerError):
    """No Ray cluster answers at the address given, or none can be started on this machine.

    Attributes:
        address: the cluster that was asked for; None: one of our own.
        reason: what Ray said.
    """

    def __init__(self, address: str | None, reason: str) -> None:
        what = (
            f"no Ray cluster answers at {address!r}"
            if address
            else "Ray could not be started on this machine"
        )
        super().__init__(f"{what}: {reason}")
        self.address = address
        self.reason = reason


class WorkersUnavailableError(TrainerError):
    """The Ray cluster has no place for the workers asked for.

    Attributes:
        wanted: resources asked for.
        available: resources that the cluster has in all.
    """

    def __init__(self, wanted: Mapping[str, float], available: Mapping[str, float]) -> None:
        asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
        has = ", ".join(f"{available.get(name, 0):g} {name}" for name in wanted)
        super().__init__(
            f"the workers need {asked}, but the whole Ray cluster has {has}. Ask for fewer --workers, "
            "or add nodes."
        )
        self.wanted = dict(wanted)
        self.available = dict(available)


class TrainingFailedError(TrainerError):
    """The workers failed, and starting them again did not help or was not to be tried.

    Attributes:
        run: the run's name.
        reason: the first failure's own words.
        restarts: how often the workers had been started again.
    """

    def __init__(self, run: str, reason: str, *, restarts: int = 0) -> None:
        again = f" after {restarts} restarts" if restarts else ""
        super().__init__(f"run {run!r} failed{again}: {reason}")
        self.run = run
        self.reason = reason
        self.restarts = restarts


class JobError(TrainerError):
    """No Ray cluster takes the job.

    Attributes:
        address: where one was looked for.
        reason: what was answered, if anything.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the Ray cluster at {address} did not take the job: {reason}. Start one (`ray start --head`), "
            "or say where it is with --address http://HOST:8265."
        )
        self.address = address
        self.reason = reason


class JobLostError(TrainerError):
    """A Ray cluster that took a job does not answer any more.

    Attributes:
        job_id: Ray's name for the job.
        reason: what was answered, if anything.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(
            f"the Ray cluster does not answer any more: {reason}. Job {job_id} may go on without being "
            f"followed; `ray job status {job_id}` tells. Submitted again under the same run name, it goes on "
            "after its last checkpoint."
        )
        self.job_id = job_id
        self.reason = reason
