"""Fetch exact ranges of offsets, any number at once, from whichever brokers lead them.

A reader knows which offsets it wants and in what order it needs them, so it is spared what makes a consumer
complicated: no position, no session, no fetching ahead. A range goes to the thread of the broker that leads
its partition, or of one in the reader's rack that the leader names (broker_link.py, read_replicas.py). That
thread keeps a few requests in flight, in the order in which ranges were asked for, and hands over each
finished range. So many positions of one partition can be read at once.

A broker gives whole record batches only. Where ranges begin and end with batches, as in datasets that
`load_dataset` has written with its own partitioner, every byte goes over the wire once; a batch that ranges
cut is sent again for each of them.

Trouble at a leader (it is lost, has moved, or can't give an offset yet) sends the range to one more thread,
which waits, refreshes the leaders and sends it on, until it succeeds or `retry_timeout_s` is over.
The wait is our own and not a retry library's, because `close` has to be able to end it.

Invariants, checked in tests/integration/ray_trainer/test_fetch_ranges.py,
tests/property/ray_trainer/fetching/test_followers.py and tests/fault/ray_trainer/test_reader_faults.py:
1. Each range is answered once: with exactly the records that its offsets name, or with an error.
2. After `close` no thread and no socket is left, and nobody is called any more.

Read next: broker_link.py (one broker), kafka_connection/record_batches.py (what arrives),
reading/block_cache.py (who asks).
"""

from __future__ import annotations

import base64
import queue
import random
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.kafka_connection.broker_connection import BrokerLostError
from evenload.kafka_connection.environment import client_rack
from evenload.kafka_connection.topic_leaders import BrokerAddress, TopicLeaders
from evenload.ray_trainer.errors import FetchRefusedError, FetchTimeoutError
from evenload.ray_trainer.fetching.broker_link import Blame, BrokerLink
from evenload.ray_trainer.fetching.fetch_config import FetchConfig
from evenload.ray_trainer.fetching.range_fetch import (
    BlockRange,
    FetchedBlock,
    OnDone,
    RangeFetch,
    RecordCheck,
    stamp_check,
)
from evenload.ray_trainer.fetching.read_replicas import ReadReplicas
from evenload.ray_trainer.fetching.receive_buffers import BufferPool

__all__ = ["BlockFetcher", "BlockRange", "ExactRangeFetcher", "FetchConfig", "FetchedBlock", "fetch_all"]

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0


class BlockFetcher(Protocol):
    """Where blocks come from. Any thread may call; made for one topic."""

    @property
    def num_wire_bytes(self) -> int:
        """Bytes received so far."""
        ...

    def submit(self, wanted: BlockRange, on_done: OnDone) -> None:
        """Ask for a range. Ranges that were asked for earlier are served first.

        Args:
            on_done: called once, in one of the fetcher's threads, with the block or with a ReadError; it must
                be quick and must not raise. Not called any more once `close` has returned.
        """
        ...

    def close(self) -> None:
        """Stop, and wait until nothing is left running."""
        ...


