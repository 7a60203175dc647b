"""What can go wrong while bytes are put into Kafka, as one tree.

KafkaPluginError
├── SourceError                 the data to load can't be used; nothing was written
│   ├── SourceNotFoundError     no such file or folder
│   ├── EmptySourceError        a file of no bytes, or a source of no samples
│   ├── MalformedSourceError    ragged rows, broken JSON, not what its name says; file and line
│   ├── UnknownColumnError      a column was asked for that is not there
│   ├── MixedTypesError         two files disagree about a column
│   └── UnsupportedSourceError  a kind of source that can't be read
├── TopicError                  a topic can't be created or isn't ready to be written
├── LoadError                   a dataset can't be loaded
│   ├── LoaderFencedError       another loader took over; this one must stop
│   ├── SourceChangedError      the load was begun with another source, seed or encoding
│   ├── SampleTooLargeError     one sample does not fit in a record
│   ├── RecordRefusedError      brokers will never take a record: too large, not allowed, no topic
│   ├── WriteNotAllowedError    brokers don't allow this account to write
│   ├── MarkerRefusedError      brokers don't let us end a transaction in a partition that missed its end
│   ├── UndecidedTransactionError  nobody knows any more how a transaction ended
│   ├── TransactionFailedError  a transaction was not committed, as far as its producer can tell
│   └── LoadInterruptedError    the cluster could not be written to for longer than allowed
├── BalanceError                replicas can't be moved
│   ├── BalanceInProgressError  somebody else moves replicas of this cluster
│   ├── UnreadableBalanceError  what is written down of a balance isn't one's record
│   ├── BalanceRefusedError     brokers refuse what moving takes; which permission it needs
│   ├── BalanceInterruptedError moves made no progress for longer than allowed, and were taken back
│   └── BalanceCancelledError   somebody else took our moves back
└── PluginConfigError           an option has a value it can't have

A taken name (DatasetExistsError) and a loader that seems alive (LoadInProgressError) are dataset_catalog's.

Every error stores its facts as attributes, its message is one sentence or two, and it pickles, because loads
run in other processes too (tests/unit/kafka_plugin/test_errors.py).
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[KafkaPluginError], message: str, facts: dict[str, Any]) -> KafkaPluginError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(facts)
    return error


def sentence(error: BaseException) -> str:
    """The first line of what an exception of somebody else says, as a sentence."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if text.endswith(".") else text + "."


class KafkaPluginError(Exception):
    """Root of this package's errors."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class PluginConfigError(KafkaPluginError):
    """An option has a value that it can't have."""


class SourceError(KafkaPluginError):
    """The data to load can't be used. Nothing was written."""


class SourceNotFoundError(SourceError):
    """No file or folder is at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"There is no file or folder {path!r}.")
        self.path = path


class EmptySourceError(SourceError):
    """`path` holds no samples."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r} {reason}, so there is nothing to load.")
        self.path = path
        self.reason = reason


class MalformedSourceError(SourceError):
    """What `path` holds can't be read as what it says it is; `line` counts from 1 when it is known."""

    def __init__(self, path: str, reason: str, *, line: int | None = None) -> None:
        where = f"{path!r}, line {line}" if line is not None else f"{path!r}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line


class UnknownColumnError(SourceError):
    """`column` was asked for, but `path` only has `known`."""

    def __init__(self, path: str, column: str, known: list[str]) -> None:
        super().__init__(f"{path!r} has no column {column!r}; its columns are {', '.join(map(repr, known))}.")
        self.path = path
        self.column = column
        self.known = known


class MixedTypesError(SourceError):
    """Two files disagree about the type of a column."""

    def __init__(self, path: str, column: str, type_here: str, other_path: str, type_there: str) -> None:
        super().__init__(
            f"{path!r}: column {column!r} is {type_here}, but in {other_path!r} it is {type_there}; "
            "the files of one dataset need the same columns with the same types."
        )
        self.path = path
        self.column = column
        self.type_here = type_here
        self.other_path = other_path
        self.type_there = type_there


class UnsupportedSourceError(SourceError):
    """A kind of source that can't be read."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source!r} {reason}")
        self.source = source
        self.reason = reason


class TopicError(KafkaPluginError):
    """A topic can't be created, or its leaders are not ready to be written to."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"Topic {topic!r} {reason}")
        self.topic = topic
        self.reason = reason


class LoadError(KafkaPluginError):
    """A dataset can't be loaded."""


