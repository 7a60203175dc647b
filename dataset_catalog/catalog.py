"""Which datasets there are: manifests and the progress of loads, kept in two compacted topics.

A dataset exists from the moment its manifest is whole. Listing datasets is never held up by anybody's
open transaction; what one hides of a load's progress is waited for only by who goes on with that load
(`load_state`). Dropping takes the topic away first, then the manifest, then the progress, so whatever a
crash leaves half-dropped is still listed and can be dropped again.

Every loader may write to these topics, so a record can be damaged, or made to do harm. It hides only itself:
what is asked of one dataset decodes only that dataset's records (`damaged` tells of the others).

Read next: internal_topics.py (where this is kept), manifest_log.py and progress_log.py (how records add up),
damaged_records.py, verify.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from evenload.dataset_catalog.errors import (
    CatalogUnavailableError,
    CorruptManifestError,
    CorruptProgressError,
    DatasetExistsError,
    DatasetGoneError,
    LoadInProgressError,
    TopicRecreatedError,
    UnknownDatasetError,
)
from evenload.dataset_catalog.liveness import may_be_loading
from evenload.dataset_catalog.logs.damaged_records import DamagedRecords, find_damaged
from evenload.dataset_catalog.logs.internal_topics import (
    DATASETS_TOPIC,
    LOADS_TOPIC,
    ensure_internal_topics,
    latest_records,
    wait_for_stable_end,
    write_plain,
)
from evenload.dataset_catalog.logs.manifest_log import CatalogContents, VersionKey, manifest_records
from evenload.dataset_catalog.logs.progress_log import ProgressContents
from evenload.dataset_catalog.manifest import DatasetManifest, parse_dataset_id
from evenload.dataset_catalog.progress import LoadProgress, LoadState
from evenload.dataset_catalog.record_keys import parse_key
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection

__all__ = ["DATASETS_TOPIC", "LOADS_TOPIC", "Catalog", "DamagedRecords", "UnfinishedLoad", "check_topic"]

# Brokers end a dead transaction after its `transaction.timeout.ms`, 60 s unless set.
OPEN_TRANSACTION_WAIT_S = 70.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnfinishedLoad:
    """A load that was begun and whose manifest was never published."""

    last: LoadProgress  # its newest record that can be read
    problem: str | None = None  # why it can't be gone on with; None when it can

    @property
    def id(self) -> str:
        """`NAME@VERSION`."""
        return f"{self.last.name}@{self.last.version}"


class Listing:
    """What both topics of the catalog said when they were read: nothing here asks a broker."""

    def __init__(self, contents: CatalogContents, progress: ProgressContents) -> None:
        self._contents, self._progress = contents, progress

    def each(self) -> Iterator[DatasetManifest | CorruptManifestError]:
        """The datasets by name and version, and of damaged ones what is wrong.

        One by one, as a manifest can have a million extents.
        """
        # Not a loop: its variable would hold each manifest while the next one is decoded.
        return map(itemgetter(1), self._contents.each())

    def unfinished(self) -> Sequence[UnfinishedLoad]:
        """As `Catalog.unfinished`."""
        found = []
        for version in sorted(self._progress.keys.keys() - self._contents.keys.keys()):
            last = self._progress.last(version)
            if last is None:
                continue  # nothing of it can be read: see `damaged`
            try:
                self._progress.state(version)
            except CorruptProgressError as error:
                found.append(UnfinishedLoad(last, error.reason))
            else:
                found.append(UnfinishedLoad(last))
        return found

    def damaged(self) -> Sequence[DamagedRecords]:
        """As `Catalog.damaged`."""
        return find_damaged(self._contents, self._progress, now_s=time.time())


class Catalog:
    """The datasets of one cluster. Holds no connection open: may be kept, shared and pickled.

    Args:
        connection: The cluster.
        timeout_s: Longest wait for an answer, in seconds, above 0.
    """

    def __init__(self, connection: Connection, *, timeout_s: float = 30.0) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}, must be above 0")
        self._connection = connection
        self._timeout_s = timeout_s

    def list(self) -> list[DatasetManifest]:
        """All datasets, by name and version. A damaged manifest is left out, with a warning in the log."""
        found = []
        for _, each in self._read_datasets().each():
            if isinstance(each, DatasetManifest):
                found.append(each)
            else:
                _log.warning("%s", each)
        return found

    def get(self, name: str) -> DatasetManifest:
        """One dataset.

        Args:
            name: `NAME` for the newest version, or `NAME@VERSION`.

        Raises:
            UnknownDatasetError: There is none, with what there is.
            CorruptManifestError: Its manifest is damaged.
            ValueError: `name` can't name a dataset.
        """
        wanted = parse_dataset_id(name)
        contents = self._read_datasets(wanted.name)
        of_name = sorted(version for version in contents.keys if version[0] == wanted.name)
        for version in reversed(of_name):  # the newest that is published, whole or damaged
            if wanted.version in (None, version[1]):
                manifest = contents.manifest(version)
                if manifest is not None:
                    return manifest
        raise self._unknown(name, contents)

    def versions(self, name: str) -> Sequence[int]:
        """The versions of a dataset that are published (whole or damaged), ascending; empty for none."""
        return [version for (_, version), _ in self._read_datasets(name).each(name)]

    def unfinished(self) -> Sequence[UnfinishedLoad]:
        """Loads without a manifest, as far as committed; not held up by anybody's open transaction."""
        return self._listing("").unfinished()

    def damaged(self) -> Sequence[DamagedRecords]:
        """Records of both topics that can't be read, by dataset; not held up by open transactions."""
        return self.listing().damaged()

    def listing(self) -> Listing:
        """What both topics say, for whoever wants more than one thing of them."""
        return self._listing(None)

    def drop_damaged(self) -> Sequence[DamagedRecords]:
        """Takes damaged records away, by their keys alone, but for those that are kept (`kept_because`).

        The topics of such datasets stay: what a damaged record says of its topic can't be believed.

        Returns:
            What was damaged: taken away, or kept.

        Raises:
            CatalogUnavailableError: It could not be written to enough replicas.
        """
        damaged = self.damaged()
        for topic in (DATASETS_TOPIC, LOADS_TOPIC):
            keys = [key for each in damaged if each.topic == topic for key in each.keys]
            self._write(topic, [(key, None) for key in keys])
        return damaged

    def load_state(
        self, name: str, version: int, *, wait_s: float = OPEN_TRANSACTION_WAIT_S
    ) -> LoadState | None:
        """What is committed of a load, to go on from; to be called after `init_transactions`.

        A record that is committed can still be hidden: reads stop at the last stable offset, which
        another dataset's dead loader holds back. Going on without it writes samples twice, so this
        waits until everything written before the call can be seen.

        Args:
            wait_s: At most this long, in seconds.

        Raises:
            OpenTransactionError: It could still not be seen.
            CorruptProgressError: The progress contradicts itself.
        """
        stop = wait_for_stable_end(self._connection, LOADS_TOPIC, timeout_s=self._timeout_s, wait_s=wait_s)
        return self._read_progress(stop, name).state((name, version))

    def publish(self, manifest: DatasetManifest) -> None:
        """Makes a dataset exist. Publishing the same load again (after a crash) is no error.

        Raises:
            DatasetExistsError: This version exists, from another load.
            CatalogUnavailableError: It could not be written to enough replicas.
        """
        self.ensure_internal_topics()
        try:
            there = self._read_datasets(manifest.name).manifest((manifest.name, manifest.version))
        except CorruptManifestError as error:
            _log.warning("%s; it is published anew", error)
            there = None
        if there is not None and there.load_id != manifest.load_id:
            raise DatasetExistsError(manifest.name, manifest.version)
        self._write(DATASETS_TOPIC, manifest_records(manifest))

    def drop(
        self, name: str, *, force: bool = False, wait_s: float = OPEN_TRANSACTION_WAIT_S
    ) -> Sequence[str]:
        """Takes datasets and unfinished loads away, with their topics.

        A topic that was deleted and made again by someone else is left alone.

        Args:
            name: `NAME` for all versions, or `NAME@VERSION` for one.
            force: Drop a load that somebody may be working on too.
            wait_s: As `load_state` takes it: a load can be hidden behind another one's open transaction.

        Returns:
            What was dropped, as `NAME@VERSION`.

        Raises:
            UnknownDatasetError: There is nothing of this name.
            LoadInProgressError: Somebody is loading it.
            OpenTransactionError: Whether there are such loads could not be seen within `wait_s`.
        """
        wanted = parse_dataset_id(name)
        stop = wait_for_stable_end(self._connection, LOADS_TOPIC, timeout_s=self._timeout_s, wait_s=wait_s)
        contents, progress = self._read_datasets(wanted.name), self._read_progress(stop, wanted.name)
        keys = [
            key
            for key in sorted({*contents.keys, *progress.keys})
            if key[0] == wanted.name and wanted.version in (None, key[1])
        ]
        if not keys:
            raise self._unknown(name, contents)
        topics: set[tuple[str, str]] = set()
        for key in keys:
            manifest = _readable(contents, key)
            if manifest is not None:
                topics.add((manifest.topic, manifest.topic_id))
            elif not force:
                _refuse_live_load(progress.last(key))
            topics.update((record.topic, record.topic_id) for record in progress.records(key))
        with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
            for topic, topic_id in sorted(topics):
                admin.delete(topic, topic_id)
        self._write(DATASETS_TOPIC, [(record, None) for key in keys for record in contents.keys.get(key, [])])
        self._forget([record for key in keys for record in progress.keys.get(key, [])])
        return [f"{n}@{v}" for n, v in keys]

    def forget_progress(self, name: str, version: int) -> None:
        """Takes a load's progress away, once its manifest is published."""
        self._forget(self._read_progress(None, "").keys.get((name, version), []))

    def check(self, manifest: DatasetManifest) -> None:
        """Compares a manifest with its topic as it is now: a few requests, no data read.

        Raises:
            TopicRecreatedError: The topic has another id.
            DatasetGoneError: There is no such topic, or listed records are outside of what it has.
        """
        with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
            listed = [part for part in manifest.partitions if part.num_extents]
            partitions = check_topic(admin, manifest)
            missing = [part.partition for part in listed if part.partition not in partitions]
            if missing:
                raise DatasetGoneError(manifest.id, manifest.topic, f"it has no partitions {missing[:20]}")
            numbers = [part.partition for part in listed]
            try:
                starts = admin.offsets(manifest.topic, numbers, "log start")
                ends = admin.offsets(manifest.topic, numbers, "log end")
            except CatalogUnavailableError:
                check_topic(admin, manifest)  # a broker may have known it a little longer than the others
                raise
        for part in listed:
            first, start, end = int(part.first_offset[0]), starts[part.partition], ends[part.partition]
            if start > first or end < part.end_offset:
                reason = (
                    f"the manifest lists offsets {first} to {part.end_offset - 1} of partition "
                    f"{part.partition}, the topic has {start} to {end - 1}"
                )
                raise DatasetGoneError(manifest.id, manifest.topic, reason)

    def ensure_internal_topics(self) -> None:
        """Makes the catalog's own topics where they don't exist yet."""
        ensure_internal_topics(self._connection, timeout_s=self._timeout_s)

    def _listing(self, name: str | None) -> Listing:
        # Progress first: a load that is published meanwhile, and its progress forgotten, is in one of both.
        progress = self._read_progress()
        return Listing(self._read_datasets(name), progress)

    def _read_datasets(self, name: str | None = None) -> CatalogContents:
        """Keys of all manifests; their parts too, or only those of the one that is named."""
        return CatalogContents(
            latest_records(self._connection, DATASETS_TOPIC, timeout_s=self._timeout_s, wanted=_of(name))
        )

    def _read_progress(self, stop_offset: int | None = None, name: str | None = None) -> ProgressContents:
        """The same of progress records that were not taken away."""
        return ProgressContents(
            latest_records(
                self._connection,
                LOADS_TOPIC,
                timeout_s=self._timeout_s,
                stop_offset=stop_offset,
                wanted=_of(name),
            )
        )

    def _unknown(self, name: str, contents: CatalogContents) -> UnknownDatasetError:
        wanted = parse_dataset_id(name).name
        unfinished = [load.id for load in self.unfinished() if load.last.name == wanted]
        return UnknownDatasetError(name, [f"{n}@{v}" for n, v in sorted(contents.keys)], unfinished)

    def _write(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        write_plain(self._connection, topic, records, timeout_s=self._timeout_s)

    def _forget(self, keys: Sequence[bytes]) -> None:
        # The newest first: what is left after a crash half-way is still the begin of a load.
        self._write(LOADS_TOPIC, [(key, None) for key in sorted(keys, key=_sequence, reverse=True)])


def check_topic(admin: TopicAdmin, manifest: DatasetManifest) -> tuple[int, ...]:
    """The partitions of the manifest's topic, when it still is that topic.

    Raises:
        TopicRecreatedError: The topic has another id.
        DatasetGoneError: There is no such topic.
    """
    found = admin.describe(manifest.topic)
    if found is None:
        raise DatasetGoneError(manifest.id, manifest.topic, "there is no such topic any more")
    if found.topic_id != manifest.topic_id:
        raise TopicRecreatedError(manifest.id, manifest.topic, manifest.topic_id, found.topic_id)
    return found.partitions


def _refuse_live_load(last: LoadProgress | None) -> None:
    now_s = time.time()
    if last is not None and may_be_loading(last, now_s=now_s):
        raise LoadInProgressError(
            f"{last.name}@{last.version}", last.host, last.pid, now_s - last.updated_at_s
        )


def _readable(contents: CatalogContents, version: VersionKey) -> DatasetManifest | None:
    try:
        return contents.manifest(version)
    except CorruptManifestError as error:
        _log.warning("%s", error)
        return None


def _of(name: str | None) -> Callable[[bytes], bool] | None:
    """Which keys' values are wanted: those of this dataset; None: all."""
    prefix = None if name is None else f"{name}@".encode()
    return None if prefix is None else lambda key: key.startswith(prefix)


def _sequence(key: bytes) -> int:
    parsed = parse_key(key)
    return parsed.number if parsed else 0
