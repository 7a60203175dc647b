"""The governor's page in a real browser, against a governor on a cluster on which nothing goes on."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from playwright.sync_api import Error, Page, expect

from evenload.governor.deciding.state import Team
from evenload.governor.governing.engine import StintId
from evenload.governor.governing.jobs import Wish
from evenload.governor.governing.loop import Governing
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.on_ray.reports import Reports
from evenload.governor.service.http import GovernorHttp
from evenload.governor.service.tokens import Tokens
from evenload.governor.testing import MemoryJournal, StillEngine
from evenload.kafka_connection import Connection

HOSTILE = "<img src=x onerror='window.harm=1'></td><script>window.harm=1</script>&amp;" + "W" * 150


class Served:
    """A governor of four slots, its port in a thread of its own."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        self.engine = StillEngine(4)
        self.governing = Governing(MemoryJournal(), self.engine, governing_policy, "fifo", look_s=0.05)
        self._tokens = tokens or Tokens(None)
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._is_ready.wait(60)

    def submit(self, job_id: str, **fields: Any) -> None:
        wish = Wish(
            **({"kind": "k", "samples": 1000.0, "asked_size": 2, "max_size": 2} | fields), job_id=job_id
        )
        self.governing.ask(lambda governor, now_s: governor.submit(wish, now_s))

    def measure(self, job_id: str, size: int, samples_per_s: float) -> None:
        """As if a stint had been measured."""

        def measured(governor: Any, _: float) -> None:
            job = governor.job(job_id)
            kind = governor.kind_of(job).with_speed(size, StintId(job_id, 1), samples_per_s)
            governor._put_kind(job, kind)

        self.governing.ask(measured)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        http = GovernorHttp(
            self.governing,
            Reports(lambda: 0.0),
            Connection(bootstrap_servers="127.0.0.1:9"),
            tokens=self._tokens,
            log_of=str,
            device="cpu",
        )
        self.governing.start()
        runner = web.AppRunner(http.app(), shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        self._is_ready.set()
        await self._ended.wait()
        await runner.cleanup()
        await asyncio.to_thread(self.governing.close)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def opened(open_page: Callable[..., Page], served: Served) -> Callable[..., Page]:
    """Opens the page."""
    return partial(open_page, served.url)


def row(page: Page, job_id: str) -> Any:
    return page.locator("#jobs").get_by_role("row").filter(has=page.get_by_role("rowheader", name=job_id))


def test_each_job_says_what_it_has_and_why_it_waits(served: Served, opened: Callable[..., Page]) -> None:
    served.submit("long", team="vision", weight=16.0)
    served.submit("wide", asked_size=4, min_size=4, max_size=4)
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("All is well: 1 job has 2 of 4 slots, 1 waits.")
    for text in ("vision", "urgent", "running", "may have 1 to 2 slots", "0%"):
        expect(row(page, "long")).to_contain_text(text)
    expect(row(page, "wide")).to_contain_text("waits: 2 slots free, needs 4")
    expect(page.locator("#slots .key")).to_contain_text("long 2")
    expect(page.locator("#slots svg[role=img]")).to_be_visible()
    expect(page.locator("#teams").get_by_role("row").filter(has_text="vision")).to_contain_text("no limit")
    served.governing.ask(lambda governor, now_s: governor.cancel("long", now_s))
    expect(row(page, "wide")).to_contain_text("running")
    expect(page.locator("#ended")).to_contain_text("cancelled")


def test_speeds_are_drawn_as_they_are_measured(served: Served, opened: Callable[..., Page]) -> None:
    served.submit("a", max_size=4, kind="digits, 64 a step")
    page = opened()
    expect(page.locator("#kinds")).to_contain_text("Nothing is measured yet")
    served.measure("a", 1, 100.0)
    served.measure("a", 2, 180.0)
    picture = page.get_by_role("img", name="Samples a second by workers of digits, 64 a step")
    expect(picture.locator("circle")).to_have_count(2)
    expect(picture.locator("path.guess")).to_have_count(1)
    expect(row(page, "a")).to_contain_text("about 6 s left")


def test_another_policy_is_tried_and_set(served: Served, opened: Callable[..., Page]) -> None:
    served.submit("a")
    served.submit("b", min_size=2, max_size=4, asked_size=4)
    page = opened()
    expect(page.locator("#decides")).to_have_text("fifo")
    page.locator("#policies").select_option("elastic_fifo")
    page.get_by_role("button", name="What would it change?").click()
    expect(page.locator("#said")).to_have_text("elastic_fifo would change: b 0 → 2")
    expect(page.locator("#decides")).to_have_text("fifo")
    page.get_by_role("button", name="Let it decide").click()
    expect(page.locator("#decides")).to_have_text("elastic_fifo")
    expect(page.locator("#said")).to_have_text("elastic_fifo decides from now on.")
    expect(page.locator("#policies")).to_have_value("elastic_fifo")
    page.locator("#decisions summary").click()
    expect(page.locator("#decisions li").first).to_contain_text("b 0 → 2")


def test_what_keeps_it_from_deciding_comes_first(served: Served, opened: Callable[..., Page]) -> None:
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "All is well: no job is in the queue, and 4 slots are free."
    )
    served.engine.unreachable = "Ray doesn't answer"
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "Nothing is decided at present: Ray doesn't answer. Runs train on."
    )
    expect(page.locator("#live")).to_have_text("Stale")
    served.stop()
    expect(page.locator("#live")).to_have_text("Not live")
    expect(page.get_by_role("heading", level=1)).to_contain_text("The governor hasn't answered for")


