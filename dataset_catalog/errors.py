"""What can go wrong with a dataset in Kafka.

    CatalogError
    ├── UnknownDatasetError      no dataset has this name or version
    ├── DatasetExistsError       the name is taken
    ├── DatasetGoneError         retention or a deleted topic took data away
    ├── TopicRecreatedError      the topic has this name, but is another one
    ├── CorruptManifestError     a manifest is there, but can't be trusted
    │   └── NewerManifestError   it is of a newer format
    ├── CorruptProgressError     a load's progress is there, but can't be trusted
    │   └── NewerProgressError   it is of a newer format
    ├── LoadInProgressError      somebody loads this dataset at this moment
    ├── UnsupportedTypeError     a column's type can't be stored
    ├── UndecodableValueError    a record's value is not what the manifest says
    ├── OpenTransactionError     someone's transaction hides records we have to see (retriable)
    ├── CatalogUnavailableError  brokers did not answer in time, or could not (retriable)
    └── CatalogRefusedError      brokers don't allow this account what has to be done

Facts are attributes; errors pickle, as they cross processes in Ray
(tests/unit/dataset_catalog/test_errors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evenload.kafka_connection.refusals import missing_permission


class CatalogError(Exception):
    """The root of this package's errors."""

    retriable: ClassVar[bool] = False


class UnknownDatasetError(CatalogError):
    """No dataset has this name or version.

    Attributes:
        name: What was asked for, `NAME` or `NAME@VERSION`.
        available: What exists, as `NAME@VERSION`.
        unfinished: Loads that were begun and never completed, as `NAME@VERSION`.
    """

    def __init__(self, name: str, available: Sequence[str] = (), unfinished: Sequence[str] = ()) -> None:
        super().__init__(name, tuple(available), tuple(unfinished))
        self.name = name
        self.available = tuple(available)
        self.unfinished = tuple(unfinished)

    def __str__(self) -> str:
        there = f"there are {_some(self.available)}" if self.available else "there are no datasets yet"
        loads = f"; its load {_some(self.unfinished)} was never completed" if self.unfinished else ""
        return f"no dataset is named {self.name!r}: {there}{loads}"


class DatasetExistsError(CatalogError):
    """The name is taken.

    Attributes:
        name: The dataset's name.
        version: The newest version there is.
    """

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.name = name
        self.version = version

    def __str__(self) -> str:
        return (
            f"dataset {self.name!r} exists already (version {self.version}); "
            "choose another name, load a new version of it, or drop it first"
        )


class DatasetGoneError(CatalogError):
    """The manifest lists records that its topic no longer has.

    Attributes:
        dataset: `NAME@VERSION`.
        topic: Its topic.
        reason: What is missing, with the manifest's and the topic's values.
    """

    def __init__(self, dataset: str, topic: str, reason: str) -> None:
        super().__init__(dataset, topic, reason)
        self.dataset = dataset
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"data of dataset {self.dataset} is gone from topic {self.topic!r}: {self.reason}; "
            "drop the dataset and load it again"
        )


class TopicRecreatedError(CatalogError):
    """The topic was deleted and made again: what is at an offset now is not the dataset.

    Attributes:
        dataset: `NAME@VERSION`.
        topic: The topic's name.
        expected_topic_id: The id in the manifest.
        found_topic_id: The id that the cluster gives.
    """

    def __init__(self, dataset: str, topic: str, expected_topic_id: str, found_topic_id: str) -> None:
        super().__init__(dataset, topic, expected_topic_id, found_topic_id)
        self.dataset = dataset
        self.topic = topic
        self.expected_topic_id = expected_topic_id
        self.found_topic_id = found_topic_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} of dataset {self.dataset} was deleted and made again: its id is "
            f"{self.found_topic_id}, the manifest says {self.expected_topic_id}; "
            "drop the dataset and load it again"
        )


class CorruptManifestError(CatalogError):
    """A manifest is there, but it is incomplete, damaged or of a newer format.

    Attributes:
        reason: What is wrong with it.
        dataset: `NAME@VERSION`; None where only the bytes are known.
    """

    def __init__(self, reason: str, dataset: str | None = None) -> None:
        super().__init__(reason, dataset)
        self.reason = reason
        self.dataset = dataset

    def __str__(self) -> str:
        whose = f" of dataset {self.dataset}" if self.dataset else ""
        cure = f"; `evenload datasets drop {self.dataset}` clears it" if self.dataset else ""
        return f"the manifest{whose} can't be used: {self.reason}{cure}"


class NewerManifestError(CorruptManifestError):
    """A manifest is of a newer format: a newer evenload can read it, so it isn't to be cleared away."""

    def __str__(self) -> str:
        whose = f" of dataset {self.dataset}" if self.dataset else ""
        return f"the manifest{whose} can't be used: {self.reason}; use a newer evenload"


class CorruptProgressError(CatalogError):
    """The progress records of a load don't make one story.

    Attributes:
        load: `NAME@VERSION`.
        reason: What is wrong with them.
    """

    def __init__(self, load: str, reason: str) -> None:
        super().__init__(load, reason)
        self.load = load
        self.reason = reason

    def __str__(self) -> str:
        return f"the progress of load {self.load} can't be used: {self.reason}; drop it and load again"


