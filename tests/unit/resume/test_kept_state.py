"""What else a checkpoint keeps: scalers, averaged weights, counters; and random transforms, bit for bit."""

from __future__ import annotations

import datetime
import enum
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.audit import covered_steps
from evenload.ray_trainer.training.books.loss_curve import read_curve
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.session import Session
from evenload.resume.errors import CheckpointMismatchError
from evenload.resume.state_copy import detached_copy
from evenload.resume.storage import RunStorage

NUM_SAMPLES = 23
NUM_STEPS = 10  # two epochs of 5, 5, 5, 4, 4


class Mood(enum.IntEnum):
    GOOD = 1


class NoisyReader(MemoryReader):
    """With a transform that draws from all three generators, on the loop's thread as in a real reader."""

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            noise = torch.randn(batch["x"].shape) + float(np.random.random()) + random.random()
            yield batch.with_columns({**batch, "x": batch["x"] + 0.5 * noise})


class Counters:
    """A loop's own state: what it has seen, and when it was best."""

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values = dict(state)


def make_reader(kind: type[MemoryReader] = NoisyReader) -> MemoryReader:
    rng = np.random.default_rng(3)
    columns = {
        "x": rng.normal(size=(NUM_SAMPLES, 6)).astype(np.float32),
        "y": rng.integers(0, 3, NUM_SAMPLES),
    }
    return kind(columns, global_batch_size=5, seed=11)


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))


def make_session(storage: Path, state: Mapping[str, Any] | None, **options: Any) -> Session:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Session(model, optimizer, None, make_reader(), run="toy", storage=storage, state=state, **options)


