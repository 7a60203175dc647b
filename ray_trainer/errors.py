"""What can go wrong while planning, reading and training, as one tree.

    TrainerError                    everything of this package
    ├── TooManyWorkersError         some rank would get no sample in some step
    ├── UnknownRankError            nothing says which part of the data this process reads
    ├── ReaderRankError             a reader reads another part than its session's rank
    ├── CursorMismatchError         a cursor that belongs to another dataset, seed or plan rule
    ├── ReadError                   samples of a dataset can't be had
    │   ├── FetchTimeoutError       nothing came for as long as is allowed (retriable)
    │   ├── FetchRefusedError       brokers answer, but refuse
    │   ├── RecordsGoneError        offsets that the manifest lists are no longer there
    │   ├── CorruptRecordError      what is at an offset isn't what was written there
    │   ├── UndecodableColumnError  a column can't become a tensor
    │   └── LoaderWorkersError      a DataLoader's worker processes, where they would repeat samples
    ├── StorageUnwritableError      the run's folder can't be made or written (retriable)
    ├── StorageUnreadableError      the storage doesn't say what it holds (retriable)
    ├── InvalidCheckpointError      a checkpoint's folder is incomplete, damaged or foreign
    ├── CheckpointMismatchError     a good checkpoint, but of another dataset version or plan
    ├── ShardedStateError           state that is spread over ranks can't be kept yet
    ├── RanksDifferError            what is to be kept is not the same on every rank
    ├── StateUnavailableError       a state_dict() of what is to be kept failed (retriable)
    ├── CheckpointUnreadableError   a rank can't read what rank 0 can
    ├── CheckpointWriteError        checkpoints can't be written any more (retriable)
    ├── NoCheckpointLeftError       a run that has had checkpoints has no valid one any more
    ├── RunTakenOverError           another driver goes on with this run
    ├── RunMismatchError            the run was created with other settings
    ├── UnknownRunError             there is no such run
    ├── RunDamagedError             a file that says what a run is can't be understood, or is gone
    ├── UnknownRecipeError          there is no such recipe
    ├── ColumnChoiceError           which column is meant can't be guessed
    ├── LabelError                  labels that can't be learned from
    ├── ModelUnavailableError       the model named can't be loaded
    ├── RayUnavailableError         no Ray cluster answers, or none can be started
    ├── WorkersUnavailableError     the Ray cluster has no place for the workers
    ├── JobError                    no Ray cluster takes the job
    ├── JobLostError                a Ray cluster that took a job does not answer any more
    └── TrainingFailedError         the workers failed, and restarting did not help

Facts are attributes, the message says what to do. Errors cross processes in Ray, so they pickle whatever
their constructor takes (tests/unit/ray_trainer/planning/test_refusals.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class TrainerError(Exception):
    """Root of this package's errors."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ calls the class with `args`, that is with the message alone, and an
        # __init__ that takes facts by keyword refuses that in the process that unpickles.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(error_type: type[TrainerError], args: tuple[Any, ...], facts: dict[str, Any]) -> TrainerError:
    error = error_type.__new__(error_type)
    error.args = args
    error.__dict__.update(facts)
    return error


class TooManyWorkersError(TrainerError):
    """Some rank would be left without a sample in some step, which has no right answer.

    Attributes:
        world_size: workers asked for.
        largest_world_size: the most that can be served.
        needed_batch_size: the global batch that so many workers need; None: no batch would help here.
    """

    def __init__(
        self,
        *,
        world_size: int,
        largest_world_size: int,
        reason: str,
        needed_batch_size: int | None = None,
    ) -> None:
        at_least = "" if needed_batch_size is None else f", of at least {needed_batch_size}"
        super().__init__(
            f"{world_size} workers are too many: {reason}, so at most {largest_world_size} can take part "
            "(a rank without samples has no right gradient). Use fewer workers or a larger global batch"
            f"{at_least}."
        )
        self.world_size = world_size
        self.largest_world_size = largest_world_size
        self.needed_batch_size = needed_batch_size