class NewerProgressError(CorruptProgressError):
    """A load's progress is of a newer format: a newer evenload can read it, so it isn't to be cleared."""

    def __str__(self) -> str:
        return f"the progress of load {self.load} can't be used: {self.reason}; use a newer evenload"


class LoadInProgressError(CatalogError):
    """Somebody loads this dataset at this moment, as far as can be told.

    Attributes:
        load: `NAME@VERSION`.
        host: Where the loader runs.
        pid: Its process there.
        age_s: Seconds since it last said so.
    """

    def __init__(self, load: str, host: str, pid: int, age_s: float) -> None:
        super().__init__(load, host, pid, age_s)
        self.load = load
        self.host = host
        self.pid = pid
        self.age_s = age_s

    def __str__(self) -> str:
        return (
            f"{self.load} is being loaded by process {self.pid} on {self.host}, last heard of "
            f"{self.age_s:.0f} s ago; wait for it, stop it, or take the load over"
        )


class UnsupportedTypeError(CatalogError):
    """A column can't be stored in the encoding asked for.

    Attributes:
        column: The column's name.
        type_name: Its Arrow type.
        reason: Why not, and what would do.
    """

    def __init__(self, column: str, type_name: str, reason: str) -> None:
        super().__init__(column, type_name, reason)
        self.column = column
        self.type_name = type_name
        self.reason = reason

    def __str__(self) -> str:
        return f"column {self.column!r} of type {self.type_name} can't be stored: {self.reason}"


class UndecodableValueError(CatalogError):
    """A record's value is not what the manifest says.

    Attributes:
        reason: What the decoder said.
        num_bytes: Length of the value.
    """

    def __init__(self, reason: str, num_bytes: int) -> None:
        super().__init__(reason, num_bytes)
        self.reason = reason
        self.num_bytes = num_bytes

    def __str__(self) -> str:
        return f"a record's value of {self.num_bytes} bytes can't be decoded: {self.reason}"


class OpenTransactionError(CatalogError):
    """Committed records can't all be seen yet: an unfinished transaction holds them back.

    Attributes:
        topic: The topic being read.
        last_stable_offset: Up to where it can be read.
        log_end_offset: Up to where it has to be read.
        waited_s: Seconds waited for it.
        transactional_ids: Whose transactions they are, as far as brokers say.
    """

    retriable: ClassVar[bool] = True

    def __init__(
        self,
        topic: str,
        last_stable_offset: int,
        log_end_offset: int,
        waited_s: float,
        transactional_ids: tuple[str, ...],
    ) -> None:
        super().__init__(topic, last_stable_offset, log_end_offset, waited_s, transactional_ids)
        self.topic = topic
        self.last_stable_offset = last_stable_offset
        self.log_end_offset = log_end_offset
        self.waited_s = waited_s
        self.transactional_ids = transactional_ids

    def __str__(self) -> str:
        whose = ", ".join(self.transactional_ids) or "somebody"
        return (
            f"an unfinished transaction of {whose} hides offsets {self.last_stable_offset} to "
            f"{self.log_end_offset - 1} of topic {self.topic!r}, even after {self.waited_s:.0f} s; brokers "
            "end it after its transaction.timeout.ms, and loading NAME again ends one of evenload.load.NAME"
        )


class CatalogUnavailableError(CatalogError):
    """Brokers did not answer in time, or could not.

    Attributes:
        doing: What was being done, as in "reading topic 'evenload.datasets'".
        reason: What they or the client said.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, doing: str, reason: str) -> None:
        super().__init__(doing, reason)
        self.doing = doing
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.doing} failed: {self.reason}"


class CrowdedTopicError(CatalogError):
    """One of the catalog's topics holds more keys than memory has room for: somebody fills it.

    Attributes:
        topic: Which topic.
        num_keys: How many keys were read before reading was given up.
    """

    def __init__(self, topic: str, num_keys: int) -> None:
        super().__init__(topic, num_keys)
        self.topic = topic
        self.num_keys = num_keys

    def __str__(self) -> str:
        return (
            f"the keys in topic {self.topic!r} fill memory (over {self.num_keys} of them): "
            "somebody fills it. Take the right to WRITE there from that account, and delete what it wrote: "
            "a record without a value deletes a key"
        )


class CatalogRefusedError(CatalogError):
    """Brokers don't allow this account what has to be done.

    Attributes:
        doing: What was being done, as in "reading topic 'evenload.datasets'".
        permission: What to grant, as a clause.
    """

    def __init__(self, doing: str, permission: str) -> None:
        super().__init__(doing, permission)
        self.doing = doing
        self.permission = permission

    def __str__(self) -> str:
        return f"{self.doing} is not allowed: {self.permission}"


def _some(names: Sequence[str], num_max: int = 50) -> str:
    """The first of them: a sentence stays one, however many there are."""
    more = f" and {len(names) - num_max} more" if len(names) > num_max else ""
    return ", ".join(names[:num_max]) + more


def failure(doing: str, reason: str, *, code: int | None, operation: str) -> CatalogError:
    """The error to raise for what brokers or the client said.

    Args:
        doing: What was being done.
        reason: Their words.
        code: Kafka's error code, if it had one.
        operation: What permission it takes (`READ`).
    """
    permission = missing_permission(code, operation)
    return CatalogRefusedError(doing, permission) if permission else CatalogUnavailableError(doing, reason)