class Mixed:
    """A loop with everything that people keep, stopped and resumed at will."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self.seen: dict[int, tuple[float, float, float, int]] = {}

    def train(self, *, die_after: int | None = None) -> dict[str, Any]:
        model = make_model()
        optimizer = torch.optim.AdamW(model[0].parameters(), lr=0.01)
        other = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        counters = Counters(num_skipped=0, history=[])
        state = {"other": other, "scaler": scaler, "ema": ema, "counters": counters}
        session = Session(
            model,
            optimizer,
            None,
            make_reader(),
            run="toy",
            storage=self.storage,
            state=state,
            checkpoint_interval_s=0.0,
        )
        session.resume()
        done = 0
        for _ in range(session.reader.epoch, 2):
            for batch in session.steps():
                total = 0.0
                for part in session.parts(batch, 2):
                    loss = F.cross_entropy(model(part["x"]), part["y"], reduction="sum")
                    session.backward(loss, scale=scaler)
                    total += float(loss.detach())
                if session.step + 1 == 6:
                    next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
                before = scaler.get_scale()
                for each in (optimizer, other):
                    scaler.step(each)
                    each.zero_grad()
                scaler.update()
                ema.update_parameters(model)
                counters.values["num_skipped"] += scaler.get_scale() < before
                counters.values["history"].append(float(torch.rand(())))
                self.seen[session.step + 1] = (
                    total,
                    scaler.get_scale(),
                    counters.values["history"][-1],
                    counters.values["num_skipped"],
                )
                session.end_step(batch)
                session._attempt._checkpoints.wait()  # type: ignore[union-attr]
                done += 1
                if done == die_after:
                    session.abandon()
                    return {}
        session.close()
        parts = {"model": model, "optimizer": optimizer, **state}
        return detached_copy({name: part.state_dict() for name, part in parts.items()})


def assert_same(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), path
        for name in one:
            assert_same(one[name], other[name], f"{path}.{name}")
    else:
        assert one == other, path


def test_everything_that_is_kept_and_a_random_transform_resume_bit_for_bit_at_every_step(
    tmp_path: Path,
) -> None:
    whole = Mixed(tmp_path / "whole")
    expected = whole.train()
    assert len(whole.seen) == NUM_STEPS
    assert expected["counters"]["num_skipped"] == 1
    assert expected["scaler"]["scale"] != 8.0
    for died_after in range(1, NUM_STEPS):
        run = Mixed(tmp_path / str(died_after))
        run.train(die_after=died_after)
        first = dict(run.seen)
        run.seen.clear()
        assert_same(expected, run.train())
        assert first | run.seen == whole.seen
        assert all(first[step] == run.seen[step] for step in first.keys() & run.seen.keys())


def test_what_a_transform_draws_does_not_move_what_the_loop_draws_nor_come_again_in_it(
    tmp_path: Path,
) -> None:
    drawn: dict[str, list[float]] = {}
    made: list[float] = []

    class Watched(MemoryReader):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                made.append(float(torch.rand(())))
                yield batch

    for kind in (MemoryReader, NoisyReader, Watched):
        model = make_model()
        session = Session(
            model,
            torch.optim.SGD(model.parameters()),
            None,
            make_reader(kind),
            run=kind.__name__,
            storage=tmp_path,
        )
        for batch in session.steps():
            drawn.setdefault(kind.__name__, []).append(float(torch.rand(())))
            session.end_step(batch)
        session.close()

    assert drawn["MemoryReader"] == drawn["NoisyReader"] == drawn["Watched"]
    assert not set(made) & set(drawn["Watched"])


def test_the_loss_in_the_books_is_not_scaled(tmp_path: Path) -> None:
    run = Mixed(tmp_path)
    run.train()
    storage = RunStorage(tmp_path, "toy")
    step_ranges, _ = covered_steps(storage, read_run(storage).run_id)

    for point in read_curve(storage, [step_range for step_range, _ in step_ranges]):
        assert point.loss * point.count == pytest.approx(run.seen[point.step][0], rel=1e-6)


@pytest.mark.parametrize("name", ["model", "optimizer", "scheduler", "reader"])
def test_a_name_of_the_sessions_own_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"state\\['{name}'\\].*choose another name"):
        make_session(tmp_path, {name: Counters()})


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1st", 7])
def test_a_name_that_is_no_identifier_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="can't name a part of the state"):
        make_session(tmp_path, {name: Counters()})


def test_what_has_no_state_dict_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    class Half:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match=r"counters is a dict without state_dict\(\)"):
        make_session(tmp_path, {"counters": {}})
    with pytest.raises(TypeError, match=r"counters is a Half without load_state_dict\(\)"):
        make_session(tmp_path, {"counters": Half()})
    with pytest.raises(TypeError, match=r"counters is a NoneType without state_dict\(\)"):
        make_session(tmp_path, {"counters": None})


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 1, 1),
        Mood.GOOD,
        defaultdict(list, a=[1]),
        {"deep": [({"er": frozenset([1])},)]},
        {Mood.GOOD: 1},
        np.zeros(3),
        lambda: None,
    ],
    ids=["datetime", "enum", "defaultdict", "nested", "key", "array", "function"],
)
def test_state_that_a_checkpoint_could_not_give_back_is_refused_when_the_session_is_made(
    tmp_path: Path, value: Any
) -> None:
    with pytest.raises(TypeError, match=r"counters\.best"):
        make_session(tmp_path, {"counters": Counters(best=value)})


def test_state_that_later_can_not_be_given_back_ends_the_loop_with_its_name(tmp_path: Path) -> None:
    counters = Counters(best=None)
    session = make_session(tmp_path, {"counters": counters}, checkpoint_interval_s=0.0)
    with pytest.raises(TypeError, match=r"counters\.best is a datetime"):  # noqa: PT012
        for batch in session.steps():
            counters.values["best"] = datetime.datetime(2026, 1, 1)
            session.end_step(batch)
    session.abandon()


def test_more_or_fewer_names_than_the_checkpoint_has_are_refused_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    with make_session(tmp_path, {"counters": Counters(n=3)}) as session:
        for batch in session.steps():
            session.end_step(batch)
    fresh = Counters(n=0)
    for state, said in (
        (None, "counters was 'one', is now 'none'"),
        ({"ema": Counters()}, "ema was 'none', is now 'one'; counters was 'one', is now 'none'"),
        ({"counters": fresh, "more": Counters()}, "more was 'none', is now 'one'"),
    ):
        session = make_session(tmp_path, state)
        with pytest.raises(CheckpointMismatchError, match=said):
            session.resume()
        session.abandon()
    assert fresh.values == {"n": 0}


class Shadow:
    """Averaged weights as people write them: what is loaded is copied into what is there."""

    def __init__(self, shadow: torch.Tensor) -> None:
        self.shadow = shadow

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": [self.shadow]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.shadow.copy_(state["shadow"][0])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (torch.zeros(3, 4), r"shadow\.shadow\.0 was '\[4\] float32', is now '\[3, 4\] float32'"),
        (torch.zeros(4, dtype=torch.bfloat16), r"shadow\.0 was '\[4\] float32', is now '\[4\] bfloat16'"),
    ],
    ids=["shape", "dtype"],
)
def test_state_that_is_not_what_was_saved_once_it_is_loaded_is_refused_with_the_values(
    tmp_path: Path, now: torch.Tensor, said: str
) -> None:
    with make_session(tmp_path, {"shadow": Shadow(torch.ones(4))}) as session:
        for batch in session.steps():
            session.end_step(batch)
    session = make_session(tmp_path, {"shadow": Shadow(now)})
    with pytest.raises(CheckpointMismatchError, match=said):
        session.resume()
    session.abandon()


def test_state_that_grows_in_a_training_is_loaded(tmp_path: Path) -> None:
    with make_session(tmp_path, {"counters": Counters(history=torch.zeros(7))}) as session:
        for batch in session.steps():
            session.end_step(batch)
    fresh = Counters(history=torch.zeros(0))
    session = make_session(tmp_path, {"counters": fresh})
    assert session.resume()
    session.abandon()
    assert fresh.values["history"].shape == (7,)


def test_an_optimizer_of_other_parameters_or_another_kind_is_refused(tmp_path: Path) -> None:
    def begin(optimizer: torch.optim.Optimizer, model: nn.Module) -> Session:
        reader = make_reader()
        return Session(model, optimizer, None, reader, run="toy", storage=tmp_path, checkpoint_interval_s=0.0)

    model = make_model()
    with begin(torch.optim.Adam([model[0].weight, model[3].weight]), model) as session:  # type: ignore[list-item]
        for batch in session.steps():
            session.end_step(batch)
    other = make_model()
    weights: Any = [other[0].weight, other[3].weight]
    for optimizer, said in (
        (
            torch.optim.Adam(weights[::-1]),
            r"optimizer\.param_groups\.0\.params\.0 was '\[8, 6\] float32', is ",
        ),
        (torch.optim.SGD(weights), r"optimizer\.param_groups\.0 was .*betas.*, is now .*momentum"),
    ):
        session = begin(optimizer, other)
        with pytest.raises(CheckpointMismatchError, match=said):
            session.resume()
        session.abandon()
    session = begin(torch.optim.Adam(weights), other)
    assert session.resume()
    session.abandon()


def test_a_model_of_another_shape_or_dtype_is_refused_with_the_values(tmp_path: Path) -> None:
    with make_session(tmp_path, None) as session:
        for batch in session.steps():
            session.end_step(batch)
    wider = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.2), nn.ReLU(), nn.Linear(9, 3))
    for model, said in (
        (wider, r"model\.0\.weight was '\[8, 6\] float32', is now '\[9, 6\] float32'"),
        (make_model().to(torch.bfloat16), r"model\.0\.bias was '\[8\] float32', is now '\[8\] bfloat16'"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = Session(model, optimizer, None, make_reader(), run="toy", storage=tmp_path)
        with pytest.raises(CheckpointMismatchError, match=said):
            session.resume()
        session.abandon()
