"""The cache asks in order of need, stays within its bounds, and tells the loop what went wrong elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.testing import PlacedRecord, make_batch, make_manifest, make_records
from evenload.ray_trainer.errors import CorruptRecordError
from evenload.ray_trainer.fetching.testing import MemoryFetcher
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule
from evenload.ray_trainer.reading.block_cache import BlockCache, CacheLimits
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.record_layout import RecordOpener

RULE = PlanRule(num_lanes=6, block_bytes=1000, whole=False, shuffle=True)


def dataset(num_samples: int) -> tuple[DatasetManifest, list[PlacedRecord]]:
    batch = make_batch(num_samples)
    placed = [PlacedRecord(n % 3, n // 3, record) for n, record in enumerate(make_records(batch))]
    return make_manifest(batch, placed), placed


@contextmanager
def open_cache(
    plan: EpochPlan, manifest: DatasetManifest, fetcher: MemoryFetcher, limits: CacheLimits
) -> Iterator[BlockCache]:
    decoder = BatchDecoder(manifest, names=["pixels", "label"])
    records = RecordOpener(manifest, decoder)
    cache = BlockCache(
        manifest,
        plan.table,
        plan.blocks_needed(start=0, global_batch_size=10, rank=0, world_size=1),
        fetcher=fetcher,
        open_block=lambda _, fetched: records.open(fetched.values)[0],
        opened=decoder.no_blocks(),
        limits=limits,
    )
    try:
        yield cache
    finally:
        fetcher.close()
        cache.interrupt()


@pytest.mark.parametrize("limits", [CacheLimits(1, 1), CacheLimits(2000, 100), CacheLimits(1 << 20, 3)])
def test_blocks_are_asked_for_once_in_order_of_need_and_all_are_let_go_of(limits: CacheLimits) -> None:
    manifest, placed = dataset(200)
    plan = EpochPlan.of_manifest(manifest, seed=3, epoch=0, rule=RULE)
    fetcher = MemoryFetcher.of_records(placed)
    needed = list(plan.blocks_needed(start=0, global_batch_size=10, rank=0, world_size=1))
    with open_cache(plan, manifest, fetcher, limits) as cache:
        view = plan.rank_view(rank=0, world_size=1)
        for step in plan.steps(10):
            share = view.share(step)
            assert (cache.wait_for(share) >= 0).all()
            assert cache.ahead_bytes <= limits.ahead_bytes + manifest.num_bytes / manifest.num_records * 2
            assert cache.num_open <= RULE.num_lanes * 2 + limits.ahead_blocks
            cache.release(share)
        assert cache.num_open == 0
        assert cache.ahead_bytes == 0
    asked = [(each.partition, each.first_offset) for each in fetcher.asked]
    table = plan.table
    assert asked == [(int(table.partition[n.block]), int(table.offset[n.block])) for n in needed]


def test_a_block_larger_than_the_bound_is_still_read() -> None:
    manifest, placed = dataset(40)
    plan = EpochPlan.of_manifest(manifest, seed=3, epoch=0, rule=RULE)
    with open_cache(plan, manifest, MemoryFetcher.of_records(placed), CacheLimits(0, 0)) as cache:
        view = plan.rank_view(rank=0, world_size=1)
        for step in plan.steps(10):
            share = view.share(step)
            cache.wait_for(share)
            assert cache.ahead_bytes == 0
            cache.release(share)


def test_an_error_while_fetching_is_raised_to_who_takes_the_next_step() -> None:
    manifest, placed = dataset(60)
    plan = EpochPlan.of_manifest(manifest, seed=3, epoch=0, rule=RULE)
    gone = CorruptRecordError(topic="t", partition=1, offset=2, reason="it is broken")
    records = {(each.partition, each.offset): each.record.value for each in placed}
    fetcher = MemoryFetcher(records, errors={(1, 2): gone})
    with open_cache(plan, manifest, fetcher, CacheLimits(1 << 20, 100)) as cache:
        view = plan.rank_view(rank=0, world_size=1)

        def read_all() -> None:
            for step in plan.steps(10):
                share = view.share(step)
                cache.wait_for(share)
                cache.release(share)

        with pytest.raises(CorruptRecordError, match="it is broken") as raised:
            read_all()
    assert raised.value is gone


def test_a_block_that_can_not_be_opened_is_raised_with_its_cause() -> None:
    manifest, placed = dataset(30)
    plan = EpochPlan.of_manifest(manifest, seed=3, epoch=0, rule=RULE)
    values = {(each.partition, each.offset): b"not arrow" for each in placed}
    with open_cache(plan, manifest, MemoryFetcher(values), CacheLimits(1, 1)) as cache:
        share = plan.rank_view(rank=0, world_size=1).share(next(plan.steps(10)))
        with pytest.raises(Exception, match="can't be decoded"):
            cache.wait_for(share)


def test_interrupting_ends_a_wait_for_a_block_that_never_comes() -> None:
    class Silent(MemoryFetcher):
        def submit(self, wanted: object, on_done: object) -> None:  # noqa: ARG002
            asked.set()

    asked = threading.Event()
    manifest, placed = dataset(30)
    plan = EpochPlan.of_manifest(manifest, seed=3, epoch=0, rule=RULE)
    with open_cache(plan, manifest, Silent.of_records(placed), CacheLimits(1, 1)) as cache:

        def interrupt() -> None:
            asked.wait()
            cache.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        share = plan.rank_view(rank=0, world_size=1).share(next(plan.steps(10)))
        with pytest.raises(RuntimeError, match="interrupted"):
            cache.wait_for(share)
        thread.join()


def test_what_is_held_ahead_is_half_the_lanes_and_a_few() -> None:
    assert CacheLimits.for_lanes(384, prefetch_bytes=7) == CacheLimits(7, 196)
    assert CacheLimits.for_lanes(1, prefetch_bytes=7).ahead_blocks == 24


def test_slots_are_used_again() -> None:
    manifest, placed = dataset(300)
    plan = EpochPlan.of_manifest(manifest, seed=1, epoch=0, rule=RULE)
    with open_cache(plan, manifest, MemoryFetcher.of_records(placed), CacheLimits(1, 1)) as cache:
        view = plan.rank_view(rank=0, world_size=1)
        slots: set[int] = set()
        for step in plan.steps(10):
            share = view.share(step)
            slots |= set(np.unique(cache.wait_for(share)).tolist())
            cache.release(share)
    assert len(slots) < plan.table.num_blocks / 2
