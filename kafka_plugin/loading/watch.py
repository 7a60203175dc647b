"""Signs of life of a load: its newest progress record, committed or not.

A loader looks for another loader of its name before it takes the transactional id, which would stop the
other, and again when brokers refuse it: who has taken the id? Committed records don't answer that: the
other loader's newest record may lie behind an open transaction, beyond the last stable offset, where readers
of committed records don't get. So this reads everything, and takes from it only that somebody wrote.
dataset_catalog says what is committed.
"""

from __future__ import annotations

from evenload.dataset_catalog.catalog import LOADS_TOPIC
from evenload.dataset_catalog.errors import CorruptProgressError
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.logs.internal_topics import PARTITION
from evenload.dataset_catalog.progress import LoadProgress
from evenload.dataset_catalog.record_keys import parse_key
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection


def newest_sign_of_life(
    connection: Connection, name: str, version: int, *, timeout_s: float = 30.0
) -> LoadProgress | None:
    """The progress record of this load that was written last; None if it has none, or was forgotten.

    Raises:
        BrokersUnreachableError: No broker answers.
        CatalogUnavailableError: The topic of loads could not be read within `timeout_s`.
    """
    with TopicAdmin(connection, timeout_s=timeout_s) as admin:
        start = admin.offsets(LOADS_TOPIC, [PARTITION], "log start")[PARTITION]
        stop = admin.offsets(LOADS_TOPIC, [PARTITION], "log end")[PARTITION]
    newest: LoadProgress | None = None
    ranges = {PARTITION: OffsetRange(start, stop)}
    for record in read_committed(connection, LOADS_TOPIC, ranges, timeout_s=timeout_s, uncommitted_too=True):
        parsed = parse_key(record.key or b"")
        if parsed is None or (parsed.name, parsed.version) != (name, version):
            continue
        try:
            newest = (
                LoadProgress.from_record(record.key or b"", record.value)
                if record.value is not None
                else None
            )
        except CorruptProgressError:
            continue  # no loader writes such a record, so it is no sign of one
    return newest
