"""Read a whole dataset and say what is missing, repeated, corrupt or extra.

Reads the topic, not what the manifest lists: only so are samples found that nobody listed. How records
are judged stands in verification.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from confluent_kafka import Message

from dataset_catalog.catalog import check_topic
from dataset_catalog.committed_reader import OffsetRange, read_committed
from dataset_catalog.manifest import DatasetManifest
from dataset_catalog.record_header import RECORD_HEADER
from dataset_catalog.topic_admin import TopicAdmin
from dataset_catalog.verification import Verification, VerifyReport
from kafka_connection import Connection

__all__ = ["VerifyReport", "verify"]

_Headers = list[tuple[str, bytes | None]]


def verify(
    connection: Connection,
    manifest: DatasetManifest,
    progress: Callable[[int, int], None] | None = None,
    *,
    timeout_s: float = 30.0,
) -> VerifyReport:
    """Compares all committed records of a dataset's topic with its manifest.

    Args:
        connection: The cluster.
        manifest: The dataset.
        progress: Is told often: listed samples read so far, and how many are listed.
        timeout_s: Longest wait for brokers, in seconds.

    Raises:
        TopicRecreatedError: The topic is another one by now.
        DatasetGoneError: There is no such topic.
        CatalogUnavailableError: Brokers don't answer.
    """
    with TopicAdmin(connection, timeout_s=timeout_s) as admin:
        partitions = check_topic(admin, manifest)
        starts = admin.offsets(manifest.topic, partitions, "log start")
        stops = admin.offsets(manifest.topic, partitions, "last stable")
    ranges = {partition: OffsetRange(starts[partition], stops[partition]) for partition in partitions}
    verification, num_read = Verification(manifest), 0
    for message in read_committed(connection, manifest.topic, ranges, timeout_s=timeout_s):
        header = _header(message)
        partition, offset = cast(int, message.partition()), cast(int, message.offset())
        num_due = verification.add(partition, offset, header, message.value())
        if num_due and progress is not None:
            num_read += num_due
            progress(num_read, manifest.num_samples)
    return verification.report()


def _header(message: Message) -> bytes | None:
    """What a record says of itself; None when it says nothing that can be read."""
    try:
        headers = cast("_Headers", message.headers() or [])
    except Exception:  # noqa: BLE001 - a header whose name is no UTF-8 makes the client raise SystemError
        return None
    return next((value for name, value in headers if name == RECORD_HEADER), None)
