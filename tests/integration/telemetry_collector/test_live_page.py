"""The live page in a real browser, against what a collector knows.

Everything goes through `served`: an object with `url`, `stop()` and `start()`, which serves the page and the
overview of `known`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from playwright.sync_api import Error, Page, expect

from evenload.telemetry_collector import ClusterSnapshot, SnapshotCache
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.service.page.live_page import load_page
from evenload.telemetry_collector.service.page.overview import Explanation, make_overview
from evenload.telemetry_collector.statistics import StatisticsCounter
from evenload.telemetry_collector.testing import make_snapshot
from evenload.telemetry_collector.weights import Weights

HOSTILE = "<img src=x onerror='window.harm=1'></td><script>window.harm=1</script>&amp;" + "W" * 150


@dataclass
class Known:
    """What a collector knows: changed by a test, read by the server."""

    now_s: float = 10_000.0
    history: History = field(default_factory=History)
    counter: StatisticsCounter = field(default_factory=lambda: StatisticsCounter(["log_dirs"]))
    reports: list[RouteReport] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    weights: Weights = field(default_factory=Weights)
    explanation: Explanation = field(default_factory=Explanation)

    def __post_init__(self) -> None:
        self.cache = SnapshotCache(30.0, wall_clock=lambda: self.now_s, monotonic_clock=lambda: self.now_s)

    def measure(self, snapshot: ClusterSnapshot) -> None:
        """As if the collector had just taken `snapshot`."""
        snapshot = replace(snapshot, taken_at_s=self.now_s)
        self.cache.put(snapshot)
        self.history.add(snapshot, self.now_s)

    def overview_json(self) -> str:
        return make_overview(
            self.cache.latest(),
            self.counter.read(),
            self.history,
            reports=self.reports,
            intents=self.intents,
            weights=self.weights,
            explain=lambda _: self.explanation,
            now_s=self.now_s,
        ).model_dump_json()


class Served:
    """A server in a thread of its own; after `stop`, `start` takes the same port."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._port = 0
        self.token: str | None = None  # that it asks for
        self.asked: list[str] = []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._is_ready.wait(60)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        page = load_page()

        async def live_page(_: web.Request) -> web.Response:
            return web.Response(text=page.html, headers=page.headers)

        async def overview(request: web.Request) -> web.Response:
            self.asked.append(str(request.url))
            if self.token not in (None, request.headers.get("Authorization", "").removeprefix("Bearer ")):
                return web.json_response({"error": "it needs a token"}, status=401)
            return web.Response(text=self._known.overview_json(), content_type="application/json")

        app = web.Application()
        app.add_routes([web.get("/", live_page), web.get("/v1/overview", overview)])
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        self._is_ready.set()
        await self._ended.wait()
        await runner.cleanup()


@pytest.fixture
def known() -> Known:
    known = Known()
    known.measure(three_brokers())
    return known


@pytest.fixture
def served(known: Known) -> Iterator[Served]:
    served = Served(known)
    yield served
    served.stop()


@pytest.fixture
def opened(open_page: Callable[..., Page], served: Served) -> Callable[..., Page]:
    """Opens the page."""
    return partial(open_page, served.url)