class LoaderFencedError(LoadError):
    """Another loader took over this name; it goes on from what this one had committed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Another loader has taken over dataset {name!r}, so this one has stopped. "
            "Nothing is lost or mixed: the other one goes on from what was committed here."
        )
        self.name = name


class SourceChangedError(LoadError):
    """The unfinished load was begun with something else."""

    def __init__(self, name: str, what: str, begun_with: str, given: str, num_samples_done: int) -> None:
        super().__init__(
            f"The unfinished load of dataset {name!r} ({num_samples_done} samples written) was begun "
            f"with {what} {begun_with}, but now it is {given}; going on would mix them. "
            f"Go on with what it was begun with, or drop it first (evenload datasets drop {name})."
        )
        self.name = name
        self.what = what
        self.begun_with = begun_with
        self.given = given
        self.num_samples_done = num_samples_done


class SampleTooLargeError(LoadError):
    """One sample does not fit in a record."""

    def __init__(self, sample: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"Sample {sample} (counted in written order) takes {size_bytes} bytes, "
            f"but a record may have at most {limit_bytes}."
        )
        self.sample = sample
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RecordRefusedError(LoadError):
    """Brokers refuse a record for a reason that trying again won't change."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"Brokers refuse records for topic {topic!r}: {reason}. What is committed is kept.")
        self.topic = topic
        self.reason = reason


class WriteNotAllowedError(LoadError):
    """Brokers don't allow this account to write, or not in transactions."""

    def __init__(self, what: str, permission: str) -> None:
        super().__init__(
            f"Brokers don't allow this account to write {what}: {permission}. What is committed is kept: "
            "once they allow it, the same command goes on from there."
        )
        self.what = what
        self.permission = permission


class MarkerRefusedError(LoadError):
    """A partition may have missed how a transaction ended, and brokers don't let us see to it."""

    def __init__(self, transactional_id: str, reason: str) -> None:
        super().__init__(
            f"Whether every partition knows how the last transaction of {transactional_id!r} ended can't be "
            f"made sure of, as brokers refuse it: {reason}. What is committed is kept: once they allow it, "
            "the same command goes on from there."
        )
        self.transactional_id = transactional_id
        self.reason = reason


class UndecidedTransactionError(LoadError):
    """A partition has records of a transaction, and nobody knows any more how it ended."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(
            f"Partition {partition} of topic {topic!r} has a transaction that began at offset {offset}, and "
            "nobody knows any more how it ended. This load can't be gone on with: drop it, and load again "
            "(evenload datasets drop)."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


class TransactionFailedError(LoadError):
    """A transaction was not committed, as far as its producer can tell; it can be done again."""

    retriable: ClassVar[bool] = True


class LoadInterruptedError(LoadError):
    """The cluster could not be written to for longer than allowed; before it began if None are done."""

    def __init__(self, name: str, reason: str, num_samples_done: int | None, num_samples: int) -> None:
        how_far = f"stopped after {num_samples_done} of {num_samples} samples"
        if num_samples_done is None:
            how_far = "can't begin"
        super().__init__(
            f"Loading dataset {name!r} {how_far}: {reason} "
            "What is committed is kept: the same command goes on from there."
        )
        self.name = name
        self.reason = reason
        self.num_samples_done = num_samples_done
        self.num_samples = num_samples


class BalanceError(KafkaPluginError):
    """Replicas can't be moved."""


class BalanceInProgressError(BalanceError):
    """Somebody else moves replicas of this cluster at this moment."""

    def __init__(self, host: str, pid: int, silent_s: float) -> None:
        super().__init__(
            f"Replicas are being moved already, by process {pid} on {host} (heard of {silent_s:.0f} s ago). "
            "Wait for it, or take its moves back with `evenload balance --cancel`."
        )
        self.host = host
        self.pid = pid
        self.silent_s = silent_s


class UnreadableBalanceError(BalanceError):
    """The record in `evenload.balance` isn't one of a balance; `size_bytes` of whatever it is."""

    def __init__(self, size_bytes: int, reason: str) -> None:
        super().__init__(
            f"The record in topic 'evenload.balance' can't be understood ({size_bytes} bytes; "
            f"{reason.rstrip('.')}): a newer evenload has written it, or somebody else. If no balance is at "
            "work, `evenload balance --forget` clears it, and lists the throttles that are set."
        )
        self.size_bytes = size_bytes
        self.reason = reason


class BalanceRefusedError(BalanceError):
    """Brokers refuse something that moving replicas takes."""

    def __init__(self, doing: str, reason: str, permission: str) -> None:
        super().__init__(f"Brokers refuse {doing}: {reason.rstrip('.')}. It takes {permission}.")
        self.doing = doing
        self.reason = reason
        self.permission = permission


class BalanceInterruptedError(BalanceError):
    """Moves could not be gone on with; what is complete stays, and the same command goes on from there."""

    retriable: ClassVar[bool] = True

    def __init__(self, doing: str, reason: str) -> None:
        super().__init__(
            f"Moving replicas stopped while {doing}: {reason.rstrip('.')}. What is complete stays: "
            "`evenload balance --execute` goes on from there."
        )
        self.doing = doing
        self.reason = reason


class BalanceCancelledError(BalanceError):
    """Somebody else cancelled the moves, or took over."""

    def __init__(self, num_cancelled: int) -> None:
        super().__init__(
            f"Somebody else has cancelled or taken over the moves of {num_cancelled} partitions, so this has "
            "stopped. What is complete stays."
        )
        self.num_cancelled = num_cancelled
