"""What several fault tests need."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka.errors import KafkaError

PATIENCE_S = 60


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait for what an admin client is asked, while some questions still go to a broker that is dead."""

    def wait(happened: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with suppress(KafkaError):
                if happened():
                    return
            time.sleep(0.05)
        pytest.fail("it never happened")

    return wait


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
