"""What brokers hold, found where it can't be wrong: in their log folders.

A replica's bytes are those of its `*.log` files, as `DescribeLogDirs` counts them: what is stored, without
indexes. Folders of deleted topics (`*-delete`) are no longer held.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from evenload.telemetry_collector.snapshot import TopicPartition

_POLL_S = 0.02

BytesByBroker = dict[int, dict[TopicPartition, int]]


class ReplicasDifferError(Exception):
    """Copies of a partition didn't become alike in time, so what brokers hold isn't settled."""


def held_bytes(folders: Mapping[int, Path]) -> BytesByBroker:
    """By broker and topic-partition, the bytes of its log.

    Args:
        folders: The log dir of each broker.
    """
    return {broker_id: _held_in(folder) for broker_id, folder in folders.items()}


def settled_bytes(folders: Mapping[int, Path], timeout_s: float) -> BytesByBroker:
    """The same, once all copies of every partition are alike: followers may be a moment behind.

    Raises:
        ReplicasDifferError: They are not within `timeout_s` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        held = held_bytes(folders)
        sizes: dict[TopicPartition, set[int]] = {}
        for of_broker in held.values():
            for partition, size_bytes in of_broker.items():
                sizes.setdefault(partition, set()).add(size_bytes)
        differing = {str(p): sorted(found) for p, found in sizes.items() if len(found) > 1}
        if not differing:
            return held
        if time.monotonic() > deadline_s:
            raise ReplicasDifferError(f"after {timeout_s:.0f} s, copies still differ in bytes: {differing}")
        time.sleep(_POLL_S)


def wait_until_gone(folders: Mapping[int, Path], topic: str, timeout_s: float) -> None:
    """Wait until no broker holds files of a deleted topic, so that its bytes weigh on nothing that follows.

    Raises:
        TimeoutError: Some are left after `timeout_s` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    while left := [path for folder in folders.values() for path in folder.glob(f"{topic}-*")]:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"after {timeout_s:.0f} s, {len(left)} folders of topic {topic!r} are left")
        time.sleep(_POLL_S)


def _held_in(folder: Path) -> dict[TopicPartition, int]:
    held: dict[TopicPartition, int] = {}
    for path in folder.iterdir():
        topic, _, partition = path.name.rpartition("-")
        if topic and partition.isdecimal():
            held[TopicPartition(topic, int(partition))] = _log_bytes(path)
    return held


def _log_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.glob("*.log"))
    except FileNotFoundError:  # deleted while we looked
        return 0
