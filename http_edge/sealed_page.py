"""A page as it is sent: one file, and the header that lets it do nothing but what it does.

The page's script and style stand in the file, so the policy names them by their hashes: a browser runs these
and nothing else, speaks to nobody but the server that sent them, and makes no HTML out of text
(`require-trusted-types-for`), whatever a topic is called.

What all pages share stands beside this file: page.css, how they look; page.js, how they ask and draw.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Page", "sealed"]


class Page(NamedTuple):
    """What to send: the body, and the headers that belong to it."""

    html: str
    headers: dict[str, str]


def sealed(html: str) -> Page:
    """A page with the style and the script that all pages share, before its own.

    Args:
        html: all the rest of it, with one element `style` and one `script`.
    """
    for element, shared in (("style", "page.css"), ("script", "page.js")):
        text = files(__package__).joinpath(shared).read_text(encoding="utf-8")
        html = html.replace(f"<{element}>\n", f"<{element}>\n{text}\n", 1)
    policy = (
        "default-src 'none'",
        f"script-src {_hash_of('script', html)}",
        f"style-src {_hash_of('style', html)}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(policy),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Page(html, headers)


def _hash_of(element: str, html: str) -> str:
    (body,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digest = hashlib.sha256(body.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
