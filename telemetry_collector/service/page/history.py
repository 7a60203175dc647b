"""The last hour in bounded memory: how full each broker was, one point each ten seconds.

The idea: time is cut into steps, and a step keeps the last snapshot that was added in it, reduced to one
number for each broker. So memory is bounded by the span and the number of brokers, however often somebody
measures: an hour of 1,000 brokers is about 1.5 MB.

The clock is a monotonic one that is passed in, so setting the machine's time moves no point. A step in which
nothing was measured has no point: the gap shows that nobody looked.

Invariants, checked in tests/property/telemetry_collector/service/page/test_history.py:
1. There are never more points than steps in the span, and one more.
2. No point that is read is older than the span; they come oldest first, each of another step.
3. The newest point is what was added last.

Utilisations are used over capacity. Read next: overview.py, which shows it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["History", "HistoryPoint"]


class HistoryPoint(NamedTuple):
    """How full the brokers were at one moment.

    Attributes:
        ago_s: how long ago, in seconds.
        lowest: the lowest utilisation of all brokers, or None where no capacity was known.
        highest: likewise.
        utilisations: of the brokers that were asked for, in that order; None where it wasn't known.
    """

    ago_s: float
    lowest: float | None
    highest: float | None
    utilisations: tuple[float | None, ...]


class _Kept(NamedTuple):
    step: int
    at_s: float
    index_by_broker: dict[int, int]  # shared by all points while the brokers stay the same
    utilisations: array[float]  # NaN: not known
    lowest: float | None
    highest: float | None


class History:
    """Remembers snapshots for a while. One thread adds, any thread reads; neither ever waits.

    Args:
        span_s: how far it goes back, above 0.
        step_s: at most one point in so many seconds, above 0.
    """

    def __init__(self, *, span_s: float = 3600.0, step_s: float = 10.0) -> None:
        if not 0 < step_s <= span_s < math.inf:
            raise ValueError(f"span_s is {span_s} and step_s {step_s}; it has to be 0 < step_s <= span_s")
        self.span_s = span_s
        self.step_s = step_s
        self._num_points_max = math.ceil(span_s / step_s) + 1
        self._kept: tuple[_Kept, ...] = ()  # swapped as one

    def add(self, snapshot: ClusterSnapshot, now_s: float) -> None:
        """Remember `snapshot`, which was taken at about `now_s` of a clock that only grows.

        Add each snapshot once, when it is new: one that is added again and again draws a line where nobody
        has measured.
        """
        step = math.floor(now_s / self.step_s)
        earlier = self._kept
        last = earlier[-1] if earlier else None
        if last is not None and last.step >= step:
            earlier = earlier[:-1]
        brokers = snapshot.brokers
        if last is not None and last.index_by_broker.keys() == brokers.keys():
            index_by_broker = last.index_by_broker
        else:
            index_by_broker = {broker_id: index for index, broker_id in enumerate(brokers)}
        utilisations = [brokers[broker_id].utilisation for broker_id in index_by_broker]
        known = [u for u in utilisations if u is not None]
        newest = _Kept(
            step=step,
            at_s=now_s,
            index_by_broker=index_by_broker,
            utilisations=array("f", (math.nan if u is None else u for u in utilisations)),
            lowest=min(known, default=None),
            highest=max(known, default=None),
        )
        self._kept = (*earlier, newest)[-self._num_points_max :]

    def read(self, now_s: float, broker_ids: Sequence[int] = ()) -> tuple[HistoryPoint, ...]:
        """The points of the last `span_s` seconds before `now_s`, oldest first."""
        return tuple(
            _point(kept, now_s - kept.at_s, broker_ids)
            for kept in self._kept
            if now_s - kept.at_s <= self.span_s
        )

    def past(self, now_s: float, *, from_s: float, to_s: float) -> dict[int, float]:
        """Utilisation by broker id at the oldest point from `from_s` to `to_s` seconds ago; none: empty."""
        for kept in self._kept:
            if to_s <= now_s - kept.at_s <= from_s:
                known = ((broker_id, kept.utilisations[i]) for broker_id, i in kept.index_by_broker.items())
                return {broker_id: used for broker_id, used in known if not math.isnan(used)}
        return {}


def _point(kept: _Kept, ago_s: float, broker_ids: Sequence[int]) -> HistoryPoint:
    indices = (kept.index_by_broker.get(broker_id) for broker_id in broker_ids)
    chosen = (math.nan if index is None else kept.utilisations[index] for index in indices)
    return HistoryPoint(
        ago_s=ago_s,
        lowest=kept.lowest,
        highest=kept.highest,
        utilisations=tuple(None if math.isnan(u) else u for u in chosen),
    )
