"""Say for each record which partition is next, so that bytes follow the shares.

The idea: partitions take turns of about a batch. All that the usual call does is take the record's size off
what is left of the turn. When a turn ends, the bytes really sent are booked, and of the partitions that are
not ahead of their share, the one whose next turn is due first has it: partition p, with share q_p and S_p
bytes sent to it, is ahead until S_p / q_p bytes have been sent in all, and its next turn is due before
(S_p + the longest turn) / q_p have. For turns of one length nobody is then ever a whole turn ahead or behind
(Tijdeman, "The chairman assignment problem", 1980; in networks the rule is known as WF2Q). Records that don't
end where a batch does are in S_p, so they are made up for later: shares hold in bytes, whatever the sizes.

Invariants, checked in tests/property/router/test_route.py:
1. Only partitions with a share above 0 are ever returned.
2. At every moment each partition has had its share of the bytes to within 1.5 times the sum of a batch and
   the largest record: nothing adds up over time.
3. Consecutive records stay on a partition for at least a batch.
4. A route that takes over from another goes on where that one stood: partitions that were ahead wait.

What is given back, as it was not sent after all, is made up for as well
(tests/unit/kafka_plugin/producing/test_turns.py).

Cost on one core, beside 21 ns for an empty method call: 60 ns within a turn, about 0.7 us where one ends
(with 3,000 partitions 2 us), which is once in a batch.

Threads: any number may call `partition_for`; it never waits and never fails. A turn is ended by whichever
thread takes the token (a list's pop and append are atomic under the interpreter lock); what others send
until it is done follows the shares by a simpler rule, and is booked afterwards. A switch of threads
between reading what is left of a turn and writing it back miscounts up to a batch, once. That hits
partitions in proportion to what they get, so shares still hold in the long run; with one caller at a
time, invariant 2 holds as it stands.

Sizes are bytes as the caller counts them. Nothing is measured here, and no time passes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import accumulate
from types import MappingProxyType

__all__ = ["Route"]

# A bound on memory, should a thread die with the token: the oldest are forgotten.
_UNBOOKED_MAX = 100_000
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Route:
    """A topic's current shares over its partitions, and where a producer stands in following them.

    Shares, reason and notes never change; another decision is another route, swapped in by its owner as one
    reference. Only whose turn it is changes, with every call.

    Attributes:
        shares: the part of the bytes that each partition gets, by its number; above 0, summing to 1.
        is_fallback: whether the shares are even only because nothing better was known.
        reason: why it is a fallback (see evenload.router.router.FallbackReason), or None.
        notes: sentences that say what routing can't level, whom it leaves out, and what would help.
    """

    __slots__ = (
        "_batch_bytes",
        "_cumulative",
        "_left_bytes",
        "_longest_bytes",
        "_meanwhile_bytes",
        "_partition",
        "_partitions",
        "_place",
        "_ready",
        "_sent_bytes",
        "_shares",
        "_token",
        "_total_bytes",
        "_turn_bytes",
        "_unbooked",
        "_waiting",
        "is_fallback",
        "notes",
        "reason",
        "shares",
    )

    def __init__(
        self,
        shares: Mapping[int, float],
        *,
        batch_bytes: int = 256 * 1024,
        reason: str | None = None,
        notes: tuple[str, ...] = (),
        previous: Route | None = None,
        skip_turns: int = 0,
    ) -> None:
        """Makes a route.

        Args:
            shares: by partition number; finite, at least 0, not all 0. They are divided by their sum.
            batch_bytes: about how many bytes go to one partition before the next one's turn; at least 1.
            reason: why this is a fallback, or None if it isn't.
            notes: what a person should know.
            previous: the route that this one takes over from, if it was ever followed.
            skip_turns: begin so many turns later. Producers that start together at the same turn would
                all send their first batches to the same partition.

        Raises:
            ValueError: shares or batch_bytes are not as said above.
        """
        total = math.fsum(shares.values())
        if not all(0 <= share < math.inf for share in shares.values()) or not 0 < total < math.inf:
            raise ValueError(f"shares have to be finite, at least 0 and not all 0, but are {dict(shares)}")
        if batch_bytes < 1:
            raise ValueError(f"batch_bytes is {batch_bytes}, it has to be at least 1")
        parts = {partition: share / total for partition, share in sorted(shares.items())}
        positive = {partition: part for partition, part in parts.items() if part > 0}
        self.shares: Mapping[int, float] = MappingProxyType(positive)
        self.reason = reason
        self.is_fallback = reason is not None
        self.notes = notes
        self._partitions = tuple(positive)
        self._shares = tuple(positive.values())
        # All byte counts are floats (exact up to 2**53): mixing in integers costs more than the arithmetic.
        self._batch_bytes = float(batch_bytes)
        # A turn ends with the record that fills it: for records up to a batch, before two.
        self._longest_bytes = 2.0 * self._batch_bytes
        self._token = [True]
        self._unbooked: deque[tuple[int, int]] = deque(maxlen=_UNBOOKED_MAX)
        self._cumulative = list(accumulate(self._shares))
        self._meanwhile_bytes = 0.0
        self._begin([0.0] * len(positive))
        if previous is not None and previous.has_begun:
            self._begin(self._taken_over(previous))
        elif skip_turns:
            for _ in range(skip_turns):
                self._end_turn()
                self._left_bytes = 0.0
            self._begin(list(self._ahead_bytes().values()))

    @property
    def batch_bytes(self) -> int:
        """About how many bytes go to one partition before the next one's turn."""
        return int(self._batch_bytes)

    @property
    def has_begun(self) -> bool:
        """Whether it stands anywhere yet: it was followed, or took over from one that was."""
        return self._place is not None or any(self._sent_bytes)

    def partition_for(self, size_bytes: int) -> int:
        """The partition that a record of `size_bytes` (0 or more) should go to."""
        left_bytes = self._left_bytes
        if left_bytes > 0.0:
            self._left_bytes = left_bytes - size_bytes
            return self._partition
        try:
            self._token.pop()
        except IndexError:
            return self._meanwhile(size_bytes)
        try:
            self._end_turn()
        finally:
            self._token.append(True)
        self._left_bytes -= size_bytes
        return self._partition

    def give_back(self, partition: int, size_bytes: int) -> None:
        """Of what went to `partition`, this did not go there after all; its next turn comes sooner."""
        place = bisect_left(self._partitions, partition)
        if place < len(self._partitions) and self._partitions[place] == partition:
            self._unbooked.append((place, -size_bytes))

    def _begin(self, sent_bytes: list[float]) -> None:
        """Sets what counts as sent so far; no turn is under way, so that the first call begins one."""
        self._sent_bytes = sent_bytes
        self._total_bytes = math.fsum(sent_bytes)
        self._ready: list[tuple[float, int]] = []
        self._waiting = [
            (sent / share, place)
            for place, (sent, share) in enumerate(zip(sent_bytes, self._shares, strict=True))
        ]
        heapify(self._waiting)
        self._place: int | None = None
        self._partition = self._partitions[0]
        self._turn_bytes = 0.0
        self._left_bytes = 0.0

    def _end_turn(self) -> None:
        """Books the turn under way and begins the next."""
        waiting, ready = self._waiting, self._ready
        place = self._place
        total_bytes = self._total_bytes
        if place is not None:
            spent_bytes = self._turn_bytes - self._left_bytes
            self._total_bytes = total_bytes = total_bytes + spent_bytes
            self._sent_bytes[place] = sent_bytes = self._sent_bytes[place] + spent_bytes
            if self._unbooked:
                total_bytes = self._book_the_unbooked()
                sent_bytes = self._sent_bytes[place]
            heappush(waiting, (sent_bytes / self._shares[place], place))
            if spent_bytes > self._longest_bytes:
                self._expect_turns_of(spent_bytes)
        while waiting and waiting[0][0] <= total_bytes:
            even_at, place = heappop(waiting)
            heappush(ready, (even_at + self._longest_bytes / self._shares[place], place))
        # Owed and owing bytes sum to 0, so somebody is ready, but for rounding.
        _, place = heappop(ready or waiting)
        self._place = place
        self._partition = self._partitions[place]
        self._turn_bytes = self._left_bytes = self._batch_bytes

    def _book_the_unbooked(self) -> float:
        unbooked: dict[int, int] = {}
        while self._unbooked:
            place, size_bytes = self._unbooked.pop()
            unbooked[place] = unbooked.get(place, 0) + size_bytes
        # In this order, as Java does (java/): the same sums to the last bit.
        for place in sorted(unbooked):
            self._sent_bytes[place] += unbooked[place]
            self._total_bytes += unbooked[place]
        return self._total_bytes

    def _meanwhile(self, size_bytes: int) -> int:
        """A partition while another thread is ending the turn; it may be away from the processor for long.

        Batches are laid on the unit interval, cut up by the shares, in steps of the golden ratio, which
        fill it as evenly as one point after the other can.
        """
        self._meanwhile_bytes += size_bytes
        point = self._meanwhile_bytes // self._batch_bytes * _GOLDEN % 1.0
        place = min(bisect_right(self._cumulative, point), len(self._partitions) - 1)
        self._unbooked.append((place, size_bytes))
        return self._partitions[place]

    def _expect_turns_of(self, size_bytes: float) -> None:
        """Reckons when batches are due anew, as a record was far larger than a batch.

        Otherwise partitions with tiny shares, all due at about the same time by their batches, would have
        a turn of many batches each one after the other, while the large ones wait.
        """
        self._longest_bytes = size_bytes * 1.25  # so that this is seldom
        self._ready[:] = [
            ((self._sent_bytes[place] + self._longest_bytes) / self._shares[place], place)
            for _, place in self._ready
        ]
        heapify(self._ready)

    def _taken_over(self, previous: Route) -> list[float]:
        """By how many bytes each partition was ahead in the route before, at most two batches either way.

        More than that was a giant record, which whoever decides the shares has counted already.
        """
        ahead, limit = previous._ahead_bytes(), 2.0 * self._batch_bytes
        return [min(max(ahead.get(partition, 0.0), -limit), limit) for partition in self._partitions]

    def _ahead_bytes(self) -> dict[int, float]:
        """By how many bytes each partition is ahead of its share, the turn under way included."""
        sent = list(self._sent_bytes)
        if self._place is not None:
            sent[self._place] += self._turn_bytes - self._left_bytes
        total = math.fsum(sent)
        return {
            partition: so_far - share * total
            for partition, share, so_far in zip(self._partitions, self._shares, sent, strict=True)
        }
