"""Blocks are about 256 KiB, smaller for small datasets, larger for huge ones."""

from __future__ import annotations

import pytest

from evenload.kafka_plugin.loading.block_size import (
    choose_block_bytes,
    choose_num_partitions,
    choose_samples_per_record,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("dataset_bytes", "block_bytes"),
    [
        (0, 16 * KIB),
        (400 * KIB, 16 * KIB),
        (50 * MIB, 50 * MIB // 1000),
        (256 * MIB, 256 * KIB),
        (100 * GIB, 256 * KIB),
        (1000 * GIB, 1000 * GIB // 1_000_000),
        (100_000 * GIB, 4 * MIB),
    ],
)
def test_the_block_follows_the_size_of_the_dataset(dataset_bytes: int, block_bytes: int) -> None:
    assert choose_block_bytes(dataset_bytes) == block_bytes


def test_a_record_holds_as_many_samples_as_fill_a_block() -> None:
    assert choose_samples_per_record(600 * MIB, 200_000) == round(256 * KIB * 200_000 / (600 * MIB))
    assert choose_samples_per_record(100 * MIB, 10) == 1
    assert choose_samples_per_record(0, 10) >= 10
    assert choose_samples_per_record(1000, 100, block_bytes=50) == 5


def test_there_are_a_few_partitions_for_each_broker() -> None:
    assert choose_num_partitions(MIB, 3) == 6
    assert choose_num_partitions(GIB, 3) == 12
    assert choose_num_partitions(1000 * GIB, 0) == 8
