"""Goals and score functions by name, and the weights that are in force.

The idea: what is in force is one immutable tuple. Changing weights builds another and swaps the reference, so
producers read it without locks, and a bad new value, refused while it is built, leaves the old one in force.

Anybody's package can add to both kinds by an entry point in the group `evenload.goals` or
`evenload.score_functions`; a function is imported when it first has a weight above 0. Who reads weights
from a file or a collector is not known here: they arrive as values.

One that misbehaves (raises, answers nonsense, takes long) is put aside for a while: asked again each time, a
slow one would cost its time each time. Only the built-in ones are asked at every decision and may take their
time: a machine that is starved shouldn't lose what it levels by.

Invariants, checked in tests/unit/router/test_plugins.py:
1. Only known names with weights from 0 to a million are ever in force.
2. After `replace` returned a complaint, what was in force still is.
3. What is put aside is not asked until its time is over, or weights are replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from evenload.plugin_offers import offered
from evenload.router.errors import PluginError, RouterError, WeightError

__all__ = ["GOALS", "SCORE_FUNCTIONS", "PutAside", "Weighted", "WeightedPlugins", "is_built_in"]

GOALS = "evenload.goals"
SCORE_FUNCTIONS = "evenload.score_functions"
_WEIGHT_MAX = 1e6  # their sum is finite as well

F = TypeVar("F")


class Weighted(NamedTuple, Generic[F]):
    """A function with its name and its weight, which is above 0."""

    name: str
    weight: float
    function: F


class WeightedPlugins(Generic[F]):
    """The functions of one group that are in force, with their weights.

    Any thread may read `current` or call `replace`; both are one reference.
    """

    def __init__(
        self,
        group: str,
        weights: Mapping[str, float],
        *,
        functions: Mapping[str, F] | None = None,
        needs_one: bool = False,
    ) -> None:
        """Puts `weights` in force.

        Args:
            group: the entry-point group.
            weights: by name; 0 leaves one out.
            functions: come before entry points of the same name.
            needs_one: whether at least one weight has to be above 0.

        Raises:
            WeightError: a weight is not a number from 0 to a million, or none is above 0 and one has to be.
            PluginError: a name is not known, is offered twice, or can't be imported.
        """
        self._group = group
        self._given = dict(functions or {})
        self._needs_one = needs_one
        self._offered = offered(group)
        self._current = self._build(weights)

    @property
    def current(self) -> tuple[Weighted[F], ...]:
        """The functions with a weight above 0."""
        return self._current

    @property
    def known(self) -> tuple[str, ...]:
        """All names that can be given a weight."""
        return tuple(sorted({*self._given, *self._offered}))

    def replace(self, weights: Mapping[str, float]) -> str | None:
        """Puts other weights in force, all at once.

        Returns:
            None, or the sentence that says why they were refused; then the old ones stay in force.
        """
        try:
            self._current = self._build(weights)
        except RouterError as error:
            kept = ", ".join(f"{name} {weight:g}" for name, weight, _ in self._current) or "none"
            return f"{error} What was in force stays: {kept}."
        return None

    def _build(self, weights: Mapping[str, float]) -> tuple[Weighted[F], ...]:
        if not isinstance(weights, Mapping):
            raise WeightError(self._group, None, weights, "has to be a mapping from names to numbers")
        for name, weight in weights.items():
            self._check(name, weight)
        if self._needs_one and not any(weights.values()):
            raise WeightError(self._group, None, dict(weights), "at least one has to be above 0")
        return tuple(
            Weighted(name, float(weight), self._function(name)) for name, weight in weights.items() if weight
        )

    def _check(self, name: str, weight: object) -> None:
        if name not in self._given and name not in self._offered:
            raise PluginError(self._group, str(name), self.known, "is not known")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise WeightError(self._group, name, weight, "has to be a number")
        if not 0 <= weight <= _WEIGHT_MAX:  # NaN fails this too
            raise WeightError(self._group, name, weight, f"has to be from 0 to {_WEIGHT_MAX:.0f}")

    def _function(self, name: str) -> F:
        if name in self._given:
            return self._given[name]
        offers = self._offered[name]
        if len({offer.value for offer in offers}) > 1:
            where = " and ".join(sorted({offer.value for offer in offers}))
            raise PluginError(self._group, name, self.known, f"is offered by more than one package ({where})")
        try:
            function: F = offers[0].load()
        except Exception as error:  # anybody's code runs on import
            reason = f"can't be imported ({type(error).__name__}: {error})"
            raise PluginError(self._group, name, self.known, reason) from error
        return function


class PutAside(Generic[F]):
    """Functions that misbehaved, each for `for_s` seconds by `clock`. For any thread."""

    def __init__(self, for_s: float, clock: Callable[[], float]) -> None:
        self._for_s = for_s
        self._clock = clock
        self._aside: Mapping[str, tuple[float, str]] = {}
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """How often each function was put aside, by name."""
        return dict(self._counts)

    @property
    def current(self) -> dict[str, str]:
        """Who is aside now, by name, with what was wrong."""
        now_s = self._clock()
        return {name: fault for name, (until_s, fault) in self._aside.items() if until_s > now_s}

    def without(self, functions: Sequence[Weighted[F]]) -> list[Weighted[F]]:
        """Those to be asked now."""
        aside = self.current
        return [each for each in functions if each.name not in aside or is_built_in(each.function)]

    def add(self, faults: Mapping[str, str]) -> None:
        """Put functions aside, each with what was wrong."""
        if faults:
            until_s = self._clock() + self._for_s
            self._counts.update(faults.keys())
            self._aside = {**self._aside, **{name: (until_s, fault) for name, fault in faults.items()}}

    def forgive(self) -> None:
        """Ask all of them again."""
        self._aside = {}


def is_built_in(function: object) -> bool:
    """Whether a function is one of this package's own."""
    return getattr(function, "__module__", "").startswith(f"{__package__}.")
