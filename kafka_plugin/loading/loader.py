"""Load a dataset into Kafka, exactly once, whatever dies on the way.

    load_dataset("train.parquet", "cola")        # the same call again goes on where a dead one stopped

The order of things is what makes it exact:

1. The source is looked at as a whole: what can't be loaded is refused before anything is written.
2. Signs of life of another loader of the name are looked for: taking its transactional id would stop it.
3. What a dead loader left is ended, and the transactional id is taken: one that is alive is fenced.
4. Only then the committed progress is read, past anybody's open transactions; writing goes on from there.
5. Each transaction commits samples and the progress that lists them, together (load_writer.py).
6. The manifest is published after the last commit. A loader that dies before that leaves complete
   progress, from which the next one publishes.

A topic belongs to one load (its name ends with the load's id), so nothing that is made, deleted or left
behind here can be anybody else's.

Faults are tested in tests/fault/kafka_plugin/test_load_*.py.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import stamina
import xxhash
from pydantic import JsonValue

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import (
    CatalogError,
    CatalogUnavailableError,
    DatasetExistsError,
    LoadInProgressError,
)
from evenload.dataset_catalog.liveness import may_be_loading
from evenload.dataset_catalog.manifest import (
    DatasetManifest,
    Encoding,
    ValueFormat,
    check_dataset_name,
)
from evenload.dataset_catalog.process_identity import this_process
from evenload.dataset_catalog.progress import LoadProgress, LoadState
from evenload.dataset_catalog.records.encoding import storable_schema
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import (
    BrokersUnreachableError,
    Connection,
    KafkaConnectionError,
    resolve_connection,
)
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig, Strategy
from evenload.kafka_plugin.errors import (
    LoaderFencedError,
    LoadInterruptedError,
    PluginConfigError,
    SourceChangedError,
    TopicError,
    TransactionFailedError,
    sentence,
)
from evenload.kafka_plugin.loading.block_size import (
    choose_block_bytes,
    choose_num_partitions,
    choose_samples_per_record,
)
from evenload.kafka_plugin.loading.load_routing import LoadRouting
from evenload.kafka_plugin.loading.load_writer import LoadIdentity, LoadWriter, Progress
from evenload.kafka_plugin.loading.publishing import publish_load
from evenload.kafka_plugin.loading.record_stream import (
    RecordLayout,
    encoded_bytes_per_sample,
    records_per_group,
)
from evenload.kafka_plugin.loading.topic import (
    create_load_topic,
    load_topic_name,
    sweep_topics,
    take_snapshot,
)
from evenload.kafka_plugin.loading.watch import newest_sign_of_life
from evenload.kafka_plugin.sources.source import Source, open_source
from evenload.kafka_plugin.transactional_writer import TransactionalWriter
from evenload.router.config import RouterConfig, evens_reading, for_load
from evenload.router.router import Router
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.opening import AnyCollector, open_collector
from evenload.telemetry_collector.weights import Weights

_log = logging.getLogger(__name__)

_REACH_TIMEOUT_S = 10.0
_CLAIM_RETRIED = (TransactionFailedError, CatalogUnavailableError, BrokersUnreachableError)
# A load lasts seconds to hours; its own topic's sizes are what it levels by.
_COLLECTING = CollectorConfig(interval_s=1.0, full_interval_s=10.0)
_in_this_process: set[tuple[str, str]] = set()
_in_this_process_lock = threading.Lock()


def load_dataset(
    source: Any,
    name: str,
    *,
    connection: Connection | None = None,
    encoding: Encoding = "packed",
    value_format: ValueFormat = "arrow",
    partitions: int | None = None,
    replication: int | None = None,
    strategy: Strategy = "balanced",
    seed: int | None = 0,
    columns: Sequence[str] | None = None,
    new_version: bool = False,
    take_over: bool = False,
    progress: Progress | None = None,
    config: LoaderConfig | None = None,
    router_config: RouterConfig | None = None,
) -> DatasetManifest:
    """Write a dataset into a topic of its own, each sample exactly once.

    Killed at any moment, the same call goes on where the load stood.

    Args:
        source: Files, folders, a `datasets.Dataset`, a `pyarrow.Table` or a mapping of arrays, as
            `sources.open_source` takes them; or what that returned.
        name: Letters, digits, '.', '_' and '-'.
        connection: The cluster; None: as `resolve_connection` finds it.
        encoding: `packed`: many samples a record; `record`: one.
        value_format: What a record's value is: `arrow`; with `record` also `raw` (the only column), `json`.
        partitions: Of the new topic; None: by size.
        replication: Copies of each partition; None: as the cluster has it.
        strategy: Who chooses partitions: the router (`balanced`; it also places the topic's replicas),
            librdkafka's partitioner (`default`), or each in turn by bytes (`round-robin`).
        seed: Of the shuffle in which samples are written; None keeps the source's order.
        columns: As `sources.open_source` takes them.
        new_version: Load the next version of a name that exists.
        take_over: Go on with a load whose loader seems to be alive; that one stops.
        progress: Called as samples are sent, with samples so far, samples in all, and payload bytes so far.
        config: Limits and times.
        router_config: What the router levels by; where it names no goals, by `LOAD_GOALS`.

    Returns:
        The manifest, published: from now on, the dataset exists.

    Raises:
        SourceError: The source can't be used; nothing was written.
        PluginError, WeightError: A goal or score function isn't known, or its weight can't be; likewise.
        DatasetExistsError: The name is taken.
        LoadInProgressError: Another loader of the name was heard of a moment ago.
        LoaderFencedError: Another loader has taken over while this one was loading.
        SourceChangedError: The unfinished load of this name was begun with something else.
        LoadInterruptedError: Nothing could be written for `config.stall_timeout_s`; may be gone on with.
        MarkerRefusedError: Brokers don't allow what it takes to end an earlier transaction.
        UndecidedTransactionError: Nobody knows how an earlier transaction of this load ended.
        TopicError: The topic can't be made.
        BrokersUnreachableError: No broker answers.
    """
    config = config or LoaderConfig()
    check_dataset_name(name)
    if encoding == "packed" and value_format != "arrow":
        raise PluginConfigError(f"packed records are Arrow, so value_format can't be {value_format!r}.")
    connection = connection or resolve_connection()
    with open_admin(connection, timeout_s=_REACH_TIMEOUT_S):
        pass  # somebody is there; said before a large source is read, as is a taken name
    next_version(Catalog(connection), name, new_version=new_version)
    if not isinstance(source, Source):
        source = open_source(
            source, columns, memory_bytes=config.memory_bytes, scratch_folder=config.scratch_folder
        )
    elif columns is not None:
        raise PluginConfigError("columns are chosen by open_source; this source is open already.")
    storable_schema(source.schema, value_format)
    router_config = for_load(router_config)
    Router(router_config)  # refuses what can't be levelled by, before a topic is made
    choice = _Choice(
        name=name,
        encoding=encoding,
        value_format=value_format,
        num_partitions=partitions,
        replication=replication,
        strategy=strategy,
        seed=seed,
        new_version=new_version,
        take_over=take_over,
    )
    with _only_one_in_this_process(name, connection.bootstrap_servers):
        return _Loader(connection, source, choice, config, progress).load(router_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What the caller asked for."""

    name: str
    encoding: Encoding
    value_format: ValueFormat
    num_partitions: int | None
    replication: int | None
    strategy: Strategy
    seed: int | None
    new_version: bool
    take_over: bool


class _Loader:
    """The steps of one call of `load_dataset`, in their order."""

    def __init__(
        self,
        connection: Connection,
        source: Source,
        choice: _Choice,
        config: LoaderConfig,
        progress: Progress | None,
    ) -> None:
        self._connection = connection
        self._catalog = Catalog(connection)
        self._source = source
        self._choice = choice
        self._config = config
        self._progress = progress
        self._routing: LoadRouting | None = None
        self._version = 1
        self._writer = TransactionalWriter(
            connection, f"evenload.load.{choice.name}", choice.encoding, config, watcher=self._watch_record
        )

    def load(self, router_config: RouterConfig) -> DatasetManifest:
        """Claim the name, write what is missing, publish."""
        try:
            if self._choice.encoding == "record":
                self._writer.records_per_block = records_per_group(
                    self._source, self._choice.value_format, self._block_bytes()
                )
            state = self._claim()
            if state is not None:
                self._check_same_load(state)
            if state is None or not state.last.is_complete:
                self._write(state, router_config)
            return publish_load(
                self._catalog, self._choice.name, self._version, source=self._source, config=self._config
            )
        finally:
            self._writer.close()

    # -- claiming ---------------------------------------------------------------------------------------

    def _refuse_if_alive(self, last: LoadProgress) -> None:
        """A second loader must not stop the first by accident, which taking its id would do."""
        if last.process and last.process == this_process():
            return  # a load of this process that ended early; two at a time are refused elsewhere
        now_s = time.time()
        if may_be_loading(last, now_s=now_s, recent_s=self._config.recent_s):
            load = f"{last.name}@{last.version}"
            raise LoadInProgressError(load, last.host, last.pid, max(0.0, now_s - last.updated_at_s))

    def _claim(self) -> LoadState | None:
        """Take the name, also from brokers that are failing over right now."""
        try:
            for attempt in stamina.retry_context(
                on=_CLAIM_RETRIED,
                attempts=None,
                timeout=self._config.stall_timeout_s,
            ):
                with attempt:
                    try:
                        return self._claim_once()
                    except _CLAIM_RETRIED as error:
                        say = _log.warning if attempt.num > 1 else _log.info
                        say("loading %s can't begin yet: %s", self._choice.name, sentence(error))
                        raise
        except TransactionFailedError as error:
            num_samples = self._source.num_samples
            raise LoadInterruptedError(self._choice.name, sentence(error), None, num_samples) from error
        raise AssertionError("retrying ends with a result or an error")

    def _claim_once(self) -> LoadState | None:
        self._catalog.ensure_internal_topics()
        self._version = next_version(self._catalog, self._choice.name, new_version=self._choice.new_version)
        # Before the id is taken, as that stops whoever is loading.
        last = newest_sign_of_life(self._connection, self._choice.name, self._version)
        if last is not None and not self._choice.take_over:
            self._refuse_if_alive(last)
        # And only then what is committed is read: until the id is ours, a predecessor may still commit.
        self._writer.open(last.topic if last is not None else None, self._config.transaction_timeout_s)
        wait_s = self._config.transaction_timeout_s + 10
        state = self._catalog.load_state(self._choice.name, self._version, wait_s=wait_s)
        if self._version in self._catalog.versions(self._choice.name):  # another one was just finished
            raise DatasetExistsError(self._choice.name, self._version)
        if last is not None:
            self._writer.end_forgotten(last.topic, state, self._config.transaction_timeout_s)
        return state

    def _check_same_load(self, state: LoadState) -> None:
        begun = state.last.facts
        for what, given in self._deciding_facts().items():
            if begun.get(what) != given:
                was = str(begun.get(what))
                raise SourceChangedError(state.id, what, was, str(given), state.last.num_samples)
        with TopicAdmin(self._connection, timeout_s=self._config.topic_timeout_s) as admin:
            found = admin.describe(state.last.topic)
        if found is None or found.topic_id != state.last.topic_id:
            reason = f"of the unfinished load of {state.id} is gone; drop that load, and load it again."
            raise TopicError(state.last.topic, reason)

    # -- writing ----------------------------------------------------------------------------------------

    def _write(self, state: LoadState | None, router_config: RouterConfig) -> None:
        with open_collector(self._connection, _COLLECTING, topics=[]) as collector:
            identity = self._begin(collector, router_config) if state is None else _identity_of(state.last)
            writer: LoadWriter | None = None
            try:
                self._routing = self._route(identity, router_config, collector)
                writer = self._make_writer(identity)
                if state is not None:
                    writer.go_on_from(state)
                writer.say_hello()
                if state is None:
                    sweep_topics(self._connection, self._catalog, identity)
                writer.write_all()
            except BaseException as error:
                self._clean_up(identity, writer, error, is_begun=state is not None)
                raise
            finally:
                if writer is not None:
                    writer.close()
                if self._routing is not None:
                    self._routing.end()

    def _make_writer(self, identity: LoadIdentity) -> LoadWriter:
        return LoadWriter(
            self._connection,
            self._catalog,
            self._writer,
            identity=identity,
            source=self._source,
            layout=self._layout(identity),
            routing=self._routing,
            config=self._config,
            progress=self._progress,
        )

    def _clean_up(
        self, identity: LoadIdentity, writer: LoadWriter | None, error: BaseException, *, is_begun: bool
    ) -> None:
        """After a failure: end the transaction; a load without a committed sample leaves nothing behind."""
        if writer is not None:
            writer.abort()
            if isinstance(error, LoaderFencedError) or not writer.forget():
                return  # there is something to go on from, or it is another loader's by now
        elif is_begun:
            return
        self._delete_topic(identity)

    def _begin(self, collector: AnyCollector, router_config: RouterConfig) -> LoadIdentity:
        """A load of one's own: an id, and a topic that is ready. Nobody knows it until the first commit."""
        load_id = secrets.token_hex(8)
        dataset_bytes = int(self._bytes_per_sample() * self._source.num_samples)
        block_bytes = self._block_bytes()
        samples_per_record = choose_samples_per_record(dataset_bytes, self._source.num_samples, block_bytes)
        snapshot = take_snapshot(collector)
        num_brokers = len(snapshot.brokers) if snapshot is not None else 1
        weights = collector.weights or Weights()
        topic = load_topic_name(self._choice.name, self._version, load_id)
        topic_id = create_load_topic(
            self._connection,
            topic,
            snapshot=snapshot if self._choice.strategy == "balanced" else None,
            num_partitions=self._choice.num_partitions or choose_num_partitions(dataset_bytes, num_brokers),
            replication=self._choice.replication,
            expected_bytes=dataset_bytes,
            avoid=weights.drained,
            evens_leaders=evens_reading(router_config.goals if weights.goals is None else weights.goals),
            config=self._config,
        )
        return LoadIdentity(
            name=self._choice.name,
            version=self._version,
            load_id=load_id,
            topic=topic,
            topic_id=topic_id,
            source_fingerprint=self._fingerprint(),
            facts={
                **self._deciding_facts(),
                "samples_per_record": samples_per_record,
                "block_bytes": block_bytes,
                "strategy": self._choice.strategy,
            },
        )

    def _layout(self, identity: LoadIdentity) -> RecordLayout:
        return RecordLayout(
            encoding=self._choice.encoding,
            value_format=self._choice.value_format,
            samples_per_record=cast(int, identity.facts["samples_per_record"]),
            block_bytes=cast(int, identity.facts["block_bytes"]),
            seed=self._choice.seed,
            load_id=identity.load_id,
            max_record_bytes=self._config.max_record_bytes,
        )

    def _route(
        self, identity: LoadIdentity, router_config: RouterConfig, collector: AnyCollector
    ) -> LoadRouting | None:
        """What chooses partitions; None: librdkafka's own partitioner does."""
        if self._choice.strategy == "default":
            return None
        is_balanced = self._choice.strategy == "balanced"
        if is_balanced:
            collector.watch([identity.topic])
            take_snapshot(collector)
        with TopicAdmin(self._connection, timeout_s=self._config.topic_timeout_s) as admin:
            described = admin.describe(identity.topic)
        if described is None:
            raise TopicError(identity.topic, "is gone; somebody has deleted it.")
        return LoadRouting.begin(
            collector,
            identity.topic,
            len(described.partitions),
            config=router_config if is_balanced else None,
            batch_bytes=cast(int, identity.facts["block_bytes"]),
            load=f"{identity.name}@{identity.version}/{identity.load_id}",
            producer=f"load of {identity.name}@{identity.version} by {socket.gethostname()}/{os.getpid()}",
        )

    def _watch_record(self, partition: int, size_bytes: int, is_stored: bool) -> None:
        if self._routing is not None:
            self._routing.watch_record(partition, size_bytes, is_stored)

    def _block_bytes(self) -> int:
        dataset_bytes = int(self._bytes_per_sample() * self._source.num_samples)
        return self._config.block_bytes or choose_block_bytes(dataset_bytes)

    def _bytes_per_sample(self) -> float:
        return encoded_bytes_per_sample(self._source, self._choice.encoding, self._choice.value_format)

    def _deciding_facts(self) -> dict[str, JsonValue]:
        """What decides which sample is in which record: going on with other values would mix datasets."""
        return {
            "source": self._source.fingerprint,
            "seed": self._choice.seed,
            "encoding": self._choice.encoding,
            "value_format": self._choice.value_format,
        }

    def _fingerprint(self) -> str:
        return str(xxhash.xxh3_128_hexdigest(json.dumps(self._deciding_facts(), sort_keys=True).encode()))

    def _delete_topic(self, identity: LoadIdentity) -> None:
        try:
            with TopicAdmin(self._connection, timeout_s=self._config.topic_timeout_s) as admin:
                admin.delete(identity.topic, identity.topic_id)
        except (CatalogError, KafkaConnectionError) as error:
            _log.warning("topic %s is empty, but can't be deleted: %s", identity.topic, error)


def next_version(catalog: Catalog, name: str, *, new_version: bool) -> int:
    """The version that a load of this name would write.

    Raises:
        DatasetExistsError: The name is taken, and no new version is asked for.
    """
    newest = max(catalog.versions(name), default=0)
    if newest and not new_version:
        raise DatasetExistsError(name, newest)
    return newest + 1


def _identity_of(last: LoadProgress) -> LoadIdentity:
    return LoadIdentity(
        name=last.name,
        version=last.version,
        load_id=last.load_id,
        topic=last.topic,
        topic_id=last.topic_id,
        source_fingerprint=last.source_fingerprint,
        facts=last.facts,
    )


@contextmanager
def _only_one_in_this_process(name: str, bootstrap_servers: str) -> Iterator[None]:
    """Two loads of a name in one process would look like one to everybody else."""
    key = (name, bootstrap_servers)
    with _in_this_process_lock:
        if key in _in_this_process:
            raise LoadInProgressError(name, socket.gethostname(), os.getpid(), 0.0)
        _in_this_process.add(key)
    try:
        yield
    finally:
        with _in_this_process_lock:
            _in_this_process.discard(key)
