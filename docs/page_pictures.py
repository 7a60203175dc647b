"""Photograph a page of ours: what docs/live_page.py and docs/governor_page.py share.

Nothing is served: the browser's requests are answered here.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Route as BrowserRequest

from evenload.http_edge.sealed_page import Page


def make_pictures(name: str, page: Page, overview: str, *, ready: str) -> None:
    """The page on a desk and on a phone beside this file, or in every width and colour scheme, to look at.

    Args:
        name: With which the files' names begin.
        page: As the service sends it.
        overview: What it says at `/v1/overview`.
        ready: What is there once it is drawn, as a CSS selector.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Chromium isn't there: apt-get install chromium")
    is_for_looking = len(sys.argv) > 1
    folder = Path(sys.argv[1]) if is_for_looking else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(1400, "light"), (400, "dark")]
    if is_for_looking:
        wanted = [(width, scheme) for width in (400, 1400) for scheme in ("light", "dark")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        for width, scheme in wanted:
            path = folder / f"{name}-{width}-{scheme}.png"
            is_whole = is_for_looking or width > 400
            is_dark = scheme == "dark"
            picture = _shot(
                browser, page, overview, width=width, is_dark=is_dark, is_whole=is_whole, ready=ready
            )
            Image.open(io.BytesIO(picture)).convert("RGB").quantize(96).save(path, optimize=True)
        browser.close()


def _shot(
    browser: Browser, page: Page, overview: str, *, width: int, is_dark: bool, is_whole: bool, ready: str
) -> bytes:
    context = browser.new_context(
        viewport={"width": width, "height": 860}, color_scheme="dark" if is_dark else "light"
    )
    shown = context.new_page()

    def answer(request: BrowserRequest) -> None:
        if request.request.url.endswith("/v1/overview"):
            request.fulfill(body=overview, content_type="application/json")
        else:
            request.fulfill(body=page.html, headers=page.headers)

    shown.route("**/*", answer)
    shown.goto("http://evenload.test/")
    shown.wait_for_selector(ready)
    picture = shown.screenshot(full_page=is_whole, animations="disabled")
    context.close()
    return picture
