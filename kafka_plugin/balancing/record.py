"""What a balance has changed in the cluster, written down before it is changed.

One record: which reassignments and which throttle settings are ours, and whose process makes them. After any
death, the next `evenload balance` reads it. So it knows what to go on with and what to take off again, and
never touches an operator's own throttle. If a process dies after it wrote the record and before it changed
anything, nothing is lost: settings that aren't there aren't taken off.

Whoever may write to the topic may write anything there, so `decode_record` takes nothing but what a balance
writes: bounded in size, nesting and numbers, and with no settings but those of throttles.

Read next: log.py, which keeps the record in its topic.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from evenload.dataset_catalog.process_identity import is_running, this_process
from evenload.kafka_plugin.errors import UnreadableBalanceError
from evenload.router.moves.plan import Move
from evenload.telemetry_collector.snapshot import TopicPartition

__all__ = ["BalanceRecord", "Target", "ThrottleRecord", "decode_record"]

_RECORD_MAX_BYTES = 4 << 20  # 10,000 moves under way take less than 2 MiB

_Int32 = Annotated[int, Field(ge=0, lt=1 << 31)]
_Topic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
_Rate = Annotated[str, StringConstraints(pattern=r"^(leader|follower)\.replication\.throttled\.rate$")]
_List = Annotated[str, StringConstraints(pattern=r"^(leader|follower)\.replication\.throttled\.replicas$")]
_BytesPerS = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,19}$")]
_Entry = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}:[0-9]{1,10}$")]  # `partition:broker`
# It is shown to people, so nothing that a terminal would obey.
_Host = Annotated[str, StringConstraints(pattern=r"^[ -~]{0,255}$")]

_STRICT = ConfigDict(frozen=True, allow_inf_nan=False)


class Target(BaseModel):
    """A reassignment of ours: a partition, and the brokers that shall hold it."""

    model_config = _STRICT

    topic: _Topic
    partition: _Int32
    replica_ids: tuple[_Int32, ...]

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

    model_config = _STRICT

    rates: Mapping[_Int32, Mapping[_Rate, _BytesPerS]] = {}
    replicas: Mapping[_Topic, Mapping[_List, Sequence[_Entry]]] = {}

    def joined_with(self, other: ThrottleRecord) -> ThrottleRecord:
        """These settings and those; where both have a rate, that one is set last."""
        return ThrottleRecord(
            rates={
                broker_id: {**self.rates.get(broker_id, {}), **other.rates.get(broker_id, {})}
                for broker_id in {*self.rates, *other.rates}
            },
            replicas={
                topic: {
                    name: sorted({*mine.get(name, ()), *theirs.get(name, ())}) for name in {*mine, *theirs}
                }
                for topic in {*self.replicas, *other.replicas}
                for mine, theirs in [(self.replicas.get(topic, {}), other.replicas.get(topic, {}))]
            },
        )

    def divided(self, topic_partitions: Collection[TopicPartition]) -> tuple[ThrottleRecord, ThrottleRecord]:
        """The entries of these partitions, without rates, and all the rest."""
        done, rest = {}, {}
        for topic, lists in self.replicas.items():
            of_done = {
                name: [entry for entry in entries if _partition_of(topic, entry) in topic_partitions]
                for name, entries in lists.items()
            }
            of_rest = {
                name: [entry for entry in entries if entry not in of_done[name]]
                for name, entries in lists.items()
            }
            done[topic] = {name: entries for name, entries in of_done.items() if entries}
            rest[topic] = {name: entries for name, entries in of_rest.items() if entries}
        return (
            ThrottleRecord(replicas={topic: lists for topic, lists in done.items() if lists}),
            ThrottleRecord(
                rates=self.rates, replicas={topic: lists for topic, lists in rest.items() if lists}
            ),
        )


class BalanceRecord(BaseModel):
    """One balance at work, or what a dead one left.

    Attributes:
        run_id: of the balance, and of no other.
        host, pid: where it runs, for people to read.
        process: which process that is, as dataset_catalog/process_identity.py says it.
        updated_at_s: when it was written, in seconds since 1970.
        targets: what is being moved in its name.
        throttle: settings that it may have made.
    """

    model_config = _STRICT

    run_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-z-]{1,64}$")]
    host: _Host
    pid: Annotated[int, Field(ge=0, lt=1 << 63)]
    process: Annotated[str, StringConstraints(max_length=128)] = ""
    updated_at_s: Annotated[float, Field(ge=0, lt=1e12)]  # a longer number would fill a screen
    targets: Sequence[Target] = ()
    throttle: ThrottleRecord | None = None

    @classmethod
    def begin(cls, left: BalanceRecord | None) -> BalanceRecord:
        """This process's own, with what a dead one left."""
        return cls(
            run_id=secrets.token_hex(8),
            host=_printable(socket.gethostname()),
            pid=os.getpid(),
            process=this_process(),
            updated_at_s=time.time(),
            targets=left.targets if left is not None else (),
            throttle=left.throttle if left is not None else None,
        )

    @property
    def is_known_dead(self) -> bool:
        """Whether its process has surely ended, or is this one, which begins anew."""
        return is_running(self.process) is False or self._is_of_this_process

    def may_be_at_work(self, *, now_s: float, recent_s: float) -> bool:
        """False when its process has ended, or nobody knows and it was silent for `recent_s`.

        A date that is further ahead than `recent_s` counts as silence too: a dead host whose clock was wrong
        would hold up everybody else until then.
        """
        if self.is_known_dead:
            return False
        return is_running(self.process) is True or abs(now_s - self.updated_at_s) <= recent_s

    def without(self, other: BalanceRecord | None) -> BalanceRecord:
        """What is in this one's name, and not in the other's too."""
        if other is None:
            return self
        theirs = other.throttle or ThrottleRecord()
        mine = self.throttle or ThrottleRecord()
        rates = {
            broker_id: {
                name: rate for name, rate in rates.items() if name not in theirs.rates.get(broker_id, ())
            }
            for broker_id, rates in mine.rates.items()
        }
        replicas = {
            topic: {
                name: left
                for name, entries in lists.items()
                if (left := sorted(set(entries) - set(theirs.replicas.get(topic, {}).get(name, ()))))
            }
            for topic, lists in mine.replicas.items()
        }
        return self.model_copy(
            update={
                "targets": tuple(target for target in self.targets if target not in other.targets),
                "throttle": ThrottleRecord(rates=rates, replicas=replicas),
            }
        )

    @property
    def _is_of_this_process(self) -> bool:
        return bool(self.process) and self.process == this_process()


def decode_record(value: bytes) -> BalanceRecord:
    """Reads a record, whoever wrote it.

    Raises:
        UnreadableBalanceError: It isn't one of a balance.
    """
    if len(value) > _RECORD_MAX_BYTES:
        raise UnreadableBalanceError(len(value), f"the most that a balance writes is {_RECORD_MAX_BYTES}")
    try:
        # pydantic's own parser has bounds for nesting and for digits, which json.loads has not.
        return BalanceRecord.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(str(each)[:40] for each in first["loc"][:4])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise UnreadableBalanceError(len(value), _printable(reason)) from error


def _partition_of(topic: str, entry: str) -> TopicPartition:
    return TopicPartition(topic, int(entry.partition(":")[0]))


def _printable(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text[:200])
