"""Which log dirs of a broker lie on the same volume, so that each volume is counted once.

A broker tells, for each log dir, the total and usable bytes of the volume it is in, but not which volume that
is. Counted once for each dir, a volume shared by two would look twice as large: its utilisation would be
right, but the router would think twice as much fits.

The idea: dirs of one volume have the same total, and the same usable bytes but for what was written while the
broker looked from one to the next (`_WRITTEN_MEANWHILE_BYTES` at most). Two disks of the same size may look
like that too, for a while: new ones do. Once they have been seen further apart than that, they are two for
good, so that disks that fill alike don't merge and part again; until then the broker looks smaller than it
is, never larger.

Pure but for what was seen (tests/unit/telemetry_collector/sources/test_volumes.py). Read next: log_dirs.py,
which asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["SeenVolumes", "Volume", "VolumeOfDir"]

# A broker looks at its dirs within some hundredths of a second; a fast disk takes 5 GB in a second.
_WRITTEN_MEANWHILE_BYTES = 64 << 20


class VolumeOfDir(NamedTuple):
    """What a broker says about the volume that one of its log dirs is in."""

    path: str
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and the log dirs on it, by path in order."""

    paths: tuple[str, ...]
    total_bytes: int
    usable_bytes: int

    @property
    def used_bytes(self) -> int:
        """What it holds, whoever wrote it."""
        return self.total_bytes - self.usable_bytes


class SeenVolumes:
    """The log dirs of one broker that are known to be on different volumes."""

    def __init__(self) -> None:
        self._apart: set[frozenset[str]] = set()

    def volumes(self, dirs: Iterable[VolumeOfDir]) -> Sequence[Volume]:
        """The volumes of these dirs, each once, in the order of their first paths."""
        groups: list[list[VolumeOfDir]] = []
        for told in sorted(dirs):
            group = next((g for g in groups if all(self._may_share(told, other) for other in g)), None)
            if group is None:
                groups.append([told])
            else:
                group.append(told)
        return [
            Volume(
                tuple(told.path for told in group),
                group[0].total_bytes,
                min(told.usable_bytes for told in group),
            )
            for group in groups
        ]

    def _may_share(self, one: VolumeOfDir, other: VolumeOfDir) -> bool:
        pair = frozenset((one.path, other.path))
        if (
            one.total_bytes != other.total_bytes
            or abs(one.usable_bytes - other.usable_bytes) > _WRITTEN_MEANWHILE_BYTES
        ):
            self._apart.add(pair)
        return pair not in self._apart
