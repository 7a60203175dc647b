"""Which plugins the installed packages offer, by entry-point group and name."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points


def offered(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """The entry points of a group by name; more than one where packages offer the same name."""
    # A package that is installed or removed changes the folder that it is in.
    return _offered_by(group, tuple((folder, _changed_at_ns(folder)) for folder in sys.path))


def _changed_at_ns(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0  # there may be none


@functools.lru_cache(maxsize=4)  # a file of each installed package is read: tens of milliseconds
def _offered_by(group: str, _path: tuple[tuple[str, int], ...]) -> Mapping[str, Sequence[EntryPoint]]:
    offered: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=group):
        offered.setdefault(entry_point.name, []).append(entry_point)
    return offered
