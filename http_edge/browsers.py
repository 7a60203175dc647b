"""Browsers act for whatever page is open in them, so two questions are asked of each request.

A page whose name an attacker points at the service (DNS rebinding) is of the same origin as the service, so
a `Host` that isn't the service's own is refused; an address can't be pointed elsewhere, so addresses are
welcome. And a page of another origin writes nothing here.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

__all__ = ["HOST_NAME", "READING", "RefusedError", "check_browser"]

HOST_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})"
READING = ("GET", "HEAD")
_HOST = re.compile(rf"(?:({HOST_NAME})|\[([0-9A-Fa-f:.]{{2,45}})\])(?::[0-9]{{1,5}})?")


class RefusedError(Exception):
    """A request that isn't served.

    Attributes:
        status: of HTTP.
        headers: what the answer says beside the sentence.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


def check_browser(
    method: str, *, hosts: Sequence[str], origins: Sequence[str], names: Collection[str] = ()
) -> None:
    """Refuse what a page of somebody else's may have a browser do.

    Args:
        method: of the request.
        hosts: its `Host` headers; exactly one is right.
        origins: its `Origin` headers, which browsers send.
        names: by which the service is called, in lower case; addresses and localhost go without saying.

    Raises:
        RefusedError: it came by a name that isn't the service's, or from a page of another origin.
    """
    host = hosts[0] if len(hosts) == 1 else ""
    name = _name_of(host)
    if not (_is_address(name) or name == "localhost" or name in names):
        raise RefusedError(
            421,
            f"this service isn't called {host[:100]!r}; if it is, start it with "
            f"--allowed-host {name or 'NAME'}",
        )
    if method not in READING and any(_host_of(origin) != host for origin in origins):
        raise RefusedError(403, f"a page of {origins[0][:100]!r} changes nothing here")


def _host_of(origin: str) -> str:
    """The host and port of a page's origin; '' if there is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # as for "http://["
        return ""


def _name_of(host: str) -> str:
    """The name or address in a `Host` header, in lower case and without its port; '' if there is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
