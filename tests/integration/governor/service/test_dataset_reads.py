"""A governor knows what runs read from real brokers, and sizes them by what these can give."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from evenload.governor.governing.engine import StintId
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Wish
from evenload.governor.governing.loop import Governing
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.service.dataset_reads import DatasetReads, ReadBudgets
from evenload.governor.testing import MemoryJournal, StillEngine
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset

NUM_SAMPLES, FLOATS = 4000, 64


@pytest.fixture
def governing() -> Iterator[Governing]:
    governing = Governing(MemoryJournal(), StillEngine(4), governing_policy, "elastic_fifo", look_s=0.05)
    governing.start()
    yield governing
    governing.close()


def test_a_run_has_as_many_workers_as_its_brokers_can_feed(
    connection: Connection, governing: Governing
) -> None:
    dataset = f"numbers-{uuid.uuid4().hex[:8]}"
    columns = {"x": np.random.default_rng(0).normal(size=(NUM_SAMPLES, FLOATS)).astype(np.float32)}
    manifest = load_dataset(columns, dataset, connection=connection, partitions=3)
    config = {"dataset": manifest.id, "hold_whole": False, "max_workers": 4}
    wish = Wish(job_id="run", kind="k", samples=1e6, asked_size=4, max_size=4, entry={"config": config})
    governing.ask(lambda governor, now_s: governor.submit(wish, now_s))

    def measured(governor: Governor, now_s: float) -> None:
        kind = governor.kind_of(governor.job("run"))
        for size in range(1, 5):
            kind = kind.with_speed(size, StintId("run", size), 100.0 * size)
        governor._put_kind(governor.job("run"), kind)
        governor._decide_soon(now_s)

    governing.ask(measured)
    wanted(governing, 4)
    # All that two workers read, spread over brokers as the partitions' leaders are.
    bytes_per_sample = manifest.num_bytes / manifest.num_samples
    reads = DatasetReads(connection, governing, ReadBudgets(200.0 * bytes_per_sample, {}))
    reads.look()
    by_broker = governing.ask(lambda governor, now_s: governor.view(governor.job("run"), now_s)).reads
    assert sum(by_broker.values()) == pytest.approx(bytes_per_sample)
    most = max(by_broker.values())
    DatasetReads(connection, governing, ReadBudgets(200.0 * most, {})).look()
    wanted(governing, 2)
    note = governing.ask(lambda governor, _: governor.notes["run"])
    assert "can't give it more data" in note


def wanted(governing: Governing, size: int) -> None:
    """Waits until that is decided."""
    while governing.ask(lambda governor, _: governor.job("run").wanted) != size:
        time.sleep(0.05)
