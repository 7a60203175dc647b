"""From the records of the datasets topic to the datasets that exist.

Keys are `NAME@VERSION/PART`. A manifest counts when all of its parts are there; parts of an attempt to
publish that ended half-way are passed over, as the parts say which document they belong to. One damaged
manifest hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dataset_catalog.errors import CorruptManifestError
from dataset_catalog.manifest import PART_BYTES, DatasetManifest
from dataset_catalog.parts import Part, parse_part

VersionKey = tuple[str, int]  # name and version
_KEY = re.compile(r"(.+)@(\d+)/(\d+)")


@dataclass(slots=True)
class CatalogContents:
    """What the datasets topic says now."""

    manifests: dict[VersionKey, DatasetManifest] = field(default_factory=dict)
    damaged: dict[VersionKey, CorruptManifestError] = field(default_factory=dict)
    keys: dict[VersionKey, list[bytes]] = field(default_factory=dict)  # of all records, for tombstones


def manifest_records(manifest: DatasetManifest, max_bytes: int = PART_BYTES) -> list[tuple[bytes, bytes]]:
    """Keys and values of the records that publish a manifest."""
    return [
        (f"{manifest.id}/{number}".encode(), value)
        for number, value in enumerate(manifest.to_parts(max_bytes))
    ]


def fold_manifests(records: Iterable[tuple[bytes, bytes]]) -> CatalogContents:
    """What the records of the datasets topic add up to.

    Args:
        records: Keys, each once, and values, in the order of the log. Other keys are passed over.
    """
    contents = CatalogContents()
    by_version: dict[VersionKey, list[bytes]] = {}
    for key, value in records:
        version = _parse_key(key)
        if version is not None:
            by_version.setdefault(version, []).append(value)
            contents.keys.setdefault(version, []).append(key)
    for version, parts in by_version.items():
        try:
            manifest = _complete_manifest(parts)
            if manifest is not None and (manifest.name, manifest.version) != version:
                raise CorruptManifestError(f"it says that it is {manifest.id}")
        except CorruptManifestError as error:
            contents.damaged[version] = CorruptManifestError(error.reason, f"{version[0]}@{version[1]}")
        else:
            if manifest is not None:
                contents.manifests[version] = manifest
    return contents


def _complete_manifest(values: list[bytes]) -> DatasetManifest | None:
    """The manifest whose parts are all there (one at most: all need the key of part 0); None without one.

    Raises:
        CorruptManifestError: No whole one, and a part is damaged.
    """
    documents: dict[bytes, list[tuple[Part, bytes]]] = {}
    problem: CorruptManifestError | None = None
    for value in values:
        try:
            part = parse_part(value)
        except CorruptManifestError as error:
            problem = error
            continue
        documents.setdefault(part.document_digest, []).append((part, value))
    for parts in documents.values():
        if len(parts) == parts[0][0].num_parts:
            return DatasetManifest.from_parts(value for _, value in parts)
    if problem is not None:
        raise problem
    return None


def _parse_key(key: bytes) -> VersionKey | None:
    found = _KEY.fullmatch(key.decode("utf-8", errors="replace"))
    return (found[1], int(found[2])) if found else None
