"""Which partition a record with a key belongs to, by the rule of Java's producer."""

from __future__ import annotations

from kafka.partitioner import murmur2

__all__ = ["java_partition"]


def java_partition(key: bytes, num_partitions: int) -> int:
    """The partition that Java's producer gives a key (BuiltInPartitioner.partitionForKey)."""
    return int((murmur2(key) & 0x7FFFFFFF) % num_partitions)
