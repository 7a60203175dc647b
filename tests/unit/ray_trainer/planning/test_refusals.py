"""More workers than samples are refused with the numbers, and how steps end an epoch."""

from __future__ import annotations

import pytest

from evenload.ray_trainer.errors import TooManyWorkersError
from evenload.ray_trainer.planning.plan import (
    check_rest_of_epoch,
    check_world_size,
    microbatch_bounds,
    num_microbatches,
)
from evenload.ray_trainer.planning.steps import smallest_step, steps


def sizes(num_samples: int, global_batch_size: int, start: int = 0) -> list[int]:
    return [step.num_samples for step in steps(num_samples, global_batch_size, start)]


def test_the_last_two_steps_share_what_is_left() -> None:
    assert sizes(1000, 256) == [256, 256, 244, 244]
    assert sizes(513, 256) == [256, 129, 128]
    assert sizes(512, 256) == [256, 256]
    assert sizes(257, 256) == [129, 128]
    assert sizes(256, 256) == [256]
    assert sizes(3, 256) == [3]
    assert sizes(0, 256) == []
    assert sizes(1000, 256, start=512) == [244, 244]
    assert sizes(1000, 256, start=1000) == []


def test_more_workers_than_half_a_batch_are_refused() -> None:
    check_world_size(128, num_samples=10_000, global_batch_size=256)
    with pytest.raises(TooManyWorkersError, match=r"129 workers are too many.*256.*at most 128") as caught:
        check_world_size(129, num_samples=10_000, global_batch_size=256)
    assert (caught.value.world_size, caught.value.largest_world_size) == (129, 128)
    check_world_size(129, num_samples=10_000, global_batch_size=258)


def test_one_sample_a_worker_is_refused_with_why_and_with_the_batch_that_would_do() -> None:
    with pytest.raises(TooManyWorkersError) as caught:
        check_world_size(64, num_samples=10_000, global_batch_size=64)

    assert str(caught.value) == (
        "64 workers are too many: the last two steps of an epoch share what is left of it evenly, so that "
        "none is tiny, and then each can have as few as half the 64 samples of a global batch, so at most 32 "
        "can take part (a rank without samples has no right gradient). Use fewer workers or a larger global "
        "batch, of at least 128."
    )
    check_world_size(64, num_samples=10_000, global_batch_size=caught.value.needed_batch_size or 0)


def test_more_workers_than_the_samples_of_a_single_step_are_refused() -> None:
    check_world_size(100, num_samples=100, global_batch_size=256)
    with pytest.raises(TooManyWorkersError, match="smallest step has 100") as caught:
        check_world_size(101, num_samples=100, global_batch_size=256)
    assert caught.value.largest_world_size == 100


def test_more_workers_than_the_rest_of_an_epoch_can_serve_are_refused() -> None:
    check_rest_of_epoch(16, num_left=33, global_batch_size=32)
    with pytest.raises(TooManyWorkersError, match=r"33 samples left .* batch of 32, .* step has 16"):
        check_rest_of_epoch(17, num_left=33, global_batch_size=32)
    check_rest_of_epoch(17, num_left=0, global_batch_size=32)


def test_one_worker_takes_any_batch() -> None:
    check_world_size(1, num_samples=1, global_batch_size=1)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"global_batch_size {size} must be at least 1"):
            check_world_size(1, num_samples=10, global_batch_size=size)
    with pytest.raises(TooManyWorkersError, match="at most 1 can"):
        check_world_size(2, num_samples=5, global_batch_size=1)


@pytest.mark.parametrize(
    ("num_left", "size", "smallest"), [(0, 8, 0), (5, 8, 5), (8, 8, 8), (9, 8, 4), (17, 8, 4)]
)
def test_the_smallest_step_to_come(num_left: int, size: int, smallest: int) -> None:
    assert smallest_step(num_left, size) == smallest


def test_seventeen_and_sixteen_samples_run_as_many_microbatches() -> None:
    shares = {n: microbatch_bounds(n, num_samples_step=33, world_size=2, max_size=16) for n in (17, 16)}
    assert shares == {17: [(0, 8), (8, 17)], 16: [(0, 8), (8, 16)]}


def test_microbatches_of_one_sample_are_never_empty() -> None:
    assert num_microbatches(3, 2, 1) == 1
    assert microbatch_bounds(2, num_samples_step=3, world_size=2, max_size=1) == [(0, 2)]
    assert microbatch_bounds(1, num_samples_step=3, world_size=2, max_size=1) == [(0, 1)]
    assert num_microbatches(4, 2, 1) == 2


def test_impossible_shares_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="no rank of 2 has 20 of 33"):
        microbatch_bounds(20, num_samples_step=33, world_size=2, max_size=16)
    with pytest.raises(ValueError, match="can't be divided among 4 ranks"):
        num_microbatches(3, 4, 16)
    with pytest.raises(ValueError, match="world_size is 0"):
        check_world_size(0, num_samples=5, global_batch_size=2)
    with pytest.raises(ValueError, match="global_batch_size 0"):
        next(steps(5, 0))
    with pytest.raises(ValueError, match="start is 6"):
        next(steps(5, 2, 6))