def three_brokers(second: int = 500, **changes: object) -> ClusterSnapshot:
    snapshot = make_snapshot(
        [400, second, 450],
        1000,
        topics={"clicks": [(1,), (2,), (3,)], "orders": [(3, 1)]},
        stored_bytes={("clicks", 0): 300, ("clicks", 1): 100, ("orders", 0): 50},
        racks=["a", "b", None],
        latency_s={1: 0.002},
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def hostile(known: Known) -> None:
    """Everything that others may name has a name that tries to be HTML, and is long."""
    known.measure(make_snapshot([1, 2], 1000, topics={HOSTILE: [(1,), (2,)]}, racks=[HOSTILE, None]))
    known.reports.append(
        RouteReport(
            producer=HOSTILE,
            topic=HOSTILE[:249],
            shares={0: 0.5, 1: 0.5},
            reason=HOSTILE,
            notes=(HOSTILE,),
            put_aside={HOSTILE: HOSTILE},
        )
    )
    known.explanation = Explanation(
        willingness={1: 0.5}, scores={HOSTILE: {1: 0.5}}, put_aside={HOSTILE + "2": HOSTILE}
    )
    known.counter.count_failure("log_dirs", HOSTILE, HOSTILE, is_fault=False)


def test_a_sentence_comes_first_and_every_broker_has_its_numbers(
    known: Known, opened: Callable[..., Page]
) -> None:
    known.intents.append(Intent(load="a", topic="clicks", bytes_by_broker={2: 200}))
    known.explanation = Explanation(
        willingness={1: 1.0, 2: 0.4, 3: 1.0}, scores={"latency": {1: 1.0, 2: 0.4, 3: 1.0}}
    )
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("All is well: 3 brokers, from 40% to 50% full.")
    second = page.locator("#brokers").get_by_role("row").filter(has_text="Broker 2")
    for text in ("rack b", "50.0%", "500 B of", "70% full at the end", "latency says 0.40"):
        expect(second).to_contain_text(text)
    expect(page.locator("#topics")).to_contain_text("clicks")
    expect(page.locator("#history svg")).to_be_visible()


def test_it_updates_without_reload_and_leaves_alone_what_was_opened(
    known: Known, opened: Callable[..., Page]
) -> None:
    known.reports.append(RouteReport(producer="p", topic="clicks", shares={0: 0.5, 1: 0.5}))
    page = opened()
    page.locator("#routes summary").click()
    page.evaluate("window.mark = document.querySelector('#topics tbody tr')")
    where = "window.mark.isConnected && window.mark.getBoundingClientRect().top"
    top = page.evaluate(f"window.scrollTo(0, 200); {where}")
    known.measure(three_brokers(second=950))
    expect(page.get_by_role("heading", level=1)).to_have_text("Broker 2 is 95% full.")
    expect(page.locator("#brokers")).to_contain_text("95.0%")
    assert page.evaluate(where) == pytest.approx(top, abs=1.0)
    expect(page.locator("#routes details p")).to_be_visible()
    assert page.title().startswith("! Broker 2 is 95% full.")


def test_a_collector_that_has_gone_is_said_at_once_and_its_return_too(
    served: Served, opened: Callable[..., Page]
) -> None:
    page = opened()
    served.stop()
    expect(page.locator("#live")).to_have_text("Not live")
    expect(page.get_by_role("heading", level=1)).to_contain_text("The collector hasn't answered for")
    expect(page.locator("body")).to_have_class("gone")
    expect(page.locator("#brokers")).to_contain_text("Broker 2")  # what was last known stays
    served.start()
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("body")).not_to_have_class("gone")


def test_old_measurements_are_called_stale_and_announced_once(
    known: Known, opened: Callable[..., Page]
) -> None:
    page = opened()
    known.now_s += 90
    expect(page.locator("#live")).to_have_text("Stale")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Measurements are 90 s old")
    known.now_s += 10
    expect(page.get_by_role("heading", level=1)).to_contain_text("Measurements are 100 s old")
    expect(page.get_by_role("status")).to_contain_text("Measurements are 90 s old")


def test_before_the_first_snapshot_it_says_so(known: Known, opened: Callable[..., Page]) -> None:
    known.__post_init__()
    known.history = History()
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing has been measured yet.")
    expect(page.locator("#age")).to_have_text("nothing measured yet")


def test_an_age_below_a_second_is_just_now(known: Known, opened: Callable[..., Page]) -> None:
    page = opened()
    expect(page.locator("#age")).to_have_text("measured just now")
    known.now_s += 90
    expect(page.locator("#age")).to_contain_text("measured 9")


def test_a_past_without_a_present_is_drawn(known: Known, opened: Callable[..., Page]) -> None:
    known.now_s += 20
    known.measure(make_snapshot([1, 2], None))  # nobody tells a capacity any more
    expect(opened().locator("#chart svg")).to_be_visible()


