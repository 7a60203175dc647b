"""A fetcher without brokers, for tests of whatever reads blocks.

It answers in the way a real one does (from threads, in an order of its own, with errors where it is told to)
and is held to the same contract: tests/integration/ray_trainer/test_fetch_ranges.py runs against both.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterable, Mapping

from evenload.dataset_catalog.testing import PlacedRecord
from evenload.ray_trainer.errors import RecordsGoneError
from evenload.ray_trainer.fetching.fetch import BlockRange, FetchedBlock
from evenload.ray_trainer.fetching.range_fetch import OnDone


class MemoryFetcher:
    """A BlockFetcher over records in memory.

    Args:
        records: by (partition, offset), the value.
        num_mixed: answers come in a random order within so many requests; 1: in the order of requests.
        seed: of that order.
        errors: by (partition, first offset) of a range, what is answered instead of it.
        first_samples: by (partition, offset), the number in a record's header; None: they have no headers.
    """

    def __init__(
        self,
        records: Mapping[tuple[int, int], bytes],
        *,
        num_mixed: int = 8,
        seed: int = 0,
        errors: Mapping[tuple[int, int], Exception] | None = None,
        first_samples: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        self.asked: list[BlockRange] = []
        self.num_wire_bytes = 0
        self._records = records
        self._num_mixed = num_mixed
        self._random = random.Random(seed)
        self._errors = errors or {}
        self._first_samples = first_samples or {}
        self._requests: queue.Queue[tuple[BlockRange, OnDone] | None] = queue.Queue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="memory-fetcher", daemon=True)
        self._thread.start()

    @classmethod
    def of_records(cls, placed: Iterable[PlacedRecord], **options: int) -> MemoryFetcher:
        """Over a dataset's records as evenload.dataset_catalog.testing makes them."""
        placed = list(placed)
        return cls(
            {(each.partition, each.offset): each.record.value for each in placed},
            first_samples={(each.partition, each.offset): each.record.first_sample for each in placed},
            num_mixed=options.get("num_mixed", 8),
            seed=options.get("seed", 0),
        )

    def submit(self, wanted: BlockRange, on_done: OnDone) -> None:
        self.asked.append(wanted)
        self._requests.put((wanted, on_done))

    def close(self) -> None:
        self._is_closed = True
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._requests.get()) is not None:
            taken = [first, *self._more_requests()]
            self._random.shuffle(taken)
            for wanted, on_done in taken:
                if self._is_closed:
                    return
                on_done(self._answer(wanted))

    def _more_requests(self) -> list[tuple[BlockRange, OnDone]]:
        more: list[tuple[BlockRange, OnDone]] = []
        while len(more) + 1 < self._num_mixed:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                break
            if request is None:
                self._requests.put(None)
                break
            more.append(request)
        return more

    def _answer(self, wanted: BlockRange) -> FetchedBlock | Exception:
        error = self._errors.get((wanted.partition, wanted.first_offset))
        if error is not None:
            return error
        values = []
        offsets = range(wanted.first_offset, wanted.end_offset)
        for offset in offsets:
            value = self._records.get((wanted.partition, offset))
            if value is None:
                return RecordsGoneError(
                    topic="memory", partition=wanted.partition, offset=offset, reason="it never was there"
                )
            values.append(memoryview(bytearray(value)))
        self.num_wire_bytes += sum(map(len, values))
        first_samples = [self._first_samples.get((wanted.partition, offset)) for offset in offsets]
        known = [first for first in first_samples if first is not None]
        return FetchedBlock(wanted, values, known if len(known) == len(values) else None)
