"""What a run keeps in its checkpoints: model, optimizer, scheduler, and whatever else a loop names.

A checkpoint holds rank 0's copy of each part, and every rank loads it. So each part has to be whole on every
rank, and the same in names, shapes and dtypes. What is spread over ranks (DTensor, FSDP, tensor parallelism,
ZeRO) would lose all but rank 0's shard without a word; it is refused in a sentence, on every rank, when the
session is made and again before the first step, as a model may be sharded in between.

At resume a module is compared with what was saved before it is loaded: names, shapes and dtypes. Other state
may rightly be empty by then, or of another length (an optimizer that has done no step, a history), so how it
is read is up to its own `load_state_dict`. What can be compared is: an optimizer's parameters, whose shapes
and dtypes are kept beside its state; and each tensor that other state has once it is loaded, with the saved
one.

Invariants, checked in tests/unit/resume/test_kept_state.py and
tests/fault/ray_trainer/test_training_state.py:
1. State that is sharded, however deep it is nested, never gets into a checkpoint.
2. What is copied is what `torch.load(weights_only=True)` reads again.
3. Nothing is loaded before every name is known to be on both sides.

Read next: state_copy.py.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.parameter import is_lazy

from evenload.resume.errors import (
    CheckpointMismatchError,
    RanksDifferError,
    ShardedStateError,
    StateUnavailableError,
)
from evenload.resume.peers import Peers
from evenload.resume.state_copy import detached_copy, unwrap

__all__ = ["KeptState"]

_RESERVED: Final = ("model", "optimizer", "scheduler", "reader", "loader")
_PARAMETERS: Final = "parameters of optimizers"  # no name that a part can have
_LAZY: Final = "not initialised"
_NUM_NAMED_MAX: Final = 5  # differences in a sentence

# What `torch.load(weights_only=True)` reads. Exactly these types: an IntEnum is an int too, and is refused.
_LEAVES: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MAPPINGS: Final = (dict, OrderedDict, Counter)

# By name: importing what nobody uses would cost each worker a second.
_SHARDED_TENSORS: Final = (
    "torch.distributed.tensor",
    "torch.distributed._tensor",
    "torch.distributed._shard",
)
_SHARDED_OBJECTS: Final = ("torch.distributed.fsdp", "torch.distributed.optim.zero_redundancy_optimizer")


class KeptState:
    """The parts of a run's state by name. Training thread only.

    Args:
        model, optimizer, scheduler: As a loop got them; None: there is none.
        others: Name to what has `state_dict` and `load_state_dict`; a wrapped module is unwrapped.

    Raises:
        ValueError: A name that is no identifier, or is one of the session's own.
        TypeError: Something has no `state_dict` or `load_state_dict`.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: Any,
        scheduler: Any,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        for name, part in (others or {}).items():
            _check_name(name)
            parts[name] = part
        self._parts: dict[str, Any] = {}
        for name, part in parts.items():
            if part is None and name not in (others or {}):
                continue
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(part, method, None)):
                    raise TypeError(
                        f"{name} is a {type(part).__name__} without {method}(), so it can't be kept in a "
                        "checkpoint; give it both state_dict() and load_state_dict()"
                    )
            self._parts[name] = unwrap(part) if isinstance(part, nn.Module) else part

    def check(self, peers: Peers) -> None:
        """Refuse what can't be kept. Every rank calls it, and every rank gets the error of any.

        Raises:
            ShardedStateError: Some state is spread over ranks.
            RanksDifferError: A name, shape or dtype is not the same on every rank.
            TypeError: Some state can't be loaded again safely.
            StateUnavailableError: A state_dict() of some rank failed.
        """
        facts: dict[str, str] = {}
        error: Exception | None = None
        try:
            for name, part in self._parts.items():
                with _errors_that_travel(name, rank=peers.rank):
                    facts |= _facts_of(name, part, rank=peers.rank)
        except (ShardedStateError, StateUnavailableError, TypeError) as caught:  # raised below, on every rank
            error = caught
        digest = xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
        told = peers.gather((digest, error))
        if error is not None:
            raise error  # the own one knows where it comes from
        for _, trouble in told:
            if trouble is not None:
                raise trouble
        if len({each for each, _ in told}) > 1:
            raise _ranks_differ(peers.gather(facts))

    def copy(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All parts' state in the CPU's memory, as it is now; later steps don't change it.

        Args:
            more: What else is to be kept, by name: states, not parts that have one.

        Raises:
            ShardedStateError: Some state has become sharded since the session was made.
            TypeError: Some state can't be loaded again safely.
            StateUnavailableError: A state_dict() failed, or there is no memory for the copy.
        """
        states: dict[str, Any] = {}
        for name, part in self._parts.items():
            with _errors_that_travel(name, rank=0):
                states[name] = part.state_dict()
                for path, tensor in _tensors(name, states[name]):
                    _refuse_sharded(path, tensor, rank=0)
        for name, state in (more or {}).items():
            with _errors_that_travel(name, rank=0):
                states[name] = state
                for path, tensor in _tensors(name, state):
                    _refuse_sharded(path, tensor, rank=0)
        with _errors_that_travel(", ".join(states), rank=0):
            # At once: parts may share tensors, which are told by their address.
            copied: dict[str, Any] = detached_copy(states)
            copied[_PARAMETERS] = {
                name: _parameter_facts(name, part)
                for name, part in self._parts.items()
                if isinstance(part, torch.optim.Optimizer)
            }
        return copied

    def load(self, saved: Mapping[str, Any], place: str) -> None:
        """Load each part from a checkpoint's state.

        Args:
            place: The checkpoint's folder, for the error.

        Raises:
            CheckpointMismatchError: It has other parts, or a part of other names, shapes or dtypes.
        """
        parameters = saved.get(_PARAMETERS, {})  # none in a checkpoint of an earlier version
        saved = {name: state for name, state in saved.items() if name != _PARAMETERS}
        names = [*self._parts, *(name for name in saved if name not in self._parts)]
        differences: dict[str, tuple[object, object]] = {
            name: ("one" if name in saved else "none", "one" if name in self._parts else "none")
            for name in names
            if (name in saved) != (name in self._parts)
        }
        for name, part in self._parts.items():
            if isinstance(part, nn.Module) and name in saved:
                differences |= _differences(name, saved[name], part.state_dict())
            elif name in parameters and isinstance(part, torch.optim.Optimizer):
                differences |= _fact_differences(name, parameters[name], _parameter_facts(name, part))
        if differences:
            raise CheckpointMismatchError(place, differences)
        for name, part in self._parts.items():
            try:
                part.load_state_dict(saved[name])
            except (RuntimeError, ValueError, LookupError) as error:  # what torch says of another model
                now = " ".join(str(error).split())[:300]
                raise CheckpointMismatchError(place, {name: ("as saved", now)}) from error
            if not isinstance(part, nn.Module) and (changed := _changed(name, saved[name], part)):
                raise CheckpointMismatchError(place, changed)


def _facts_of(name: str, part: Any, *, rank: int) -> dict[str, str]:
    """Where each tensor of a part's state is -> its shape and dtype."""
    facts = {name: "a part"}
    # Before state_dict() is called: of FSDP and ZeRO that is a call that all ranks have to make.
    for thing in [*part.modules()] if isinstance(part, nn.Module) else [part]:
        for kind in type(thing).__mro__:
            if kind.__module__.startswith(_SHARDED_OBJECTS):
                raise ShardedStateError(name, kind=kind.__name__, rank=rank)
    for path, tensor in _tensors(name, part.state_dict()):
        _refuse_sharded(path, tensor, rank=rank)
        facts[path] = _shape_and_dtype(tensor)
    return facts


@contextmanager
def _errors_that_travel(name: str, *, rank: int) -> Iterator[None]:
    """Make any error of a part's own code one that can be sent to the other ranks.

    One that does not pickle, or that nobody has thought of, would end this rank alone, and the others would
    wait for it.
    """
    try:
        yield
    except ShardedStateError:
        raise
    except TypeError as error:
        raise TypeError(str(error)) from error  # without what else it holds
    except Exception as error:
        lines = str(error).splitlines()
        reason = type(error).__name__ + (f": {lines[0]}" if lines else "")
        raise StateUnavailableError(name, rank=rank, reason=reason) from error


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"{name!r} can't name a part of the state: letters, digits and '_', not beginning with a digit"
        )
    if name in _RESERVED:
        raise ValueError(f"state[{name!r}]: {', '.join(_RESERVED)} are taken; choose another name")


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a state, however deep, with where it is.

    Raises:
        TypeError: On the way there is something that could be written, and never read again.
    """
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _tensors(f"{path}.{name}", item)
            if type(name) not in _LEAVES:
                _require_loadable(f"{path}.{name}", name)
        if type(value) not in _MAPPINGS:
            _require_loadable(path, value)
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from _tensors(f"{path}.{number}", item)
    elif type(value) not in _LEAVES and not isinstance(value, np.generic):  # that is copied as a plain number
        for tensor in _hidden_tensors(path, value):
            yield path, tensor
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


def _refuse_sharded(path: str, tensor: torch.Tensor, *, rank: int) -> None:
    for kind in type(tensor).__mro__:
        if kind.__module__.startswith(_SHARDED_TENSORS):
            raise ShardedStateError(path, kind=kind.__name__, rank=rank)
    flatten = getattr(tensor, "__tensor_flatten__", None)  # of a tensor that is made of others
    for name in flatten()[0] if flatten is not None else ():
        _refuse_sharded(f"{path}.{name}", getattr(tensor, name), rank=rank)


def _shape_and_dtype(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{_LAZY} {dtype}" if is_lazy(tensor) else f"{list(tensor.shape)} {dtype}"


def _differences(name: str, saved: Any, now: Any) -> dict[str, tuple[object, object]]:
    """How a module's saved state differs from the module; torch would convert a dtype without a word."""
    theirs = {path: _shape_and_dtype(tensor) for path, tensor in _tensors(name, saved)}
    ours = {path: _shape_and_dtype(tensor) for path, tensor in _tensors(name, now)}
    return _fact_differences(name, theirs, ours)