class ExactRangeFetcher:
    """A BlockFetcher that sends one Fetch request for each range, over one connection a broker.

    Args:
        connection: the cluster.
        topic: its name.
        topic_id: its id, as the manifest has it; under another id nothing is read.
        check: tells what is wrong with a record, or None.
        config: limits and timeouts.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        topic_id: str,
        *,
        check: RecordCheck | None = None,
        config: FetchConfig | None = None,
    ) -> None:
        self._topic = topic
        self._config = config or FetchConfig()
        self._kafka_config = connection.kafka_python_config()
        self._topic_uuid = parse_topic_id(topic_id)
        self._check = check
        self._leaders = TopicLeaders(
            topic, self._topic_uuid, config=self._kafka_config, timeout_s=self._config.connect_timeout_s
        )
        rack = self._config.client_rack
        self._rack = client_rack() if rack is None else rack
        self._replicas = ReadReplicas(self._leaders, topic=topic)
        self._pool = BufferPool()
        self._lock = threading.Condition()
        self._links: dict[int, BrokerLink] = {}
        self._retired: list[BrokerLink] = []
        self._troubled: list[RangeFetch] = []
        self._num_submitted = 0
        self._is_closing = False
        # Not the module's random numbers: their state belongs to the training loop.
        self._random = random.Random()
        self._mender = threading.Thread(target=self._mend, name=f"fetch-leaders-{topic}", daemon=True)
        self._mender.start()

    @classmethod
    def of_manifest(
        cls, connection: Connection, manifest: DatasetManifest, *, config: FetchConfig | None = None
    ) -> Self:
        """A fetcher that checks each record against the load that the manifest tells of."""
        return cls(
            connection, manifest.topic, manifest.topic_id, check=stamp_check(manifest.load_id), config=config
        )

    @property
    def num_wire_bytes(self) -> int:
        return sum(self.wire_bytes_by_broker.values())

    @property
    def wire_bytes_by_broker(self) -> dict[int, int]:
        """Bytes received so far from each broker that was asked, by its id."""
        received: dict[int, int] = {}
        with self._lock:
            for link in (*self._links.values(), *self._retired):
                broker_id = link.address.broker_id
                received[broker_id] = received.get(broker_id, 0) + link.num_wire_bytes
        return received

    def submit(self, wanted: BlockRange, on_done: OnDone) -> None:
        with self._lock:
            self._num_submitted += 1
            self._dispatch(RangeFetch(wanted, on_done, order=self._num_submitted))

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            links = [*self._links.values(), *self._retired]
            self._lock.notify_all()
        self._leaders.interrupt()
        for link in links:
            link.interrupt()
        for link in links:
            link.join()
        self._mender.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _dispatch(self, fetch: RangeFetch) -> None:
        """Hand a range to its replica's thread; while no leader is known, to the mender. Holds the lock."""
        source = self._replicas.source_of(fetch.wanted.partition)
        if fetch.is_from_follower and source != fetch.source:
            # What a follower gave may have a gap, of which whoever gives the rest would be taken to know.
            fetch.begin_anew()
        fetch.source = source
        if fetch.source is None or self._is_closing:
            self._troubled.append(fetch)
            self._lock.notify_all()
            return
        self._link(fetch.source.broker).put(fetch)

    def _link(self, broker: BrokerAddress) -> BrokerLink:
        link = self._links.get(broker.broker_id)
        if link is not None and link.address == broker:
            return link
        if link is not None:  # the broker came back at another address
            link.interrupt()
            self._retired.append(link)
        link = BrokerLink(
            broker,
            topic=self._topic,
            topic_id=self._topic_uuid,
            kafka_config=self._kafka_config,
            config=self._config,
            pool=self._pool,
            check=self._check,
            rack=self._rack,
            on_trouble=self._take_trouble,
            on_nearer=self._take_nearer,
        )
        self._links[broker.broker_id] = link
        return link

    def _take_nearer(self, fetch: RangeFetch, broker_id: int) -> None:
        """Called by a link with a range for which its broker, the leader, named a replica that is nearer."""
        with self._lock:
            if self._replicas.note_nearer(fetch.wanted.partition, broker_id):
                self._dispatch(fetch)
            else:  # the mender asks anew which brokers there are
                self._troubled.append(fetch)
                self._lock.notify_all()

    def _take_trouble(self, fetches: list[RangeFetch], reason: str, blame: Blame) -> None:
        """Called by a link with ranges that it can't get now."""
        with self._lock:
            for fetch in fetches:
                source = fetch.source
                if source is None or not source.is_follower or blame is Blame.NOBODY:
                    self._put_off(fetch, reason)
                    continue
                broker_id = source.broker.broker_id
                if blame is Blame.BROKER:
                    self._replicas.leave_broker(broker_id, reason)
                else:
                    self._replicas.leave(fetch.wanted.partition, broker_id, reason)
                self._dispatch(fetch)

    def _put_off(self, fetch: RangeFetch, reason: str) -> None:
        """Have the mender try a range again, after a while. Holds the lock."""
        now_s = time.monotonic()
        # Bounded before it is raised: 2.0**1024 is no float.
        backoff_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** min(fetch.num_failures, 30))
        fetch.note_failure(reason, now_s=now_s, retry_at_s=now_s + backoff_s * self._random.uniform(0.5, 1))
        self._troubled.append(fetch)
        self._lock.notify_all()

    def _mend(self) -> None:
        """Refresh the leaders and send troubled ranges on, as long as there are any."""
        while True:
            due = self._wait_for_due()
            if due is None:
                return
            try:
                self._leaders.refresh()
            except BrokerLostError as error:
                self._put_all_off(self._without_expired(due), str(error))
            except Exception as error:  # noqa: BLE001 - whoever waits for these ranges has to hear of it
                # BrokerRefusedError, TopicReplacedError, and what nobody thought of.
                refused = FetchRefusedError(topic=self._topic, reason=str(error) or repr(error))
                refused.__cause__ = error
                for fetch in due:
                    fetch.on_done(refused)
            else:
                self._send_on(self._without_expired(due))

    def _put_all_off(self, fetches: list[RangeFetch], reason: str) -> None:
        with self._lock:
            for fetch in fetches:
                self._put_off(fetch, reason)

    def _send_on(self, fetches: list[RangeFetch]) -> None:
        with self._lock:
            for fetch in fetches:
                if self._leaders.leader_of(fetch.wanted.partition) is None:
                    self._put_off(fetch, "the partition has no leader at the moment")
                else:
                    self._dispatch(fetch)

    def _wait_for_due(self) -> list[RangeFetch] | None:
        """Troubled ranges whose time to try again has come, at least one; None when closing."""
        with self._lock:
            while not self._is_closing:
                now_s = time.monotonic()
                due = [fetch for fetch in self._troubled if fetch.retry_at_s <= now_s]
                if due:
                    self._troubled = [fetch for fetch in self._troubled if fetch.retry_at_s > now_s]
                    return due
                next_s = min((fetch.retry_at_s for fetch in self._troubled), default=None)
                self._lock.wait(None if next_s is None else next_s - now_s)
            return None

    def _without_expired(self, fetches: list[RangeFetch]) -> list[RangeFetch]:
        now_s = time.monotonic()
        kept = []
        for fetch in fetches:
            waited_s = now_s - fetch.failing_since_s if fetch.failing_since_s is not None else 0.0
            if waited_s <= self._config.retry_timeout_s:
                kept.append(fetch)
                continue
            fetch.on_done(
                FetchTimeoutError(
                    topic=self._topic,
                    partition=fetch.wanted.partition,
                    offset=fetch.next_offset,
                    waited_s=waited_s,
                    reason=fetch.last_failure,
                )
            )
        return kept