def test_hostile_names_are_only_text(known: Known, opened: Callable[..., Page]) -> None:
    hostile(known)
    page = opened()
    expect(page.locator("#topics tbody th")).to_have_text(HOSTILE)
    expect(page.locator("#routes")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.evaluate("window.harm") is None


def test_the_policy_lets_nobody_make_html_out_of_text(opened: Callable[..., Page]) -> None:
    page = opened()
    page.evaluate("document.querySelector('h1').append('ours')")
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.querySelector('h1').innerHTML = '<b>theirs</b>'")


@pytest.mark.parametrize("width", [320, 400, 760, 1400])
def test_nothing_is_wider_than_the_screen(known: Known, opened: Callable[..., Page], width: int) -> None:
    hostile(known)
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # A narrow screen shows rows as blocks; they are a table still.
    assert page.locator("#brokers").get_by_role("row").count() == 3
    assert page.locator("#brokers").get_by_role("rowheader").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_in_either_scheme(
    known: Known, opened: Callable[..., Page], contrasts: Callable[[Page], list[Any]], scheme: str
) -> None:
    known.measure(
        make_snapshot(
            [100 * n for n in range(1, 9)],
            1000,
            topics={"t": [(n,) for n in range(1, 9)]},
            stored_bytes={("t", n): 10 for n in range(8)},
            unreachable=[3],
        )
    )
    known.reports.append(
        RouteReport(producer="p", topic="t", shares=dict.fromkeys(range(8), 1 / 8), reason="no_snapshot")
    )
    known.weights = Weights(brokers={2: 0.0})
    page = opened(color_scheme=scheme)
    expect(page.locator("#topics .bar text")).to_have_count(8)
    assert len(contrasts(page)) > 60
    assert [(ratio, text) for ratio, text in contrasts(page) if ratio < 4.5] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 18, 21)") == (scheme == "dark")


def test_a_thousand_brokers_begin_with_those_in_trouble(known: Known, opened: Callable[..., Page]) -> None:
    known.measure(make_snapshot([n % 400 for n in range(1000)], 1000, unreachable=[777]))
    page = opened(width=400)
    rows = page.locator("#brokers tbody tr")
    expect(rows).to_have_count(12)
    expect(rows.first).to_contain_text("Broker 777")
    page.get_by_role("button", name="Show all 1,000 brokers").click()
    expect(rows).to_have_count(1000)
    known.measure(make_snapshot([n % 400 for n in range(1000)], 1000, unreachable=[888]))
    expect(rows.first).to_contain_text("Broker 888")
    expect(rows).to_have_count(1000)


def test_nothing_moves_for_those_who_want_it_still(opened: Callable[..., Page]) -> None:
    duration = "getComputedStyle(document.querySelector('.bar rect')).transitionDuration"
    assert opened(reduced_motion="no-preference").evaluate(duration) != "0s"
    assert opened(reduced_motion="reduce").evaluate(duration) == "0s"


def test_a_token_is_asked_for_kept_for_the_tab_and_sent_in_a_header_alone(
    served: Served, opened: Callable[..., Page]
) -> None:
    served.token = "to-read"
    page = opened()
    expect(page.locator("#live")).to_have_text("Locked")
    expect(page.locator("#entry")).to_be_visible()
    expect(page.locator("#brokers tbody tr")).to_have_count(0)
    field = page.get_by_role("textbox", name="Token")
    for wrong, said in (("two words", "Whoever runs it"), ("<b>guess</b>", "That token doesn't allow")):
        field.fill(wrong)
        page.get_by_role("button", name="Show the page").click()
        expect(page.locator("#entry-said")).to_contain_text(said)
    field.fill("to-read")
    field.press("Enter")
    expect(page.locator("#brokers tbody tr")).to_have_count(3)
    expect(page.locator("#entry")).to_be_hidden()
    expect(page.locator("#live")).to_have_text("Live")
    page.reload()
    expect(page.locator("#brokers tbody tr")).to_have_count(3)  # the tab remembers
    assert page.url == served.url
    assert not any("to-read" in url for url in served.asked)
    assert page.evaluate("localStorage.length") == 0
    served.token = "another"
    expect(page.locator("#entry")).to_be_visible()
