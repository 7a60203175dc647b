"""How large a record of a packed dataset is: the block that training fetches and shuffles as a whole.

About 256 KiB, where Kafka is fast and a shuffle is fine. Small datasets have smaller blocks (a thousandth,
at least 16 KiB), so that they spread over brokers too; huge ones larger blocks (at most 4 MiB), so that
there are about a million of them to plan.
"""

from __future__ import annotations

from evenload.dataset_catalog.extents import SAMPLES_PER_RECORD_MAX

KIB, MIB = 1 << 10, 1 << 20
_USUAL = 256 * KIB
_SMALLEST = 16 * KIB
_LARGEST = 4 * MIB
_MANY_BLOCKS = 1_000_000


def choose_block_bytes(dataset_bytes: int) -> int:
    """Payload to aim at for a record, in bytes.

    Args:
        dataset_bytes: Payload of the whole dataset, 0 or more.
    """
    if dataset_bytes < 256 * MIB:
        return max(_SMALLEST, dataset_bytes // 1000)
    return min(_LARGEST, max(_USUAL, dataset_bytes // _MANY_BLOCKS))


def choose_samples_per_record(dataset_bytes: int, num_samples: int, block_bytes: int | None = None) -> int:
    """How many samples to put into a record, at least 1; at most as many as a reader believes.

    Args:
        dataset_bytes: Payload of the whole dataset.
        num_samples: At least 1.
        block_bytes: What to aim at; None: `choose_block_bytes`.
    """
    aim = block_bytes if block_bytes is not None else choose_block_bytes(dataset_bytes)
    return max(1, min(SAMPLES_PER_RECORD_MAX, round(aim * num_samples / max(1, dataset_bytes))))


def choose_num_partitions(dataset_bytes: int, num_brokers: int) -> int:
    """How many partitions a new topic gets: a few for each broker, more for large datasets."""
    per_broker = 2 if dataset_bytes < 1 << 30 else 4 if dataset_bytes < 64 << 30 else 8
    return per_broker * max(1, num_brokers)