class UnknownRankError(TrainerError):
    """Which of how many processes this one is can't be told, so neither which samples are its.

    Attributes:
        reason: what the environment says, and what it does not.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"which part of the data this process should read can't be told: {reason}. Initialise "
            "torch.distributed before iterating, set RANK and WORLD_SIZE, or give the reader rank= and "
            "world_size=."
        )
        self.reason = reason


class ReaderRankError(TrainerError):
    """A session's reader reads another part of the data than the session's rank has.

    Attributes:
        reader: (rank, world size) of the reader.
        session: (rank, world size) of the session's group.
    """

    def __init__(self, *, reader: tuple[int, int], session: tuple[int, int]) -> None:
        group = "" if session[1] > 1 else " (whose group is not initialised, or has one member)"
        super().__init__(
            f"rank {session[0]} of {session[1]} in torch.distributed{group} has a reader that reads the part "
            f"of rank {reader[0]} of {reader[1]}, so samples would be repeated or left out. Initialise the "
            "process group before the session is made, and make the reader without rank and world_size."
        )
        self.reader = reader
        self.session = session


class CursorMismatchError(TrainerError):
    """A cursor was taken under another plan; going on would repeat or skip samples.

    Attributes:
        cursor_fingerprint: of the plan under which the cursor was taken.
        plan_fingerprint: of the plan it was given to.
        differences: name of each fact that differs -> (value at the cursor, value now), where known.
    """

    def __init__(
        self,
        *,
        cursor_fingerprint: str,
        plan_fingerprint: str,
        differences: Mapping[str, tuple[object, object]] | None = None,
    ) -> None:
        self.cursor_fingerprint = cursor_fingerprint
        self.plan_fingerprint = plan_fingerprint
        self.differences = dict(differences or {})
        what = "; ".join(
            f"{name} was {then!r}, is now {now!r}" for name, (then, now) in self.differences.items()
        )
        super().__init__(
            f"the cursor was taken under plan {cursor_fingerprint}, but the plan is now {plan_fingerprint}"
            + (f" ({what})" if what else "")
            + "; going on would repeat or skip samples. Use the same dataset version, seed and plan rule, "
            "or start a new run."
        )


class StorageUnwritableError(TrainerError):
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


class StorageUnreadableError(TrainerError):
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


class InvalidCheckpointError(TrainerError):
    """A checkpoint's folder is incomplete, damaged or foreign; the one before it may be good.

    Attributes:
        place: the folder.
        reason: what is wrong with it, with the values.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"checkpoint {place} is not valid: {reason}")
        self.place = place
        self.reason = reason


class CheckpointMismatchError(TrainerError):
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


class ShardedStateError(TrainerError):
    """State is spread over ranks, and a checkpoint holds rank 0's copy alone: the rest would be lost.

    Attributes:
        path: where it is: the part's name, then names and numbers inside of it.
        kind: the class that is known to be spread: `DTensor`, `FSDPModule`, ...
        rank: who noticed.
    """

    def __init__(self, path: str, *, kind: str, rank: int) -> None:
        super().__init__(
            f"{path} is a {kind} (on rank {rank}): its state is spread over ranks, and a checkpoint holds "
            "rank 0's alone, so resuming would lose the rest of it. Sharded state (FSDP, tensor parallelism, "
            "ZeRO) is not supported yet; use prepare_model(), whose model is whole on every rank."
        )
        self.path = path
        self.kind = kind
        self.rank = rank


class RanksDifferError(TrainerError):
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


class StateUnavailableError(TrainerError):
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


class CheckpointUnreadableError(TrainerError):
    """A rank can't read the checkpoint that rank 0 chose and read.

    Attributes:
        place: the checkpoint's folder.
        rank: who can't read it.
        host: where that rank runs.
        reason: what went wrong there.
    """

    def __init__(self, place: str, *, rank: int, host: str, reason: str) -> None:
        super().__init__(
            f"rank {rank} on {host} can't read checkpoint {place}, which rank 0 can: {reason}. With workers "
            "on several machines, --storage has to be a folder or URI that all of them share."
        )
        self.place = place
        self.rank = rank
        self.host = host
        self.reason = reason


class CheckpointWriteError(TrainerError):
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


class NoCheckpointLeftError(TrainerError):
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


class RunTakenOverError(TrainerError):
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


class RunMismatchError(TrainerError):
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


class UnknownRunError(TrainerError):
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


class RunDamagedError(TrainerError):
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


class UnknownRecipeError(TrainerError):
    """There is no such recipe.

    Attributes:
        name: what was asked for.
        available: the recipes there are.
    """

    def __init__(self, name: str, available: Sequence[str]) -> None:
        super().__init__(f"no recipe is named {name!r}: there are {', '.join(available)}")
        self.name = name
        self.available = tuple(available)


