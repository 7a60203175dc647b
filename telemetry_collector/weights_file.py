"""Weights in a file that people edit and a collector writes, followed while it changes.

The idea: whoever asks for the weights looks at the file's time and size first, which costs microseconds, and
reads it only when they changed. What can't be read, and a file that is gone, keep what was in force, and are
said once: an editor or a swapped mount takes a file away for a moment, and a broker that is drained must not
fill in it. Whoever starts while there is no file has no weights until there is one.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import threading
from pathlib import Path

from pydantic import ValidationError

from evenload.telemetry_collector.weights import Weights

__all__ = ["WeightsFile", "parse_weights"]

_log = logging.getLogger(__name__)
_MAX_BYTES = 1 << 20


class WeightsFile:
    """A JSON file with the fields of `Weights`. Any thread may call any method.

    Args:
        path: the file; it needn't be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._weights: Weights | None = None
        self._complaint: str | None = None

    @property
    def complaint(self) -> str | None:
        """Why what the file says now is not in force, as a sentence; None when it is."""
        return self._complaint

    def latest(self) -> Weights | None:
        """What it says, or said last; None until there was a file."""
        with self._lock:
            try:
                status = self.path.stat()
                seen = (status.st_mtime_ns, status.st_size, status.st_ino)
                if seen != self._seen:
                    self._seen = seen
                    self._weights = parse_weights(self._read())
                    self._complaint = None
                    _log.info("weights are now as %s says", self.path)
            except FileNotFoundError:
                self._seen = None  # the next one counts, though it may look like the last
                if self._weights is None:
                    self._complain(
                        f"weights file {self.path}: it isn't there; no weights are in force until it is"
                    )
                else:
                    self._complain(
                        f"weights file {self.path}: it is gone; the weights in force are kept "
                        "(a file that says {} takes them away)"
                    )
            except (OSError, ValueError) as error:
                if isinstance(error, OSError):
                    self._seen = None  # tried again: what is in the way may go without the file changing
                self._complain(f"weights file {self.path}: {error}; the weights in force are kept")
            return self._weights

    def write(self, weights: Weights) -> None:
        """Replace what it says, as a whole: whoever reads gets the old or the new.

        Raises:
            OSError: it can't be written; it says what it said.
        """
        # Not by `tempfile`, whose files only their owner may read: producers of other users follow this one.
        written = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            with written.open("x", encoding="utf-8") as file:
                file.write(weights.model_dump_json(exclude_defaults=True, indent=2) + "\n")
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(self.path, written)
            written.replace(self.path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return content

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("%s", complaint)


def parse_weights(content: bytes) -> Weights:
    """Weights from JSON.

    Raises:
        ValueError: what is wrong with them, as a clause.
    """
    try:
        return Weights.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from error
