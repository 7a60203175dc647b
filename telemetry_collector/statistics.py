"""What a collector counts about itself: how often it asked, got an answer, and didn't.

One thread writes, any thread reads: a count is one dictionary item, and readers get a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["CollectorStatistics", "StatisticsCounter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStatistics:
    """The counts since the collector was made, and what is wrong at the moment.

    Attributes:
        num_answers: answers used, by source name.
        num_failures: questions without a usable answer, by source name.
        num_faults: those of the failures that no source should ever have (an error that isn't a
            `SourceError`); their traceback is in the log.
        num_snapshots: snapshots put into the cache.
        failures: what was asked and has no answer since, each with the reason.
        warnings: whose answers are used though something in them looks wrong, each with what that is.
        num_cluster_changes: how often another cluster answered from some time on, and was followed.
    """

    num_answers: Mapping[str, int]
    num_failures: Mapping[str, int]
    num_faults: Mapping[str, int]
    num_snapshots: int
    failures: Mapping[str, str]
    warnings: Mapping[str, str] = field(default_factory=dict)
    num_cluster_changes: int = 0


class StatisticsCounter:
    """The counts behind `CollectorStatistics`. Written by the collector's loop only."""

    def __init__(self, source_names: Iterable[str]) -> None:
        names = tuple(source_names)
        self._answers = dict.fromkeys(names, 0)
        self._failures = dict.fromkeys(names, 0)
        self._faults = dict.fromkeys(names, 0)
        self._num_snapshots = 0
        self._num_cluster_changes = 0
        self._open: Mapping[str, str] = MappingProxyType({})
        self._warnings: Mapping[str, str] = MappingProxyType({})

    def count_answer(self, source_name: str, question: str, *, warnings: Sequence[str] = ()) -> None:
        """Count an answer to `question`, which is no longer open, with what looks wrong in it."""
        self._answers[source_name] += 1
        self.close_question(question)
        if warnings:
            self._warnings = MappingProxyType({**self._warnings, question: "; ".join(warnings)})

    def count_failure(self, source_name: str, question: str, reason: str, *, is_fault: bool) -> None:
        """Count that `question` got no usable answer."""
        self._failures[source_name] += 1
        self._faults[source_name] += is_fault
        self._open = MappingProxyType({**self._open, question: reason})

    def close_question(self, question: str) -> None:
        """Forget that `question` has no answer, or an odd one."""
        self._open = _without(self._open, question)
        self._warnings = _without(self._warnings, question)

    def count_snapshot(self) -> None:
        """Count a snapshot put into the cache."""
        self._num_snapshots += 1

    def count_cluster_change(self) -> None:
        """Count that another cluster is asked from now on; no question to the last one is open."""
        self._num_cluster_changes += 1
        self._open = self._warnings = MappingProxyType({})

    def read(self) -> CollectorStatistics:
        """The counts as they are now; from any thread."""
        return CollectorStatistics(
            num_answers=dict(self._answers),
            num_failures=dict(self._failures),
            num_faults=dict(self._faults),
            num_snapshots=self._num_snapshots,
            failures=self._open,
            warnings=self._warnings,
            num_cluster_changes=self._num_cluster_changes,
        )


def _without(reasons: Mapping[str, str], question: str) -> Mapping[str, str]:
    if question not in reasons:
        return reasons
    return MappingProxyType({q: reason for q, reason in reasons.items() if q != question})
