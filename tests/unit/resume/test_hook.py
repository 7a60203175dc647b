"""A loop with a hook goes on where it stood, whatever its loader, as if it had never been interrupted."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from evenload.resume.checkpoint import CheckpointIndex, CheckpointStore
from evenload.resume.errors import (
    CheckpointMismatchError,
    NoCheckpointLeftError,
    RunTakenOverError,
    StoppedError,
)
from evenload.resume.hook import CheckpointHook
from evenload.resume.storage import RunStorage

# torchdata's loader calls it.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

NUM_SAMPLES, BATCH, EPOCHS = 37, 4, 3
STEPS = -(-NUM_SAMPLES // BATCH)


class Noisy(Dataset[torch.Tensor]):
    """Samples are read with a random transform, in the process of the loop."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([torch.tensor([float(index)]), torch.rand(3)])


class DiedError(Exception):
    """The loop dies, as by any error of its own."""


MakeLoader = Callable[[CheckpointHook], Any]
LOADERS: dict[str, MakeLoader] = {
    "sampled": lambda hook: hook.loader(Noisy(), batch_size=BATCH, seed=3),
    "skipped": lambda _: DataLoader(Noisy(), BATCH, shuffle=True),
    "stateful": lambda _: StatefulDataLoader(Noisy(), BATCH, shuffle=True),
}


class Training:
    """A run in a folder, started as often as a test likes.

    Attributes:
        seen: the samples of each step that was done, by step; of one that was done again, the last time's.
    """

    def __init__(self, folder: Path, make_loader: MakeLoader, **options: Any) -> None:
        self._folder = folder
        self._make_loader = make_loader
        self._options: dict[str, Any] = {"checkpoint_interval_s": 0, **options}
        self.seen: dict[int, list[int]] = {}
        self.model = nn.Linear(4, 1)

    def start(self, *, dies_after: int | None = None, during: Callable[[int], None] = lambda _: None) -> None:
        """Train to the end, or die once so many steps of the run are done."""
        torch.manual_seed(5)
        model = self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        hook = CheckpointHook(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            run="run",
            storage=self._folder,
            **self._options,
        )
        try:
            loader = self._make_loader(hook)
            for _ in hook.epochs(EPOCHS):
                for batch in hook.steps(loader):
                    if hook.step == dies_after:
                        raise DiedError
                    during(hook.step)
                    optimizer.zero_grad()
                    (model(batch) * torch.rand(())).square().mean().backward()
                    optimizer.step()
                    schedule.step()
                    self.seen[hook.step] = batch[:, 0].int().tolist()
        finally:
            hook.abandon()

    @property
    def indexes(self) -> list[CheckpointIndex]:
        """Of the checkpoints that are there, newest first."""
        store = CheckpointStore(RunStorage(self._folder, "run"), None)
        return [store.read_index(folder.name) for folder in store.folders()]

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS)
def test_an_interrupted_run_equals_an_uninterrupted_one_bit_for_bit(
    make_loader: MakeLoader, tmp_path: Path
) -> None:
    whole = Training(tmp_path / "whole", make_loader)
    whole.start()
    broken = Training(tmp_path / "broken", make_loader)
    for dies_after in (1, 5, STEPS, STEPS + 1, 2 * STEPS + 3):
        with pytest.raises(DiedError):
            broken.start(dies_after=dies_after)
    broken.start()
    assert broken.seen == whole.seen
    for epoch in range(EPOCHS):
        steps = range(epoch * STEPS, (epoch + 1) * STEPS)
        assert sorted(sample for step in steps for sample in whole.seen[step]) == list(range(NUM_SAMPLES))
    for ours, theirs in zip(broken.parameters, whole.parameters, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS)
