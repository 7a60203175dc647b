"""From the records of the datasets topic to the datasets that exist.

Keys are `NAME@VERSION/PART`. A manifest counts when all of its parts are there. Each part names the
document that it belongs to, so the parts of a publication that ended half-way are passed over.

Nothing is decoded before it is asked for, and a manifest is decoded from its own records alone. So one that
is damaged, or made to do harm, hides no other, and can be dropped: that takes only keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from evenload.dataset_catalog.errors import CorruptManifestError
from evenload.dataset_catalog.manifest import PART_BYTES, DatasetManifest
from evenload.dataset_catalog.parts import COMPRESSED_BYTES_MAX, Part, parse_part
from evenload.dataset_catalog.record_keys import keys_by_version

VersionKey = tuple[str, int]  # name and version
# A manifest, and what may be left of another one that was published under the same keys.
_VERSION_BYTES_MAX = 2 * COMPRESSED_BYTES_MAX


class CatalogContents:
    """What the datasets topic says now.

    Args:
        values: Keys and values of its records, in the order of the log.

    Attributes:
        keys: Of all records of a version, for tombstones.
        strays: Keys that are not of a manifest.
    """

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._values = values
        self.keys, self.strays = keys_by_version(values)

    def manifest(self, version: VersionKey) -> DatasetManifest | None:
        """The manifest of this version; None without a whole one.

        Raises:
            CorruptManifestError: It is damaged.
        """
        dataset = f"{version[0]}@{version[1]}"
        try:
            manifest = _complete_manifest((key, self._values[key]) for key in self.keys.get(version, ()))
        except CorruptManifestError as error:
            problem = type(error)(error.reason, dataset)
        else:
            if manifest is None or (manifest.name, manifest.version) == version:
                return manifest
            problem = CorruptManifestError(f"it says that it is {manifest.id}", dataset)
        # Raised here, and not where it was found, so that it doesn't keep alive what was half decoded.
        raise problem

    def each(
        self, name: str | None = None
    ) -> Iterator[tuple[VersionKey, DatasetManifest | CorruptManifestError]]:
        """Each version that is published, whole or damaged, in order; decoded when its turn comes.

        Args:
            name: Only those of this name.
        """
        for version in sorted(self.keys):
            if name is None or version[0] == name:
                try:
                    manifest = self.manifest(version)
                except CorruptManifestError as error:
                    yield version, error.with_traceback(None)
                else:
                    if manifest is not None:
                        yield version, manifest
                    del manifest  # or it would be here still while the next one is decoded

    @cached_property
    def manifests(self) -> dict[VersionKey, DatasetManifest]:
        """All that are whole."""
        return {version: found for version, found in self.each() if isinstance(found, DatasetManifest)}

    @cached_property
    def damaged(self) -> dict[VersionKey, CorruptManifestError]:
        """Why the others aren't."""
        return {version: found for version, found in self.each() if isinstance(found, CorruptManifestError)}


def manifest_records(manifest: DatasetManifest, max_bytes: int = PART_BYTES) -> list[tuple[bytes, bytes]]:
    """Keys and values of the records that publish a manifest."""
    return [
        (f"{manifest.id}/{number}".encode(), value)
        for number, value in enumerate(manifest.to_parts(max_bytes))
    ]


def fold_manifests(records: Iterable[tuple[bytes, bytes]]) -> CatalogContents:
    """What the records of the datasets topic add up to.

    Args:
        records: Keys, each once, and values, in the order of the log.
    """
    return CatalogContents(dict(records))


def _complete_manifest(records: Iterable[tuple[bytes, bytes]]) -> DatasetManifest | None:
    """The manifest whose parts are all there (one at most: all need the key of part 0); None without one.

    Raises:
        CorruptManifestError: No whole one, and a part is damaged.
    """
    documents: dict[bytes, list[tuple[Part, bytes]]] = {}
    problem: CorruptManifestError | None = None
    num_bytes = 0
    for key, value in records:
        num_bytes += len(value)
        if num_bytes > _VERSION_BYTES_MAX:
            raise CorruptManifestError(f"its records have more than {_VERSION_BYTES_MAX} bytes")
        try:
            part = parse_part(value)
            # A part under any other key could be of a second whole document, and stand before the real one.
            if not key.endswith(b"/%d" % part.number):
                raise CorruptManifestError(f"its part {part.number} stands under the key of another")
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
