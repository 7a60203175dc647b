"""A training whose model is shared between ranks in one way or another (not a test itself).

Every layout computes the same: each rank has the whole batch, so that gradients are the same numbers whoever
adds them up.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from evenload.resume import sharded_files
from evenload.resume.errors import RunError
from evenload.resume.hook import CheckpointHook

WIDTH, ODD = 12, 7  # the second can't be divided evenly


class Blocks(nn.Module):
    """With a buffer, and layers that ranks share unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, WIDTH)
        self.down = nn.Linear(WIDTH, 6)
        self.out = nn.Sequential(nn.Linear(6, ODD, bias=False), nn.Linear(ODD, 6))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        result: torch.Tensor = self.out(self.down(torch.relu(self.up(x))))
        return result


class Average:
    """A loop's own state, spread as the model is."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values = {name: each.detach().clone() for name, each in self._named()}

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        named = self._model.named_parameters()
        return [(name.removeprefix("module.").replace(".", "_"), each) for name, each in named]

    def update(self) -> None:
        for name, each in self._named():
            self._values[name].lerp_(each.detach(), 0.25)

    def state_dict(self) -> dict[str, Any]:
        return {"deep": [{"values": self._values}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = dict(state["deep"][0]["values"])


class Rows(torch.optim.Optimizer):
    """Keeps a number for each row of a parameter, as factored optimizers do: of another shape than it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                seen = each.grad.square().mean(-1) if each.ndim > 1 else each.grad.square()
                state["rows"] = seen + 0.9 * state.get("rows", torch.zeros_like(seen))
                state["step"] = state.get("step", torch.zeros(())) + 1
                scale = state["rows"].sqrt() + 1e-3
                each -= group["lr"] * each.grad / (scale.unsqueeze(-1) if each.ndim > 1 else scale)


class Pair:
    """Two optimizers as one part, whose state grows with the first step."""

    def __init__(self, model: nn.Module) -> None:
        first, second = list(model.parameters())[:2], list(model.parameters())[2:]
        self.optimizers = {
            "adam": torch.optim.AdamW(first, lr=0.01),
            "sgd": torch.optim.SGD(second, lr=0.01, momentum=0.9),
        }

    def zero_grad(self) -> None:
        for each in self.optimizers.values():
            each.zero_grad()

    def step(self) -> None:
        for each in self.optimizers.values():
            each.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self.optimizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, each in self.optimizers.items():
            each.load_state_dict(state[name])


def model_of(layout: str) -> nn.Module:
    """The same numbers in every layout."""
    torch.manual_seed(5)
    model = Blocks()
    if layout == "whole":
        return model
    world_size = dist.get_world_size()
    if layout == "data parallel":
        return DistributedDataParallel(model)
    if layout == "sharded":
        mesh = init_device_mesh("cpu", (world_size,))
        fully_shard(model.up, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if layout == "tensor parallel":
        return parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    if layout == "both":
        parallelize_module(model, mesh["tp"], plan)
        return fully_shard(model, mesh=mesh["dp"])
    assert layout == "sharded and replicated"
    return fully_shard(model, mesh=mesh)


def go_on(*, folder: str, layout: str, num_steps: int, name: str, optimizer: str = "adam") -> None:
    """So many steps from where the run stands; what it holds before and after goes to files."""
    parts = _parts(layout, optimizer)
    with _hook(folder, parts) as hook:
        _write(Path(folder) / f"{name}-before.pt", parts)
        end = hook.step + num_steps
        for _ in hook.epochs(2):
            for _ in hook.steps(_Steps()):
                _step(**parts)
                if hook.step + 1 == end:
                    hook.end_step()
                    break
            if hook.step == end:
                break
        _write(Path(folder) / f"{name}-after.pt", parts)


def fail(*, folder: str, how: str) -> None:
    """A training in which rank 1 can't have its part written any more, once a checkpoint counts."""
    parts = _parts("sharded")
    error = ""
    is_alone = how == "has another disk" and dist.get_rank() == 1
    try:
        with _hook(f"{folder}/other" if is_alone else folder, parts) as hook:
            hook._storage.patience_s = 0.5
            for _ in hook.epochs(1):
                for _ in hook.steps(_Steps()):
                    _step(**parts)
                    if hook._saved_step is not None:
                        _break(how, parts)
                    elif how == "has another disk" and hook.step > 1000:
                        return  # nothing was ever saved
    except (RunError, RuntimeError) as caught:  # the second: the other rank has died
        error = f"{type(caught).__name__}: {caught}"
    (Path(folder) / f"error-{dist.get_rank()}.json").write_text(json.dumps(error))
    os._exit(0)  # the group may wait for a rank that is gone


def _break(how: str, parts: dict[str, Any]) -> None:
    if how == "keeps its own":  # on each rank, under a name that torch leaves alone
        for parameter, state in parts["optimizer"].state.items():
            state["own"] = parameter.grad.to_local().flatten()[:1] + dist.get_rank()
    if dist.get_rank() != 1 or how in ("has another disk", "keeps its own"):
        return

    def give(*_: Any) -> Any:
        raise KeyError("step")

    if how == "can't copy":
        Average.state_dict = give  # type: ignore[method-assign]
        return

    def write(*_: Any) -> Any:
        if how == "dies":
            os._exit(0)
        raise OSError("no space left")

    sharded_files._Writer.write_data = write  # type: ignore[method-assign]


class _Steps:
    """A loader that has nothing but a number of steps, more than anybody takes."""

    def __len__(self) -> int:
        return 100_000

    def __iter__(self) -> Any:
        return iter(range(len(self)))


def _parts(layout: str, optimizer: str = "adam") -> dict[str, Any]:
    model = model_of(layout)
    makers: dict[str, Any] = {
        "adam": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
        "rows": lambda: Rows(model.parameters()),
        "pair": lambda: Pair(model),
    }
    return {"model": model, "optimizer": makers[optimizer](), "averaged": Average(model)}


def _hook(folder: str, parts: dict[str, Any]) -> CheckpointHook:
    same = None
    if dist.is_initialized():
        same = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))["dp"]
    return CheckpointHook(run="run", storage=folder, checkpoint_interval_s=0, data_parallel=same, **parts)


def _step(model: nn.Module, optimizer: Any, averaged: Average) -> None:
    x = torch.arange(24.0).reshape(4, 6) / 24
    optimizer.zero_grad()
    (model(x) - x.square()).square().mean().backward()
    optimizer.step()
    averaged.update()


def _write(path: Path, parts: dict[str, Any]) -> None:
    """All that the parts hold, whole; every rank has to call it."""
    held = {name: _whole(part.state_dict()) for name, part in parts.items()}
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(held, path)


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {
            name.removeprefix("module.") if isinstance(name, str) else name: _whole(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value
