"""What integration tests share: a browser, a Ray cluster, and packages that a page of docs/ shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset

RAY_HEAD = Path(__file__).with_name("ray_head.py")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Chromium, without a window. What is expected of a page may take a minute, beside other tests."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def ray_head() -> Iterator[str]:
    """The address of a Ray cluster's dashboard; it has four CPUs."""
    # Ray ends its dashboard before that can delete its folder with a socket.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, str(RAY_HEAD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_prestart_worker_first_driver": "0",  # idle workers, which it would start for each job
                "TMPDIR": folder,
            },
        ) as head,
    ):
        assert head.stdin is not None
        assert head.stdout is not None
        yield json.loads(head.stdout.readline())["dashboard_url"]
        head.stdin.close()
        assert head.wait(60) == 0


@pytest.fixture(scope="module")
def sentences(connection: Connection) -> str:
    """The name of a dataset of 700 short texts with two labels."""
    name = f"sentences-{uuid.uuid4().hex[:8]}"
    words = ("river", "stone", "cloud", "winter", "harbour")
    columns = {
        "text": [f"the {words[i % 5]} is {'warm' if i % 2 else 'cold'} {i}" for i in range(700)],
        "label": ["yes" if i % 2 else "no" for i in range(700)],
    }
    load_dataset(columns, name, connection=connection, partitions=3)
    return name


@pytest.fixture
def run_with_package(tmp_path: Path) -> Callable[[Path, str], str]:
    """Run a program where the package is installed that a page shows (its first Python, its first TOML)."""

    def run(page: Path, program: str) -> str:
        blocks = dict(re.findall(r"```(python|toml)\n(.*?)```", page.read_text(), flags=re.DOTALL)[:2])
        modules = re.search(r'py-modules = \["(\w+)"\]', blocks["toml"])
        assert modules is not None
        source, target = tmp_path / "source", tmp_path / "site"
        source.mkdir()
        (source / f"{modules[1]}.py").write_text(blocks["python"])
        (source / "pyproject.toml").write_text(blocks["toml"])
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run(
            [sys.executable, *command, "--target", str(target), str(source)], check=True, timeout=300
        )
        path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout

    return run
