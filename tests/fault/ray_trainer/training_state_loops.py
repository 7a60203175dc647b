"""Loops whose model is spread over ranks, or differs between them (not a test itself).

Each writes down, on every rank, the error that a session gives, so that the test sees what a person would.
"""

from __future__ import annotations

import functools
import json
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim.swa_utils import AveragedModel

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.model import prepare_model
from evenload.ray_trainer.training.session import Session


class Holder:
    """Something of the user's own with a state, nested as the test wants it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def _reader(**place: int) -> MemoryReader:
    rng = np.random.default_rng(3)
    return MemoryReader({"x": rng.normal(size=(40, 24)).astype(np.float32)}, global_batch_size=8, **place)


def _plain() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4))


def _parts(kind: str) -> tuple[nn.Module, Any, dict[str, Any]]:
    """Model, optimizer and a session's options, of one kind of spreading."""
    model, mesh = _plain(), init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = {}
    if kind == "fully_shard":
        fully_shard(model, mesh=mesh)
    elif kind == "tensor_parallel":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif kind == "fsdp":
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    elif kind == "ema":
        state["ema"] = fully_shard(AveragedModel(_plain()), mesh=mesh)
    elif kind == "nested":
        sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        state["mine"] = Holder({"history": [{"deep": (1, {"er": sharded})}]})
    elif kind == "in an object":
        sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        state["mine"] = Holder({"all": {sharded}})
    elif kind == "partial":
        unsummed = DTensor.from_local(torch.arange(8.0), mesh, [Partial()])
        state["mine"] = Holder({"sum": unsummed})
    elif kind == "shapes" and dist.get_rank() == 1:
        model = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 5))
    elif kind == "dtypes" and dist.get_rank() == 1:
        model = model.to(torch.bfloat16)
    elif kind == "names" and dist.get_rank() == 1:
        state["ema"] = AveragedModel(model)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    if kind == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return model, optimizer, {"state": state} if state else {}


def refused_when_made(*, kinds: list[str], storage: str, logs: str) -> None:
    for kind in kinds:
        model, optimizer, options = _parts(kind)
        write_error(
            logs,
            functools.partial(
                Session, model, optimizer, None, _reader(), run="r", storage=storage, **options
            ),
            name=kind,
        )


def trained_and_gone_on_with(*, kinds: list[str], storage: str, logs: str) -> None:
    """One epoch, interrupted after two steps."""
    for kind in kinds:
        write_error(logs, functools.partial(_train_in_two_parts, kind, storage), name=kind)


def _train_in_two_parts(kind: str, storage: str) -> None:
    for has_begun in (False, True):
        model, optimizer, options = _parts(kind)
        reader = _reader()
        if kind == "tensor_parallel":  # both ranks have all layers of each sample
            mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
            options["data_parallel"] = mesh["dp"]
            reader = _reader(rank=0, world_size=1)
        with Session(model, optimizer, None, reader, run=kind, storage=storage, **options) as session:
            assert session.resume() == has_begun
            assert session.step == (2 if has_begun else 0)
            for batch in session.steps():
                for part in session.parts(batch, 2):
                    session.backward(model(part["x"]).square().sum())
                optimizer.step()
                optimizer.zero_grad()
                if session.step == 0 and not has_begun:
                    session.stop()  # which is agreed on while the next step runs
                session.end_step(batch)


def trained_as(*, layout: str, storage: str, logs: str) -> None:
    """One epoch in two parts; what the model is then, whole, goes to a file."""
    model, optimizer, _ = _parts("whole")
    if layout != "whole":
        model, mesh = _plain(), _mesh(layout)
        if mesh["tp"].size() > 1:
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if mesh["dp"].size() > 1:
            fully_shard(model, mesh=mesh["dp"])
        model = prepare_model(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        dp = mesh["dp"]
        reader = _reader(rank=dp.get_local_rank(), world_size=dp.size())
        options = {"data_parallel": dp}
    else:
        reader, options = _reader(), {}
    with Session(model, optimizer, None, reader, run=layout, storage=storage, **options) as session:
        session.resume()
        for batch in session.steps():
            for part in session.parts(batch, 2):
                session.backward(model(part["x"]).square().sum())
            optimizer.step()
            optimizer.zero_grad()
            session.end_step(batch)
    state = {
        name: each.full_tensor() if isinstance(each, DTensor) else each
        for name, each in model.state_dict().items()
    }
    if dist.get_rank() == 0:
        torch.save(state, Path(logs) / f"{layout}.pt")


def _mesh(layout: str) -> Any:
    dp, tp = {"fully_shard": (2, 1), "tensor_parallel": (1, 2), "both": (2, 2)}[layout]
    return init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))


