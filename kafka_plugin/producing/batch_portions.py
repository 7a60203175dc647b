"""A batch of records cut into portions, so that a partition is chosen once for many of them.

confluent-kafka's `produce_batch` takes one partition for the whole batch. What its messages say of theirs,
and their headers, 2.16 silently ignores, and it refuses timestamps. So records that follow each other and go
to the same place make a portion; one with headers or a timestamp is a portion of its own, sent by `produce`.

Read next: producer.py, which sends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

UNASSIGNED = -1  # RD_KAFKA_PARTITION_UA
REFUSED = "_error"  # what the client puts into a message that it does not take


class Destination(NamedTuple):
    """What records need in common to be in one portion.

    Attributes:
        partition: Where they want to go; UNASSIGNED: each where its key says; None: anywhere.
        has_callbacks: Whether each has a callback of its own.
        is_single: Whether this is one that only `produce` can send.
    """

    partition: int | None
    has_callbacks: bool = False
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class Portion:
    """Records of a batch, one after the other, that go to one place.

    Attributes:
        messages: The records, as the caller gave them; at least one.
        destination: Where to.
        size_bytes: Of their values and keys.
    """

    messages: list[dict[str, Any]]
    destination: Destination
    size_bytes: int


def portions_of(
    messages: list[dict[str, Any]], *, partition: int, spread_keys: bool, portion_bytes: int
) -> Iterator[Portion]:
    """Cut a batch into portions, in its order.

    Args:
        messages: As `produce_batch` takes them.
        partition: Of those that don't say; UNASSIGNED: anywhere, or where their keys say.
        spread_keys: Whether records with keys may go anywhere.
        portion_bytes: A portion ends with the record that makes it so large.
    """
    first, size_bytes = 0, 0
    of_plain = Destination(None if partition == UNASSIGNED else partition)
    here = of_plain
    for number, message in enumerate(messages):
        value = message.get("value")
        if len(message) == 1 and value is not None:  # most are such, and this is done for each
            there, its_bytes = of_plain, len(value)
        else:
            there = _destination(message, partition, spread_keys=spread_keys)
            its_bytes = size_of(message)
        fits = there is here or (there == here and not here.is_single)
        if not fits or size_bytes >= portion_bytes:
            if number > first:
                yield Portion(messages[first:number], here, size_bytes)
            first, size_bytes, here = number, 0, there
        size_bytes += its_bytes
    if first < len(messages):
        yield Portion(messages[first:], here, size_bytes)


def size_of(message: dict[str, Any]) -> int:
    """Bytes of a record's value and key."""
    return len(message.get("value") or b"") + len(message.get("key") or b"")


def _destination(message: dict[str, Any], partition: int, *, spread_keys: bool) -> Destination:
    message.pop(REFUSED, None)  # of an earlier try
    wanted = message.get("partition")
    if wanted is None:
        wanted = partition
    is_free = wanted == UNASSIGNED and (spread_keys or message.get("key") is None)
    return Destination(
        partition=None if is_free else wanted,
        has_callbacks=message.get("callback") is not None,
        is_single=bool(message.get("headers")) or message.get("timestamp") is not None,  # 0 (now) too
    )
