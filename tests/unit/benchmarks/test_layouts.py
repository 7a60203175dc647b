"""The situations are worth measuring: large enough, possible, and of the kinds that were promised."""

from __future__ import annotations

import pytest

from benchmarks.balance.command import make_cases
from benchmarks.layouts import LAYOUTS, MIB, Layout
from benchmarks.optimum import best_utilisation

by_name = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def _best(layout: Layout, held: dict[int, float], payload_bytes: float) -> dict[int, float]:
    return best_utilisation(
        other_bytes=held,
        capacity_bytes=layout.capacity_bytes,
        replica_sets=layout.assignment,
        payload_bytes=payload_bytes,
    )


def _held(layout: Layout) -> dict[int, float]:
    return {broker: layout.held_mib.get(broker, 0) * MIB for broker in layout.capacity_bytes}


@pytest.mark.parametrize("quick", [False, True])
def test_each_load_takes_at_least_a_quarter_of_what_is_free(quick: bool) -> None:
    for case in make_cases(LAYOUTS, quick=quick):
        free = sum(case.layout.capacity_bytes.values()) - sum(_held(case.layout).values())
        written = case.num_records * case.record_bytes * case.layout.replication
        assert written >= 0.25 * free, case


def test_several_sizes_and_seeds_of_each_layout() -> None:
    for layout in LAYOUTS:
        cases = make_cases([layout], quick=False)
        assert len({case.fraction for case in cases}) >= 2
        assert len({case.seed for case in cases}) == len(cases) >= 2


def test_one_copy_and_two_several_kinds_of_skew_and_a_change() -> None:
    one_copy = [layout for layout in LAYOUTS if layout.replication == 1]
    two_copies = [layout for layout in LAYOUTS if layout.replication == 2]
    assert min(len(one_copy), len(two_copies)) >= 4
    assert sum(bool(layout.intrusion_mib) for layout in LAYOUTS) == 2
    assert sum(len(set(layout.capacity_mib)) > 1 for layout in LAYOUTS) >= 4


@by_name
def test_nothing_overflows_where_it_is_done_well(layout: Layout) -> None:
    held = {b: size + layout.intrusion_mib.get(b, 0) * MIB for b, size in _held(layout).items()}
    assert max(_best(layout, held, layout.load_bytes(0.45)).values()) < 0.9


@by_name
def test_who_levels_both_halves_reaches_the_best_in_hindsight(layout: Layout) -> None:
    """Else the criterion could not be met where another load comes in between."""
    for fraction in (0.27, 0.45):
        half = layout.load_bytes(fraction) / 2
        intrusion = {b: layout.intrusion_mib.get(b, 0) * MIB for b in layout.capacity_bytes}
        held = _held(layout)
        in_hindsight = _best(layout, {b: held[b] + intrusion[b] for b in held}, 2 * half)
        first = _best(layout, held, half)
        after_half = {b: first[b] * layout.capacity_bytes[b] + intrusion[b] for b in held}
        assert _best(layout, after_half, half) == pytest.approx(in_hindsight, abs=2e-3)
