"""What operators and loads tell one collector service, shared with the others of its cluster by a topic.

    weights          key `weights`       the latest, as the order of the topic has it
    announced bytes  key `intent LOAD`   each `_TELL_S` while a load announces; nothing once it withdraws

Each service writes what it is told, and follows what all have written: weights come into force here, too,
when they are read again, so that two operators who change them at the same moment leave the same ones
everywhere. What a service has from the topic it bounds as what it has over HTTP.

One thread writes and reads. While brokers don't answer, what is in force stays, and changing weights fails.

Read next: the topic's records in dataset_catalog/logs/internal_topics.py, which are read alike.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.logs.internal_topics import (
    PARTITION,
    ensure_internal_topics,
    latest_records,
    write_plain,
)
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection, KafkaConnectionError
from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.schedule import backoff_s
from evenload.telemetry_collector.weights import Weights

__all__ = ["TOLD_TOPIC", "Sharing"]

_log = logging.getLogger(__name__)
# Not among the topics `evenload.*`, which every loader may write: who sets weights drains brokers.
TOLD_TOPIC: Final = "evenload-service.told"
_WEIGHTS_KEY: Final = b"weights"
_INTENT_KEY: Final = b"intent "
_ROUND_S = 0.5
_BACKOFF_MAX_S = 8.0
_TIMEOUT_S = 5.0
_TELL_S = 5.0  # an announcement counts for a minute, unless it says otherwise
_KNOWN_MAX = 100_000  # loads whose last word's time is remembered
_CLOSE_TIMEOUT_S = 0.3


class _ToldWeights(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    weights: Weights


class _ToldIntent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    by: str
    at_s: float
    intent: Intent


class Hearer(Protocol):
    """Whoever follows what others were told. Called in its own loop."""

    def hear_weights(self, weights: Weights) -> None:
        """These are in force."""

    def hear_intent(self, intent: Intent, lifetime_s: float) -> None:
        """A load will still write this."""

    def hear_withdrawn(self, load: str) -> None:
        """A load has nothing more to write."""


class Sharing:
    """Shares what one service is told, while it is entered. Enter it in the service's loop.

    Args:
        connection: the cluster whose topic it is.
        hearer: the service.
        wall_clock: seconds since 1970, for ages that other machines told.
    """

    def __init__(
        self, connection: Connection, hearer: Hearer, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._connection = connection
        self._hearer = hearer
        self._wall_clock = wall_clock
        self._name = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._to_tell: dict[bytes, bytes | None] = {}
        self._weighing: list[Future[None]] = []
        self._told_at_s: dict[str, float] = {}  # by load
        self._next: int | None = None  # offset; None: all has to be read
        self._is_in_trouble = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rng = random.Random()
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._share_on, name="evenload-sharing", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    async def weigh(self, weights: Weights) -> None:
        """Put weights in force in all services; returns when they are in this one.

        Raises:
            OSError: they can't be written; those in force stay.
        """
        written: Future[None] = Future()
        with self._lock:
            self._to_tell[_WEIGHTS_KEY] = _ToldWeights(weights=weights).model_dump_json().encode()
            self._weighing.append(written)
        self._wake.set()
        await asyncio.wrap_future(written)

    def announce(self, intent: Intent) -> None:
        """Tell the others what a load will still write."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._told_at_s.get(intent.load, float("-inf")) < _TELL_S:
                return
            if len(self._told_at_s) >= _KNOWN_MAX:
                self._told_at_s.clear()
            self._told_at_s[intent.load] = now_s
            told = _ToldIntent(by=self._name, at_s=self._wall_clock(), intent=intent)
            self._to_tell[_INTENT_KEY + intent.load.encode()] = told.model_dump_json().encode()
        self._wake.set()

    def withdraw(self, load: str) -> None:
        """Tell the others that a load has nothing more to write."""
        with self._lock:
            # Another service may have told of it, so it is said whether or not this one has.
            self._told_at_s.pop(load, None)
            self._to_tell[_INTENT_KEY + load.encode()] = None
        self._wake.set()

    # In the thread.

    def _share_on(self) -> None:
        num_failures = 0
        while not self._is_closed:
            try:
                with TopicAdmin(self._connection, timeout_s=_TIMEOUT_S) as admin:
                    ensure_internal_topics(self._connection, timeout_s=_TIMEOUT_S, topics=(TOLD_TOPIC,))
                    while not self._is_closed:
                        self._wake.clear()
                        self._round(admin)
                        num_failures = 0
                        self._wake.wait(_ROUND_S)
            except Exception as error:  # noqa: BLE001 - a service goes on whatever comes of this
                if not isinstance(error, (CatalogError, KafkaConnectionError)):
                    _log.exception("sharing what is told failed unexpectedly")
                num_failures += 1
                self._fail(str(error))
                self._wake.clear()  # what is told meanwhile is told with the next try
                if not self._is_closed:
                    wait_s = backoff_s(num_failures, initial_s=_ROUND_S, max_s=_BACKOFF_MAX_S, rng=self._rng)
                    self._wake.wait(wait_s)

    def _round(self, admin: TopicAdmin) -> None:
        with self._lock:
            to_tell, self._to_tell = self._to_tell, {}
            weighing, self._weighing = self._weighing, []
        try:
            write_plain(self._connection, TOLD_TOPIC, list(to_tell.items()), timeout_s=_TIMEOUT_S)
            self._read(admin)
        except BaseException as error:
            _fail(weighing, str(error))
            raise
        for each in weighing:
            self._in_loop(_succeed, each)  # behind the weights themselves
        if self._is_in_trouble:
            self._is_in_trouble = False
            _log.warning("topic %s can be written and read again", TOLD_TOPIC)

    def _fail(self, reason: str) -> None:
        with self._lock:
            weighing, self._weighing = self._weighing, []
            self._to_tell.pop(_WEIGHTS_KEY, None)  # who asked for them is told that they aren't kept
        _fail(weighing, reason)
        if not self._is_in_trouble:
            self._is_in_trouble = True
            _log.warning("topic %s: %s; what other services are told isn't known here", TOLD_TOPIC, reason)

    def _read(self, admin: TopicAdmin) -> None:
        stop = admin.offsets(TOLD_TOPIC, [PARTITION], "last stable")[PARTITION]
        if self._next is None or stop < self._next:  # at first, or the topic was made anew
            latest = latest_records(self._connection, TOLD_TOPIC, timeout_s=_TIMEOUT_S, stop_offset=stop)
            for key in latest:
                self._hear(key, latest[key])
        else:
            ranges = {PARTITION: OffsetRange(self._next, stop)}
            for record in read_committed(self._connection, TOLD_TOPIC, ranges, timeout_s=_TIMEOUT_S):
                if record.problem is None:
                    self._hear(record.key or b"", record.value)
        self._next = stop

    def _hear(self, key: bytes, value: bytes | None) -> None:
        """Pass on what a record says; one that says nothing that can be is left out."""
        try:
            if key == _WEIGHTS_KEY:
                weights = Weights() if value is None else _ToldWeights.model_validate_json(value).weights
                self._in_loop(self._hearer.hear_weights, weights)
            elif key.startswith(_INTENT_KEY):
                load = key.removeprefix(_INTENT_KEY).decode()
                if value is None:
                    self._in_loop(self._hearer.hear_withdrawn, load)
                    return
                told = _ToldIntent.model_validate_json(value)
                age_s = max(0.0, self._wall_clock() - told.at_s)
                lifetime_s = told.intent.lifetime_s - age_s
                if told.by != self._name and told.intent.load == load and lifetime_s > 0:
                    self._in_loop(self._hearer.hear_intent, told.intent, lifetime_s)
        except (ValidationError, UnicodeDecodeError) as error:
            _log.info("topic %s: a record isn't one of ours (%s)", TOLD_TOPIC, type(error).__name__)

    def _in_loop(self, act: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None
        if not self._is_closed:
            self._loop.call_soon_threadsafe(act, *arguments)


def _succeed(written: Future[None]) -> None:
    if not written.done():  # whoever waited may have gone
        written.set_result(None)


def _fail(weighing: list[Future[None]], reason: str) -> None:
    for written in weighing:
        if not written.done():
            written.set_exception(OSError(0, reason))
