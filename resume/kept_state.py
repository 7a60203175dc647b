"""What a run keeps in its checkpoints: model, optimizer, scheduler, and whatever else a loop names.

A checkpoint holds rank 0's copy of each part, and every rank loads it; but for tensors that say themselves of
which part each rank has them (DTensor: of `fully_shard` and tensor parallelism), of which every rank writes
its part and loads the one that it has by then. So each part has to be the same on every rank in names, global
shapes and dtypes. What is spread over ranks in another way (FullyShardedDataParallel, ZeRO, a DTensor inside
of another object) would lose all but rank 0's part without a word; it is refused in a sentence, on every
rank, when the session is made and again before the first step, as a model may be sharded in between.

What was saved in one way may be loaded in another: whole, sharded, or sharded over another mesh.

At resume a module is compared with what was saved before it is loaded: names, shapes and dtypes. Other state
may rightly be empty by then, or of another length (an optimizer that has done no step, a history), so how it
is read is up to its own `load_state_dict`. What can be compared is: an optimizer's parameters, whose shapes
and dtypes are kept beside its state; and each tensor that other state has once it is loaded, with the saved
one.

Invariants, checked in tests/unit/resume/test_kept_state.py and
tests/fault/ray_trainer/test_training_state.py:
1. Of state that is spread over ranks either all is in a checkpoint or nothing, however deep it is nested.
2. What is copied is what `torch.load(weights_only=True)` reads again.
3. Nothing is loaded before every name is known to be on both sides.

Read next: state_tensors.py, state_copy.py, spreading.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import xxhash
from torch import nn

from evenload.resume.errors import (
    CheckpointMismatchError,
    RanksDifferError,
    RunError,
    ShardedStateError,
    StateUnavailableError,
)
from evenload.resume.peers import Peers
from evenload.resume.shard_index import PiecewiseTensor
from evenload.resume.spreading import filled, likeness, room
from evenload.resume.state_copy import StateCopy, bytes_of, copy_state, is_sharded, unwrap
from evenload.resume.state_tensors import LAZY, refuse_spread, shape_and_dtype, tensor_facts, tensors
from evenload.resume.storage import checksum_of

__all__ = ["KeptState", "SavedState"]

_RESERVED: Final = ("model", "optimizer", "scheduler", "reader", "loader")
_PARAMETERS: Final = "parameters of optimizers"  # no name that a part can have
_SHARDED: Final = ", sharded"
_NUM_NAMED_MAX: Final = 5  # differences in a sentence

# By name: importing what nobody uses would cost each worker a second.
_SPREAD_OBJECTS: Final = (
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.optim.zero_redundancy_optimizer",
)


@dataclass(frozen=True)
class SavedState:
    """A checkpoint's state, as every rank has read it.

    Attributes:
        place: The checkpoint's folder, for errors.
        whole: All parts' state by name, with None where a sharded tensor was.
        shards: The sharded tensors, by where they are in the state.
        read_shards: Fills tensors, by where they are in the state; all ranks together.
    """

    place: str
    whole: dict[str, Any]
    shards: Mapping[str, PiecewiseTensor]
    read_shards: Callable[[Mapping[str, torch.Tensor]], None]


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
        self._is_sharded = False

    def check(self, peers: Peers) -> None:
        """Refuse what can't be kept. Every rank calls it, and every rank gets the error of any.

        Raises:
            ShardedStateError: Some state is spread over ranks in a way that can't be kept.
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
            self._refuse_strangers(peers.rank)
        except (ShardedStateError, StateUnavailableError, TypeError) as caught:  # raised below, on every rank
            error = caught
        digest = xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
        self._is_sharded = any(fact.endswith(_SHARDED) for fact in facts.values())
        told = peers.gather((digest, error))
        if error is not None:
            raise error  # the own one knows where it comes from
        for _, trouble in told:
            if trouble is not None:
                raise trouble
        if len({each for each, _ in told}) > 1:
            raise _ranks_differ(peers.gather(facts))

    def _refuse_strangers(self, rank: int) -> None:
        """An optimizer that was made before its model was sharded, which replaces the model's parameters."""
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        own = {id(parameter) for module in modules for parameter in module.parameters()}
        if not any(is_sharded(parameter) for module in modules for parameter in module.parameters()):
            return
        for name, part in self._parts.items():
            if isinstance(part, torch.optim.Optimizer) and not any(
                id(parameter) in own for group in part.param_groups for parameter in group["params"]
            ):
                reason = (
                    "it holds none of the model's parameters, as it was made before the model was sharded"
                )
                raise ShardedStateError(name, kind=type(part).__name__, rank=rank, reason=reason)

    def require_data_parallel(self, data_parallel: object, world_size: int) -> None:
        """Refuse that ranks which share layers are given different samples.

        Args:
            data_parallel: The axis along which they have different ones; None: nobody has said.

        Raises:
            ValueError: As above.
        """
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        if data_parallel is None and any(_shares_layers(module, world_size) for module in modules):
            raise ValueError(
                "ranks share the model's layers, so they have to have the same samples: say along which axis "
                "of the mesh they have different ones (data_parallel=mesh['dp'], of size 1 if all share)"
            )

    def copy(self, more: Mapping[str, Callable[[], Any]] | None = None, *, rank: int = 0) -> StateCopy:
        """What a rank has to write of all parts' state, as it is now; later steps don't change it.

        Args:
            more: What else is to be kept of rank 0's, by name: gives states that are never sharded.
            rank: Whose: rank 0's copy holds all but the others' parts of what is sharded.

        Raises:
            ShardedStateError: Some state has become sharded since the session was made.
            TypeError: Some state can't be loaded again safely.
            StateUnavailableError: A state_dict() failed, or there is no memory for the copy.
        """
        if rank and not self._is_sharded:
            return StateCopy(None, {})
        states: dict[str, Any] = {}
        digests: dict[str, str] = {}
        asked = {name: part.state_dict for name, part in self._parts.items()}
        for name, ask in [*asked.items(), *({} if rank or more is None else more).items()]:
            with _errors_that_travel(name, rank=rank):
                states[name] = ask()
                for found in tensors(name, states[name]):
                    refuse_spread(found, rank=rank)
                    if is_sharded(found.tensor) and not (self._is_sharded and name in asked):
                        reason = "it has become so since the run began"
                        raise ShardedStateError(found.path, kind="DTensor", rank=rank, reason=reason)
                if self._is_sharded and isinstance(part := self._parts.get(name), torch.optim.Optimizer):
                    digests |= _digests_of_own(name, part, states[name])
        with _errors_that_travel(", ".join(states), rank=rank):
            copied = copy_state(states, is_whole=rank == 0)
            if copied.whole is not None:
                copied.whole[_PARAMETERS] = {
                    name: _parameter_facts(name, part)
                    for name, part in self._parts.items()
                    if isinstance(part, torch.optim.Optimizer)
                }
        return replace(copied, digests=digests)

    def load(self, saved: SavedState, peers: Peers) -> None:
        """Load each part from a checkpoint's state; all ranks together.

        Raises:
            CheckpointMismatchError: It has other parts, or a part of other names, shapes or dtypes.
            CheckpointUnreadableError: Some rank can't read what is sharded.
            StateUnavailableError: A state_dict() failed, or there is no memory for what is sharded.
        """
        whole = dict(saved.whole)
        parameters = whole.pop(_PARAMETERS, {})  # none in a checkpoint of an earlier version
        targets: dict[str, torch.Tensor] = {}
        error: Exception | None = None
        try:
            with _errors_that_travel("what is loaded", rank=peers.rank):
                self._require_same(saved, whole, parameters)
                likenesses = {name: likeness(name, part) for name, part in self._parts.items()}
                mesh = self._any_mesh()
                for path, shard in saved.shards.items():
                    targets[path] = room(likenesses[path.partition(".")[0]](path), shard, mesh)
        except (RunError, TypeError) as caught:  # raised below, on every rank: the others would wait to read
            error = caught
        for trouble in [error, *peers.gather(error)]:
            if trouble is not None:
                raise trouble
        if targets:
            saved.read_shards(targets)
        for name, part in self._parts.items():
            state = filled(name, whole[name], targets, likenesses[name])
            settings = set(getattr(part, "defaults", {}))  # before: loading has torch add some of its own
            try:
                part.load_state_dict(state)
            except (RuntimeError, ValueError, LookupError) as caught:  # what torch says of another model
                now = " ".join(str(caught).split())[:300]
                raise CheckpointMismatchError(saved.place, {name: ("as saved", now)}) from caught
            if not isinstance(part, nn.Module) and (changed := _changed(name, state, part, settings)):
                raise CheckpointMismatchError(saved.place, changed)

    def _require_same(
        self, saved: SavedState, whole: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> None:
        """That it has these parts, and each as it is; raises CheckpointMismatchError."""
        theirs = [*whole, *(path.partition(".")[0] for path in saved.shards)]
        names = dict.fromkeys([*self._parts, *theirs])
        differences: dict[str, tuple[object, object]] = {
            name: ("one" if name in whole else "none", "one" if name in self._parts else "none")
            for name in names
            if (name in whole) != (name in self._parts)
        }
        for name, part in self._parts.items():
            if isinstance(part, nn.Module) and name in whole:
                shards = {p: s.fact for p, s in saved.shards.items() if p.startswith(f"{name}.")}
                facts = tensor_facts(name, whole[name]) | shards
                differences |= _fact_differences(name, facts, tensor_facts(name, part.state_dict()))
            elif name in parameters and isinstance(part, torch.optim.Optimizer):
                differences |= _fact_differences(name, parameters[name], _parameter_facts(name, part))
        if differences:
            raise CheckpointMismatchError(saved.place, differences)

    def _any_mesh(self) -> Any:
        """Of a sharded parameter; None: there is none."""
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        sharded = [each for module in modules for each in module.parameters() if is_sharded(each)]
        return sharded[0].device_mesh if sharded else None


def _shares_layers(module: nn.Module, world_size: int) -> bool:
    """Whether it is sharded otherwise than by `fully_shard` over all ranks, which have all layers in turn."""
    sharded: list[Any] = [parameter for parameter in module.parameters() if is_sharded(parameter)]
    if not sharded:
        return False
    if not any(hasattr(each, "set_requires_gradient_sync") for each in module.modules()):
        return True
    for each in sharded:
        num_divisions = sum(placement.is_shard() for placement in each.placements)
        if num_divisions > 1 or each.device_mesh.size() < world_size:
            return True
    return False


def _facts_of(name: str, part: Any, *, rank: int) -> dict[str, str]:
    """Where each tensor of a part's state is -> its shape and dtype."""
    facts = {name: "a part"}
    # Before state_dict() is called: of FSDP and ZeRO that is a call that all ranks have to make.
    for thing in [*part.modules()] if isinstance(part, nn.Module) else [part]:
        for kind in type(thing).__mro__:
            if kind.__module__.startswith(_SPREAD_OBJECTS):
                reason = "its state is in no form that other ranks could go on with"
                raise ShardedStateError(name, kind=kind.__name__, rank=rank, reason=reason)
    for found in tensors(name, part.state_dict()):
        refuse_spread(found, rank=rank)
        sharded = _SHARDED if is_sharded(found.tensor) else ""
        facts[found.path] = shape_and_dtype(found.tensor) + sharded
    return facts


@contextmanager
def _errors_that_travel(name: str, *, rank: int) -> Iterator[None]:
    """Make any error of a part's own code one that can be sent to the other ranks.

    One that does not pickle, or that nobody has thought of, would end this rank alone, and the others would
    wait for it.
    """
    try:
        yield
    except RunError:
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


def _digests_of_own(name: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, str]:
    """Of what an optimizer keeps of a sharded parameter as a tensor that isn't.

    It may be of a rank's own part, and not say so: then ranks have other numbers, of which rank 0's alone
    would be kept.
    """
    like = likeness(name, optimizer)
    plain = [
        found
        for found in tensors(name, state)
        if found.tensor.ndim and not is_sharded(found.tensor) and is_sharded(like(found.path))
    ]
    return {found.path: checksum_of(bytes_of(found.tensor)).checksum for found in plain}


def _parameter_facts(name: str, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Where each parameter of an optimizer is -> its shape and dtype."""
    return {
        f"{name}.param_groups.{number}.params.{place}": shape_and_dtype(parameter)
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def _changed(name: str, saved: Any, part: Any, settings: set[str]) -> dict[str, tuple[object, object]]:
    """How a part that was loaded differs from what was saved, in what both name."""
    if isinstance(part, torch.optim.Optimizer):
        return _missing_settings(
            name, part, settings
        )  # torch converts its tensors to the parameters' dtype, by design
    theirs, ours = tensor_facts(name, saved), tensor_facts(name, part.state_dict())
    odd = [path for path in theirs if path in ours and theirs[path] != ours[path]]
    return {path: (theirs[path], ours[path]) for path in odd[:_NUM_NAMED_MAX]}


def _missing_settings(
    name: str, optimizer: torch.optim.Optimizer, settings: set[str]
) -> dict[str, tuple[object, object]]:
    """Torch takes over the settings of another kind of optimizer, and would fail in the first step."""
    for number, group in enumerate(optimizer.param_groups):
        if not settings <= group.keys():
            has = ", ".join(sorted(group.keys() - {"params"}))
            return {f"{name}.param_groups.{number}": (has, ", ".join(sorted(settings)))}
    return {}


def _fact_differences(
    name: str, theirs: Mapping[str, str], ours: Mapping[str, str]
) -> dict[str, tuple[object, object]]:
    # Of a lazy tensor (`shape_and_dtype`) nothing but the name is known.
    odd = [
        path
        for path in theirs
        if path in ours and theirs[path] != ours[path] and not ours[path].startswith(LAZY)
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
