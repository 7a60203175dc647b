"""The shares against an optimum that is computed another way, and against other shares.

The reference does not read dual values: it decides that a broker is tight by solving for the least level that
it could have, so a broker that is only tight in one solution by accident is not held.
"""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import evenload.router.min_max
from evenload.router.min_max import FloatArray, MinMaxProblem, level, level_anywhere

TOLERANCE = 2e-6


def reference_levels(problem: MinMaxProblem) -> FloatArray:
    """Lexicographically least levels, by asking for each broker whether it could be lower."""
    num_sets, num_brokers = len(problem.sets), len(problem.base)
    added = np.zeros((num_brokers, num_sets))
    for position, members in enumerate(problem.sets):
        added[list(members), position] = problem.gain[list(members)]
    ceiling = np.full(num_brokers, np.inf)
    free = set(range(num_brokers))
    while free:
        rows = sorted(free)
        highest = np.zeros((num_brokers, 1))
        highest[rows] = -1.0
        bound = np.where(np.isfinite(ceiling), ceiling, 0.0) - problem.base
        lowest = _solve(
            np.append(np.zeros(num_sets), 1.0), np.hstack([added, highest]), bound, free_variables=1
        )[-1]
        capped = np.where(np.isfinite(ceiling), ceiling, lowest + 1e-9) - problem.base
        tight = [
            broker
            for broker in rows
            if problem.base[broker] + added[broker] @ _solve(added[broker], added, capped) > lowest - 1e-7
        ]
        assert tight
        ceiling[tight] = lowest
        free -= set(tight)
    return ceiling


def _solve(cost: FloatArray, matrix: FloatArray, bound: FloatArray, *, free_variables: int = 0) -> FloatArray:
    num_sets = len(cost) - free_variables
    found = linprog(
        cost,
        A_ub=matrix,
        b_ub=bound + 1e-9,
        A_eq=np.append(np.ones(num_sets), np.zeros(free_variables)).reshape(1, -1),
        b_eq=[1.0],
        bounds=[(0, None)] * num_sets + [(None, None)] * free_variables,
    )
    assert found.status == 0, found.message
    return np.asarray(found.x)


def assert_are_shares(shares: FloatArray) -> None:
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0)


@st.composite
def problems(
    draw: st.DrawFn, *, copies: int | None = None, brokers_max: int = 6, sets_max: int = 8
) -> MinMaxProblem:
    num_brokers = draw(st.integers(max(2, copies or 0), brokers_max))
    sizes = st.integers(1, min(3, num_brokers)) if copies is None else st.just(copies)
    sets = draw(
        st.lists(
            sizes.flatmap(
                lambda size: st.sampled_from(list(itertools.combinations(range(num_brokers), size)))
            ),
            min_size=1,
            max_size=sets_max,
        )
    )
    percents = st.lists(st.integers(0, 100), min_size=num_brokers, max_size=num_brokers)
    load = draw(st.sampled_from([0.02, 0.3, 1.0, 4.0]))
    capacity = draw(st.lists(st.sampled_from([1, 2, 5]), min_size=num_brokers, max_size=num_brokers))
    return MinMaxProblem(
        base=np.array(draw(percents)) / 100,
        gain=load / np.array(capacity),
        sets=tuple(sets),
        counts=np.array(
            draw(st.lists(st.integers(1, 3), min_size=len(sets), max_size=len(sets))), dtype=float
        ),
    )


@settings(max_examples=100)
@given(problems(copies=2))
def test_levels_with_two_copies_are_the_lexicographic_optimum(problem: MinMaxProblem) -> None:
    shares = level(problem)
    assert_are_shares(shares)
    expected, got = reference_levels(problem), problem.levels(shares)
    assert got == pytest.approx(expected, abs=TOLERANCE * max(1.0, problem.gain.max()))


@settings(max_examples=100)
@given(problems())
def test_levels_of_mixed_sets_are_the_lexicographic_optimum(problem: MinMaxProblem) -> None:
    shares = level(problem)
    assert_are_shares(shares)
    expected, got = reference_levels(problem), problem.levels(shares)
    assert got == pytest.approx(expected, abs=TOLERANCE * max(1.0, problem.gain.max()))


