"""A model without its wrappers, and a copy of its state that later steps don't change.

Read next: kept_state.py, which copies.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["detached_copy", "unwrap"]


def unwrap(model: nn.Module) -> nn.Module:
    """The model that was prepared: the one whose parameters have names that a single process knows."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod  # type: ignore[assignment]
    return model


def detached_copy(value: Any, _copies: dict[Any, torch.Tensor] | None = None) -> Any:
    """A copy in the CPU's memory that later steps don't change, shared tensors still shared.

    Raises:
        TypeError: It holds what `torch.load(weights_only=True)` would refuse.
    """
    copies = {} if _copies is None else _copies
    if isinstance(value, torch.Tensor):
        # A tensor that is made of others has no address of its own: all such would be taken for one.
        key = (value.data_ptr() or id(value), value.shape, value.stride(), value.dtype, value.device)
        if key not in copies or value.numel() == 0:
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for name, item in value.items():
            copied[name] = detached_copy(item, copies)
        if hasattr(value, "_metadata"):  # a state_dict's versions
            copied._metadata = copy.deepcopy(value._metadata)
        return copied
    if type(value) in (list, tuple):
        return type(value)(detached_copy(item, copies) for item in value)
    if isinstance(value, np.generic):  # of a schedule that computes with NumPy
        return value.item()  # the same number, and one that torch.load(weights_only=True) reads
    if isinstance(value, np.ndarray):
        raise TypeError("state_dict() has a NumPy array, which is not loaded again safely: make it a tensor")
    return copy.deepcopy(value)
