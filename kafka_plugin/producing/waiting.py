"""Records of topics that can't be written yet: they wait here, in order, so that `produce` never does.

A topic is opened in the background by a few threads, which take turns at the topics that aren't open: one
that can't be opened for long holds up no other. When it is, its records are handed to the client, and whoever
produces meanwhile queues behind them; the topic counts as open in the moment when none is left, so records
keep their order. What can't be handed over is told by a delivery report, in whichever thread polls, as the
client tells it.

As many records wait as the client's own queue would take; one more is a `BufferError`, as there. A record
that waits longer than the client would keep it has failed; one that is handed over has as long once more.

Sizes are payload in bytes, times seconds of the monotonic clock. Read next: opening.py.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from evenload.kafka_plugin.producing.delivery_reports import DeliveryCallback, TopicReports
from evenload.kafka_plugin.producing.settings import QueueLimits
from evenload.kafka_plugin.producing.topic_turns import TopicTurns

_log = logging.getLogger(__name__)
_THREADS_MAX = 32
_AGAIN_S, _AGAIN_MAX_S = 0.05, 0.4  # from one look at a topic to the next; no broker tells when it is ready
_AT_ONCE = 256  # records that are handed over while others wait for the lock: about a millisecond
_JOIN_S = 5.0
_TEXT = (bytes, str, type(None))
_now_s = time.monotonic


class WaitingRecord(NamedTuple):
    """A record as `produce` was given it, and when."""

    value: str | bytes | None
    key: str | bytes | None
    partition: int
    callback: DeliveryCallback | None
    timestamp_ms: int
    headers: Any
    size_bytes: int
    came_at_s: float

    @property
    def sent_ms(self) -> int:
        """Its timestamp: when it was given to `produce`, unless that was told another."""
        return self.timestamp_ms or int((time.time() - (_now_s() - self.came_at_s)) * 1000)


class _Unopened:
    """A topic, its records, its turns once there are any, and how long to wait before the next look."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.records: deque[tuple[Any, ...]] = deque()  # as `WaitingRecord` says
        self.turns: TopicTurns | None = None
        self.wait_s = _AGAIN_S


