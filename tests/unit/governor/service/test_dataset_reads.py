"""What runs read from brokers, as it is reckoned; asking real brokers is in tests/integration/governor."""

from __future__ import annotations

from typing import Any

import click
import pytest

from evenload.cli.governor import BudgetType, _budgets
from evenload.dataset_catalog.extents import Extent, PartitionExtents
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.governor.service.dataset_reads import ReadBudgets, reads_of


def manifest_of(samples_by_partition: dict[int, int], bytes_per_sample: int) -> DatasetManifest:
    """So many samples in each partition, as far as is looked at."""
    num_samples = sum(samples_by_partition.values())
    partitions = tuple(
        PartitionExtents(partition, [Extent(0, number, 1)])
        for partition, number in samples_by_partition.items()
    )
    fields: dict[str, Any] = {
        "name": "d",
        "encoding": "packed",
        "samples_per_record": 1,
        "num_samples": num_samples,
        "num_records": num_samples,
        "num_bytes": num_samples * bytes_per_sample,
        "partitions": partitions,
    }
    return DatasetManifest.model_construct(**fields)


def test_a_run_reads_of_each_broker_what_it_leads() -> None:
    manifest = manifest_of({0: 100, 1: 300, 2: 600}, 1000)
    reads = reads_of(manifest, {0: 1, 1: 1, 2: 2}, {"hold_whole": False})
    assert reads == pytest.approx({1: 400.0, 2: 600.0})
    assert reads_of(manifest, {0: -1, 2: 2}, {"hold_whole": False}) == pytest.approx({2: 600.0})


def test_what_is_held_whole_is_read_once_and_counts_as_nothing() -> None:
    manifest = manifest_of({0: 10}, 1000)
    assert reads_of(manifest, {0: 1}, {"hold_whole": True}) == {}
    assert reads_of(manifest, {0: 1}, {}) == {}  # as small as it is


def test_budgets_are_of_each_broker_or_of_one() -> None:
    assert not ReadBudgets(None, {}).are_set
    assert ReadBudgets(None, {3: 5.0}).of({1, 3}) == {3: 5.0}
    assert ReadBudgets(7.0, {3: 5.0}).of({1}) == {1: 7.0, 3: 5.0}


@pytest.mark.parametrize(
    ("given", "budgets"),
    [
        ((), (None, {})),
        (("200MiB", "3=80MiB/s"), (200 * 1024**2, {3: 80 * 1024**2})),
    ],
)
def test_budgets_are_said_by_broker_or_for_each(given: tuple[str, ...], budgets: Any) -> None:
    assert _budgets(tuple(BudgetType().convert(each, None, None) for each in given)) == budgets


@pytest.mark.parametrize("given", ["x=1MiB", "1=", "0", "1=many"])
def test_what_is_no_budget_is_refused(given: str) -> None:
    with pytest.raises(click.UsageError):
        BudgetType().convert(given, None, None)


def test_two_budgets_of_a_broker_are_refused() -> None:
    with pytest.raises(click.UsageError, match="named twice"):
        _budgets(((1, 5), (1, 6)))