def test_a_token_to_read_shows_the_page_and_sets_nothing(
    tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{hashlib.sha256(b'to-read').hexdigest()} read\n")
    served = Served(Tokens(path))
    try:
        served.submit("a")
        page = open_page(served.url)
        expect(page.locator("#live")).to_have_text("Locked")
        page.get_by_role("textbox", name="Token").fill("to-read")
        page.get_by_role("button", name="Show the page").click()
        expect(row(page, "a")).to_contain_text("running")
        page.get_by_role("button", name="Let it decide").click()
        expect(page.locator("#said")).to_contain_text("That wasn't done: it says 403")
        expect(page.locator("#said")).to_contain_text("a token with the right to operate")
        expect(page.locator("#entry")).to_be_hidden()
    finally:
        served.stop()


@pytest.mark.parametrize("width", [320, 400, 760, 1400])
def test_hostile_names_are_only_text_and_nothing_is_wider_than_the_screen(
    served: Served, opened: Callable[..., Page], width: int
) -> None:
    served.submit(HOSTILE, team=HOSTILE, kind=HOSTILE)
    served.measure(HOSTILE, 2, 100.0)
    served.submit(HOSTILE + "2", asked_size=4, max_size=4)
    served.governing.ask(lambda governor, now_s: governor.set_team(HOSTILE, Team(limit=3), now_s))
    page = opened(width=width)
    expect(page.locator("#kinds figcaption")).to_contain_text(HOSTILE)
    expect(page.locator("#slots .key")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.evaluate("window.harm") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#jobs").get_by_role("row").count() == 3
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.querySelector('h1').innerHTML = '<b>theirs</b>'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_in_either_scheme(
    served: Served, opened: Callable[..., Page], contrasts: Callable[[Page], list[Any]], scheme: str
) -> None:
    for number in range(5):
        served.submit(f"job-{number}", asked_size=1, max_size=1)
    served.measure("job-1", 1, 100.0)
    served.governing.ask(lambda governor, now_s: governor.hold("job-3", now_s))
    served.governing.ask(lambda governor, now_s: governor.cancel("job-2", now_s))
    page = opened(color_scheme=scheme)
    expect(page.locator("#ended")).to_contain_text("cancelled")
    expect(row(page, "job-3")).to_contain_text("held")
    assert len(contrasts(page)) > 60
    assert [(ratio, text) for ratio, text in contrasts(page) if ratio < 4.5] == []
