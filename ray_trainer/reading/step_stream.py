"""Decodes steps ahead of the training loop, in one thread.

The loop takes a finished step while the next ones are read and decoded. What is random stays out of here: a
`transform` runs in the loop's own thread (reader.py), as it may draw from PyTorch's random numbers, and the
loop must find these as it left them.

Closing is a block: when the `with` ends, the thread has ended and the source is closed, whether the epoch
was read to its end or not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from evenload.ray_trainer.planning.plan import RankView, Step
from evenload.ray_trainer.reading.decoding import BatchDecoder, Decoded
from evenload.ray_trainer.reading.step_source import StepSource

_STEPS_AHEAD: Final = 2


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """One rank's samples of a step.

    Attributes:
        step: all ranks' samples.
        index: [n] int64, of this rank's, positions in manifest order.
        number: [n] int64, of this rank's, their numbers in written order; see step_source.Located.
        columns: of this rank's.
    """

    step: Step
    index: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    columns: Decoded


class StepStream:
    """Steps in their order, decoded; a context manager and an iterator, both used once.

    Args:
        groups: the steps of an epoch that are left, as from group_steps.
        view: this rank's part of them.
        source: where samples come from; closed at the end.
        decoder: closed at the end.
    """

    def __init__(
        self, groups: Iterator[list[Step]], *, view: RankView, source: StepSource, decoder: BatchDecoder
    ) -> None:
        self._groups = groups
        self._view = view
        self._source = source
        self._decoder = decoder
        # None: that was the last one. An error: raised in the loop.
        self._decoded: queue.SimpleQueue[DecodedStep | Exception | None] = queue.SimpleQueue()
        # One entry for each step that may be decoded ahead; one more wakes the thread for the end.
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_STEPS_AHEAD):
            self._room.put(None)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decode-steps", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closing.set()
        self._source.interrupt()
        self._room.put(None)
        self._thread.join()
        self._decoder.close()

    def __iter__(self) -> Iterator[DecodedStep]:
        while (decoded := self._decoded.get()) is not None:
            if isinstance(decoded, Exception):
                raise decoded
            self._room.put(None)
            yield decoded

    def _run(self) -> None:
        try:
            for steps in self._groups:
                for decoded in self._decode(steps):
                    self._room.get()
                    if self._is_closing.is_set():
                        return
                    self._decoded.put(decoded)
        except Exception as error:  # noqa: BLE001 - it is raised in the training loop
            self._decoded.put(error)
        else:
            self._decoded.put(None)

    def _decode(self, steps: list[Step]) -> Iterator[DecodedStep]:
        share = self._view.share(Step(steps[0].start, steps[-1].stop))
        located = self._source.locate(share)
        sizes = [share.num_samples] if len(steps) == 1 else list(map(self._num_samples, steps))
        parts = self._decoder.decode(self._source.opened, located.slot, located.row, sizes=sizes)
        start = 0
        for step, size, columns in zip(steps, sizes, parts, strict=True):
            part = slice(start, start + size)
            yield DecodedStep(step, located.index[part], located.number[part], columns)
            start += size
        # Only now: a part's rows are copied when the part is asked for. Had its block been let go of before,
        # another block's rows could lie there by then.
        self._source.release(share)

    def _num_samples(self, step: Step) -> int:
        """Of this rank, where the world size divides the number of lanes: every world_size-th of a step."""
        rank, world_size = self._view.rank, self._view.world_size
        return len(range(step.start + (rank - step.start) % world_size, step.stop, world_size))


def group_steps(
    steps: Iterable[Step], *, num_lanes: int, world_size: int, num_samples_max: int
) -> Iterator[list[Step]]:
    """Steps that are planned and waited for together, which for small batches is half of the work.

    Where the world size divides the number of lanes, a rank's part of several steps is its parts of each, one
    after the other; elsewhere each step is a group.

    Args:
        num_samples_max: most samples in a group, of all ranks; a group has at least one step.
    """
    group: list[Step] = []
    for step in steps:
        is_full = group and step.stop - group[0].start > num_samples_max
        if group and (is_full or num_lanes % world_size):
            yield group
            group = []
        group.append(step)
    if group:
        yield group
