"""How a state that was saved is shared between ranks as it is loaded: by what is in its place, or will be.

A module says it for each of its tensors; an optimizer by the parameter that it keeps them for; and of what
isn't there yet, how it was divided when it was saved.

Read next: kept_state.py, which loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from evenload.resume.shard_index import PiecewiseTensor
from evenload.resume.state_copy import is_sharded
from evenload.resume.state_tensors import tensors

__all__ = ["Likeness", "filled", "likeness", "room"]

# Says of a place in a state which tensor is like the one that is there, or will be; None: nobody knows.
Likeness: TypeAlias = Callable[[str], torch.Tensor | None]


def likeness(name: str, part: Any) -> Likeness:
    """Says of a place in a part's state which tensor is, or will be, there in its shape and on its mesh."""
    if not isinstance(part, torch.optim.Optimizer):
        known = {found.path: found.tensor for found in tensors(name, part.state_dict())}
        return {path: tensor for path, tensor in known.items() if not is_lazy(tensor)}.get
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]

    def of_parameter(path: str) -> torch.Tensor | None:  # what an optimizer keeps, it keeps by its parameter
        number = path.removeprefix(f"{name}.state.").partition(".")[0]
        found: torch.Tensor | None = None
        if number.isdecimal() and int(number) < len(parameters) and not is_lazy(parameters[int(number)]):
            found = parameters[int(number)].detach()
        return found

    return of_parameter


def room(like: torch.Tensor | None, shard: PiecewiseTensor, mesh: Any) -> torch.Tensor:
    """A tensor to be filled.

    Args:
        like: What is in its place, or its parameter; None: nothing yet (a part whose state grows).
        mesh: Over which it is spread if nothing else says so; None: over none.
    """
    shape, dtype = torch.Size(shard.shape), shard.torch_dtype
    if like is not None and like.shape == shape:
        return torch.empty_like(like, dtype=dtype)
    if is_sharded(like):  # of another shape than its parameter: nothing says how to share it
        return _spread_empty(shape, dtype, like.device_mesh, ())
    if like is None and mesh is not None:
        return _spread_empty(shape, dtype, mesh, shard.shard_dims)
    return torch.empty(shape, dtype=dtype, device="cpu" if like is None else like.device)


def _spread_empty(
    shape: torch.Size, dtype: torch.dtype, mesh: Any, shard_dims: tuple[int | None, ...]
) -> torch.Tensor:
    """A sharded tensor: divided along these dimensions where the mesh has as many, else whole everywhere."""
    from torch.distributed import tensor as sharded

    dims = shard_dims if len(shard_dims) == mesh.ndim else (None,) * mesh.ndim
    placements = [sharded.Replicate() if dim is None else sharded.Shard(dim) for dim in dims]
    return sharded.empty(shape, dtype=dtype, device_mesh=mesh, placements=placements)


def filled(path: str, state: Any, targets: Mapping[str, torch.Tensor], like: Likeness) -> Any:
    """A part's state as it is loaded: with what was sharded, and sharded as the part is by now."""
    if isinstance(state, Mapping):
        loaded: Any = state
        for name, item in state.items():
            loaded[name] = filled(f"{path}.{name}", item, targets, like)
        return loaded
    if type(state) in (list, tuple):
        return type(state)(
            filled(f"{path}.{number}", item, targets, like) for number, item in enumerate(state)
        )
    if state is None and path in targets:
        return targets[path]
    now = like(path) if isinstance(state, torch.Tensor) and state.ndim else None
    if is_sharded(now):
        from torch.distributed import tensor as sharded

        is_alike = now.shape == state.shape
        placements = now.placements if is_alike else [sharded.Replicate()] * now.device_mesh.ndim
        # Every rank has all of it, so nothing has to be sent.
        return sharded.distribute_tensor(state, now.device_mesh, placements, src_data_rank=None)
    return state
