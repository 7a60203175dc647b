"""What a balance has changed in the cluster, written down before it is changed.

One record in the compacted topic `evenload.balance`: which reassignments and which throttle settings are
ours, and whose process makes them. Whatever dies, the next `evenload balance` reads it, and so knows what to
go on with and what to take off again, and never touches an operator's own throttle.

A record that was written and whose settings were never made is harmless: what isn't there isn't taken off.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from dataset_catalog.internal_topics import ensure_internal_topics, read_latest, write_plain
from kafka_connection import Connection
from kafka_plugin.errors import BalanceError, BalanceInProgressError
from router.move_plan import Move
from telemetry_collector.snapshot import TopicPartition

__all__ = ["BALANCE_TOPIC", "BalanceLog", "BalanceRecord", "Target", "ThrottleRecord"]

BALANCE_TOPIC = "evenload.balance"
_KEY = b"balance"


class Target(BaseModel):
    """A reassignment of ours: a partition, and the brokers that shall hold it."""

    model_config = ConfigDict(frozen=True)

    topic: str
    partition: int
    replica_ids: tuple[int, ...]

    @classmethod
    def of(cls, move: Move) -> Target:
        """Where a move goes."""
        topic, partition = move.topic_partition
        return cls(topic=topic, partition=partition, replica_ids=move.replica_ids)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class ThrottleRecord(BaseModel):
    """The settings that are ours, and no others.

    Attributes:
        rates: by broker id, the values of the settings that we made.
        replicas: by topic, by name of the setting, the entries (`partition:broker`) that we added to it.
    """

    model_config = ConfigDict(frozen=True)

    rates: Mapping[int, Mapping[str, str]] = {}
    replicas: Mapping[str, Mapping[str, Sequence[str]]] = {}


class BalanceRecord(BaseModel):
    """One balance at work, or what a dead one left."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    host: str
    pid: int
    updated_at_s: float
    targets: Sequence[Target] = ()
    throttle: ThrottleRecord | None = None

    @classmethod
    def begin(cls, left: BalanceRecord | None) -> BalanceRecord:
        """This process's own, with what a dead one left."""
        return cls(
            run_id=secrets.token_hex(8),
            host=socket.gethostname(),
            pid=os.getpid(),
            updated_at_s=time.time(),
            targets=left.targets if left is not None else (),
            throttle=left.throttle if left is not None else None,
        )

    def may_be_at_work(self, *, now_s: float, recent_s: float) -> bool:
        """False when it was silent for `recent_s` elsewhere, or its process on this host has ended.

        A date that is further ahead than `recent_s` counts as silence too: a dead host whose clock was wrong
        would hold up everybody else until then.
        """
        if self.host == socket.gethostname():
            return self.pid != os.getpid() and _is_running(self.pid)
        return abs(now_s - self.updated_at_s) <= recent_s


class BalanceLog:
    """The record in its topic. Holds no connection open.

    Every method raises CatalogUnavailableError when brokers don't answer.
    """

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    def read(self) -> BalanceRecord | None:
        """What stands there; None when nothing does.

        Raises:
            BalanceError: It can't be understood.
        """
        for key, value in read_latest(self._connection, BALANCE_TOPIC, timeout_s=self._timeout_s):
            if key == _KEY:
                try:
                    return BalanceRecord.model_validate_json(value)
                except ValidationError as error:
                    what = f"The record in topic {BALANCE_TOPIC!r} can't be understood"
                    raise BalanceError(f"{what}: a newer evenload may have written it.") from error
        return None

    def read_unless_at_work(self, recent_s: float) -> BalanceRecord | None:
        """What a dead balance left, if one did.

        Raises:
            BalanceInProgressError: its process is alive.
        """
        left = self.read()
        now_s = time.time()
        if left is not None and left.may_be_at_work(now_s=now_s, recent_s=recent_s):
            raise BalanceInProgressError(left.host, left.pid, max(0.0, now_s - left.updated_at_s))
        return left

    def write(self, record: BalanceRecord) -> BalanceRecord:
        """Puts it in place of what stands there, as of now."""
        ensure_internal_topics(self._connection, timeout_s=self._timeout_s, topics=(BALANCE_TOPIC,))
        dated = record.model_copy(update={"updated_at_s": time.time()})
        value = dated.model_dump_json().encode()
        write_plain(self._connection, BALANCE_TOPIC, [(_KEY, value)], timeout_s=self._timeout_s)
        return dated

    def clear(self) -> None:
        """Nothing is ours any more."""
        write_plain(self._connection, BALANCE_TOPIC, [(_KEY, None)], timeout_s=self._timeout_s)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
