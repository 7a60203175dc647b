"""The last step of a load: a manifest, made from what is committed, not from what a process remembers."""

from __future__ import annotations

import time
from typing import cast

import stamina

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogUnavailableError, OpenTransactionError
from evenload.dataset_catalog.manifest import DatasetManifest, Encoding, ValueFormat, encode_schema
from evenload.dataset_catalog.progress import LoadState
from evenload.dataset_catalog.records.encoding import storable_schema
from evenload.kafka_connection import BrokersUnreachableError
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.sources.source import Source


def publish_load(
    catalog: Catalog, name: str, version: int, *, source: Source, config: LoaderConfig
) -> DatasetManifest:
    """Make a completely written dataset exist, and forget the progress of its load.

    Any number of loaders may do this for one load, one after the other or at once.

    Raises:
        CatalogUnavailableError, BrokersUnreachableError: Not within `config.stall_timeout_s`.
    """
    manifest: DatasetManifest | None = None
    for attempt in stamina.retry_context(
        on=(CatalogUnavailableError, OpenTransactionError, BrokersUnreachableError),
        attempts=None,
        timeout=config.stall_timeout_s,
        wait_max=5.0,
    ):
        with attempt:
            if manifest is None:
                state = catalog.load_state(name, version, wait_s=config.transaction_timeout_s + 10)
                if state is None:  # published and forgotten, by a loader that took over at the very end
                    return catalog.get(f"{name}@{version}")
                manifest = make_manifest(state, source)
            catalog.publish(manifest)
            catalog.forget_progress(name, version)
    assert manifest is not None
    return manifest


def make_manifest(state: LoadState, source: Source) -> DatasetManifest:
    """What the committed progress of a complete load says the dataset is."""
    last, facts = state.last, state.last.facts
    encoding = cast(Encoding, facts["encoding"])
    value_format = cast(ValueFormat, facts["value_format"])
    return DatasetManifest(
        name=last.name,
        version=last.version,
        topic=last.topic,
        topic_id=last.topic_id,
        encoding=encoding,
        value_format=value_format,
        schema_ipc=encode_schema(storable_schema(source.schema, value_format)),
        features=source.features,
        samples_per_record=cast(int, facts["samples_per_record"]) if encoding == "packed" else 1,
        partitions=state.partitions,
        num_samples=last.num_samples,
        num_records=last.num_records,
        num_bytes=last.num_bytes,
        checksum=last.checksum,
        shuffle_seed=cast("int | None", facts["seed"]),
        load_id=last.load_id,
        source=dict(source.description),
        created_at_s=time.time(),
    )
