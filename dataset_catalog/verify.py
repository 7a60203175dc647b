"""Read a whole dataset and say what is missing, repeated, corrupt or extra.

Reads the topic, not what the manifest lists: only so are samples found that nobody listed. How records
are judged stands in verification.py.
"""

from __future__ import annotations

from collections.abc import Callable

from evenload.dataset_catalog.catalog import check_topic
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.dataset_catalog.verification import Verification, VerifyReport
from evenload.kafka_connection import Connection

__all__ = ["VerifyReport", "verify"]


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
        # What an open transaction hides isn't committed, so it is no part of the dataset, and not waited for.
        stops = admin.offsets(manifest.topic, partitions, "last stable")
    ranges = {partition: OffsetRange(starts[partition], stops[partition]) for partition in partitions}
    verification, num_read = Verification(manifest), 0
    for record in read_committed(connection, manifest.topic, ranges, timeout_s=timeout_s):
        # What can't be read has no value: corrupt where a record is due, and extra elsewhere.
        num_due = verification.add(record.partition, record.offset, record.stamp, record.value)
        if num_due and progress is not None:
            num_read += num_due
            progress(num_read, manifest.num_samples)
    return verification.report()
