"""What a run tells while it goes on: facts for programs, sentences (`str`) for people.

Read next: trainer.py, which hands them to whoever called `train`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = [
    "LOADING",
    "AttemptStarted",
    "CheckpointSaved",
    "Evaluated",
    "Event",
    "Note",
    "Recovered",
    "StepDone",
    "Stopping",
    "WorkerIdentity",
    "WorkersLost",
    "counted",
]


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One worker process."""

    rank: int
    pid: int
    host: str
    address: str = ""  # of its machine, as far as its host name tells
    gpus: tuple[str, ...] = ()  # numbers or UUIDs that it may use

    @staticmethod
    def own(rank: int) -> WorkerIdentity:
        """This process."""
        host = socket.gethostname()
        try:
            address = socket.gethostbyname(host)
        except OSError:  # a name that nobody knows
            address = ""
        if address.startswith("127."):  # as Debian has it; that is any machine's
            address = ""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return WorkerIdentity(rank, os.getpid(), host, address, tuple(filter(None, visible.split(","))))


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The workers are up and will begin (or go on) after `step`."""

    attempt: int
    workers: tuple[WorkerIdentity, ...]
    step: int
    epoch: int
    samples_consumed: int

    def __str__(self) -> str:
        pids = ", ".join(str(worker.pid) for worker in self.workers)
        where = f"go on after step {self.step} in epoch {self.epoch}" if self.step else "begin"
        workers = "1 worker (pid" if len(self.workers) == 1 else f"{len(self.workers)} workers (pids"
        return f"attempt {self.attempt}: {workers} {pids}) {where}"


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step was done; not every step is told.

    Attributes:
        loss: Mean over the step's samples on all ranks, of a step or two ago; None when not known yet.
        samples_consumed: Of the epoch, over all ranks.
        num_samples: Of the whole epoch.
        samples_per_s: Over this attempt, all ranks.
    """

    attempt: int
    step: int
    epoch: int
    samples_consumed: int
    num_samples: int
    loss: float | None
    samples_per_s: float

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        return (
            f"step {self.step}: epoch {self.epoch}, {self.samples_consumed} of {self.num_samples} samples"
            f"{loss}, {self.samples_per_s:.0f} samples/s"
        )


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is valid."""

    attempt: int
    step: int
    epoch: int
    samples_consumed: int
    folder: str

    def __str__(self) -> str:
        return f"checkpoint after step {self.step}: {self.folder}"


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """Workers failed, and all of them are started again.

    Attributes:
        dead: Those whose process is gone.
        step: The last step that any worker was heard to have done.
        reason: What the failed ones said, one line.
    """

    attempt: int
    dead: tuple[WorkerIdentity, ...]
    step: int
    reason: str

    def __str__(self) -> str:
        if not self.dead:
            return f"attempt {self.attempt} failed after step {self.step}: {self.reason}"
        who = " and ".join(f"worker {worker.rank} (pid {worker.pid})" for worker in self.dead)
        return f"{who} died after step {self.step}"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The workers are up again after a failure.

    Attributes:
        resumed_step: The checkpoint's step; 0 when there was none yet.
        num_steps_again: Steps that had been done after it, and are done again.
    """

    attempt: int
    resumed_step: int
    num_steps_again: int
    seconds: float

    def __str__(self) -> str:
        resumed = f"resumed from step {self.resumed_step} after {self.seconds:.1f} s"
        return f"{resumed}; steps to be done again: {self.num_steps_again}"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model was measured on the evaluation dataset after an epoch."""

    epoch: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"epoch {self.epoch} evaluated: {values}"


@dataclass(frozen=True, slots=True)
class Stopping:
    """Somebody asked the run to stop: it does after a checkpoint."""

    def __str__(self) -> str:
        return "stopping after a checkpoint"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know, in one sentence."""

    text: str

    def __str__(self) -> str:
        return self.text


# Said before torch and Ray are imported, which takes ten seconds on a small machine.
LOADING: Final = Note("loading PyTorch and Ray")

Event: TypeAlias = (
    AttemptStarted | StepDone | CheckpointSaved | WorkersLost | Recovered | Evaluated | Stopping | Note
)


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
