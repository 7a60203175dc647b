"""What one rank gets of one step: its samples as columns, and what is known about them.

A Batch is a dict, so whatever takes a dict of tensors takes it. Frameworks that rebuild dicts from their
items (moving tensors to a device, for example) lose what is not an item: `to` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
import torch

from evenload.dataset_catalog import keyed_order
from evenload.ray_trainer.planning.cursor import Cursor
from evenload.ray_trainer.planning.steps import microbatch_bounds

Column = torch.Tensor | list[Any]


class Batch(dict[str, Any]):
    """One rank's samples of a step: column name to Tensor, or to a list where values are no tensor.

    Attributes:
        num_samples: of this rank.
        global_num_samples: of all ranks in the step; what a gradient is divided by.
        cursor: where the run stands once this step is done; the same on every rank.
        index: [num_samples] int64, positions in manifest order: where the samples were to be found.
        number: [num_samples] int64, the samples' numbers in written order, from the headers of the records
            they were found in: what was really found.
        seed: the reader's.
        world_size: number of ranks that share the step.
    """

    num_samples: int
    global_num_samples: int
    cursor: Cursor | None
    index: torch.Tensor
    number: torch.Tensor
    seed: int
    world_size: int

    def __init__(
        self,
        columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        index: torch.Tensor | None = None,
        number: torch.Tensor | None = None,
        seed: int = 0,
        global_num_samples: int | None = None,
        cursor: Cursor | None = None,
        world_size: int = 1,
    ) -> None:
        super().__init__(columns)
        # Without an index, a framework has made this from the items of another batch.
        self.index = torch.empty(0, dtype=torch.int64) if index is None else index
        self.number = self.index if number is None else number
        self.num_samples = _length(self) if index is None else len(index)
        self.seed = seed
        self.global_num_samples = self.num_samples if global_num_samples is None else global_num_samples
        self.cursor = cursor
        self.world_size = world_size

    @property
    def sample_seeds(self) -> torch.Tensor:
        """[num_samples] int64, each at least 0: a seed for the random choices that belong to a sample.

        It depends on (seed, epoch, sample) alone: not on rank, world size or batch.
        """
        epoch = self.cursor.epoch if self.cursor is not None else 0
        seeds = keyed_order.sample_seeds(self.seed, epoch, self.index.numpy())
        # 63 bits, which every random number generator takes
        return torch.from_numpy((seeds >> np.uint64(1)).astype(np.int64))

    def split(self, max_size: int) -> list[Self]:
        """The batch as microbatches: as many on every rank of the step, none of them empty.

        Args:
            max_size: most samples in one, at least 1 (with 1, and a step that does not divide evenly, one
                microbatch of some ranks has 2).
        """
        bounds = microbatch_bounds(
            self.num_samples,
            num_samples_step=self.global_num_samples,
            world_size=self.world_size,
            max_size=max_size,
        )
        return [self._slice(start, stop) for start, stop in bounds]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch with its tensors on a device; lists of tensors as well."""
        return self._like(
            {name: _to(column, device, non_blocking) for name, column in self.items()},
            self.index,
            self.number,
        )

    def with_columns(self, columns: Mapping[str, Any]) -> Self:
        """Other columns of the same samples: what a transform made of them."""
        return self._like(columns, self.index, self.number)

    def _slice(self, start: int, stop: int) -> Self:
        columns = {name: _slice(column, start, stop, self.num_samples) for name, column in self.items()}
        return self._like(columns, self.index[start:stop], self.number[start:stop])

    def _like(self, columns: Mapping[str, Any], index: torch.Tensor, number: torch.Tensor) -> Self:
        return type(self)(
            columns,
            index=index,
            number=number,
            seed=self.seed,
            global_num_samples=self.global_num_samples,
            cursor=self.cursor,
            world_size=self.world_size,
        )


def _length(columns: Mapping[str, Any]) -> int:
    return len(next(iter(columns.values()))) if columns else 0


def _slice(column: Any, start: int, stop: int, num_samples: int) -> Any:
    """A transform may leave what is not one entry a sample (a number, a shared table); all parts share it."""
    is_per_sample = isinstance(column, torch.Tensor | list | tuple | np.ndarray) and (
        not isinstance(column, torch.Tensor | np.ndarray) or column.ndim > 0
    )
    return column[start:stop] if is_per_sample and len(column) == num_samples else column


def _to(column: Any, device: torch.device | str, non_blocking: bool) -> Any:
    if isinstance(column, torch.Tensor):
        return column.to(device, non_blocking=non_blocking)
    if isinstance(column, list):
        return [_to(item, device, non_blocking) for item in column]
    return column