def parse_topic_id(text: str) -> uuid.UUID:
    """A topic id as Kafka's tools print it (22 characters of base64) or as a UUID.

    Raises:
        ValueError: it is neither.
    """
    if len(text) == 22:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    return uuid.UUID(text)


def fetch_all(
    fetcher: BlockFetcher, ranges: Iterable[BlockRange], *, ahead_bytes: int = 32 << 20
) -> Iterator[FetchedBlock]:
    """Fetch ranges at full speed, and give them as they come, which may be in another order.

    Args:
        ahead_bytes: about how many bytes are asked for before they are taken.

    Raises:
        ReadError: a range can't be had.
    """
    arrived: queue.SimpleQueue[FetchedBlock | Exception] = queue.SimpleQueue()
    coming_bytes = num_coming = 0
    rest = iter(ranges)
    wanted = next(rest, None)
    while wanted is not None or num_coming:
        while wanted is not None and (coming_bytes < ahead_bytes or not num_coming):
            fetcher.submit(wanted, arrived.put)
            coming_bytes += wanted.size_bytes
            num_coming += 1
            wanted = next(rest, None)
        block = arrived.get()
        if isinstance(block, Exception):
            raise block
        coming_bytes -= block.wanted.size_bytes
        num_coming -= 1
        yield block
