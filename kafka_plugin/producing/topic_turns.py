"""The turns of one topic that is written: the one that single records are in, and those of batches.

A turn ends when so many bytes are sent as the route says, or when the client's own partitioner would go on to
another partition, after twice `linger.ms`. Not sooner: what a partition gets waits for `linger.ms` unless its
batch gets full, so at high rates shorter turns mean longer latencies. Where batches get full, a turn ends
with a full one, and may take up to twice as long for it (decision 0052). Whichever thread comes by begins the
next; others, meanwhile, go on with the one before, so nobody waits.

Read next: turn.py, one turn; producer.py, which sends what is in it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from evenload.kafka_plugin.producing.delivery_reports import DeliveryCallback, TopicReports
from evenload.kafka_plugin.producing.turn import Turn
from evenload.kafka_plugin.routing.topic_route import TopicRoute


class TopicTurns:
    """Begins and ends turns. Any thread may call any method.

    Args:
        route: Of the topic; asked for a partition for each turn.
        reports: Of the topic.
        turn_s: How long a turn lasts, in which a batch may linger twice.
        full_bytes: Of a batch that doesn't linger.
        recount: Told which partition the client doesn't know.

    Attributes:
        current: The turn that single records are in, and what takes reports of records without a callback.
    """

    def __init__(
        self,
        route: TopicRoute,
        reports: TopicReports,
        *,
        turn_s: float,
        full_bytes: int,
        recount: Callable[[TopicRoute, int], None],
    ) -> None:
        self.route = route
        self.reports = reports
        self._turn_s = turn_s
        self._full_bytes = full_bytes
        self._begun_s = -math.inf  # when the current turn was
        self._recount = recount
        self._beginning = threading.Lock()
        ended = Turn(route, route.partition_for(0), 0)
        self.current: tuple[Turn, DeliveryCallback] = (ended, reports.make(None, ended))

    def next(self, ended: Turn) -> tuple[Turn, DeliveryCallback]:
        """The turn after `ended`, or while another thread is about to begin it, still that one."""
        if not self._beginning.acquire(blocking=False):
            return self.current
        try:
            if self.current[0] is ended:
                self.current = self._begin()
                ended.end()
                self.route.sample(ended.num_sent, ended.sent_bytes)
            return self.current
        finally:
            self._beginning.release()

    def of_batch(self, num_records: int, size_bytes: int) -> Turn:
        """A turn of its own for records that are sent in one call; they count as sent."""
        turn = Turn(self.route, self.route.partition_for(size_bytes), size_bytes)
        turn.num_sent, turn.sent_bytes = num_records, size_bytes
        self.route.sample(num_records, size_bytes)
        return turn

    def recount(self, partition: int) -> None:
        """The client knows no partition of such a number: choose among those that it knows."""
        self._recount(self.route, partition)

    def _begin(self) -> tuple[Turn, DeliveryCallback]:
        turn_bytes = self.route.route.batch_bytes
        now_s = time.monotonic()
        ends_s = now_s + self._turn_s
        usual_bytes = self.current[0].sent_bytes / max(1e-6, now_s - self._begun_s) * self._turn_s
        if whole_bytes := whole_batches(usual_bytes, self._full_bytes, turn_bytes):
            turn_bytes, ends_s = whole_bytes, ends_s + self._turn_s
        self._begun_s = now_s
        turn = Turn(self.route, self.route.partition_for(turn_bytes), turn_bytes, ends_s)
        return turn, self.reports.make(None, turn)


def whole_batches(usual_bytes: float, full_bytes: int, turn_bytes: int) -> int:
    """How many bytes a turn has that ends with a full batch; 0 where batches leave before they are full.

    Args:
        usual_bytes: What is sent in a turn's time.
        full_bytes: Of a batch.
        turn_bytes: What a turn may have at most.
    """
    if usual_bytes < 2 * full_bytes or full_bytes > turn_bytes:
        return 0
    return min(round(usual_bytes / full_bytes), turn_bytes // full_bytes) * full_bytes
