"""Fixtures for all tests: real brokers, real data, unique names.

The embedded cluster starts once for a test session (about 5 s) and only when a test asks for it;
tests that kill or fill brokers make one of their own with `make_cluster`.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

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


@pytest.fixture(scope="session")
def shared_test_data() -> Path:
    """The folder with CoLA and CIFAR-10: `EVENLOAD_TEST_DATA`, or `../shared/data` beside the checkout."""
    path = Path(os.environ.get("EVENLOAD_TEST_DATA") or DEFAULT_TEST_DATA)
    if not path.is_dir():
        _go_without(f"test data isn't in {path}; set EVENLOAD_TEST_DATA to a folder with cola/ and cifar10/")
    return path


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium."""
    return _program("chromium", "google-chrome")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' promtool."""
    return _program("promtool")


def _program(*names: str) -> str:
    folders = os.pathsep.join([os.environ["PATH"], str(Path(sys.prefix) / "prometheus")])
    found = next((path for name in names if (path := shutil.which(name, path=folders))), None)
    if found is None:
        _go_without(f"{names[0]} isn't there; `make test-tools` gets it")
    return found


def _go_without(sentence: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