def test_stopped_after_each_step_in_turn_it_is_the_same(make_loader: MakeLoader, tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole", make_loader)
    whole.start()
    broken = Training(tmp_path / "broken", make_loader, checkpoint_interval_s=3600)
    stopped = []
    while len(stopped) < EPOCHS * STEPS - 1:
        with pytest.raises(StoppedError) as caught:
            broken.start(during=lambda _: os.kill(os.getpid(), signal.SIGTERM))
        assert caught.value.saved_step == caught.value.step
        stopped.append(caught.value.step)
    broken.start()
    assert stopped == list(range(1, EPOCHS * STEPS))
    assert broken.seen == whole.seen
    assert all(map(torch.equal, broken.parameters, whole.parameters))


def test_a_module_that_gets_its_shape_in_the_first_step_goes_on(tmp_path: Path) -> None:
    for begun_at in (0, 2):
        net = nn.LazyLinear(1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        # In this order: the optimizer's state is loaded while the module has no shape yet.
        with CheckpointHook(optimizer=optimizer, net=net, run="run", storage=tmp_path) as hook:
            assert hook.step == begun_at
            for batch in hook.steps(hook.loader(torch.ones(8, 3), batch_size=4)):
                optimizer.zero_grad()
                net(batch).sum().backward()
                optimizer.step()


def test_a_run_that_is_over_stays_over(tmp_path: Path) -> None:
    training = Training(tmp_path, LOADERS["sampled"])
    training.start()
    ended, training.seen = training.parameters, {}
    training.start()
    assert training.seen == {}
    assert all(map(torch.equal, training.parameters, ended))
    assert (training.indexes[0].step, training.indexes[0].epoch) == (EPOCHS * STEPS, EPOCHS)


def test_checkpoints_are_taken_where_gradients_are_whole(tmp_path: Path) -> None:
    training = Training(tmp_path, LOADERS["sampled"], every=4, keep_checkpoints=100)
    with pytest.raises(DiedError):
        training.start(dies_after=14)
    steps = {index.step for index in training.indexes}
    assert steps
    assert steps <= {4, 8, 12}


def test_asked_to_end_it_saves_and_goes_on_later(tmp_path: Path) -> None:
    training = Training(tmp_path, LOADERS["sampled"], checkpoint_interval_s=3600)

    def terminate(step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError) as caught:
        training.start(during=terminate)
    assert (caught.value.step, caught.value.saved_step, caught.value.retriable) == (6, 6, True)
    assert signal.getsignal(signal.SIGTERM) is before
    seen, training.seen = training.seen, {}
    training.start()
    assert min(training.seen) == 6
    assert len(seen | training.seen) == EPOCHS * STEPS


@pytest.mark.parametrize(
    ("make_loader", "named"),
    [
        (lambda hook: hook.loader(Noisy(), batch_size=BATCH, seed=4), "seed was 3, is now 4"),
        (lambda hook: hook.loader(Noisy(40), batch_size=BATCH, seed=3), "samples was 37, is now 40"),
        (LOADERS["skipped"], "loader was 'sampled', is now 'skipped'"),
    ],
)
def test_other_data_is_refused_with_both_values(make_loader: MakeLoader, named: str, tmp_path: Path) -> None:
    with pytest.raises(DiedError):
        Training(tmp_path, LOADERS["sampled"]).start(dies_after=3)
    with pytest.raises(CheckpointMismatchError, match=named):
        Training(tmp_path, make_loader).start()


def test_another_batch_size_goes_on_with_what_is_left(tmp_path: Path) -> None:
    first = Training(tmp_path, LOADERS["sampled"], checkpoint_interval_s=0)
    with pytest.raises(DiedError):
        first.start(dies_after=4)
    (step,) = {index.step for index in first.indexes[:1]}
    then = Training(tmp_path, lambda hook: hook.loader(Noisy(), batch_size=7, seed=3))
    then.start()
    done = [sample for number in range(step) for sample in first.seen[number]]
    num_left = -(-(NUM_SAMPLES - len(done)) // 7)
    rest = [sample for number in range(step, step + num_left) for sample in then.seen[number]]
    assert sorted(done + rest) == list(range(NUM_SAMPLES))


def test_other_names_are_refused(tmp_path: Path) -> None:
    with CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path) as hook:
        assert list(hook.steps([1, 2])) == [1, 2]
    with pytest.raises(CheckpointMismatchError, match="ema was 'none', is now 'one'"):
        CheckpointHook(model=nn.Linear(2, 1), ema=nn.Linear(2, 1), run="run", storage=tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"model.weight was '\[1, 2\] float32'"):
        CheckpointHook(model=nn.Linear(3, 1), run="run", storage=tmp_path)


def test_whoever_comes_later_goes_on_and_the_other_stops(tmp_path: Path) -> None:
    hook = CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path, checkpoint_interval_s=0)
    steps = hook.steps(iter(range(10**9)))
    next(steps)
    later = CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path)
    with pytest.raises(RunTakenOverError):
        for _ in steps:
            pass
    later.close()
    hook.abandon()


def test_a_run_that_has_had_checkpoints_begins_anew_only_when_told_to(tmp_path: Path) -> None:
    training = Training(tmp_path, LOADERS["sampled"])
    with pytest.raises(DiedError):
        training.start(dies_after=5)
    for path in tmp_path.rglob("state.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(NoCheckpointLeftError, match="has had a checkpoint"):
        training.start()
    folders = set(tmp_path.glob("run/attempt-*/checkpoint-*"))
    anew = Training(tmp_path, LOADERS["sampled"], begin_anew=True)
    with pytest.raises(DiedError):
        anew.start(dies_after=8)
    assert set(anew.seen) == set(range(8))
    assert folders <= set(tmp_path.glob("run/attempt-*/checkpoint-*"))
    anew = Training(tmp_path, LOADERS["sampled"])
    anew.start()
    assert 0 not in anew.seen


def test_what_is_left_of_an_epoch_is_what_its_next_loop_gets(tmp_path: Path) -> None:
    seen: list[int] = []
    with CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path) as hook:
        loader = hook.loader(range(20), batch_size=2)
        for number, batch in enumerate(hook.steps(loader)):
            if number == 3:
                break  # this one isn't done: nobody has asked for the next
            seen += batch.tolist()
        for number, batch in enumerate(hook.steps(loader)):
            seen += batch.tolist()
            if number == 3:
                hook.end_step()  # this one is
                break
        for batch in hook.steps(loader):
            seen += batch.tolist()
        assert sorted(seen) == list(range(20))
        assert (hook.step, hook.epoch) == (10, 0)


