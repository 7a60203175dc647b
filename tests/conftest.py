"""Fixtures for all tests: real brokers, real data, unique names.

The embedded cluster starts once for a test session (about 5 s) and only when a test asks for it;
tests that kill or fill brokers make one of their own with `make_cluster`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest

from evenload.local_cluster import LocalCluster, temporary_cluster
from kafka_connection import Connection

# The same examples in every run: a newly found one is a matter for whoever looks for it, with another seed.
hypothesis.settings.register_profile("evenload", derandomize=True)
hypothesis.settings.load_profile("evenload")

DEFAULT_TEST_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers of 2 GiB each, shared by the session: use `topic_name`, and don't kill them."""
    with temporary_cluster(num_brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def connection(cluster: LocalCluster) -> Connection:
    """How to reach `cluster`."""
    return cluster.connection


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Start a cluster for this test alone, as `temporary_cluster` takes its arguments."""
    with ExitStack() as clusters:

        def make(**kwargs: Any) -> LocalCluster:
            return clusters.enter_context(temporary_cluster(**kwargs))

        yield make


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test and no earlier session has."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"


class CollectorProcess:
    """`evenload collector` as a process of its own, for one cluster.

    Attributes:
        url: where it serves.
    """

    def __init__(self, connection: Connection, folder: Path, *options: str) -> None:
        self._connection_path = folder / f"connection-{uuid.uuid4().hex}.json"
        self._connection_path.write_text(connection.model_dump_json())
        self._options = options
        self.start(port=0)

    def start(self, port: int | None = None) -> None:
        """Start it; after the first time by default on the same port."""
        if port is None:
            port = urlsplit(self.url).port or 0
        self.process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("evenload")),
                *("collector", "--json", "--interval", "0.3", "--port", str(port)),
                *("--connection", str(self._connection_path), *self._options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            said += line
        self.url: str = json.loads(said)["collector_url"]

    def end(self, signal_number: int) -> int:
        """Send a signal, and wait; its exit status."""
        self.process.send_signal(signal_number)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def start_collector(tmp_path: Path) -> Iterator[Callable[..., CollectorProcess]]:
    """Start collector services, each given a connection and options; none is left."""
    started: list[CollectorProcess] = []

    def start(connection: Connection, *options: str) -> CollectorProcess:
        started.append(CollectorProcess(connection, tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture(scope="session")
def shared_test_data() -> Path:
    """The folder with CoLA and CIFAR-10: `EVENLOAD_TEST_DATA`, or `../shared/data` beside the checkout."""
    path = Path(os.environ.get("EVENLOAD_TEST_DATA") or DEFAULT_TEST_DATA)
    if path.is_dir():
        return path
    sentence = f"test data isn't in {path}; set EVENLOAD_TEST_DATA to a folder with cola/ and cifar10/"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
