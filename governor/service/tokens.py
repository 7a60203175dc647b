"""Who may ask for what: a file with a line for each token, from which nobody can tell the token itself.

    # SHA-256 of the token, in hex           right          team
    1f2e...9a                                read
    77c0...03                                submit         vision
    b1d4...5e                                submit-plain   vision
    0a9f...c2                                operate

Rights are rungs. Who may submit may read; who may submit plain jobs, any command for the cluster, may submit
runs; who may operate may do all. A team changes its own jobs only. A stint's driver shows a token of its own,
with which it can report how far it is and nothing else, as everybody with Ray's dashboard can read it. These
are made of a key in a file beside (`FILE.stints`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from evenload.governor.errors import TokenFileError
from evenload.governor.governing.engine import StintId
from evenload.http_edge.browsers import RefusedError

_FILE_BYTES_MAX: Final = 1 << 20
_KEY_BYTES: Final = 32
TEAM: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NEEDS_TEAM: Final = ("submit", "submit-plain")


class Right(IntEnum):
    """What one may do; each includes those before."""

    NOTHING = 0
    READ = 1
    SUBMIT = 2
    SUBMIT_PLAIN = 3
    OPERATE = 4


class Caller(NamedTuple):
    """Who asks."""

    right: Right
    team: str | None  # whose jobs it may change; None: everybody's


EVERYBODY: Final = Caller(Right.OPERATE, None)  # where there is no file, only this machine's users can ask
NOBODY: Final = Caller(Right.NOTHING, None)
_RIGHTS: Final = {right.name.lower().replace("_", "-"): right for right in Right if right}


class Tokens:
    """The tokens of one governor.

    Args:
        path: The file; None: whoever reaches the governor may do all.

    Raises:
        TokenFileError: The file can't be understood.
        OSError: It can't be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._key: bytes | None = None
        self._callers: dict[bytes, Caller] = {}
        if path is not None:
            self._callers = _callers(path, path.read_bytes())
            self._key = _stint_key(path.with_name(f"{path.name}.stints"))

    @property
    def are_asked_for(self) -> bool:
        """Whether there are any."""
        return self._key is not None

    def caller(self, authorization: Sequence[str]) -> Caller:
        """Who sends these `Authorization` headers."""
        if self._key is None:
            return EVERYBODY
        token = _bearer(authorization)
        return NOBODY if token is None else self._callers.get(hashlib.sha256(token).digest(), NOBODY)

    def of_stint(self, stint_id: StintId) -> str | None:
        """What the driver of a stint shows; None: nothing is asked of it."""
        if self._key is None:
            return None
        return hmac.new(self._key, stint_id.submission_id.encode(), hashlib.sha256).hexdigest()

    def check_driver(self, authorization: Sequence[str], stint_id: StintId) -> None:
        """Refuse a report that isn't from the driver of a stint.

        Raises:
            RefusedError: It shows another token, or none.
        """
        wanted = self.of_stint(stint_id)
        shown = _bearer(authorization)
        if wanted is not None and (shown is None or not hmac.compare_digest(shown, wanted.encode())):
            raise RefusedError(401, "a report needs the token that its stint was given", _CHALLENGE)


_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="evenload governor"'}


def check(caller: Caller, needed: Right, what: str) -> None:
    """Refuse who may not do that.

    Args:
        what: As the sentence names it.

    Raises:
        RefusedError: It needs a right that isn't theirs.
    """
    if caller.right >= needed:
        return
    if caller.right is Right.NOTHING:
        raise RefusedError(
            401,
            f"{what} needs the header 'Authorization: Bearer TOKEN', with a token of its file",
            _CHALLENGE,
        )
    name = needed.name.lower().replace("_", "-")
    raise RefusedError(403, f"{what} needs a token with the right to {name}")


def check_team(caller: Caller, team: str, what: str) -> None:
    """Refuse who may not change jobs of this team.

    Raises:
        RefusedError: They are another team's.
    """
    if caller.right < Right.OPERATE and caller.team != team:
        raise RefusedError(403, f"{what} is of team {team!r}, and this token of {caller.team!r}")


def _callers(path: Path, content: bytes) -> dict[bytes, Caller]:
    if len(content) > _FILE_BYTES_MAX:
        raise TokenFileError(f"{path} has {len(content):,} bytes, which no file of tokens has")
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        digest, right, team = (*words, "", "")[:3]
        if not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise TokenFileError(f"{where} doesn't begin with the SHA-256 of a token, 64 digits in hex")
        if right not in _RIGHTS:
            raise TokenFileError(f"{where} names no right; there are {', '.join(_RIGHTS)}")
        if len(words) > 3 or bool(team) != (right in _NEEDS_TEAM) or (team and not re.fullmatch(TEAM, team)):
            needs = "the name of one team" if right in _NEEDS_TEAM else "nothing"
            raise TokenFileError(f"{where} needs {needs} after {right!r}")
        if (key := bytes.fromhex(digest)) in callers:
            raise TokenFileError(f"{where} has a token that stands in a line before")
        callers[key] = Caller(_RIGHTS[right], team or None)
    if not callers:
        raise TokenFileError(f"{path} has no tokens")
    return callers


def _stint_key(path: Path) -> bytes:
    """What drivers' tokens are made of: the same after a restart, when those that run show what they have.

    Raises:
        TokenFileError: What stands there is no key.
        OSError: It can't be read or made.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    except FileExistsError:
        pass  # from an earlier start
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise TokenFileError(f"{path} is no key of stints; without it, a new one is made")
    return key


def _bearer(authorization: Sequence[str]) -> bytes | None:
    """The token in the one `Authorization` header; None without one."""
    scheme, _, given = (authorization[0] if len(authorization) == 1 else "").partition(" ")
    return given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else None
