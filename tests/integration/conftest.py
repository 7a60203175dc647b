"""What integration tests share: a browser, and packages that a page of docs/ shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

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
