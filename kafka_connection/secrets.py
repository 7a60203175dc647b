"""Secrets as people keep them: in files, never on a command line, which every user of a machine can list."""

from __future__ import annotations

import functools
import logging
import stat
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

__all__ = ["BearerToken", "read_secret", "warn_if_others_can_read"]

_log = logging.getLogger(__name__)
_SECRET_MAX_BYTES = 64 << 10


def read_secret(path: Path) -> SecretStr:
    """What a file holds, without the white space around it. Warns of a file that every user may read.

    Raises:
        ValueError: it can't be read, is no text, or holds nothing.
    """
    try:
        with path.open("rb") as file:
            warn_if_others_can_read(path)
            text = file.read(_SECRET_MAX_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError:  # which would quote it
        raise ValueError(f"{path} holds no text in UTF-8") from None
    if not text:
        raise ValueError(f"{path} is empty")
    return SecretStr(text)


def warn_if_others_can_read(path: Path) -> None:
    """Say so, once, when every user of this machine may read a file that holds a secret."""
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH:
        _warn(path)


@functools.cache  # once, though it may be read for each request
def _warn(path: Path) -> None:
    _log.warning("%s holds a secret, and every user of this machine may read it; `chmod o-r` ends that", path)


def _fits_a_header(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if not text:
        raise ValueError("an empty token would be known to everybody")
    if not all("!" <= character <= "~" for character in text):
        raise ValueError("a token consists of visible ASCII characters, without spaces")
    return token


BearerToken = Annotated[SecretStr, AfterValidator(_fits_a_header)]
"""What an `Authorization: Bearer` header can carry."""
