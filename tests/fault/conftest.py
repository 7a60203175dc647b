"""What several fault tests need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SLOW_BROKER_DRIVER = Path(__file__).parent / "slow_broker_driver.py"


@pytest.fixture(scope="session")
def may_mount() -> None:
    """Skips where nobody may mount a tmpfs; CI has to be able to."""
    if os.geteuid() != 0:
        sentence = "a disk of its own needs root"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture
def small_disk(may_mount: None, tmp_path: Path) -> Iterator[Callable[[int], Path]]:  # noqa: ARG001
    """Make real disks of a given size in bytes, each a tmpfs; they are gone after the test."""
    mounted: list[Path] = []

    def make(size_bytes: int) -> Path:
        folder = tmp_path / f"disk-{len(mounted) + 1}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        # Lazily: brokers of the test are ended after this.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def with_a_slow_broker() -> Callable[[str], dict[str, Any]]:
    """Run slow_broker_driver.py in a network namespace of its own, so that nobody else's loopback is slow."""

    def run(which: str) -> dict[str, Any]:
        done = subprocess.run(
            ["unshare", "--net", sys.executable, str(SLOW_BROKER_DRIVER), which],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