def test_left_in_the_middle_of_a_step_it_goes_on_before_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 1)
    options: dict[str, Any] = {
        "model": model,
        "run": "run",
        "storage": tmp_path,
        "checkpoint_interval_s": 3600,
    }
    with CheckpointHook(**options) as hook:
        for _ in hook.steps(hook.loader(range(20), batch_size=2)):
            if hook.step == 3:
                break
    assert "left in the middle of a step" in caplog.text
    with CheckpointHook(**options) as hook:
        assert hook.step == 0  # not 3, as the model may have had a fourth
        for _ in hook.steps(hook.loader(range(20), batch_size=2)):
            if hook.step == 3:
                hook.end_step()
                break
    with CheckpointHook(**options) as hook:
        assert hook.step == 4


def test_a_loader_that_cant_give_a_batch_again_says_so(tmp_path: Path) -> None:
    with CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path) as hook:
        loader = StatefulDataLoader(Noisy(), BATCH)
        next(hook.steps(loader))
        with pytest.raises(RuntimeError, match=r"say end_step\(\)"):
            next(hook.steps(loader))
        hook.end_step()
        with pytest.raises(RuntimeError, match="no step under way"):
            hook.end_step()


def test_an_order_of_a_generator_of_its_own_is_the_same_after_a_resume(tmp_path: Path) -> None:
    def loader(_: CheckpointHook) -> Any:
        return DataLoader(Noisy(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))

    whole = Training(tmp_path / "whole", loader)
    whole.start()
    broken = Training(tmp_path / "broken", loader)
    for dies_after in (3, STEPS + 4):
        with pytest.raises(DiedError):
            broken.start(dies_after=dies_after)
    broken.start()
    assert broken.seen == whole.seen


def test_a_loader_that_is_wrapped_or_ordered_otherwise_is_refused(tmp_path: Path) -> None:
    with CheckpointHook(model=nn.Linear(2, 1), run="run", storage=tmp_path) as hook:
        loader = hook.loader(range(20), batch_size=2)
        with pytest.raises(RuntimeError, match="wrap what it gives"):
            list(hook.steps(batch for batch in loader))
        with pytest.raises(TypeError, match="leave shuffle out"):
            hook.loader(range(20), batch_size=2, shuffle=False)
        with pytest.raises(TypeError, match="gives no batches"):
            list(hook.steps(7))


def test_what_is_none_and_ranks_that_arent_there_yet_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="schedule is None"):
        CheckpointHook(model=nn.Linear(1, 1), schedule=None, run="run", storage=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="make the hook after init_process_group"):
        CheckpointHook(model=nn.Linear(1, 1), run="run", storage=tmp_path)


def test_a_loader_that_begins_nowhere_says_what_it_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, LOADERS["skipped"])
    with pytest.raises(DiedError):
        training.start(dies_after=6)
    with caplog.at_level(logging.WARNING), pytest.raises(DiedError):
        training.start(dies_after=7)
    assert "are read once more and dropped" in caplog.text


def test_a_run_needs_a_name_which_the_environment_may_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVENLOAD_RUN", raising=False)
    with pytest.raises(ValueError, match="set EVENLOAD_RUN"):
        CheckpointHook(model=nn.Linear(1, 1))
    monkeypatch.setenv("EVENLOAD_RUN", "named")
    monkeypatch.setenv("EVENLOAD_HOME", str(tmp_path))
    CheckpointHook(model=nn.Linear(1, 1)).close()
    assert (tmp_path / "runs" / "named").is_dir()


@pytest.mark.parametrize("options", [{"every": 0}, {"keep_checkpoints": 1}, {"checkpoint_interval_s": -1}])
def test_numbers_out_of_range_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at least|0 or more"):
        CheckpointHook(model=nn.Linear(1, 1), run="run", storage=tmp_path, **options)


# Lets nobody import Kafka's clients, Ray, or what reads and writes.
BLOCKED = (
    "import sys\n"
    "for name in ('kafka', 'confluent_kafka', 'ray', 'evenload.kafka_connection', 'evenload.ray_trainer',\n"
    "             'evenload.kafka_plugin'):\n"
    "    sys.modules[name] = None\n"
)


def test_it_needs_neither_kafka_nor_ray(tmp_path: Path) -> None:
    program = BLOCKED + (
        "import torch\n"
        "from evenload.resume.hook import CheckpointHook\n"
        f"with CheckpointHook(model=torch.nn.Linear(1, 1), run='r', storage={str(tmp_path)!r}) as hook:\n"
        "    print(sum(len(batch) for batch in hook.steps(hook.loader(range(10), batch_size=3))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("10\n", "")
