"""The record of a balance in its topic, which only one process at a time may write.

The topic `evenload.balance` is compacted and holds one record. The writer holds the transactional id of the
same name. Taking that id fences the previous holder, whose writes Kafka then refuses. So of all balances only
the one at work can write, and no earlier one overwrites its record.

Kafka can't fence the requests that change settings and reassignments. So they are tied to writing:

    take id --> read record --> write own --> [wait until a live predecessor has noticed] --> change things
                                                                                              |
         `changing()` before each request: the last write is at most LEASE_S old, or the record is written
         again; where that is refused, nothing is sent any more

A predecessor thus sends nothing later than LEASE_S after it was fenced, whatever it was about to do, and who
takes over from one that may be alive waits for as long, and for a request on its way, before it looks at
what there is. All that the predecessor may have changed is in the record by then. Only one that is suspended
between its look and its request can still be late; it notices when it wakes (`is_late`), and takes back
what nobody else has taken over (balance.py). Decision 0074 says what was weighed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenload.dataset_catalog.logs.internal_topics import (
    PARTITION,
    ensure_internal_topics,
    latest_records,
    wait_for_stable_end,
)
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.balancing.record import BalanceRecord, decode_record
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import (
    BalanceCancelledError,
    BalanceInProgressError,
    BalanceInterruptedError,
    BalanceRefusedError,
    LoadError,
    MarkerRefusedError,
    TransactionFailedError,
    UnreadableBalanceError,
    WriteNotAllowedError,
)
from evenload.kafka_plugin.transactional_writer import ProducerFencedError, TransactionalWriter

__all__ = ["BALANCE_TOPIC", "TRANSACTIONAL_ID", "BalanceLog"]

BALANCE_TOPIC = "evenload.balance"
TRANSACTIONAL_ID = "evenload.balance"
LEASE_S = 2.0
# By then, a request that was sent within the lease is answered or given up (admin.py: 5 s).
NOTICE_S = LEASE_S + 8.0
_KEY = b"balance"
_TRANSACTION_TIMEOUT_S = 10.0
_SUCCESSOR_S = 10.0  # within which one that has taken the id writes its record
_POLL_S = 0.2
_WRITING = f"writing to topic {BALANCE_TOPIC!r}"

# Balances that run in threads of this process: the process alone doesn't tell one from another.
_at_work_here: set[str] = set()


class BalanceLog:
    """The record. For one thread; `close` lets the id go, if it was taken.

    Every method raises CatalogError when the topic can't be read, and BalanceInterruptedError or
    BalanceRefusedError when it can't be written.

    Args:
        connection: The cluster.
        timeout_s: How long brokers may take, in seconds.

    Attributes:
        is_late: Whether a change was sent when it was too old a look that allowed it, and no write since
            has shown that it was right.
    """

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._writer = TransactionalWriter(
            connection,
            TRANSACTIONAL_ID,
            "packed",
            LoaderConfig(transaction_timeout_s=_TRANSACTION_TIMEOUT_S),
            log_topic=BALANCE_TOPIC,
        )
        self._own: BalanceRecord | None = None
        # What may be read, beside our own record, while the id is ours: what stood there when we took it.
        self._may_stand: list[BalanceRecord | None] = []
        self._written_s = 0.0
        self.is_late = False

    def close(self) -> None:
        """Ends what was opened."""
        self._writer.close()
        if self._own is not None:
            _at_work_here.discard(self._own.run_id)

    # -- reading, which anybody may ---------------------------------------------------------------------

    def read(self) -> BalanceRecord | None:
        """What stands there; None when nothing does.

        Raises:
            UnreadableBalanceError: It isn't one of a balance.
        """
        latest = latest_records(
            self._connection, BALANCE_TOPIC, timeout_s=self._timeout_s, wanted=lambda key: key == _KEY
        )
        return decode_record(latest[_KEY]) if _KEY in latest else None

    def read_unless_at_work(self, recent_s: float) -> BalanceRecord | None:
        """What a dead balance left, if one did.

        Raises:
            BalanceInProgressError: Its process is alive, as far as can be told.
            UnreadableBalanceError: As `read`.
        """
        left = self.read()
        now_s = time.time()
        if left is not None and (
            left.run_id in _at_work_here or left.may_be_at_work(now_s=now_s, recent_s=recent_s)
        ):
            raise _in_progress(left)
        return left

    # -- writing, which only who holds the id may ---------------------------------------------------------

    def take(self, recent_s: float, *, from_the_living: bool = False) -> BalanceRecord:
        """Takes the id, and writes a record of one's own, with all that the predecessor may have changed.

        Args:
            recent_s: How long one of which nobody knows whether it lives may be silent, in seconds.
            from_the_living: Take it also from one that is at work.

        Returns:
            The record as it was written.

        Raises:
            BalanceInProgressError: Somebody is at work, or has begun in this very moment.
            UnreadableBalanceError: As `read`.
        """
        ensure_internal_topics(self._connection, timeout_s=self._timeout_s, topics=(BALANCE_TOPIC,))
        _ = self.read() if from_the_living else self.read_unless_at_work(recent_s)
        self._open()
        left = self._read_all()  # nobody else writes any more
        self._own = BalanceRecord.begin(left)
        _at_work_here.add(self._own.run_id)
        self._may_stand = [left]
        is_dead = left is not None and left.is_known_dead and left.run_id not in _at_work_here
        try:
            record = self.write(self._own)
        except BalanceCancelledError as error:
            standing = self.read()
            raise (error if standing is None else _in_progress(standing)) from error
        if left is not None and not is_dead and (left.targets or left.throttle is not None):
            time.sleep(NOTICE_S)
        return record

    def forget(self) -> None:
        """Takes the id, and clears what stands there and can't be understood."""
        ensure_internal_topics(self._connection, timeout_s=self._timeout_s, topics=(BALANCE_TOPIC,))
        self._open()
        self._may_stand = [None]
        self._commit(None)

    def write(self, record: BalanceRecord) -> BalanceRecord:
        """Puts it in place of what stands there, as of now.

        Raises:
            BalanceCancelledError: Somebody else has taken over; nothing is to be changed any more.
        """
        dated = record.model_copy(update={"updated_at_s": time.time()})
        self._commit(dated.model_dump_json().encode())
        self._own, self._may_stand = dated, []
        return dated

    def clear(self) -> None:
        """Nothing is ours any more.

        Raises:
            BalanceCancelledError: As `write`.
        """
        self._may_stand.append(None)
        self._commit(None)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around each request that changes the cluster: it is ours to change at that time.

        Raises:
            BalanceCancelledError: As `write`.
        """
        assert self._own is not None, "take() comes first"
        if _now_s() - self._written_s > LEASE_S:
            self.write(self._own)
        try:
            yield
        finally:
            self.is_late = self.is_late or _now_s() - self._written_s > NOTICE_S

    def _commit(self, value: bytes | None) -> None:
        """One transaction, again while what is in its way may pass."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            begun_s = _now_s()
            try:
                self._writer.begin()
                self._writer.write(BALANCE_TOPIC, value, partition=PARTITION, num_samples=0, key=_KEY)
                self._writer.commit(num_bytes=len(value or b""))
            except (ProducerFencedError, TransactionFailedError) as error:
                is_late = time.monotonic() > deadline_s
                # First who has it: one that was suspended here is late, and fenced all the same.
                self._take_anew(patience_s=_SUCCESSOR_S if isinstance(error, ProducerFencedError) else 0)
                if is_late:
                    raise BalanceInterruptedError("writing down what is moved", str(error)) from error
            except LoadError as error:
                raise _refused(error) from error
            else:
                self._written_s, self.is_late = begun_s, False
                return

    def _take_anew(self, *, patience_s: float) -> None:
        """After a write that failed, unless somebody else has written since.

        Brokers end the transaction of a process that was suspended in it as they end that of one that was
        fenced, so that a successor is told by its record, which it writes at once.
        """
        deadline_s = time.monotonic() + patience_s
        self._check_not_taken_over(self.read)
        while time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self._check_not_taken_over(self.read)
        self._open()
        self._check_not_taken_over(self._read_all)

    def _check_not_taken_over(self, read: Callable[[], BalanceRecord | None]) -> None:
        try:
            standing = read()
        except UnreadableBalanceError:
            return  # no balance has written that
        is_own = standing is not None and self._own is not None and standing.run_id == self._own.run_id
        # Not just the run of a predecessor: it may have held the id once more, and written what it changes.
        if not is_own and standing not in self._may_stand:
            self._written_s = -math.inf  # what is left of the lease is not used any more
            raise BalanceCancelledError(len(self._own.targets) if self._own is not None else 0)

    def _open(self) -> None:
        try:
            self._writer.open(None, self._timeout_s)
        except TransactionFailedError as error:
            raise BalanceInterruptedError("beginning", str(error)) from error
        except LoadError as error:
            raise _refused(error) from error

    def _read_all(self) -> BalanceRecord | None:
        """What stands there, with what was committed in this very moment."""
        wait_for_stable_end(
            self._connection, BALANCE_TOPIC, timeout_s=self._timeout_s, wait_s=self._timeout_s
        )
        return self.read()


def _in_progress(standing: BalanceRecord) -> BalanceInProgressError:
    silent_s = max(0.0, time.time() - standing.updated_at_s)
    return BalanceInProgressError(standing.host, standing.pid, silent_s)


def _refused(error: LoadError) -> BalanceRefusedError | BalanceInterruptedError:
    needed = error.permission if isinstance(error, WriteNotAllowedError) else ""
    needed = error.reason if isinstance(error, MarkerRefusedError) else needed
    if needed.startswith("it needs "):
        return BalanceRefusedError(_WRITING, "it is not allowed", needed.removeprefix("it needs "))
    return BalanceInterruptedError(_WRITING, str(error))


def _now_s() -> float:
    """Seconds that pass also while the machine sleeps, where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.time()
