"""What several fault tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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
