"""A run's progress as the committed offsets of a consumer group, for people and lag tools.

The group has no members and nobody reads it to resume: a shuffled epoch has no contiguous prefix, so what is
committed is the first offset plus the records wholly consumed. It is committed on a thread of its own, after
a checkpoint is valid, and tried again until a deadline; failures are counted and logged, and harm nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from evenload.kafka_connection.admin_questions import ask_again
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.errors import KafkaConnectionError

__all__ = ["GroupProgress", "group_of"]

_DEADLINE_S: Final = 10.0

logger = logging.getLogger(__name__)


def group_of(run: str) -> str:
    """The consumer group of a run."""
    return f"evenload.{run}"


class GroupProgress:
    """Commits the newest offsets that it was given; older ones that had no time to be committed are dropped.

    Args:
        topic: Of the dataset.
        deadline_s: For one commit, in seconds, above 0.
    """

    def __init__(
        self, connection: Connection, *, group: str, topic: str, deadline_s: float = _DEADLINE_S
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._deadline_s = deadline_s
        self._wanted: Mapping[int, int] | None = None
        self._is_closing = False
        self._changed = threading.Condition()
        self._admin: Any = None
        self.num_commits = 0
        self.num_failures = 0
        self._thread = threading.Thread(target=self._work, name="group-progress", daemon=True)
        self._thread.start()

    def submit(self, offset_by_partition: Mapping[int, int]) -> None:
        """Commit these, soon. Any thread; never blocks."""
        with self._changed:
            self._wanted = dict(offset_by_partition)
            self._changed.notify()

    def close(self) -> None:
        """Commit what is left, within the deadline, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(2 * self._deadline_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_closing)
                wanted, self._wanted = self._wanted, None
            if wanted is None:
                self._close_admin()
                return
            self._commit(wanted)

    def _commit(self, wanted: Mapping[int, int]) -> None:
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in wanted.items()
        }
        try:
            admin = self._admin = self._admin or open_admin(self._connection, timeout_s=self._deadline_s)

            def commit() -> None:
                answers = admin.alter_group_offsets(self._group, offsets)
                refused = [answer for answer in answers.values() if getattr(answer, "errno", 0)]
                if refused:
                    raise refused[0]

            # A run's last offsets have no successor: the group would stay short of the end for good, because
            # its coordinator was moving, or loading what it knows, in the moment of the one commit.
            ask_again(admin, commit, timeout_s=self._deadline_s)
            self.num_commits += 1
        except (KafkaError, KafkaConnectionError, OSError) as error:
            self.num_failures += 1
            logger.warning("progress of group %s could not be committed: %s", self._group, error)
            self._close_admin()

    def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
