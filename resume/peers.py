"""What ranks have to agree on, and how they do.

Two gloo groups of our own beside the one that carries gradients, because calls of a group have to come in
the same order on every rank: one for the training thread, one for the thread that writes checkpoints.
What is asked at every step is answered at the next, when it has long arrived, so the training thread doesn't
wait for it. It does wait where an answer is needed at once: when an attempt begins or ends, and in each step
whose loss is a sum over tokens (`Session.parts(num_tokens=)`). A process alone, without torch.distributed, is
a world of one rank and agrees with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DataRank", "Peers", "PendingSum"]

T = TypeVar("T")

_CPU = torch.device("cpu")


class DataRank(NamedTuple):
    """Which part of the data a rank has.

    Attributes:
        rank: Its place among ranks with different data; those that share a model's layers have the same.
        size: How many of these places there are.
    """

    rank: int
    size: int


class PendingSum:
    """A sum over ranks that is under way."""

    def __init__(self, values: torch.Tensor, work: Any) -> None:
        self._values = values
        self._work = work

    def wait(self) -> list[float]:
        """The sums. Raises what the transport raises when a peer is gone (RuntimeError)."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return [float(value) for value in self._values]


class Peers:
    """The ranks of this process's world. Making one is itself a call that all ranks have to make.

    Args:
        timeout_s: How long one rank may keep the others waiting before they give up.
    """

    def __init__(self, *, timeout_s: float = 1800.0) -> None:
        is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if is_distributed else 0
        self.world_size = dist.get_world_size() if is_distributed else 1
        self._control: Any = None
        self._background: Any = None
        if self.world_size > 1:
            timeout = timedelta(seconds=timeout_s)
            self._control = dist.new_group(backend="gloo", timeout=timeout)
            self._background = dist.new_group(backend="gloo", timeout=timeout)

    def data_rank(self, data_parallel: DeviceMesh | None) -> DataRank:
        """Which part of the data this rank has.

        Args:
            data_parallel: The axis along which ranks have different data; None: all have.

        Raises:
            ValueError: It has several dimensions.
        """
        if data_parallel is None:
            return DataRank(self.rank, self.world_size)
        if data_parallel.ndim != 1:
            raise ValueError(
                f"data_parallel is a mesh of {data_parallel.ndim} dimensions; give the one along which ranks "
                "have different data, as mesh['dp'] (several of them: mesh['replicate', 'shard']._flatten())"
            )
        return DataRank(data_parallel.get_local_rank(), data_parallel.size())

    def close(self) -> None:
        """Let go of both groups, with their threads and sockets. No call may be under way, or follow.

        (Under way: gloo waits for it first, up to `timeout_s` for a peer that never makes the same call.)
        """
        if self.world_size > 1 and self._control is not None and dist.is_initialized():
            for group in (self._control, self._background):
                dist.destroy_process_group(group)
        self._control = self._background = None

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank; what the others pass is ignored. Training thread only."""
        return self._broadcast(value, background=False)

    def from_rank_zero(self, ask: Callable[[], T]) -> T:
        """What rank 0 finds out, on every rank; an error of rank 0 is raised on every rank too.

        (Were it raised on rank 0 alone, the others would wait for it for ever.)
        """
        found: T | None = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                found = ask()
            except Exception as caught:  # noqa: BLE001 -- raised again below, on every rank
                error = caught
        found, error = self.broadcast((found, error))
        if error is not None:
            raise error
        answer: Any = found
        return answer  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order, on every rank. Training thread only."""
        return self._gather(value, self._control)

    def start_sum(self, values: Sequence[float]) -> PendingSum:
        """Begin to add up numbers over all ranks. Training thread only."""
        tensor = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(tensor, group=self._control, async_op=True) if self.world_size > 1 else None
        return PendingSum(tensor, work)

    @property
    def control_group(self) -> Any:
        """For torch's own calls on the training thread; None: there is one rank."""
        return self._control

    @property
    def background_group(self) -> Any:
        """For torch's own calls on the background thread; None: there is one rank."""
        return self._background

    def gather_in_background(self, value: T) -> list[T]:
        """Every rank's value, in order, on every rank. Background thread only."""
        return self._gather(value, self._background)

    def broadcast_in_background(self, value: T) -> T:
        """Rank 0's value, on every rank. Background thread only."""
        return self._broadcast(value, background=True)

    def _gather(self, value: T, group: Any) -> list[T]:
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=group)
        return gathered

    def _broadcast(self, value: T, *, background: bool) -> T:
        if self.world_size == 1:
            return value
        holder: list[Any] = [value if self.rank == 0 else None]
        group = self._background if background else self._control
        dist.broadcast_object_list(holder, src=0, group=group, device=_CPU)
        received: T = holder[0]
        return received