class UnopenedTopics:
    """Keeps records until their topics are open. Any thread may call any method.

    Args:
        open_topics: The producer's topics that are open, to which others are added here.
        open_topic: Tries to open one: its turns; None: not yet. What it raises fails the records.
        send: Hands a record to the client; may raise what `produce` does.
        reports: Take what becomes of records that never reach the client.
        limits: How much may wait, and for how long.

    Attributes:
        num_waiting: Records that wait, or that have failed and weren't reported yet.
        has_failed: Whether some have, and `report` will say so.
        num_failed: How many have, so far.
        refusal: Why no record is taken at the moment; None: records are taken.
    """

    def __init__(
        self,
        open_topics: dict[str, TopicTurns],
        *,
        open_topic: Callable[[str], TopicTurns | None],
        send: Callable[[TopicTurns, str, WaitingRecord], None],
        reports: TopicReports,
        limits: QueueLimits,
    ) -> None:
        self._open_topics = open_topics
        self._open_topic = open_topic
        self._send = send
        self._reports = reports
        self._max_records, self._max_bytes, self._max_record_bytes, self._lifetime_s = limits
        self._lock = threading.Lock()  # guards all below; nothing that waits is done while it is held
        self._unopened: dict[str, _Unopened] = {}
        self._to_try: deque[_Unopened] = deque()
        self._failed: deque[tuple[str, WaitingRecord, KafkaError]] = deque()
        self._threads: set[threading.Thread] = set()
        self._num_bytes = 0
        self._is_closed = threading.Event()
        self.num_waiting = 0
        self.has_failed = False
        self.num_failed = 0
        self.refusal: KafkaError | None = None

    def hold(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        callback: DeliveryCallback | None,
        timestamp_ms: int,
        headers: Any,
    ) -> TopicTurns | None:
        """Have a record wait; or, if its topic is open by now, its turns.

        Raises:
            BufferError: As many wait as may.
            KafkaException: It is larger than a record may be, or none is taken at the moment.
            TypeError: It isn't what can be sent.
        """
        check_record(topic, value, key, partition, timestamp_ms)
        size_bytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size_bytes > self._max_record_bytes:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if headers:
            headers = _checked(headers)
        # Plain, as a named one takes longer than all the rest; `WaitingRecord` says what is what.
        record = (value, key, partition, callback, timestamp_ms, headers, size_bytes, _now_s())
        with self._lock:
            if (turns := self._open_topics.get(topic)) is not None:
                return turns
            if self.refusal is not None:
                raise KafkaException(self.refusal)
            if self._is_closed.is_set():
                raise RuntimeError("Handle has been closed")  # as the client says it
            num_bytes = self._num_bytes + size_bytes
            if self.num_waiting >= self._max_records or num_bytes > self._max_bytes:
                raise BufferError(KafkaError(KafkaError._QUEUE_FULL).str())
            unopened = self._unopened.get(topic)
            if unopened is None:
                self._start_thread(len(self._unopened) + 1)
                unopened = self._unopened[topic] = _Unopened(topic)
                self._to_try.append(unopened)
            unopened.records.append(record)
            self.num_waiting += 1
            self._num_bytes = num_bytes
        return None

    def report(self) -> int:
        """Call delivery callbacks of records that have failed. Returns of how many."""
        num_reported = 0
        while True:
            with self._lock:
                if not self._failed:
                    self.has_failed = False
                    return num_reported
                topic, record, error = self._failed.popleft()
                self.num_waiting -= 1
                self._num_bytes -= record.size_bytes
            num_reported += 1
            # The client makes these itself, of records that it has; of these it never heard.
            message = Message(
                topic=topic,
                partition=record.partition,
                key=_as_bytes(record.key),
                value=_as_bytes(record.value),
                headers=record.headers,
                error=error,
            )
            self._reports.reporter(record.callback, None)(error, message)

    def fail_all(self, error: KafkaError) -> None:
        """Whatever waits has failed by this; topics go on being opened."""
        with self._lock:
            for unopened in self._unopened.values():
                self._fail(unopened, len(unopened.records), error)

    def close(self) -> None:
        """Open nothing from now on; when it returns, no thread is left, but one that a broker keeps."""
        self._is_closed.set()
        with self._lock:
            threads = list(self._threads)
            num_given_up = sum(len(unopened.records) for unopened in self._unopened.values())
        if num_given_up:
            _log.error("%d records are given up, whose topics weren't open yet", num_given_up)
        gives_up_at_s = _now_s() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, gives_up_at_s - _now_s()))

    # In the threads.

    def _start_thread(self, num_unopened: int) -> None:
        if len(self._threads) < min(_THREADS_MAX, num_unopened):
            thread = threading.Thread(
                target=_open_on,
                args=(weakref.ref(self), self._is_closed),
                name="evenload-opening",
                daemon=True,
            )
            thread.start()
            self._threads.add(thread)

    def _open_next(self) -> float | None:
        """One try at the topic whose turn it is. Returns how long to wait then; None: there is none."""
        with self._lock:
            if not self._to_try or self._is_closed.is_set():
                self._threads.discard(threading.current_thread())
                return None
            unopened = self._to_try.popleft()
        if self._is_done(unopened):
            return 0.0
        with self._lock:
            self._to_try.append(unopened)
            wait_s, unopened.wait_s = unopened.wait_s, min(2 * unopened.wait_s, _AGAIN_MAX_S)
        return wait_s

    def _is_done(self, unopened: _Unopened) -> bool:
        """One try at a topic. Returns whether it needs no other."""
        self._fail_overdue(unopened)
        try:
            if unopened.turns is None:
                unopened.turns = self._open_topic(unopened.topic)
            return unopened.turns is not None and self._is_handed_over(unopened, unopened.turns)
        except Exception as error:  # noqa: BLE001 - told to whoever has produced; the next record begins anew
            with self._lock:
                self._fail(unopened, len(unopened.records), _as_kafka_error(error))
                del self._unopened[unopened.topic]
            return True

    def _is_handed_over(self, unopened: _Unopened, turns: TopicTurns) -> bool:
        """Hand over what the client takes. Returns whether that is all."""
        while True:
            with self._lock:
                for _ in range(min(_AT_ONCE, len(unopened.records))):
                    record = WaitingRecord(*unopened.records[0])
                    try:
                        self._send(turns, unopened.topic, record)
                    except BufferError:  # until somebody polls
                        return False
                    except Exception as error:  # noqa: BLE001 - of this record
                        self._fail(unopened, 1, _as_kafka_error(error))
                        continue
                    unopened.records.popleft()
                    self.num_waiting -= 1
                    self._num_bytes -= record.size_bytes
                if not unopened.records:
                    self._open_topics[unopened.topic] = turns
                    del self._unopened[unopened.topic]
                    return True

    def _fail_overdue(self, unopened: _Unopened) -> None:
        since_s = _now_s() - self._lifetime_s
        with self._lock:
            num_overdue = 0
            for record in unopened.records:
                if WaitingRecord(*record).came_at_s > since_s:
                    break
                num_overdue += 1
            self._fail(unopened, num_overdue, KafkaError(KafkaError._MSG_TIMED_OUT))

    def _fail(self, unopened: _Unopened, num_records: int, error: KafkaError) -> None:
        """The first so many have failed. With the lock held."""
        for _ in range(num_records):
            record = WaitingRecord(*unopened.records.popleft())
            self.num_failed += 1
            self._failed.append((unopened.topic, record, error))
            self.has_failed = True


def _open_on(topics: weakref.ref[UnopenedTopics], is_closed: threading.Event) -> None:
    """Try after try; a producer may be dropped without being closed."""
    while True:
        alive = topics()
        wait_s = alive._open_next() if alive is not None else None
        if wait_s is None:
            return
        del alive
        is_closed.wait(wait_s)


def check_record(topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any) -> None:
    """Refuse at once what the client would refuse at once.

    Raises:
        TypeError: One of them can't be sent.
    """
    if not isinstance(value, _TEXT) or not isinstance(key, _TEXT):
        raise TypeError(f"value and key are {type(value)} and {type(key)}; str, bytes or None can be sent")
    if type(topic) is not str or not isinstance(partition, int) or not isinstance(timestamp_ms, int):
        raise TypeError(
            f"topic, partition and timestamp are {type(topic)}, {type(partition)} and {type(timestamp_ms)}; "
            "they have to be str, int and int"
        )


def _checked(headers: Any) -> list[tuple[str, str | bytes | None]]:
    checked = list(headers.items() if isinstance(headers, Mapping) else headers)
    for header in checked:
        if len(header) != 2 or not isinstance(header[0], str) or not isinstance(header[1], _TEXT):
            raise TypeError("headers are names (str) with values that are str, bytes or None")
    return checked


def _as_kafka_error(error: BaseException) -> KafkaError:
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    code = KafkaError._INVALID_ARG if isinstance(error, (TypeError, ValueError)) else KafkaError._FAIL
    return KafkaError(code, str(error) or type(error).__name__)


def _as_bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
