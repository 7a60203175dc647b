"""Write one load: transaction after transaction, each done again until it is committed.

`totals` is what is committed so far. Each transaction takes groups of records from there on, sends them,
waits until every one has an offset, and commits them together with the progress that lists them. When that
fails, it is aborted and done again from the same position, so nothing is ever counted that is not in the
topic.

When brokers refuse this producer altogether, there are two reasons that look the same: another loader has
taken over, or brokers gave up on us (this process slept for a minute). The other loader shows itself: it
writes progress as soon as it has taken over. So signs of life are watched for as long as it may take; then,
either this load stops with a sentence, or it takes its transactional id anew and goes on from what is
committed.

Read next: transactional_writer.py (one transaction), record_stream.py (where records come from).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import stamina
from pydantic import JsonValue

from evenload.dataset_catalog.catalog import LOADS_TOPIC, Catalog
from evenload.dataset_catalog.errors import CatalogError, CatalogUnavailableError, OpenTransactionError
from evenload.dataset_catalog.manifest import Extent
from evenload.dataset_catalog.process_identity import this_process
from evenload.dataset_catalog.progress import LoadProgress, LoadState, ProgressKey
from evenload.dataset_catalog.records.encoding import format_checksum
from evenload.kafka_connection import BrokersUnreachableError, Connection, KafkaConnectionError
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import (
    LoaderFencedError,
    LoadError,
    LoadInterruptedError,
    TransactionFailedError,
    sentence,
)
from evenload.kafka_plugin.loading.load_routing import LoadRouting
from evenload.kafka_plugin.loading.record_stream import RecordGroup, RecordLayout, RecordStream
from evenload.kafka_plugin.loading.watch import newest_sign_of_life
from evenload.kafka_plugin.sources.source import Source
from evenload.kafka_plugin.transactional_writer import (
    LIBRDKAFKA_CHOOSES,
    ProducerFencedError,
    TransactionalWriter,
)

_log = logging.getLogger(__name__)
# Or Python prints the names of stamina's events on stderr, where nobody has configured logging.
logging.getLogger("stamina").addHandler(logging.NullHandler())
_CHECKSUM_MODULUS = 1 << 128
_REFRESH_S = 0.5
_WATCH_POLL_S = 0.5
_ABORT_S = 10.0
_LAST_ABORT_S = 3.0  # before leaving; brokers do it too, later
_WATCH_TIMEOUT_S = 10.0

_PACKED_OVERHEAD_BYTES = 120  # a batch of one record, with our header; measured
_RECORD_OVERHEAD_BYTES = 48
_RETRIED = (
    TransactionFailedError,
    ProducerFencedError,
    CatalogUnavailableError,
    OpenTransactionError,
    BrokersUnreachableError,
)

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Totals:
    """What is committed."""

    sequence: int  # of the last progress record; -1 before the first
    num_samples: int = 0
    num_records: int = 0
    num_bytes: int = 0
    checksum: int = 0
    is_complete: bool = False

    @classmethod
    def of(cls, state: LoadState) -> Self:
        last = state.last
        checksum = int(last.checksum, 16)
        return cls(
            last.sequence, last.num_samples, last.num_records, last.num_bytes, checksum, last.is_complete
        )

    def plus(self, group: RecordGroup) -> Totals:
        return replace(
            self,
            num_samples=self.num_samples + group.num_samples,
            num_records=self.num_records + len(group.records),
            num_bytes=self.num_bytes + group.num_bytes,
            checksum=(self.checksum + group.checksum) % _CHECKSUM_MODULUS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadIdentity:
    """What all progress records of a load say alike."""

    name: str
    version: int
    load_id: str
    topic: str
    topic_id: str
    source_fingerprint: str
    facts: Mapping[str, JsonValue]


class LoadWriter:
    """Writes one load. For one thread; `close` ends what it started.

    Args:
        connection: The cluster.
        catalog: Its datasets.
        writer: Open; it holds the name's transactional id.
        identity: Which load.
        source: What to write.
        layout: How samples become records.
        routing: Where records go; None: librdkafka's own partitioner decides.
        config: Limits.
        progress: Called with samples written, samples in all, and bytes written; the written ones are the
            committed ones and those of the transaction under way.
    """

    def __init__(
        self,
        connection: Connection,
        catalog: Catalog,
        writer: TransactionalWriter,
        *,
        identity: LoadIdentity,
        source: Source,
        layout: RecordLayout,
        routing: LoadRouting | None,
        config: LoaderConfig,
        progress: Progress | None,
    ) -> None:
        self.totals = Totals(-1)
        self._connection = connection
        self._catalog = catalog
        self._writer = writer
        self._identity = identity
        self._source = source
        self._layout = layout
        self._routing = routing
        self._config = config
        self._progress = progress
        self._stream: RecordStream | None = None
        self._needs_recovery = False
        self._is_fenced = False
        self._own_records: set[tuple[int, float]] = set()  # sequence and time of progress that is not news
        self._earlier_bytes = 0
        self._refreshed_s = 0.0
        # What was written before we took the id is no sign that somebody took it from us.
        self._know(newest_sign_of_life(connection, identity.name, identity.version))

    def close(self) -> None:
        """End the reading of the source."""
        self._close_stream()

    def go_on_from(self, state: LoadState) -> None:
        """Take up what is committed of this load."""
        self.totals = Totals.of(state)
        self._know(state.last)

    def say_hello(self) -> None:
        """Commit a progress record without samples: that the load has begun, or that this loader goes on.

        Whoever was stopped by that learns from it that somebody else is at work.

        Raises:
            LoadError: As `write_all`.
        """
        self._commit(lambda totals: totals)

    def write_all(self) -> None:
        """Write and commit what is left of the source.

        Raises:
            LoaderFencedError: Another loader has taken over.
            LoadInterruptedError: Nothing could be committed for `stall_timeout_s`.
            SourceError: The source can't be read any more.
            SampleTooLargeError: A sample does not fit into a record.
            MarkerRefusedError, UndecidedTransactionError: A transaction can't be ended everywhere.
        """
        self._earlier_bytes = self.totals.num_bytes
        while not self.totals.is_complete:
            self._commit(self._send_groups)

    def forget(self) -> bool:
        """Take back the begin of a load that has no samples yet.

        Returns:
            Whether that could be done; then nobody refers to its topic any more.
        """
        ours = self.totals
        if ours.num_samples or self._needs_recovery:  # then there may be a commit nobody heard of
            return False
        try:
            self._take_id_anew()
            if self.totals != ours:  # somebody has taken over in between
                return False
            self._writer.begin()
            for sequence in range(self.totals.sequence, -1, -1):
                key = ProgressKey(self._identity.name, self._identity.version, sequence).to_bytes()
                self._writer.write(LOADS_TOPIC, None, partition=0, num_samples=0, key=key)
            self._writer.commit(num_bytes=0)
        except (LoadError, CatalogError, KafkaConnectionError) as error:
            _log.warning("the begin of %s can't be taken back: %s", self._identity.name, error)
            return False
        return True

    def abort(self) -> None:
        """End what is under way, if brokers answer; else they do it after `transaction_timeout_s`."""
        self._close_stream()
        if self._needs_recovery:
            with contextlib.suppress(LoadError):
                self._writer.abort(_LAST_ABORT_S)
                self._needs_recovery = False

    # -- one transaction --------------------------------------------------------------------------------

    def _commit(self, fill: Callable[[Totals], Totals]) -> None:
        """A transaction, again and again until it is committed."""
        try:
            for attempt in stamina.retry_context(
                on=_RETRIED,
                attempts=None,
                timeout=self._config.stall_timeout_s,
                wait_initial=0.1,
                wait_max=5.0,
            ):
                with attempt:
                    self._recover_if_needed()
                    if self.totals.is_complete:
                        return  # the last commit had happened after all; nothing may come after it
                    self._attempt(fill)
        except _RETRIED as error:
            raise LoadInterruptedError(
                self._identity.name, sentence(error), self.totals.num_samples, self._source.num_samples
            ) from error

    def _attempt(self, fill: Callable[[Totals], Totals]) -> None:
        # Until the commit is answered, nobody knows whether it happened: whatever ends this, also Ctrl-C,
        # the next attempt first reads what is committed.
        self._needs_recovery = True
        try:
            self._writer.begin()
            totals = replace(fill(self.totals), sequence=self.totals.sequence + 1)
            told = self._progress_record(totals, self._writer.settle())
            key, value = told.to_record()
            # Before it is sent: it may get into the topic even if sending fails, and is no stranger's then.
            self._know(told)
            self._writer.write(LOADS_TOPIC, value, partition=0, num_samples=0, key=key)
            self._writer.commit(num_bytes=totals.num_bytes - self.totals.num_bytes)
        except ProducerFencedError:
            self._is_fenced = True
            raise
        except TransactionFailedError as error:
            _log.warning("a transaction of %s is done again: %s", self._identity.name, sentence(error))
            raise
        self._needs_recovery = False
        self.totals = totals

    def _send_groups(self, totals: Totals) -> Totals:
        """Send what comes within a transaction's time and bytes."""
        if self._stream is None:
            self._stream = RecordStream(
                self._source, self._layout, totals.num_samples, ahead_bytes=self._config.read_ahead_bytes
            )
        end_bytes = totals.num_bytes + self._config.transaction_bytes
        while totals.num_bytes < end_bytes and not self._stream.is_done:
            left_s = self._config.transaction_s - self._writer.age_s
            if left_s <= 0:
                break
            group = self._stream.take(min(left_s, 1.0))
            if group is None:
                continue
            self._send(group, totals)
            totals = totals.plus(group)
            if self._progress is not None:
                self._progress(totals.num_samples, self._source.num_samples, totals.num_bytes)
        return replace(totals, is_complete=totals.num_samples == self._source.num_samples)

    def _send(self, group: RecordGroup, totals: Totals) -> None:
        self._refresh_routing(group, totals)
        routing = self._routing.routing if self._routing is not None else None
        is_block = self._layout.encoding == "record" and routing is not None
        partition = LIBRDKAFKA_CHOOSES
        if is_block and routing is not None:
            partition = routing.partition_for(group.num_bytes)
            self._writer.begin_block(partition, group.num_bytes)
        for record in group.records:
            if routing is not None and not is_block:
                partition = routing.partition_for(len(record.value))
            self._writer.write(
                self._identity.topic,
                record.value,
                partition=partition,
                num_samples=record.num_samples,
                header=record.header,
            )

    def _refresh_routing(self, group: RecordGroup, totals: Totals) -> None:
        if self._routing is None:
            return
        if time.monotonic() - self._refreshed_s < _REFRESH_S:
            return
        self._refreshed_s = time.monotonic()
        written = totals.plus(group)
        bytes_per_sample = written.num_bytes / written.num_samples
        remaining_bytes = (self._source.num_samples - totals.num_samples) * bytes_per_sample
        if self._config.compression != "none":
            self._routing.routing.measure_stored_ratio(earlier_bytes=self._earlier_bytes)
        mean_record_bytes = group.num_bytes / len(group.records)
        overhead_bytes = (
            _PACKED_OVERHEAD_BYTES if self._layout.encoding == "packed" else _RECORD_OVERHEAD_BYTES
        )
        expected_ratio = 1 + overhead_bytes / max(1.0, mean_record_bytes)
        self._routing.refresh(int(remaining_bytes), expected_ratio=expected_ratio)

    def _progress_record(self, totals: Totals, extents: Mapping[int, Sequence[Extent]]) -> LoadProgress:
        identity = self._identity
        return LoadProgress(
            name=identity.name,
            version=identity.version,
            load_id=identity.load_id,
            topic=identity.topic,
            topic_id=identity.topic_id,
            source_fingerprint=identity.source_fingerprint,
            sequence=totals.sequence,
            num_samples=totals.num_samples,
            num_records=totals.num_records,
            num_bytes=totals.num_bytes,
            checksum=format_checksum(totals.checksum),
            host=socket.gethostname(),
            pid=os.getpid(),
            process=this_process(),
            updated_at_s=time.time(),
            is_complete=totals.is_complete,
            extents=extents,
            facts=identity.facts,
        )

    # -- when it fails ----------------------------------------------------------------------------------

    def _recover_if_needed(self) -> None:
        """Make sure of what is committed, after a transaction that did not end well.

        Raises:
            LoaderFencedError: Another loader has taken over, or has taken the load away.
            TransactionFailedError, CatalogError: Not now; may be tried again.
        """
        if not self._needs_recovery:
            return
        self._close_stream()
        if not self._is_fenced:
            try:
                self._writer.abort(_ABORT_S)
            except ProducerFencedError:
                self._is_fenced = True
            except TransactionFailedError as error:
                _log.info("what was written isn't aborted yet: %s", error)
        self._take_id_anew()

    def _stop_if_taken_over(self) -> None:
        # Brokers refuse a producer that was suspended for too long in the same words as one that was
        # replaced. But a loader that has taken the id says hello as soon as it has read what is committed,
        # and an open transaction keeps it from that for no longer than its timeout. If nothing was heard by
        # then, nobody has taken over.
        patience_s = self._config.transaction_timeout_s + 10 if self._is_fenced else 0
        deadline_s = time.monotonic() + patience_s
        name, version = self._identity.name, self._identity.version
        while True:
            newest = newest_sign_of_life(self._connection, name, version, timeout_s=_WATCH_TIMEOUT_S)
            if newest is not None and (newest.sequence, newest.updated_at_s) not in self._own_records:
                raise LoaderFencedError(name)
            is_forgotten = self.totals.sequence >= 0  # by whoever has dropped or published the load
            if newest is None and (is_forgotten or version in self._catalog.versions(name)):
                raise LoaderFencedError(name)
            if time.monotonic() >= deadline_s:
                return
            time.sleep(_WATCH_POLL_S)

    def _take_id_anew(self) -> None:
        self._stop_if_taken_over()
        # Taking the id ends our own open transaction, too. Only then is what is committed known for good.
        self._writer.open(self._identity.topic, self._config.transaction_timeout_s)
        self._is_fenced = False
        name, version = self._identity.name, self._identity.version
        state = self._catalog.load_state(name, version, wait_s=self._config.transaction_timeout_s + 10)
        if state is None and self.totals.sequence >= 0:
            raise LoaderFencedError(name)
        if state is not None and state.last.load_id != self._identity.load_id:
            raise LoaderFencedError(name)
        self._writer.end_forgotten(self._identity.topic, state, self._config.transaction_timeout_s)
        if state is not None:
            self.go_on_from(state)
        self._needs_recovery = False

    def _know(self, record: LoadProgress | None) -> None:
        if record is not None:
            self._own_records.add((record.sequence, record.updated_at_s))

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
