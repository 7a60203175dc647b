"""A page as it is sent: one file, and the header that lets it do nothing but what it does.

The page's script and style stand in the file, so the policy names them by their hashes: a browser runs these
and nothing else, speaks to nobody but the server that sent them, and makes no HTML out of text
(`require-trusted-types-for`), whatever a topic is called.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NamedTuple

__all__ = ["Page", "sealed"]


class Page(NamedTuple):
    """What to send: the body, and the headers that belong to it."""

    html: str
    headers: dict[str, str]


def sealed(html: str) -> Page:
    """A page that has one script and one style of its own, and needs nothing else.

    Args:
        html: all of it.
    """
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
