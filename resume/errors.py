"""What can go wrong in a run: its storage, its record, its checkpoints, and what these are to hold.

RunError
├── StorageUnwritableError      the run's folder can't be made or written (retriable)
├── StorageUnreadableError      the storage doesn't say what it holds (retriable)
├── UnknownRunError             there is no such run
├── RunDamagedError             a file that says what a run is can't be understood, or is gone
├── RunMismatchError            the run was created with other settings
├── RunTakenOverError           another driver goes on with this run
├── InvalidCheckpointError      a checkpoint's folder is incomplete, damaged or foreign
├── CheckpointUnreadableError   a rank can't read what rank 0 can
├── CheckpointMismatchError     a good checkpoint, but of another dataset version or plan
├── CheckpointWriteError        checkpoints can't be written any more (retriable)
├── NoCheckpointLeftError       a run that has had checkpoints has no valid one any more
├── ShardedStateError           state that is spread over ranks in a way that can't be kept
├── RanksDifferError            what is to be kept is not the same on every rank
├── StateUnavailableError       a state_dict() of what is to be kept failed (retriable)
└── StoppedError                the process was asked to end (retriable)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class RunError(Exception):
    """Root of these, and of what training adds. They cross processes, so they pickle whatever they take."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ calls the class with `args`, that is with the message alone, and an
        # __init__ that takes facts by keyword refuses that in the process that unpickles.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(error_type: type[RunError], args: tuple[Any, ...], facts: dict[str, Any]) -> RunError:
    error = error_type.__new__(error_type)
    error.args = args
    error.__dict__.update(facts)
    return error


class StorageUnwritableError(RunError):
    """The run's folder can't be made or written.

    Attributes:
        place: the folder or file, as the user wrote it.
        reason: what the file system said.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"storage {place!r} can't be written: {reason}. Make it writable and start the same run again. "
            "Choose another --storage for a new run."
        )
        self.place = place
        self.reason = reason


class StorageUnreadableError(RunError):
    """The storage answers with an error, so what it holds isn't known; that is not absence.

    Attributes:
        place: the folder or file, as the user wrote it.
        reason: what the file system said last.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"storage {place!r} can't be read: {reason}. Nothing was begun anew or deleted. Start the same "
            "run again when the storage can be read: it goes on from its newest checkpoint."
        )
        self.place = place
        self.reason = reason


class UnknownRunError(RunError):
    """There is no such run.

    Attributes:
        place: where it was looked for.
        available: runs that are there.
    """

    def __init__(self, place: str, available: Sequence[str] = ()) -> None:
        there = f"there are {', '.join(available)}" if available else "there are no runs in this storage"
        super().__init__(f"no run at {place!r}: {there}")
        self.place = place
        self.available = tuple(available)


class RunDamagedError(RunError):
    """A file that says what a run is can't be understood, or is gone though the run has trained.

    Attributes:
        place: the file.
        reason: what is wrong with it.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"{place!r} {reason}. Repair it from a copy and start the same run again, or begin at step 0 "
            "with --begin-anew (in Python begin_anew=True), which deletes no checkpoint."
        )
        self.place = place
        self.reason = reason


class RunMismatchError(RunError):
    """The run exists, and was created with other settings.

    Attributes:
        run: the run's name.
        differences: name of each setting that differs -> (value of the run, value asked for).
    """

    def __init__(self, run: str, differences: Mapping[str, tuple[object, object]]) -> None:
        what = "; ".join(
            f"{name} is {then!r}, asked for {now!r}" for name, (then, now) in differences.items()
        )
        super().__init__(
            f"run {run!r} exists already with other settings: {what}. Ask for the same, or choose "
            "a new --run."
        )
        self.run = run
        self.differences = dict(differences)


class RunTakenOverError(RunError):
    """Another driver resumed this run while this one trained.

    Attributes:
        run: the run's name.
        attempt: our attempt.
        newer_attempt: theirs; the same number, where both began at once.
        where: host and process of the other, where known.
    """

    def __init__(self, run: str, *, attempt: int, newer_attempt: int, where: str = "") -> None:
        order = f"attempt {newer_attempt} began after our attempt {attempt}"
        if newer_attempt == attempt:
            order = f"they began at once, both as attempt {attempt}, and the other one goes on"
        super().__init__(
            f"run {run!r} is being trained by another driver too ({order}{', ' + where if where else ''}); "
            "this one stops, so that they don't mix. Use another --run for a second one."
        )
        self.where = where
        self.run = run
        self.attempt = attempt
        self.newer_attempt = newer_attempt


class InvalidCheckpointError(RunError):
    """A checkpoint's folder is incomplete, damaged or foreign; the one before it may be good.

    Attributes:
        place: the folder.
        reason: what is wrong with it, with the values.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"checkpoint {place} is not valid: {reason}")
        self.place = place
        self.reason = reason