def left_as_they_are(*, storage: str, logs: str) -> None:
    """Models that are shared between ranks in a way in which they would be trained wrongly."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_plain(), mesh["tp"], plan)
    write_error(logs, functools.partial(prepare_model, model), name="gradients")
    model = parallelize_module(_plain(), init_device_mesh("cpu", (2,)), plan)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    make = functools.partial(Session, run="r", storage=storage)
    write_error(logs, functools.partial(make, model, optimizer, None, _reader()), name="axis")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(parallelize_module(_plain(), mesh["tp"], plan), mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    write_error(logs, functools.partial(make, model, optimizer, None, _reader()), name="axis of two")
    model = _plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    write_error(logs, functools.partial(make, model, optimizer, None, _reader()), name="strangers")
    elsewhere = _reader(rank=0, world_size=1)
    write_error(logs, functools.partial(make, _plain(), optimizer, None, elsewhere), name="reader")


class UnpicklableError(Exception):
    """Holds what can't be sent to another process."""

    def __init__(self) -> None:
        super().__init__("mine is out of order")
        self.lock = threading.Lock()


class Failing:
    """Gives no state on one rank, from the time on when it is told to."""

    def __init__(self, rank: int, error: BaseException | None = None) -> None:
        self.rank = rank
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        if self.error is not None and dist.get_rank() == self.rank:
            raise self.error
        return {"n": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


ERRORS: dict[str, Callable[[], Exception]] = {
    "lookup": lambda: KeyError("step"),
    "unpicklable": UnpicklableError,
    "type": lambda: TypeError(threading.Lock()),
    "silent": lambda: RuntimeError(),
}


def without_a_state(*, storage: str, logs: str) -> None:
    """The state of one rank can't be had: as the session is made, at its resume, and at a checkpoint."""
    for name, make in ERRORS.items():
        for rank in range(2):
            write_error(
                logs, functools.partial(_begin, storage, Failing(rank, make())), name=f"{name}-{rank}"
            )
    write_error(logs, functools.partial(_fail_at_resume, storage), name="resume")
    write_error(logs, functools.partial(_fail_at_a_checkpoint, storage), name="checkpoint")


def _begin(storage: str, mine: Any) -> Session:
    model = prepare_model(_plain())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"state": {"mine": mine}, "checkpoint_interval_s": 0.0}
    return Session(model, optimizer, None, _reader(), run="r", storage=storage, **options)


def _fail_at_resume(storage: str) -> None:
    mine = Failing(1)
    with _begin(storage, mine) as session:
        mine.error = KeyError("step")
        session.resume()


def _fail_at_a_checkpoint(storage: str) -> None:
    mine = Failing(0)
    with _begin(storage, mine) as session:
        session.resume()
        for batch in session.steps():
            for part in session.parts(batch, 8):
                session.backward(session.model(part["x"]).sum())
            if session.step == 1:
                mine.error = UnpicklableError()
            session.end_step(batch)


def trains(*, storage: str, logs: str) -> None:
    """The same model under DDP, whose state is whole on every rank: nothing to refuse."""
    model = prepare_model(_plain())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    reader = _reader()

    def train() -> None:
        with Session(model, optimizer, None, reader, run="r", storage=storage) as session:
            session.resume()
            for batch in session.steps():
                for part in session.parts(batch, 8):
                    session.backward(model(part["x"]).sum())
                optimizer.step()
                session.end_step(batch)

    write_error(logs, train, name="trains")


def groups_left(*, storage: str, logs: str) -> None:
    """How many process groups are there before and after a session has been closed, and one abandoned."""
    trains(storage=storage, logs=logs)
    counts = [len(dist.distributed_c10d._world.pg_map)]
    model = prepare_model(_plain())
    reader = _reader()
    for end in (Session.close, Session.abandon, Session.abandon):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        session = Session(model, optimizer, None, reader, run="r", storage=storage)
        if end is Session.close:
            session.resume()
        end(session)
        counts.append(len(dist.distributed_c10d._world.pg_map))
    (Path(logs) / f"groups-{dist.get_rank()}.json").write_text(json.dumps(counts))


def write_error(logs: str, act: Callable[[], Any], *, name: str) -> None:
    found = {"type": "", "text": ""}
    try:
        act()
    except Exception as error:  # noqa: BLE001 -- the test says which it has to be
        found = {"type": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
    (Path(logs) / f"error-{name}-{dist.get_rank()}.json").write_text(json.dumps(found))
