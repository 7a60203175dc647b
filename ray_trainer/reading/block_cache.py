"""Blocks in memory when a step needs them, and no longer than that.

The plan tells which blocks a rank will need, in order of first need, and how many samples it will take from
each. So the cache asks for blocks in that order, ahead of the steps; opens each as it arrives, in the
fetcher's thread; and lets go of it when the last of its samples is taken. A block is fetched once an epoch.

Memory is open blocks (about one per lane of this rank, which the plan's choice of lanes bounds) plus blocks
ahead: asked for, but not yet needed by any step. Those are bounded by `ahead_bytes` and `ahead_blocks`; what
the present step needs is always asked for, so a block larger than the bound can't stop the reading.

One thread takes steps. Errors of the fetcher's threads are kept, and raised to whoever takes the next step.

Invariants, checked in tests/unit/ray_trainer/reading/test_block_cache.py and
tests/property/ray_trainer/reading/test_exactness.py:
1. Blocks are asked for in order of need, each once, and all are let go of at the end.
2. Between steps, blocks ahead are within the bounds, but for what the step itself needed.

Read next: decoding.py (what opening is), reader.py (who takes steps).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.fetching.fetch import BlockFetcher, BlockRange, FetchedBlock
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.needs import BlockNeed
from evenload.ray_trainer.planning.plan import StepShare
from evenload.ray_trainer.reading.decoding import OpenBlock, OpenBlocks

_ABSENT: Final = -1
# Enough to keep a handful of brokers busy where there are few lanes.
_AHEAD_BLOCKS_MIN: Final = 24


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What may be held beyond the open blocks.

    Attributes:
        ahead_bytes: of blocks asked for before a step needs them, at least 0.
        ahead_blocks: the same, counted.
    """

    ahead_bytes: int
    ahead_blocks: int

    @classmethod
    def for_lanes(cls, num_lanes: int, *, prefetch_bytes: int) -> CacheLimits:
        """For a rank that reads so many lanes: half of them can end their blocks at about the same time."""
        return cls(prefetch_bytes, max(_AHEAD_BLOCKS_MIN, num_lanes // 2 + 4))


class BlockCache:
    """The blocks of one rank in one epoch. One thread takes steps; any thread may interrupt.

    Args:
        manifest: of the dataset.
        table: its blocks, or those of a part of it.
        needs: of this rank, from plan.blocks_needed.
        fetcher: where blocks come from; closed by whoever made it.
        open_block: makes a block readable; called in the fetcher's threads.
        opened: where readable blocks are kept; empty.
        limits: see CacheLimits.
    """

    def __init__(
        self,
        manifest: DatasetManifest,
        table: BlockTable,
        needs: Iterator[BlockNeed],
        *,
        fetcher: BlockFetcher,
        open_block: Callable[[int, FetchedBlock], OpenBlock],
        opened: OpenBlocks,
        limits: CacheLimits,
    ) -> None:
        self._table = table
        self._needs = needs
        self._next_need: BlockNeed | None = next(needs, None)
        self._fetcher = fetcher
        self._open_block = open_block
        self._manifest = manifest
        self._limits = limits
        # It guards all that follows.
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)  # the fetcher's threads notify it
        self._opened = opened
        self._slot = np.full(table.num_blocks, _ABSENT, dtype=np.int32)
        self._num_left = np.zeros(table.num_blocks, dtype=np.int32)  # samples still to be taken
        self._ahead: dict[int, int] = {}  # bytes of each block that is asked for and not yet needed
        self._is_ahead = np.zeros(table.num_blocks, dtype=np.bool_)
        self._ahead_bytes = 0
        # Blocks that the present step still waits for: whoever waits is woken once, by the last of them.
        self._is_awaited = np.zeros(table.num_blocks, dtype=np.bool_)
        self._num_awaited = 0
        self._error: Exception | None = None
        self._is_interrupted = False

    @property
    def ahead_bytes(self) -> int:
        """Bytes of blocks that are here or on their way, and that no step has needed yet."""
        with self._lock:
            return self._ahead_bytes

    @property
    def num_open(self) -> int:
        """Blocks that are here."""
        with self._lock:
            return int((self._slot != _ABSENT).sum())

    def wait_for(self, share: StepShare) -> npt.NDArray[np.int32]:
        """Wait until all blocks of a rank's step are open; steps come in their order.

        Returns:
            [n] int32, for each sample the slot of its block.

        Raises:
            ReadError: a block can't be had; this one or one that was asked for ahead.
            RuntimeError: `interrupt` was called.
        """
        blocks = np.unique(share.block)
        with self._lock:
            self._count_as_needed(blocks)
            wanted = self._choose_next(share.step.stop)
        # Without the lock: a fetcher may answer at once, from this very thread.
        for block, block_range in wanted:
            self._fetcher.submit(block_range, partial(self._take, block))
        with self._lock:
            missing = blocks[self._slot[blocks] == _ABSENT]
            self._is_awaited[missing] = True
            self._num_awaited = len(missing)
            while self._num_awaited and self._error is None and not self._is_interrupted:
                self._arrival.wait()
            if self._error is not None:
                raise self._error
            if self._is_interrupted:
                raise RuntimeError("the block cache was interrupted")
            slots: npt.NDArray[np.int32] = self._slot[share.block]
            return slots

    def release(self, share: StepShare) -> None:
        """The samples of a rank's step have been taken."""
        blocks, num_taken = np.unique(share.block, return_counts=True)
        with self._lock:
            self._num_left[blocks] -= num_taken
            for block in blocks[self._num_left[blocks] == 0].tolist():
                self._opened.remove(int(self._slot[block]))
                self._slot[block] = _ABSENT

    def interrupt(self) -> None:
        """Whoever waits for a block is told that none will come. What is open stays: it may be being read."""
        with self._lock:
            self._is_interrupted = True
            self._arrival.notify_all()

    def _count_as_needed(self, blocks: npt.NDArray[np.int64]) -> None:
        for block in blocks[self._is_ahead[blocks]].tolist():
            self._ahead_bytes -= self._ahead.pop(block)
            self._is_ahead[block] = False

    def _choose_next(self, step_stop: int) -> list[tuple[int, BlockRange]]:
        """The blocks to ask for now: all that the present step needs, and more as the limits allow."""
        chosen = []
        while (need := self._next_need) is not None:
            is_ahead = need.number >= step_stop
            if is_ahead and not self._may_ask_ahead():
                break
            wanted = block_range(self._manifest, self._table, need.block)
            self._num_left[need.block] = need.num_samples
            if is_ahead:
                self._ahead[need.block] = wanted.size_bytes
                self._is_ahead[need.block] = True
                self._ahead_bytes += wanted.size_bytes
            chosen.append((need.block, wanted))
            self._next_need = next(self._needs, None)
        return chosen

    def _may_ask_ahead(self) -> bool:
        return len(self._ahead) < self._limits.ahead_blocks and self._ahead_bytes < self._limits.ahead_bytes

    def _take(self, block: int, arrived: FetchedBlock | Exception) -> None:
        """Called by the fetcher with a block, or with why there is none."""
        try:
            if isinstance(arrived, Exception):
                raise arrived
            opened = self._open_block(block, arrived)
        except Exception as error:  # noqa: BLE001 - it is raised to whoever takes the next step
            with self._lock:
                self._error = self._error or error
                self._arrival.notify_all()
            return
        with self._lock:
            if self._is_interrupted:
                return
            self._slot[block] = self._opened.put(opened)
            if block in self._ahead:
                size_bytes = sum(map(len, arrived.values))
                self._ahead_bytes += size_bytes - self._ahead[block]
                self._ahead[block] = size_bytes
            if self._is_awaited[block]:
                self._is_awaited[block] = False
                self._num_awaited -= 1
                if not self._num_awaited:
                    self._arrival.notify_all()


def block_range(manifest: DatasetManifest, table: BlockTable, block: int) -> BlockRange:
    """Where a block lies, and about how large it is: as many bytes as so many records have on average."""
    num_records = int(table.num_records[block])
    return BlockRange(
        int(table.partition[block]),
        int(table.offset[block]),
        num_records,
        max(1, num_records * manifest.num_bytes // manifest.num_records),
    )