class CheckpointUnreadableError(RunError):
    """A rank can't read the checkpoint that rank 0 chose and read.

    Attributes:
        place: the checkpoint's folder.
        rank: who can't read it.
        host: where that rank runs.
        reason: what went wrong there.
    """

    def __init__(self, place: str, *, rank: int, host: str, reason: str) -> None:
        others = ", which rank 0 can" if rank else ""
        super().__init__(
            f"rank {rank} on {host} can't read checkpoint {place}{others}: {reason}. With workers "
            "on several machines, --storage has to be a folder or URI that all of them share."
        )
        self.place = place
        self.rank = rank
        self.host = host
        self.reason = reason


class CheckpointMismatchError(RunError):
    """A good checkpoint, but of another dataset version or plan, or of another model, than there is now.

    Attributes:
        place: the checkpoint's folder.
        differences: name of each fact that differs -> (value in the checkpoint, value now).
    """

    def __init__(self, place: str, differences: Mapping[str, tuple[object, object]]) -> None:
        what = "; ".join(f"{name} was {then!r}, is now {now!r}" for name, (then, now) in differences.items())
        super().__init__(
            f"checkpoint {place} does not go with what is asked for: {what}; going on with it would be "
            "another training. Ask for what the run began with, or start a new run (--run)."
        )
        self.place = place
        self.differences = dict(differences)


class CheckpointWriteError(RunError):
    """Writing checkpoints failed several times in a row, for longer than the storage's patience.

    Attributes:
        place: the folder that could not be written last.
        reason: what went wrong.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"checkpoint {place} could not be written: {reason}. Make room or repair the storage, then start "
            "the same run again: it goes on from its last good checkpoint."
        )
        self.place = place
        self.reason = reason


class NoCheckpointLeftError(RunError):
    """The run has had checkpoints, and none of them is valid any more; it doesn't begin anew unasked.

    Attributes:
        place: the run's folder.
        evidence: how it is known that there were checkpoints.
        reasons: what is wrong with each that was found, newest first.
    """

    def __init__(self, place: str, *, evidence: str, reasons: Sequence[str]) -> None:
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
        super().__init__(
            f"run {place!r} has trained before ({evidence}), but has no valid checkpoint any more: "
            f"{shown or 'there is none'}. Repair the storage and start the same run again, or begin at "
            "step 0 with --begin-anew (in Python begin_anew=True), which deletes nothing."
        )
        self.place = place
        self.evidence = evidence
        self.reasons = tuple(reasons)


class ShardedStateError(RunError):
    """State is spread over ranks in a way that a checkpoint can't hold: all but one part would be lost.

    Attributes:
        path: where it is: the part's name, then names and numbers inside of it.
        kind: the class that is known to be spread: `DTensor`, `FullyShardedDataParallel`, ...
        rank: who noticed.
        reason: why it can't be kept.
    """

    def __init__(self, path: str, *, kind: str, rank: int, reason: str) -> None:
        super().__init__(
            f"{path} is a {kind} (on rank {rank}), spread over ranks, and can't be kept: {reason}. Resuming "
            "would lose the rest of it. What can be kept are models that are whole on every rank "
            "(prepare_model), or sharded by fully_shard() or tensor parallelism before the run begins, and "
            "their optimizers."
        )
        self.path = path
        self.kind = kind
        self.rank = rank
        self.reason = reason


class RanksDifferError(RunError):
    """What is to be kept has other names, shapes or dtypes on some rank than on rank 0.

    Attributes:
        rank: the first that differs from rank 0.
        differences: where -> (on rank 0, on that rank); the first few.
        num_differences: how many there are in all.
    """

    def __init__(
        self, *, rank: int, differences: Mapping[str, tuple[str, str]], num_differences: int
    ) -> None:
        what = "; ".join(
            f"{path} is {first} on rank 0 and {other} on rank {rank}"
            for path, (first, other) in differences.items()
        )
        more = num_differences - len(differences)
        super().__init__(
            f"the ranks don't keep the same state: {what}{f'; and {more} more' if more else ''}. A "
            "checkpoint holds rank 0's, and every rank loads it: make model, optimizer and state alike on "
            "every rank."
        )
        self.rank = rank
        self.differences = dict(differences)
        self.num_differences = num_differences


class StateUnavailableError(RunError):
    """What is to be kept in a checkpoint did not give its state.

    Attributes:
        name: of the part: model, optimizer, scheduler, or its name in `Session(state=...)`.
        rank: where.
        reason: the error that its state_dict() raised.
    """

    retriable: ClassVar[bool] = True  # it may be memory that another start has

    def __init__(self, name: str, *, rank: int, reason: str) -> None:
        super().__init__(
            f"the state of {name} can't be had on rank {rank}: {reason}. A checkpoint needs it: look at its "
            "state_dict()."
        )
        self.name = name
        self.rank = rank
        self.reason = reason


class StoppedError(RunError):
    """The process was asked to end, and its run has stopped; started again, it goes on.

    Attributes:
        place: the run's folder.
        step: steps done.
        saved_step: the step after which the run goes on, if this process has saved any; None: it hasn't.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, place: str, *, step: int, saved_step: int | None) -> None:
        goes_on = "from where it had begun" if saved_step is None else f"after step {saved_step}"
        super().__init__(
            f"run {place!r} was asked to end, and stopped after step {step}. Started again, it goes on "
            f"{goes_on}."
        )
        self.place = place
        self.step = step
        self.saved_step = saved_step
