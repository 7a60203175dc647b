"""What a worker's loop is part of: the run, and the driver that started it.

A loop says `Session(model, optimizer, scheduler, reader)` and nothing about where it runs. Started by
`train`, the worker process holds a context that says it (`entered`); in a plain process there is none, and
`Session` is told run and storage by its caller. A link is how a worker tells its driver things and hears
from it; without a driver it is silent (`NoLink`).

Read next: session.py; worker_link.py (the link to a driver on Ray).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.training.events import AttemptStarted, CheckpointSaved, Event, StepDone
from evenload.resume.fence import DriverClaim
from evenload.resume.storage import PATIENCE_S, RunStorage

__all__ = ["Link", "NoLink", "RunContext", "current_run", "entered"]

logger = logging.getLogger(__name__)


class Link(Protocol):
    """What a worker's session says to its driver, and asks of it. Nothing here ever blocks a step."""

    @property
    def stop_asked(self) -> bool:
        """Somebody asked the run to stop."""

    @property
    def is_preempted(self) -> bool:
        """A machine of this run will be taken away soon, and nobody has called `preemption_seen` since."""

    @property
    def can_report(self) -> bool:
        """Whether there is somebody to report to, and the last report is long enough ago and done."""

    def started(self, event: AttemptStarted) -> None: ...

    def step_done(self, event: StepDone) -> None: ...

    def tell(self, event: Event) -> None: ...

    def report(self, checkpoint: CheckpointSaved | None, metrics: Mapping[str, float]) -> None:
        """Tell Ray of a checkpoint: rank 0 of which, the others of None.

        All ranks have to call this and `poll_preemption` in the same order.
        """

    def poll_preemption(self) -> None:
        """Ask Ray whether a machine will be taken away; the answer comes later, in `is_preempted`."""

    def preemption_seen(self) -> None:
        """A checkpoint is being taken for what `is_preempted` says; another machine's notice counts anew."""

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was said is heard, at most so long."""


class NoLink:
    """Nobody started this process: what is told goes to the log."""

    stop_asked = False
    is_preempted = False
    can_report = False

    def started(self, event: AttemptStarted) -> None:
        self.tell(event)

    def step_done(self, event: StepDone) -> None:
        logger.debug("%s", event)

    def tell(self, event: Event) -> None:
        logger.info("%s", event)

    def report(self, checkpoint: CheckpointSaved | None, metrics: Mapping[str, float]) -> None:
        del checkpoint, metrics

    def poll_preemption(self) -> None:
        pass

    def preemption_seen(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        del timeout_s


@dataclass
class RunContext:
    """The run that this process works for.

    Attributes:
        claim: The driver's; None: there is no driver, and a session claims the run for itself.
        begin_anew: At step 0, although the run has trained before.
        torch_threads: What was asked for; None: as the run began, or else `default_threads`.
        device: "cpu" or "gpu"; None: a GPU where there is one.
        sessions: Made within this context; they are closed when the loop returns.
    """

    run: str
    storage: str | Path
    claim: DriverClaim | None = None
    begin_anew: bool = False
    storage_patience_s: float = PATIENCE_S
    checkpoint_interval_s: float | None = None
    keep_checkpoints: int = 3
    torch_threads: int | None = None
    default_threads: int | None = None
    device: str | None = None
    connection: Connection | None = None
    link: Link = field(default_factory=NoLink)
    sessions: list[Any] = field(default_factory=list)

    def open_storage(self) -> RunStorage:
        """The run's folder."""
        return RunStorage(self.storage, self.run, patience_s=self.storage_patience_s)

    def refuse_another(self, **given: Any) -> None:
        """What the driver has said isn't said otherwise by the loop: one of the two would be ignored.

        Args:
            given: Attributes of this context as a loop wants them; None: it says nothing.

        Raises:
            ValueError: With both values.
        """
        for name, value in given.items():
            said = getattr(self, name)
            if value is not None and value != said and str(value) != str(said):
                raise ValueError(
                    f"Session({name}={value!r}), but this loop runs in a worker of train, whose "
                    f"configuration says {said!r}: set TrainConfig.{name}, and leave it out here"
                )


_current: RunContext | None = None


def current_run() -> RunContext | None:
    """The context that this process is in; None in a plain process."""
    return _current


@contextmanager
def entered(context: RunContext) -> Iterator[RunContext]:
    """Make `context` the process's own for the block. A process works for one run at a time."""
    global _current
    if _current is not None:
        raise RuntimeError(f"this process works for run {_current.run!r} already")
    _current = context
    try:
        yield context
    finally:
        _current = None
