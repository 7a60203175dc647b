"""Who may ask a collector service for what: decided from a request's headers, before its body is read.

Rights are rungs. Who may operate may also ingest, and who may ingest may also read: whoever writes needs what
is measured, and would else carry two tokens. A right without a token of its own takes that of the rung below,
so nothing is easier to do than what matters less; operating alone takes a token of its own, always.

What browsers do for others' pages is refused before (http_edge/browsers.py). Pure. Read next: http/server.py,
which asks.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from pydantic import SecretStr

from evenload.http_edge.browsers import READING, RefusedError

__all__ = ["Admission", "Right"]

# What shows nothing that was measured: the page asks for that, and probes can't send a token.
_FOR_ALL = ("/", "/healthz", "/readyz")


class Right(IntEnum):
    """What one may do; each includes those before."""

    NOTHING = 0
    READ = 1
    INGEST = 2
    OPERATE = 3


_MEANING = {
    Right.READ: "to read (--read-token-file), to ingest, or to operate",
    Right.INGEST: "to ingest (--ingest-token-file), or to operate",
    Right.OPERATE: "to operate (--operate-token-file)",
}


class Admission:
    """What one service asks of those who come.

    Args:
        token_by_right: the tokens that are set.
        hosts: the names by which the service is called, in lower case; addresses and localhost go without
            saying.

    Attributes:
        hosts: the same.
    """

    def __init__(self, token_by_right: Mapping[Right, SecretStr], hosts: Collection[str]) -> None:
        self._tokens = {right: token.get_secret_value().encode() for right, token in token_by_right.items()}
        self.hosts = frozenset(hosts)

    def is_open(self, right: Right) -> bool:
        """Whether everybody has a right."""
        return right < Right.OPERATE and not any(rung <= right for rung in self._tokens)

    def right_of(self, authorization: Sequence[str]) -> Right:
        """The highest right of whoever sends these `Authorization` headers."""
        found = max(right for right in Right if right is Right.NOTHING or self.is_open(right))
        scheme, _, given = (authorization[0] if len(authorization) == 1 else "").partition(" ")
        if scheme.lower() != "bearer":
            return found
        proof = given.strip().encode("utf-8", "surrogateescape")
        for right, token in self._tokens.items():
            # Takes as long for any wrong token, so that nobody finds it out letter by letter.
            if hmac.compare_digest(proof, token):
                found = max(found, right)
        # A right whose rung has no token is had with that of the rung below.
        if found is Right.READ and Right.INGEST not in self._tokens:
            return Right.INGEST
        return found

    def check(self, method: str, path: str, *, right: Right) -> None:
        """Refuse who may not do that.

        Args:
            method: of the request.
            path: of what is asked for, as its route has it.
            right: what whoever asks may do.

        Raises:
            RefusedError: it needs a right that isn't theirs.
        """
        needed = self._needed(method, path)
        if right >= needed:
            return
        if needed is Right.OPERATE and Right.OPERATE not in self._tokens:
            raise RefusedError(
                403, "weights can't be changed here: the service was started without a token that allows it"
            )
        raise RefusedError(
            401,
            f"{method} {path} needs the header 'Authorization: Bearer TOKEN', with a token that allows "
            f"{_MEANING[needed]}",
            {"WWW-Authenticate": 'Bearer realm="evenload collector"'},
        )

    @staticmethod
    def _needed(method: str, path: str) -> Right:
        if method in READING:
            return Right.NOTHING if path in _FOR_ALL else Right.READ
        return Right.OPERATE if path == "/v1/weights" else Right.INGEST
