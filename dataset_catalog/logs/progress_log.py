"""From the records of the loads topic to the loads that were begun.

As with manifests, a record is decoded when it is asked for: one that is damaged spoils its own load alone.

Read next: progress.py (what a load's records add up to).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evenload.dataset_catalog.errors import CorruptProgressError
from evenload.dataset_catalog.logs.manifest_log import VersionKey
from evenload.dataset_catalog.progress import LoadProgress, LoadState, fold_progress
from evenload.dataset_catalog.record_keys import keys_by_version


class ProgressContents:
    """What the loads topic says now.

    Args:
        values: Keys and values of its records, in the order of the log.

    Attributes:
        keys: Of all records of a load, in the order of the log.
        strays: Keys that are not of a progress record.
    """

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._values = values
        self._last: dict[VersionKey, bytes | None] = {}  # under which key the newest is that can be read
        self.keys, self.strays = keys_by_version(values)

    def records(self, version: VersionKey) -> Iterator[LoadProgress]:
        """The records of a load that can be read, in the order of the log."""
        for _, found in self.each(version):
            if isinstance(found, LoadProgress):
                yield found

    def state(self, version: VersionKey) -> LoadState | None:
        """What is known of a load; None when nothing of it is there.

        Raises:
            CorruptProgressError: Its records contradict each other, or one can't be read. To go on without
                that one would write samples again, if it was the newest.
        """

        def readable() -> Iterator[LoadProgress]:
            for _, found in self.each(version):
                if isinstance(found, CorruptProgressError):
                    raise found
                yield found

        return fold_progress(readable())

    def each(self, version: VersionKey) -> Iterator[tuple[bytes, LoadProgress | CorruptProgressError]]:
        """Keys and records of a load, or why a record can't be read; each decoded when its turn comes."""
        for key in self.keys.get(version, ()):
            try:
                yield key, LoadProgress.from_record(key, self._values[key])
            except CorruptProgressError as error:
                yield key, error.with_traceback(None)

    def last(self, version: VersionKey) -> LoadProgress | None:
        """The newest record of a load that can be read."""
        if version not in self._last:
            newest_first = reversed(self.keys.get(version, ()))
            self._last[version] = next(filter(self._is_readable, newest_first), None)
        key = self._last[version]
        return None if key is None else LoadProgress.from_record(key, self._values[key])

    def _is_readable(self, key: bytes) -> bool:
        try:
            LoadProgress.from_record(key, self._values[key])
        except CorruptProgressError:
            return False
        return True
