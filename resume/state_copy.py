"""A model without its wrappers, and a copy of its state that later steps don't change.

Read next: kept_state.py, which copies.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["StateCopy", "bytes_of", "copy_state", "detached_copy", "is_sharded", "unwrap"]


@dataclass(frozen=True)
class StateCopy:
    """What one rank has to write of a run's state, in the CPU's memory.

    Attributes:
        whole: All parts' state by name, with None where a sharded tensor is; None but on rank 0.
        shards: Where each sharded tensor is in the state -> the same tensor, of which this rank has its part.
        digests: Of tensors of which rank 0's is kept though their like is sharded, by where they are.
    """

    whole: dict[str, Any] | None
    shards: Mapping[str, torch.Tensor]
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def same_on_every_rank(self) -> list[tuple[str, str, str]]:
        """What has to be the same where anything is sharded: names, global shapes and dtypes, and digests."""
        shards = [(path, str(each.shape), str(each.dtype)) for path, each in sorted(self.shards.items())]
        return [*shards, *((path, "whole", digest) for path, digest in sorted(self.digests.items()))]


def unwrap(model: nn.Module) -> nn.Module:
    """The model that was prepared: the one whose parameters have names that a single process knows."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod  # type: ignore[assignment]
    return model


def is_sharded(value: object) -> TypeGuard[Any]:
    """Whether it is a tensor of which each rank has a part (DTensor)."""
    # Importing the module would cost a second, and who has such a tensor has done so.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's numbers, one row after the other, as the machine has them."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data


def copy_state(states: Mapping[str, Any], *, is_whole: bool) -> StateCopy:
    """Copy all parts' states at once, as they may share tensors.

    Args:
        states: By part.
        is_whole: Not only what is sharded.

    Raises:
        TypeError: They hold what `torch.load(weights_only=True)` would refuse, or two tensors of one name.
    """
    copier = _Copier(is_whole=is_whole)
    whole = {name: copier.copy(name, state) for name, state in states.items()}
    return StateCopy(whole if is_whole else None, copier.shards)


def detached_copy(value: Any) -> Any:
    """A copy in the CPU's memory that later steps don't change, shared tensors still shared.

    Raises:
        TypeError: It holds what `torch.load(weights_only=True)` would refuse.
    """
    return _Copier(is_whole=True).copy("state", value)


class _Copier:
    """Copies each tensor once, however often it is met."""

    def __init__(self, *, is_whole: bool) -> None:
        self.shards: dict[str, torch.Tensor] = {}
        self._is_whole = is_whole
        self._copies: dict[Any, torch.Tensor] = {}

    def copy(self, path: str, value: Any) -> Any:
        if is_sharded(value):
            if path in self.shards:
                raise TypeError(
                    f"two tensors are both called {path}: their names must not have dots like that"
                )
            self.shards[path] = value.detach().to("cpu", copy=True)
            return None
        if isinstance(value, torch.Tensor):
            return self._copy_of(value) if self._is_whole else None
        if isinstance(value, Mapping):
            copied: Any = copy.copy(value)
            for name, item in value.items():
                copied[name] = self.copy(f"{path}.{name}", item)
            if hasattr(value, "_metadata"):  # a state_dict's versions
                copied._metadata = copy.deepcopy(value._metadata)
            return copied
        if type(value) in (list, tuple):
            return type(value)(self.copy(f"{path}.{number}", item) for number, item in enumerate(value))
        if isinstance(value, np.generic):  # of a schedule that computes with NumPy
            return value.item()  # the same number, and one that torch.load(weights_only=True) reads
        if isinstance(value, np.ndarray):
            raise TypeError(
                "state_dict() has a NumPy array, which is not loaded again safely: make it a tensor"
            )
        return copy.deepcopy(value) if self._is_whole else None

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        # A tensor that is made of others has no address of its own: all such would be taken for one.
        key = (tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if key not in self._copies or tensor.numel() == 0:
            self._copies[key] = tensor.detach().to("cpu", copy=True)
        return self._copies[key]
