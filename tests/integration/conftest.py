"""What integration tests share: a browser, a Ray cluster, and packages that a page of docs/ shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from evenload.governor.on_ray.local_ray import local_ray
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset

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
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page of ours; in the end nothing has gone to another host, and the console has no error."""
    complaints: list[str] = []
    hosts: set[str] = set()
    own: set[str] = set()

    def complain(message: ConsoleMessage) -> None:
        # The browser itself writes down each request that fails, and what a test tried in vain.
        expected = "ERR_CONNECTION", "TrustedHTML", "401", "403"
        if message.type in ("error", "warning") and not any(text in message.text for text in expected):
            complaints.append(message.text)

    def open_it(url: str, width: int = 1400, height: int = 900, **kwargs: object) -> Page:
        page = browser.new_page(viewport={"width": width, "height": height}, **kwargs)  # type: ignore[arg-type]
        page.set_default_timeout(20_000)
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        own.add(urlsplit(url).netloc)
        page.goto(url)
        expect(page.locator("#live")).not_to_have_text("Waiting")
        return page

    yield open_it
    for context in browser.contexts:
        context.close()
    assert complaints == []
    assert hosts - {""} <= own


@pytest.fixture
def contrasts() -> Callable[[Page], list[tuple[float, str]]]:
    """Each text of a page with its contrast, as WCAG reckons it."""
    return lambda page: page.evaluate(_CONTRASTS)


_CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const ratio = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (numbers(colour)[3] !== 0) return colour;
    }
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.data.trim() || ["SCRIPT", "NOSCRIPT"].includes(node.nodeName)) continue;
    const inBar = node.closest(".bar") && node.previousElementSibling;
    const back = inBar ? getComputedStyle(inBar).fill : behind(node);
    found.push([ratio(node.nodeName === "text" ? style.fill : style.color, back), walker.currentNode.data]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def ray_head() -> Iterator[str]:
    """The address of a Ray cluster's dashboard; it has four CPUs."""
    with local_ray(4) as url:
        yield url


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
