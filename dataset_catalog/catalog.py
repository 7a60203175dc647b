"""Which datasets there are: manifests and the progress of loads, kept in two compacted topics.

A dataset exists from the moment its manifest is whole. Listing datasets is never held up by anybody's
open transaction; what one hides of a load's progress is waited for only by who goes on with that load
(`load_state`). Dropping takes the topic away first, then the manifest, then the progress, so whatever a
crash leaves half-dropped is still listed and can be dropped again.

Read next: internal_topics.py (where this is kept), manifest_log.py and progress.py (how records add up),
verify.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dataset_catalog.errors import (
    CatalogUnavailableError,
    CorruptProgressError,
    DatasetExistsError,
    DatasetGoneError,
    LoadInProgressError,
    TopicRecreatedError,
    UnknownDatasetError,
)
from dataset_catalog.internal_topics import (
    DATASETS_TOPIC,
    LOADS_TOPIC,
    ensure_internal_topics,
    read_latest,
    wait_for_stable_end,
    write_plain,
)
from dataset_catalog.liveness import may_be_loading
from dataset_catalog.manifest import DatasetManifest, parse_dataset_id
from dataset_catalog.manifest_log import CatalogContents, VersionKey, fold_manifests, manifest_records
from dataset_catalog.progress import LoadProgress, LoadState, fold_progress
from dataset_catalog.topic_admin import TopicAdmin
from kafka_connection import Connection

__all__ = ["DATASETS_TOPIC", "LOADS_TOPIC", "Catalog", "UnfinishedLoad", "check_topic"]

ProgressByLoad = dict[VersionKey, list[LoadProgress]]

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
        contents = self._read_datasets()
        for error in contents.damaged.values():
            _log.warning("%s", error)
        return [contents.manifests[key] for key in sorted(contents.manifests)]

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
        contents = self._read_datasets()
        versions = [v for n, v in (*contents.manifests, *contents.damaged) if n == wanted.name]
        version = max(versions, default=None) if wanted.version is None else wanted.version
        if version is None or version not in versions:
            raise self._unknown(name, contents)
        key = (wanted.name, version)
        if key in contents.damaged:
            raise contents.damaged[key]
        return contents.manifests[key]

    def versions(self, name: str) -> Sequence[int]:
        """The versions of a dataset that are published (whole or damaged), ascending; empty for none."""
        contents = self._read_datasets()
        return sorted(v for n, v in (*contents.manifests, *contents.damaged) if n == name)

    def unfinished(self) -> Sequence[UnfinishedLoad]:
        """Loads without a manifest, as far as committed; not held up by anybody's open transaction."""
        published = self._read_datasets().keys
        found = []
        for key, records in sorted(self._read_progress().items()):
            if key in published:
                continue
            try:
                fold_progress(records)
            except CorruptProgressError as error:
                found.append(UnfinishedLoad(records[-1], error.reason))
            else:
                found.append(UnfinishedLoad(records[-1]))
        return found

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
        return fold_progress(self._read_progress(stop).get((name, version), []))

    def publish(self, manifest: DatasetManifest) -> None:
        """Makes a dataset exist. Publishing the same load again (after a crash) is no error.

        Raises:
            DatasetExistsError: This version exists, from another load.
            CatalogUnavailableError: It could not be written to enough replicas.
        """
        self.ensure_internal_topics()
        contents = self._read_datasets()
        key = (manifest.name, manifest.version)
        there = contents.manifests.get(key)
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
        contents, progress = self._read_datasets(), self._read_progress(stop)
        keys = [
            key
            for key in sorted({*contents.keys, *progress})
            if key[0] == wanted.name and wanted.version in (None, key[1])
        ]
        if not keys:
            raise self._unknown(name, contents)
        if not force:
            for key in set(keys) - contents.manifests.keys():
                _refuse_live_load(progress.get(key, []))
        with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
            for topic, topic_id in sorted(_topics(keys, contents, progress)):
                admin.delete(topic, topic_id)
        self._write(DATASETS_TOPIC, [(record, None) for key in keys for record in contents.keys.get(key, [])])
        self._forget([record for key in keys for record in progress.get(key, [])])
        return [f"{n}@{v}" for n, v in keys]

    def forget_progress(self, name: str, version: int) -> None:
        """Takes a load's progress away, once its manifest is published."""
        self._forget(self._read_progress().get((name, version), []))

    def check(self, manifest: DatasetManifest) -> None:
        """Compares a manifest with its topic as it is now: a few requests, no data read.

        Raises:
            TopicRecreatedError: The topic has another id.
            DatasetGoneError: There is no such topic, or listed records are outside of what it has.
        """
        with TopicAdmin(self._connection, timeout_s=self._timeout_s) as admin:
            listed = [runs for runs in manifest.partitions if runs.num_runs]
            partitions = check_topic(admin, manifest)
            missing = [runs.partition for runs in listed if runs.partition not in partitions]
            if missing:
                raise DatasetGoneError(manifest.id, manifest.topic, f"it has no partitions {missing}")
            numbers = [runs.partition for runs in listed]
            try:
                starts = admin.offsets(manifest.topic, numbers, "log start")
                ends = admin.offsets(manifest.topic, numbers, "log end")
            except CatalogUnavailableError:
                check_topic(admin, manifest)  # a broker may have known it a little longer than the others
                raise
        for runs in listed:
            first, start, end = int(runs.first_offset[0]), starts[runs.partition], ends[runs.partition]
            if start > first or end < runs.end_offset:
                reason = (
                    f"the manifest lists offsets {first} to {runs.end_offset - 1} of partition "
                    f"{runs.partition}, the topic has {start} to {end - 1}"
                )
                raise DatasetGoneError(manifest.id, manifest.topic, reason)

    def ensure_internal_topics(self) -> None:
        """Makes the catalog's own topics where they don't exist yet."""
        ensure_internal_topics(self._connection, timeout_s=self._timeout_s)

    def _read_datasets(self) -> CatalogContents:
        return fold_manifests(read_latest(self._connection, DATASETS_TOPIC, timeout_s=self._timeout_s))

    def _read_progress(self, stop_offset: int | None = None) -> ProgressByLoad:
        """Progress records that were not taken away, by load, in the order of the log."""
        progress: ProgressByLoad = {}
        for key, value in read_latest(
            self._connection, LOADS_TOPIC, timeout_s=self._timeout_s, stop_offset=stop_offset
        ):
            try:
                record = LoadProgress.from_record(key, value)
            except CorruptProgressError as error:
                _log.warning("%s", error)
                continue
            progress.setdefault((record.name, record.version), []).append(record)
        return progress

    def _unknown(self, name: str, contents: CatalogContents) -> UnknownDatasetError:
        wanted = parse_dataset_id(name).name
        unfinished = [load.id for load in self.unfinished() if load.last.name == wanted]
        return UnknownDatasetError(name, [f"{n}@{v}" for n, v in sorted(contents.manifests)], unfinished)

    def _write(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        write_plain(self._connection, topic, records, timeout_s=self._timeout_s)

    def _forget(self, records: Iterable[LoadProgress]) -> None:
        # The newest first: what is left after a crash half-way is still the begin of a load.
        keys = sorted((record.key for record in records), key=lambda key: -key.sequence)
        self._write(LOADS_TOPIC, [(key.to_bytes(), None) for key in keys])


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


def _refuse_live_load(records: Sequence[LoadProgress]) -> None:
    now_s = time.time()
    if records and may_be_loading(records[-1], now_s=now_s):
        last = records[-1]
        raise LoadInProgressError(
            f"{last.name}@{last.version}", last.host, last.pid, now_s - last.updated_at_s
        )


def _topics(
    keys: Iterable[VersionKey], contents: CatalogContents, progress: ProgressByLoad
) -> set[tuple[str, str]]:
    """Name and id of all topics that these datasets and loads have."""
    found = set()
    for key in keys:
        if key in contents.manifests:
            found.add((contents.manifests[key].topic, contents.manifests[key].topic_id))
        found.update((record.topic, record.topic_id) for record in progress.get(key, []))
    return found
