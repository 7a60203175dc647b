"""The tensors in a state: where each is, what it is, and whether a checkpoint can hold it.

Read next: kept_state.py, which keeps states; spreading.py, how they are shared when they are loaded.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from evenload.resume.errors import ShardedStateError
from evenload.resume.shard_index import dtype_name
from evenload.resume.state_copy import is_sharded

__all__ = ["LAZY", "Found", "refuse_spread", "shape_and_dtype", "tensor_facts", "tensors"]

LAZY: Final = "not initialised"

# What `torch.load(weights_only=True)` reads. Exactly these types: an IntEnum is an int too, and is refused.
_LEAVES: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MAPPINGS: Final = (dict, OrderedDict, Counter)

_SPREAD_TENSORS: Final = ("torch.distributed._shard",)  # by name, as few programs have imported it


class Found(NamedTuple):
    """A tensor, where it is, and whether it is within an object of some class."""

    path: str
    tensor: torch.Tensor
    is_inside: bool = False


def tensors(path: str, value: Any) -> Iterator[Found]:
    """Every tensor in a state, however deep.

    Raises:
        TypeError: On the way there is something that could be written, and never read again.
    """
    if isinstance(value, torch.Tensor):
        yield Found(path, value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from tensors(f"{path}.{name}", item)
            if type(name) not in _LEAVES:
                _require_loadable(f"{path}.{name}", name)
        if type(value) not in _MAPPINGS:
            _require_loadable(path, value)
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from tensors(f"{path}.{number}", item)
    elif type(value) not in _LEAVES and not isinstance(value, np.generic):  # that is copied as a plain number
        for tensor in _hidden_tensors(path, value):
            yield Found(path, tensor, is_inside=True)
        _require_loadable(path, value)


def _hidden_tensors(path: str, value: Any) -> list[torch.Tensor]:
    """The tensors inside of any object, as pickle would find them."""
    finder = _TensorFinder()
    try:
        finder.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_loadable(path, value, error) from error
    return finder.found


class _TensorFinder(pickle.Pickler):
    """Pickles into nothing, and leaves tensors out."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, torch.Tensor):
            return None
        self.found.append(value)
        return "tensor"


def _require_loadable(path: str, value: Any) -> None:
    """Try it: which classes are safe is up to torch, and to what the program has told torch."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError, RuntimeError) as error:
        raise _not_loadable(path, value, error) from error


def _not_loadable(path: str, value: Any, error: Exception) -> TypeError:
    lines = str(error).splitlines() or [type(error).__name__]
    return TypeError(
        f"{path} is a {type(value).__name__}, which a checkpoint can't give back safely ({lines[0]}): let "
        "state_dict() make it a number, string, tensor, list or dict, or name its class in "
        "torch.serialization.add_safe_globals()"
    )


def refuse_spread(found: Found, *, rank: int) -> None:
    """Of which a checkpoint would have one rank's part alone, or none that can be put together."""
    path, tensor = found.path, found.tensor
    if is_sharded(tensor):
        reason = ""
        if found.is_inside:
            reason = "it is inside of another object, out of which no part of a tensor can be taken"
        elif any(placement.is_partial() for placement in tensor.placements):
            reason = "its parts have yet to be added up"
        if reason:
            raise ShardedStateError(path, kind="DTensor", rank=rank, reason=reason)
        return
    for kind in type(tensor).__mro__:
        if kind.__module__.startswith(_SPREAD_TENSORS):
            reason = "it can't be put together on other ranks"
            raise ShardedStateError(path, kind=kind.__name__, rank=rank, reason=reason)
    flatten = getattr(tensor, "__tensor_flatten__", None)  # of a tensor that is made of others
    for name in flatten()[0] if flatten is not None else ():
        refuse_spread(Found(f"{path}.{name}", getattr(tensor, name), is_inside=True), rank=rank)


def shape_and_dtype(tensor: torch.Tensor) -> str:
    if is_lazy(tensor):
        return f"{LAZY} {dtype_name(tensor.dtype)}"
    return f"{list(tensor.shape)} {dtype_name(tensor.dtype)}"


def tensor_facts(name: str, state: Any) -> dict[str, str]:
    """Where each tensor of a state is -> its shape and dtype; torch would convert a dtype without a word."""
    return {found.path: shape_and_dtype(found.tensor) for found in tensors(name, state)}
