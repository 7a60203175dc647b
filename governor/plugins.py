"""Policies by name, and what is done with one that misbehaves.

Anybody's package can add a policy by an entry point in the group `evenload.policies`. Its answer is checked
before anybody acts on it: one that raises, answers nonsense or takes more than a second is put aside, and the
simplest elastic rule decides in its place until another policy is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from evenload.governor.errors import PolicyError
from evenload.governor.policies.elastic import elastic_fifo
from evenload.governor.state import ClusterState, Policy, Sizes

GROUP = "evenload.policies"
DEFAULT = "smartfill"
SECONDS_MAX = 1.0  # for one answer


def known_policies() -> tuple[str, ...]:
    """All names that can be set."""
    return tuple(sorted(_offered()))


def load_policy(name: str) -> Policy:
    """The policy of a name.

    Raises:
        PolicyError: There is none of this name, there are two, or it can't be imported.
    """
    offered = _offered()
    known = tuple(sorted(offered))
    if name not in offered:
        raise PolicyError(name, known, "is not known")
    offers = {offer.value: offer for offer in offered[name]}
    if len(offers) > 1:
        raise PolicyError(
            name, known, f"is offered by more than one package ({' and '.join(sorted(offers))})"
        )
    try:
        policy: Policy = next(iter(offers.values())).load()
    except Exception as error:  # anybody's code runs on import
        reason = f"can't be imported ({type(error).__name__}: {error})"
        raise PolicyError(name, known, reason) from error
    return policy


class GuardedPolicy:
    """A policy whose answers can be acted on. For one thread.

    Attributes:
        fault: What was wrong with the policy, so that another decides; None while it decides itself.
    """

    def __init__(self, policy: Policy, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._name, self._clock = policy, name, clock
        self.fault: str | None = None

    def __call__(self, state: ClusterState) -> Sizes:
        """What the policy wishes, or, where it has misbehaved, what `elastic_fifo` does."""
        if self.fault is None:
            begun_s = self._clock()
            try:
                wish = self._policy(state)
                fault = nonsense(state, wish)
            except Exception as error:  # noqa: BLE001 - anybody's code
                fault = f"it raised {type(error).__name__}: {error}"
            else:
                took_s = self._clock() - begun_s
                if fault is None and took_s <= SECONDS_MAX:
                    return wish
                fault = fault or f"it took {took_s:.1f} s, more than {SECONDS_MAX:.0f} s"
            self.fault = f"policy {self._name!r} is put aside, elastic_fifo decides: {fault}"
        return elastic_fifo(state)


def nonsense(state: ClusterState, wish: object) -> str | None:
    """What is wrong with a wish; None if nothing is."""
    if not isinstance(wish, Mapping):
        return f"it answered {type(wish).__name__}, not a mapping from job ids to sizes"
    jobs = {job.job_id: job for job in state.jobs}
    for job_id, size in wish.items():
        if job_id not in jobs:
            return f"it named {str(job_id)[:80]!r}, which is no job"
        if isinstance(size, bool) or not isinstance(size, int):
            return f"it gave {job_id} {str(size)[:80]}, not a whole number"
        largest = max(jobs[job_id].max_size, jobs[job_id].asked_size)
        if not 0 <= size <= largest:
            return f"it gave {job_id} {size} slots, which may have 0 to {largest}"
    total = sum(wish.values())
    if total > state.num_slots:
        return f"it gave out {total} slots of {state.num_slots}"
    return None


def _offered() -> dict[str, list[EntryPoint]]:
    offered: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=GROUP):
        offered.setdefault(entry_point.name, []).append(entry_point)
    return offered
