"""Steps cover an epoch, none is too small for its ranks, and all ranks run the same microbatches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from evenload.ray_trainer.errors import TooManyWorkersError
from evenload.ray_trainer.planning.steps import (
    check_rest_of_epoch,
    check_world_size,
    microbatch_bounds,
    num_full_steps,
    num_steps,
    smallest_step,
    steps,
)


@given(num_samples=st.integers(0, 3000), size=st.integers(1, 700))
def test_steps_cover_the_epoch_once_and_none_is_less_than_half_a_batch(num_samples: int, size: int) -> None:
    found = list(steps(num_samples, size))
    bounds = [0, *(step.stop for step in found)]
    assert [(step.start, step.stop) for step in found] == list(itertools.pairwise(bounds))
    assert bounds[-1] == num_samples
    assert len(found) == num_steps(num_samples, size)
    sizes = [step.num_samples for step in found]
    assert min(sizes, default=0) == smallest_step(num_samples, size)
    assert all(min(num_samples, -(-size // 2)) <= each <= size for each in sizes)
    full = num_full_steps(num_samples, size)
    assert len(sizes) - full <= 2
    assert set(sizes[:full]) <= {size}
    assert max(sizes[full:], default=0) - min(sizes[full:], default=0) <= 1


@given(num_samples=st.integers(1, 3000), size=st.integers(1, 300), data=st.data())
def test_steps_do_not_depend_on_where_one_goes_on(num_samples: int, size: int, data: st.DataObject) -> None:
    found = list(steps(num_samples, size))
    resumed_at = data.draw(st.integers(0, len(found) - 1))
    assert list(steps(num_samples, size, found[resumed_at].start)) == found[resumed_at:]


@given(num_samples=st.integers(1, 2000), size=st.integers(1, 300), world_size=st.integers(1, 300))
def test_whoever_is_not_refused_has_samples_in_every_step(
    num_samples: int, size: int, world_size: int
) -> None:
    fewest = min(step.num_samples for step in steps(num_samples, size))
    whole = partial(check_world_size, world_size, num_samples=num_samples, global_batch_size=size)
    rest = partial(check_rest_of_epoch, world_size, num_left=num_samples, global_batch_size=size)
    assert (largest_named(whole) is None) == (world_size <= min(fewest, max(1, size // 2)))
    assert (largest_named(whole) or 0) < world_size
    assert largest_named(rest) == (fewest if world_size > fewest else None)


def largest_named(check: Callable[[], None]) -> int | None:
    """The largest world size that a refusal names; None: not refused."""
    try:
        check()
    except TooManyWorkersError as refusal:
        return refusal.largest_world_size
    return None


@given(step_size=st.integers(1, 2000), world_size=st.integers(1, 300), max_size=st.integers(1, 64))
def test_all_ranks_run_the_same_number_of_microbatches_and_none_is_empty(
    step_size: int, world_size: int, max_size: int
) -> None:
    world_size = min(world_size, step_size)
    numbers = set()
    for share in {step_size // world_size, -(-step_size // world_size)}:
        bounds = microbatch_bounds(
            share, num_samples_step=step_size, world_size=world_size, max_size=max_size
        )
        numbers.add(len(bounds))
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == share
        sizes = [stop - start for start, stop in bounds]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= max_size or (max_size == 1 and step_size % world_size and max(sizes) == 2)
    assert len(numbers) == 1