def _parameter_facts(name: str, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Where each parameter of an optimizer is -> its shape and dtype."""
    return {
        f"{name}.param_groups.{number}.params.{place}": _shape_and_dtype(parameter)
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def _changed(name: str, saved: Any, part: Any) -> dict[str, tuple[object, object]]:
    """How a part that was loaded differs from what was saved, in what both name."""
    if isinstance(part, torch.optim.Optimizer):
        return _missing_settings(name, part)  # torch converts its tensors to the parameters' dtype, by design
    theirs = {path: _shape_and_dtype(tensor) for path, tensor in _tensors(name, saved)}
    ours = {path: _shape_and_dtype(tensor) for path, tensor in _tensors(name, part.state_dict())}
    odd = [path for path in theirs if path in ours and theirs[path] != ours[path]]
    return {path: (theirs[path], ours[path]) for path in odd[:_NUM_NAMED_MAX]}


def _missing_settings(name: str, optimizer: torch.optim.Optimizer) -> dict[str, tuple[object, object]]:
    """Torch takes over the settings of another kind of optimizer, and would fail in the first step."""
    for number, group in enumerate(optimizer.param_groups):
        if not optimizer.defaults.keys() <= group.keys():
            has = ", ".join(sorted(group.keys() - {"params"}))
            return {f"{name}.param_groups.{number}": (has, ", ".join(sorted(optimizer.defaults)))}
    return {}


def _fact_differences(
    name: str, theirs: Mapping[str, str], ours: Mapping[str, str]
) -> dict[str, tuple[object, object]]:
    # Of a lazy tensor (`_shape_and_dtype`) nothing but the name is known.
    odd = [
        path
        for path in theirs
        if path in ours and theirs[path] != ours[path] and not ours[path].startswith(_LAZY)
    ]
    found: dict[str, tuple[object, object]] = {
        path: (theirs[path], ours[path]) for path in odd[:_NUM_NAMED_MAX]
    }
    said = [
        f"{what} {', '.join(paths[:_NUM_NAMED_MAX])}{', ...' if len(paths) > _NUM_NAMED_MAX else ''}"
        for what, paths in (
            ("missing keys", [path for path in ours if path not in theirs]),
            ("unexpected keys", [path for path in theirs if path not in ours]),
        )
        if paths
    ]
    return {**({name: ("as saved", "; ".join(said))} if said else {}), **found}


def _ranks_differ(facts_by_rank: list[dict[str, str]]) -> RanksDifferError:
    first = facts_by_rank[0]
    for rank, facts in enumerate(facts_by_rank):
        paths = [p for p in {**first, **facts} if first.get(p) != facts.get(p)]
        if paths:
            differences = {
                path: (first.get(path, "absent"), facts.get(path, "absent"))
                for path in paths[:_NUM_NAMED_MAX]
            }
            return RanksDifferError(rank=rank, differences=differences, num_differences=len(paths))
    raise AssertionError("digests of the same facts differ")