@settings(max_examples=100)
@given(problems(copies=1, brokers_max=12, sets_max=20))
def test_with_one_copy_everyone_who_gets_something_is_at_one_water_line(problem: MinMaxProblem) -> None:
    shares = level(problem)
    assert_are_shares(shares)
    levels = problem.levels(shares)
    filled = levels[levels > problem.base + 1e-12]
    assert filled.max() - filled.min() < 1e-9
    held = sorted({broker for members in problem.sets for broker in members})
    assert (levels[held] >= filled.max() - 1e-9).all()


@settings(max_examples=60)
@given(problems(brokers_max=10, sets_max=20), st.integers(0, 2**32 - 1))
def test_no_other_shares_come_before(problem: MinMaxProblem, seed: int) -> None:
    best = np.sort(problem.levels(level(problem)))[::-1]
    chance = np.random.default_rng(seed)
    num_sets = len(problem.sets)
    others = [*np.eye(num_sets), *chance.dirichlet(np.full(num_sets, 0.3), size=50)]
    for shares in others:
        levels = np.sort(problem.levels(np.asarray(shares)))[::-1]
        # Rounding may make a level of ours a little higher; it can't make a level of theirs much lower.
        lower, higher = np.flatnonzero(levels < best - 1e-5), np.flatnonzero(levels > best + 1e-9)
        assert not len(lower) or (len(higher) and higher[0] < lower[0])


@settings(max_examples=100)
@given(problems(brokers_max=8, sets_max=16))
def test_sets_of_the_same_brokers_share_in_proportion_to_their_counts(problem: MinMaxProblem) -> None:
    shares = level(problem)
    each: dict[frozenset[int], set[float]] = {}
    for members, share, count in zip(problem.sets, shares, problem.counts, strict=True):
        each.setdefault(frozenset(members), set()).add(round(float(share / count), 12))
    assert all(len(values) == 1 for values in each.values())


@settings(max_examples=60)
@given(problems(brokers_max=8, sets_max=12), st.sampled_from([1e-9, 1e-3, 1e6, 1e12]))
def test_the_unit_of_the_levels_does_not_matter(problem: MinMaxProblem, unit: float) -> None:
    other = MinMaxProblem(problem.base * unit, problem.gain * unit, problem.sets, problem.counts)
    levels, others = problem.levels(level(problem)), other.levels(level(other))
    assert others / unit == pytest.approx(levels, abs=1e-5)


@settings(max_examples=100)
@given(problems(brokers_max=8), st.integers(1, 8))
def test_copies_anywhere_are_the_optimum_over_all_sets_of_brokers(
    problem: MinMaxProblem, copies: int
) -> None:
    held = level_anywhere(problem.base, problem.gain, copies)
    num_brokers = len(problem.base)
    assert (held >= 0).all()
    assert (held <= 1).all()
    assert held.sum() == pytest.approx(min(copies, num_brokers))
    every = tuple(itertools.combinations(range(num_brokers), min(copies, num_brokers)))
    free_choice = MinMaxProblem(problem.base, problem.gain, every, np.ones(len(every)))
    expected = free_choice.levels(level(free_choice))
    assert problem.base + problem.gain * held == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_more_sets_than_programs_can_bear_are_levelled_within_a_fifth_of_a_point(seed: int) -> None:
    chance = np.random.default_rng(seed)
    num_brokers, num_sets = 300, 900
    capacity = chance.choice([1.0, 2.0, 4.0], num_brokers)
    sets = tuple(tuple(chance.choice(num_brokers, 3, replace=False).tolist()) for _ in range(num_sets))
    gain = (0.05, 0.3, 1.0)[seed] * capacity.sum() / 3 / capacity
    problem = MinMaxProblem(chance.uniform(0.3, 0.6, num_brokers), gain, sets, np.ones(num_sets))
    shares = level(problem)
    assert_are_shares(shares)
    levels = problem.levels(shares)
    touched = levels > problem.base + 1e-9
    # Sets with a broker whose base is above the line get nothing; over the rest one program is enough.
    line = levels[touched].max()
    kept = [members for members in sets if problem.base[list(members)].max() <= line]
    added = np.zeros((num_brokers, len(kept) + 1))
    for position, members in enumerate(kept):
        added[list(members), position] = gain[list(members)]
    rows = sorted({broker for members in kept for broker in members})
    added[:, -1] = -1.0
    cost = np.append(np.zeros(len(kept)), 1.0)
    lowest = _solve(cost, added[rows], -problem.base[rows], free_variables=1)[-1]
    assert line <= lowest + 0.002


