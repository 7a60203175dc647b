"""Policies by name, and what is done with one that misbehaves.

Anybody's package can add a policy by an entry point in the group `evenload.policies`. Its answer is checked
before anybody acts on it: one that raises, answers nonsense or answers after more than a second is put aside,
and the simplest elastic rule decides in its place until another policy is set. One that never answers holds
up whoever asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.state import ClusterState, Policy, Sizes
from evenload.governor.errors import PolicyError
from evenload.plugin_offers import offered

GROUP = "evenload.policies"
DEFAULT = "smartfill"
FALLBACK = "elastic_fifo"
_OWN = "evenload.governor."
SECONDS_MAX = 1.0  # for one answer


def known_policies() -> tuple[str, ...]:
    """All names that can be set."""
    return tuple(sorted(offered(GROUP)))


def check_known(name: str) -> tuple[str, ...]:
    """All names that can be set.

    Raises:
        PolicyError: This one isn't among them.
    """
    known = known_policies()
    if name not in known:
        raise PolicyError(name, known, "is not known")
    return known


def load_policy(name: str) -> Policy:
    """The policy of a name.

    Raises:
        PolicyError: There is none of this name, there are two, or it can't be imported.
    """
    known = check_known(name)
    offers = {offer.value: offer for offer in offered(GROUP)[name]}
    if len(offers) > 1:
        raise PolicyError(
            name, known, f"is offered by more than one package ({' and '.join(sorted(offers))})"
        )
    try:
        policy: Policy = next(iter(offers.values())).load()
    except (Exception, SystemExit) as error:  # anybody's code runs on import
        raise PolicyError(name, known, f"can't be imported ({_said(error)})") from error
    if not callable(policy):
        raise PolicyError(name, known, f"is no function, but of type {type(policy).__name__}")
    return policy


def is_built_in(name: str) -> bool:
    """Whether nobody else offers a policy of this name."""
    return all(offer.value.startswith(_OWN) for offer in offered(GROUP).get(name, ()))


class GuardedPolicy:
    """A policy whose answers can be acted on. For one thread.

    Attributes:
        fault: What was wrong with the policy, so that another decides; None while it decides itself.
    """

    def __init__(self, policy: Policy, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._name, self._clock = policy, name, clock
        self.fault: str | None = None

    def close(self) -> None:
        """Ends what the policy has of its own, if it has anything."""
        if close := getattr(self._policy, "close", None):
            close()

    def __call__(self, state: ClusterState) -> Sizes:
        """What the policy wishes, or, where it has misbehaved, what `elastic_fifo` does."""
        if self.fault is None:
            begun_s = self._clock()
            try:
                wish = self._policy(state)
                if isinstance(wish, Mapping):
                    wish = dict(wish)  # what was checked is what is used
                fault = nonsense(state, wish)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - anybody's code
                fault = f"it raised {_said(error)}"
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
            return f"it named {repr(job_id)[:80]}, which is no job"
        if isinstance(size, bool) or not isinstance(size, int):
            return f"it gave {job_id} a size of type {type(size).__name__}, not int"
        largest = max(jobs[job_id].max_size, jobs[job_id].asked_size, jobs[job_id].size)
        if not 0 <= size <= largest:
            return f"it gave {job_id} {size} slots, which may have 0 to {largest}"
    total = sum(wish.values())
    if total > state.num_slots:
        return f"it gave out {total} slots of {state.num_slots}"
    return None


def _said(error: BaseException) -> str:
    """An error of anybody's code, in a line: its own text may be anything, or fail."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - anybody's code
        text = "its text can't be had"
    return f"{type(error).__name__}: {text[:200]}"
