"""A turn: the records that go to one partition, one after the other, and what became of their bytes.

A producer asks the router where to send, and keeps books of what it sent, once a turn instead of once a
record: both cost more than handing a record to the client. The turn's bytes are lent by
`TopicRoute.partition_for` before any is sent. What was not used of them is given back when the turn ends,
so shares and books hold in bytes, whatever ends a turn. What was stored is booked when no report is
outstanding; until then it counts as on its way.

Threads: any may send and take reports. Numbers are changed by single statements in which nothing is called,
between whose reading and writing the interpreter lock never changes hands
(tests/unit/kafka_plugin/producing/test_turns.py tries it). A thread that is about to send while another one
ends the turn may send one record more: then up to that record goes uncounted.

Sizes are payload in bytes, times seconds of the monotonic clock.
"""

from __future__ import annotations

import math

from evenload.kafka_plugin.routing.topic_route import TopicRoute


class Turn:
    """One turn. The producer changes `sent_bytes` and `num_sent` itself, as a call would cost too much.

    Args:
        route: Where its bytes are lent from.
        size_bytes: How many it asks for; more may be sent.
        ends_s: When it ends at the latest, however little was sent.

    Attributes:
        partition: Whose turn it is.
        sent_bytes: Handed to the client so far.
        num_sent: Records so far. Counted up before `sent_bytes` are.
        num_reported: Of these, how many have had their report.
    """

    __slots__ = (
        "_booked_bytes",
        "_lost_bytes",
        "_route",
        "ends_s",
        "num_reported",
        "num_sent",
        "partition",
        "sent_bytes",
        "size_bytes",
    )

    def __init__(self, route: TopicRoute, partition: int, size_bytes: int, ends_s: float = math.inf) -> None:
        self.partition = partition
        self.size_bytes = size_bytes
        self.ends_s = ends_s
        self.sent_bytes = 0
        self.num_sent = 0
        self.num_reported = 0
        self._route = route
        self._lost_bytes = 0
        self._booked_bytes = 0

    def settle(self) -> None:
        """No record is waiting: brokers have all that was sent and is not lost."""
        stored_bytes = self.sent_bytes - self._lost_bytes
        newly_bytes = stored_bytes - self._booked_bytes
        self._booked_bytes = stored_bytes
        if newly_bytes:
            self._route.own_bytes.add_acknowledged(self.partition, newly_bytes)

    def lose(self, size_bytes: int) -> None:
        """A record that was sent will never be stored; it is told by a report."""
        self._lost_bytes += size_bytes
        self._route.own_bytes.add_lost(self.partition, size_bytes)

    def take_back(self, num_records: int, size_bytes: int) -> None:
        """The client did not take records after all; the turn has that much left."""
        self.sent_bytes -= size_bytes
        self.num_sent = num_sent = self.num_sent - num_records
        if num_sent == self.num_reported:
            self.settle()

    def refuse(self, num_records: int, size_bytes: int) -> None:
        """The client did not take records after all; the turn is over."""
        self.take_back(num_records, size_bytes)
        self.end()

    def end(self) -> None:
        """Give back what was not used, or take what was used beyond. Called once, after its last record."""
        if unused_bytes := self.size_bytes - self.sent_bytes:
            self._route.give_back(self.partition, unused_bytes)