@pytest.mark.parametrize("num_solved", range(4))
@pytest.mark.parametrize("seed", range(5))
def test_where_the_solver_gives_up_what_it_has_found_is_held_and_that_is_said(
    num_solved: int, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chance = np.random.default_rng(seed)
    num_brokers, num_sets = 12, 20
    sets = tuple(tuple(chance.choice(num_brokers, 2, replace=False).tolist()) for _ in range(num_sets))
    gain = 3.0 / chance.choice([1.0, 2.0, 5.0], num_brokers)
    problem = MinMaxProblem(chance.uniform(0.2, 0.8, num_brokers), gain, sets, np.ones(num_sets))
    best = np.sort(problem.levels(level(problem)))[::-1]

    calls = itertools.count()
    solve = evenload.router.min_max._Programs.lowest_maximum
    monkeypatch.setattr(
        evenload.router.min_max._Programs,
        "lowest_maximum",
        lambda *given: solve(*given) if next(calls) < num_solved else None,
    )
    evenload.router.min_max._say_incomplete.cache_clear()
    with caplog.at_level(logging.INFO, "evenload.router.min_max"):
        shares = level(problem)
        level(problem)
    assert_are_shares(shares)
    levels = np.sort(problem.levels(shares))[::-1]
    # Each program finds one level at least; of the rest, the highest is right, and none is far off.
    assert levels[:num_solved] == pytest.approx(best[:num_solved], abs=1e-5)
    assert levels[0] < best[0] + 0.005
    assert levels == pytest.approx(best, abs=0.05 * gain.max())
    (record,) = caplog.records  # said once, however often it is decided
    assert "the solver gave up" in record.getMessage()


def test_where_no_shares_near_the_smooth_ones_are_found_the_exact_ones_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2))
    problem = MinMaxProblem(np.array([0.1, 0.5, 0.3, 0.2]), np.array([1.0, 0.5, 1.0, 0.2]), sets, np.ones(5))
    best = problem.levels(level(problem))
    monkeypatch.setattr(evenload.router.min_max._Programs, "nearest", lambda *_: None)
    assert problem.levels(level(problem)) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("sets", [((0,), (1,), (2,)), ((0, 1), (1, 2), (0, 2)), ((0, 1), (0,), (2,))])
@pytest.mark.parametrize("base", [(0.5, 0.5, 0.5), (0.5, 0.7, 0.5)])
def test_a_load_that_is_lost_in_rounding_is_divided_all_the_same(
    sets: tuple[tuple[int, ...], ...], base: tuple[float, ...]
) -> None:
    shares = level(MinMaxProblem(np.array(base), np.full(3, 1e-18), sets, np.ones(3)))
    assert_are_shares(shares)


def test_problems_that_make_no_sense_are_refused() -> None:
    good = {"base": np.zeros(2), "gain": np.ones(2), "sets": ((0,), (1,)), "counts": np.ones(2)}
    for wrong in (
        {"sets": ()},
        {"sets": ((0,), ())},
        {"counts": np.ones(3)},
        {"counts": np.zeros(2)},
        {"gain": np.array([1.0, 0.0])},
        {"base": np.array([0.0, np.nan])},
    ):
        with pytest.raises(ValueError):
            MinMaxProblem(**{**good, **wrong})  # type: ignore[arg-type]
