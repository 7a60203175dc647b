"""Loaders are killed with -9, taken over and fenced; the dataset is complete, once, or not there at all."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.catalog import LOADS_TOPIC, Catalog
from evenload.dataset_catalog.errors import LoadInProgressError, UnknownDatasetError
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster

NUM_SAMPLES = 12_000

# A loader as a process of its own: says when it begins and how far it is, one line each.
LOADER = """
import json, os, signal, sys, time
import numpy as np
from evenload.dataset_catalog.catalog import Catalog
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from tests_source import make_source

connection, name, options, pause_s, die_before, timeout_s = json.loads(sys.argv[1])

def tell(done, total, size):
    print(done, flush=True)
    time.sleep(pause_s)

if die_before:
    setattr(Catalog, die_before, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
print("begin", flush=True)
config = LoaderConfig(transaction_bytes=4_000, block_bytes=1_000, transaction_timeout_s=timeout_s)
manifest = load_dataset(
    make_source(), name, connection=Connection(**connection), config=config, progress=tell, **options
)
print("complete", flush=True)
"""
SOURCE = f"""
import numpy as np

def make_source():
    return {{"n": np.arange({NUM_SAMPLES}), "text": [f"sample {{n}}" for n in range({NUM_SAMPLES})]}}
"""
# Dies with a record in the topic of loads that is neither committed nor aborted.
DEAD_LOADER = """
import json, os, signal, sys
from evenload.dataset_catalog.catalog import LOADS_TOPIC
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer

connection, transactional_id = json.loads(sys.argv[1])
producer = confluent_producer(
    Connection(**connection),
    transactional_id=transactional_id,
    transaction_timeout_ms=2500,
    message_timeout_ms=2500,
)
producer.init_transactions(30)
producer.begin_transaction()
producer.produce(LOADS_TOPIC, b"{}", b"dead@1/0", partition=0)
assert producer.flush(60) == 0
print("open", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

StartLoader = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def loads_cluster() -> Iterator[LocalCluster]:
    """A cluster that ends the transactions of the dead within a second of their timeout."""
    from evenload.local_cluster import temporary_cluster

    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with temporary_cluster(num_brokers=3, broker_properties=properties) as cluster:
        yield cluster


@pytest.fixture
def loads_connection(loads_cluster: LocalCluster) -> Connection:
    return loads_cluster.connection


@pytest.fixture
def start_loader(loads_connection: Connection, tmp_path: Path) -> Iterator[StartLoader]:
    """Starts loaders in processes of their own, and leaves none."""
    (tmp_path / "tests_source.py").write_text(SOURCE)
    started: list[subprocess.Popen[str]] = []

    def start(
        name: str, *, pause_s: float = 0.0, die_before: str = "", timeout_s: float = 30, **options: Any
    ) -> subprocess.Popen[str]:
        arguments = json.dumps(
            [loads_connection.model_dump(mode="json"), name, options, pause_s, die_before, timeout_s]
        )
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER, arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen[str], is_it: Callable[[str], bool]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if is_it(line.strip()):
            return line.strip()
    pytest.fail(f"the loader ended: {process.communicate()[1][-2000:]}")


def leave_open_transaction(connection: Connection) -> None:
    arguments = json.dumps([connection.model_dump(mode="json"), "evenload.load.dead"])
    told = subprocess.run(
        [sys.executable, "-c", DEAD_LOADER, arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert told.stdout.strip() == "open", told.stderr
    assert told.returncode == -signal.SIGKILL


def source() -> dict[str, Any]:
    return {"n": np.arange(NUM_SAMPLES), "text": [f"sample {n}" for n in range(NUM_SAMPLES)]}


@pytest.mark.parametrize("num_deaths", [4, pytest.param(20, marks=pytest.mark.torture)])
def test_a_loader_killed_many_times_beside_a_dead_one_loads_each_sample_once(
    loads_connection: Connection, start_loader: StartLoader, num_deaths: int
) -> None:
    rng = random.Random(20)
    catalog = Catalog(loads_connection)
    name = f"killed-{num_deaths}-times"
    visible = load_dataset({"x": [1, 2, 3]}, f"beside-{name}", connection=loads_connection)
    before = catalog.list()
    committed: list[int] = []
    num_kills = 0
    while num_kills < num_deaths:
        if num_kills % 7 == 0:
            leave_open_transaction(loads_connection)
        process = start_loader(name, pause_s=0.01)
        wait_for_line(process, lambda line: line == "begin")
        # Most of them while samples are being written, some before; a transaction takes about four groups.
        for _ in range(rng.randrange(16) if rng.random() < 0.8 else 0):
            wait_for_line(process, lambda line: line.isdecimal())
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        num_kills += 1
        assert catalog.list() == before
        with pytest.raises(UnknownDatasetError):
            catalog.get(name)
        begun = [load.last.num_samples for load in catalog.unfinished() if load.last.name == name]
        committed.append(max(begun, default=0))
    assert committed == sorted(committed)
    assert len(set(committed)) > num_deaths / 4  # they died in different places
    assert committed[-1] < NUM_SAMPLES

    process = start_loader(name)
    out, problem = process.communicate(timeout=240)
    assert process.returncode == 0, problem
    assert out.strip().endswith("complete")
    manifest = catalog.get(name)
    report = verify(loads_connection, manifest)
    assert report.is_clean, report
    assert manifest.num_samples == NUM_SAMPLES
    assert verify(loads_connection, visible).is_clean
    assert not [load for load in catalog.unfinished() if load.last.name == name]


@pytest.mark.parametrize("die_before", ["publish", "forget_progress"])
def test_a_loader_killed_around_the_manifest_leaves_a_whole_dataset_to_publish(
    loads_connection: Connection, start_loader: StartLoader, die_before: str
) -> None:
    name = f"killed-at-the-end-{die_before.replace('_', '-')}"
    catalog = Catalog(loads_connection)
    process = start_loader(name, die_before=die_before)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    if die_before == "publish":
        with pytest.raises(UnknownDatasetError):
            catalog.get(name)
        (load,) = [load for load in catalog.unfinished() if load.last.name == name]
        assert load.last.is_complete
        manifest = load_dataset(source(), name, connection=loads_connection)
        assert manifest.load_id == load.last.load_id
    manifest = catalog.get(name)
    assert manifest.num_samples == NUM_SAMPLES
    assert verify(loads_connection, manifest).is_clean
    assert not [load for load in catalog.unfinished() if load.last.name == name]
    assert catalog.drop(name) == [f"{name}@1"]


def test_a_second_loader_refuses_and_one_that_takes_over_stops_the_first(
    loads_connection: Connection, start_loader: StartLoader
) -> None:
    name = "taken-over"
    catalog = Catalog(loads_connection)
    first = start_loader(name, pause_s=0.05)
    wait_for_line(first, lambda line: line.isdecimal() and int(line) > 500)
    with pytest.raises(LoadInProgressError, match=rf"process {first.pid} on .*, last heard of \d+ s ago"):
        load_dataset(source(), name, connection=loads_connection)
    assert first.poll() is None

    config = LoaderConfig(transaction_bytes=4_000, block_bytes=1_000, transaction_timeout_s=10)
    manifest = load_dataset(source(), name, connection=loads_connection, config=config, take_over=True)
    _, problem = first.communicate(timeout=300)
    assert first.returncode == 1
    sentence = problem.strip().splitlines()[-1]
    assert f"Another loader has taken over dataset '{name}', so this one has stopped." in sentence
    assert manifest == catalog.get(name)
    assert manifest.num_samples == NUM_SAMPLES
    assert verify(loads_connection, manifest).is_clean


@pytest.mark.torture
def test_a_loader_that_slept_through_its_transaction_goes_on(
    loads_connection: Connection, start_loader: StartLoader
) -> None:
    name = "slept"
    process = start_loader(name, pause_s=0.002, timeout_s=10)
    wait_for_line(process, lambda line: line.isdecimal() and int(line) > 500)
    process.send_signal(signal.SIGSTOP)
    time.sleep(12)  # its transaction's timeout is 10 s: brokers end it, and refuse it from then on
    process.send_signal(signal.SIGCONT)
    _, problem = process.communicate(timeout=240)
    assert process.returncode == 0, problem
    manifest = Catalog(loads_connection).get(name)
    assert manifest.num_samples == NUM_SAMPLES
    assert verify(loads_connection, manifest).is_clean


def test_a_loader_that_slept_through_being_taken_over_stops(
    loads_connection: Connection, start_loader: StartLoader
) -> None:
    name = "slept-too-long"
    process = start_loader(name, pause_s=0.002, timeout_s=10)
    wait_for_line(process, lambda line: line.isdecimal() and int(line) > 500)
    process.send_signal(signal.SIGSTOP)
    config = LoaderConfig(transaction_bytes=4_000, block_bytes=1_000, transaction_timeout_s=10)
    manifest = load_dataset(source(), name, connection=loads_connection, config=config, take_over=True)
    process.send_signal(signal.SIGCONT)
    _, problem = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Another loader has taken over" in problem.strip().splitlines()[-1]
    assert verify(loads_connection, manifest).is_clean


def test_reading_the_progress_waits_for_an_open_transaction_of_another(loads_connection: Connection) -> None:
    # Without the wait, a loader goes on from progress that is older than what is committed.
    catalog = Catalog(loads_connection)
    catalog.ensure_internal_topics()
    leave_open_transaction(loads_connection)
    begun_s = time.monotonic()
    producer = confluent_producer(loads_connection)
    producer.produce(LOADS_TOPIC, None, b"behind@1/0", partition=0)
    assert producer.flush(60) == 0
    assert catalog.load_state("behind", 1, wait_s=30) is None
    assert time.monotonic() > begun_s + 1