class ColumnChoiceError(TrainerError):
    """Which column is meant can't be guessed, or the one named does not do.

    Attributes:
        dataset: `NAME@VERSION`.
        role: what the column is for: `text`, `image`, `label`.
        columns: the dataset's columns with their types.
    """

    def __init__(self, dataset: str, *, role: str, reason: str, columns: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        super().__init__(
            f"dataset {dataset}: {reason}. Its columns are {listed}; name one with --{role}-column."
        )
        self.dataset = dataset
        self.role = role
        self.columns = dict(columns)


class LabelError(TrainerError):
    """Labels that can't be learned from.

    Attributes:
        dataset: `NAME@VERSION`.
        column: the label column.
    """

    def __init__(self, dataset: str, *, column: str, reason: str) -> None:
        super().__init__(f"dataset {dataset}, label column {column!r}: {reason}")
        self.dataset = dataset
        self.column = column


class ModelUnavailableError(TrainerError):
    """The model that was named can't be loaded.

    Attributes:
        name: a folder, or a name on the hub.
        reason: what transformers said.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"model {name!r} can't be loaded: {reason}. Name one of the recipe's own, a folder with a "
            "transformers model that all workers can read, or a model on the Hugging Face hub."
        )
        self.name = name
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


class ReadError(TrainerError):
    """Samples of a dataset can't be had from Kafka, or can't be decoded."""


class FetchTimeoutError(ReadError):
    """A range of offsets could not be read for as long as is allowed.

    Attributes:
        topic, partition, offset: what was to be read next.
        waited_s: seconds since it last went well.
        reason: what went wrong last.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, *, topic: str, partition: int, offset: int, waited_s: float, reason: str) -> None:
        super().__init__(
            f"offset {offset} of partition {partition} of topic {topic!r} could not be read for "
            f"{waited_s:.0f} s: {reason}; check that the partition's leader runs (`evenload status`), then "
            "go on from the last checkpoint"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.waited_s = waited_s
        self.reason = reason


class FetchRefusedError(ReadError):
    """Brokers answer, but refuse, and asking again would not help.

    Attributes:
        topic: what was to be read.
        reason: what they said.
    """

    def __init__(self, *, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r} can't be read: {reason}")
        self.topic = topic
        self.reason = reason


class RecordsGoneError(ReadError):
    """Offsets that the manifest lists are no longer there.

    Attributes:
        topic, partition, offset: the first that is missing.
        reason: how that showed.
    """

    def __init__(self, *, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"offset {offset} of partition {partition} of topic {topic!r} is gone ({reason}): retention, "
            "compaction or an unclean leader election took it. Load the dataset again, under a new version."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class CorruptRecordError(ReadError):
    """What is at an offset isn't what was written there when the dataset was loaded.

    Attributes:
        topic, partition, offset: which record.
        reason: what does not fit.
    """

    def __init__(self, *, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"the record at offset {offset} of partition {partition} of topic {topic!r} is not what was "
            f"loaded there: {reason}. `evenload datasets verify` says what else is not; load it again."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class UndecodableColumnError(ReadError):
    """A column's values can't become what a training loop gets.

    Attributes:
        column: its name.
        reason: what stands in the way, and what to do.
    """

    def __init__(self, *, column: str, reason: str) -> None:
        super().__init__(f"column {column!r} can't be read: {reason}")
        self.column = column
        self.reason = reason


class LoaderWorkersError(ReadError):
    """Worker processes of a DataLoader read with copies of a reader, and what was asked for would be wrong.

    Attributes:
        num_workers: of the DataLoader. Several would each hand out every sample; of a single one, this
            process doesn't know what was handed out.
        is_started_again: a second one was started for another epoch, and would read what the first one did.
    """

    def __init__(self, *, num_workers: int, is_started_again: bool = False) -> None:
        ahead = "num_workers=0 (a DatasetReader reads and decodes ahead in threads of its own)"
        if is_started_again:
            what = (
                "the DataLoader has started another worker process, whose copy of this reader would hand out "
                f"the same samples in the same order again; give it persistent_workers=True, or use {ahead}"
            )
        elif num_workers == 1:
            what = (
                "a worker process of a DataLoader reads with a copy of this reader, so this one doesn't know "
                "what was handed out; keep the state_dict() of a torchdata StatefulDataLoader instead, the "
                f"cursor of the last batch, or use {ahead}"
            )
        else:
            what = (
                f"the DataLoader has {num_workers} worker processes, and each would hand out every sample; "
                f"use {ahead} or 1"
            )
        super().__init__(what)
        self.is_started_again = is_started_again
        self.num_workers = num_workers


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
