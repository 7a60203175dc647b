"""Which records of the catalog can't be read, and why: what an operator is shown, and may clear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenload.dataset_catalog.errors import (
    CorruptManifestError,
    CorruptProgressError,
    NewerManifestError,
    NewerProgressError,
)
from evenload.dataset_catalog.foreign_content import printable
from evenload.dataset_catalog.liveness import may_be_loading
from evenload.dataset_catalog.logs.internal_topics import DATASETS_TOPIC, LOADS_TOPIC
from evenload.dataset_catalog.logs.manifest_log import CatalogContents
from evenload.dataset_catalog.logs.progress_log import ProgressContents

_NEWER = "a newer evenload can read it"
_LOADING = "somebody is loading it"


@dataclass(frozen=True, slots=True)
class DamagedRecords:
    """Records that belong together and can't be read."""

    topic: str  # where they are
    name: str  # NAME@VERSION, or a key that names nothing, as it can be printed
    reason: str  # why they can't be read, as it can be printed
    keys: tuple[bytes, ...] = ()  # what has to go to clear it; nothing where it is kept
    kept_because: str | None = None  # why `drop_damaged` leaves it alone; None when it doesn't


def find_damaged(
    contents: CatalogContents, progress: ProgressContents, *, now_s: float
) -> Sequence[DamagedRecords]:
    """All that can't be read in both topics: manifests, then progress.

    Args:
        now_s: Seconds since 1970.
    """
    return [*_damaged_manifests(contents), *_damaged_progress(progress, now_s)]


def _damaged_manifests(contents: CatalogContents) -> Iterator[DamagedRecords]:
    for version, found in contents.each():
        if isinstance(found, CorruptManifestError):
            name = f"{version[0]}@{version[1]}"
            if isinstance(found, NewerManifestError):
                yield DamagedRecords(DATASETS_TOPIC, name, found.reason, kept_because=_NEWER)
            else:
                yield DamagedRecords(DATASETS_TOPIC, name, found.reason, tuple(contents.keys[version]))
        del found  # a manifest of a million runs, while the next one is decoded
    for key in contents.strays:
        yield _stray(DATASETS_TOPIC, key, "NAME@VERSION/PART")


def _damaged_progress(progress: ProgressContents, now_s: float) -> Iterator[DamagedRecords]:
    for version in sorted(progress.keys):
        broken = (found for _, found in progress.each(version) if isinstance(found, CorruptProgressError))
        problem = next(broken, None)
        if problem is None:
            continue
        last = progress.last(version)
        kept_because = _NEWER if isinstance(problem, NewerProgressError) else None
        if last is not None and may_be_loading(last, now_s=now_s):
            kept_because = _LOADING
        # All records of the load or none: without its newest one, a load would be gone on with too early, and
        # write samples again.
        keys = () if kept_because else tuple(reversed(progress.keys[version]))
        yield DamagedRecords(LOADS_TOPIC, problem.load, problem.reason, keys, kept_because)
    for key in progress.strays:
        yield _stray(LOADS_TOPIC, key, "NAME@VERSION/SEQUENCE")


def _stray(topic: str, key: bytes, form: str) -> DamagedRecords:
    name = printable(key.decode("utf-8", errors="backslashreplace"), max_chars=80)
    return DamagedRecords(topic, name, f"its key is not {form}", (key,))
