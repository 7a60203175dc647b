"""The small parts of a training: when a checkpoint is due, copies, seeds, what the board concludes."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import SecretStr
from ray.train.v2.api.preemption import PreemptionInfo
from torch import nn

from evenload.kafka_connection import Connection, OAuth
from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer import errors
from evenload.ray_trainer.errors import TrainerError
from evenload.ray_trainer.training.agreement import Agreement, Wishes
from evenload.ray_trainer.training.checkpoint_schedule import CheckpointSchedule
from evenload.ray_trainer.training.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    Recovered,
    StepDone,
    WorkerIdentity,
    WorkersLost,
)
from evenload.ray_trainer.training.model import detached_copy, unwrap
from evenload.ray_trainer.training.on_ray.board import Board, WorkerFailure
from evenload.ray_trainer.training.on_ray.trainer import _loop_name
from evenload.ray_trainer.training.on_ray.worker import _reachable
from evenload.ray_trainer.training.on_ray.worker_link import RayLink
from evenload.ray_trainer.training.peers import Peers
from evenload.ray_trainer.training.random_state import step_seed
from evenload.ray_trainer.training.run_names import default_run_name
from evenload.ray_trainer.training.storage import RunStorage
from evenload.ray_trainer.training.train_config import TrainResult


def test_checkpoints_are_four_seconds_apart_while_they_cost_little() -> None:
    schedule = CheckpointSchedule(None, now_s=100.0)

    assert not schedule.is_due(103.9)
    assert schedule.is_due(104.0)
    schedule.taken(104.0, cost_s=0.001)
    assert schedule.interval_s == 4.0
    assert not schedule.is_due(107.9)


def test_checkpoints_cost_at_most_a_five_hundredth_of_the_time() -> None:
    schedule = CheckpointSchedule(None, now_s=0.0)
    schedule.taken(0.0, cost_s=0.1)

    assert schedule.interval_s == pytest.approx(50.0)
    schedule.taken(50.0, cost_s=0.001)
    assert schedule.interval_s == pytest.approx(25.0)  # one cheap copy does not double their number at once


def test_writing_checkpoints_takes_at_most_a_twentieth_of_the_time() -> None:
    schedule = CheckpointSchedule(None, now_s=0.0)
    schedule.taken(0.0, cost_s=0.001)
    schedule.written(cost_s=3.0)

    assert schedule.interval_s == pytest.approx(60.0)
    schedule.written(cost_s=0.1)
    assert schedule.interval_s == pytest.approx(30.0)  # one quick write does not double their number at once
    schedule.taken(60.0, cost_s=0.1)
    assert schedule.interval_s == pytest.approx(50.0)  # whichever of the two rules asks for more


def test_a_given_interval_is_kept_and_an_impossible_one_refused() -> None:
    schedule = CheckpointSchedule(0.5, now_s=0.0)
    schedule.taken(0.0, cost_s=10.0)

    assert schedule.interval_s == 0.5
    with pytest.raises(ValueError, match="-1"):
        CheckpointSchedule(-1.0, now_s=0.0)


def test_a_copy_does_not_change_with_the_original_and_shares_what_was_shared() -> None:
    weight = torch.arange(3.0)
    original = {"a": weight, "tied": weight, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "n": 3}

    copied = detached_copy(original)
    weight += 1
    original["groups"][0]["lr"] = 0.2  # type: ignore[index]

    assert copied["a"].tolist() == [0.0, 1.0, 2.0]
    assert copied["a"] is copied["tied"]
    assert copied["groups"] == [{"lr": 0.1, "betas": (0.9, 0.99)}]


def test_a_copied_state_dict_keeps_its_versions_and_loads() -> None:
    model = nn.BatchNorm1d(2)
    copied = detached_copy(model.state_dict())

    assert copied._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    nn.BatchNorm1d(2).load_state_dict(copied)


def test_unwrapping_a_plain_model_is_the_model() -> None:
    model = nn.Linear(1, 1)
    assert unwrap(model) is model


def test_seeds_of_steps_and_ranks_don_t_collide() -> None:
    seeds = Counter(
        step_seed(seed, step, rank) for seed in range(4) for step in range(200) for rank in range(8)
    )
    assert max(seeds.values()) == 1
    # Another value would silently change how a run that goes on draws its random numbers.
    assert step_seed(7, 3, 1) == 17224168618335850599


def test_a_runs_default_name_tells_versions_apart() -> None:
    assert default_run_name("text-classification", "cola") == "text-classification-cola"
    assert default_run_name("text-classification", "cola@2") == "text-classification-cola-v2"


# -- the board -------------------------------------------------------------------------------------

WORKERS = (WorkerIdentity(0, 11, "here"), WorkerIdentity(1, 12, "here"))


def board_in_attempt(board: Board, *, attempt: int = 1, step: int = 0) -> None:
    for worker in WORKERS:
        board.arrived(worker)
    board.started(AttemptStarted(attempt, WORKERS, step, 0, step * 4))


def step_done(step: int) -> StepDone:
    return StepDone(1, step, 0, step * 4, 100, 0.5, 10.0)


def failure_of(rank: int, step: int, *, is_retriable: bool = True, reason: str = "gone") -> WorkerFailure:
    return WorkerFailure(rank, step, None, reason, "trace", is_retriable)


def events_of(board: Board) -> list[Event]:
    return board.take()[0]


def test_the_board_knows_who_died_how_far_they_were_and_what_is_done_again() -> None:
    board = Board(fruitless_max=3)
    board_in_attempt(board)
    board.beat(step_done(7))
    board.tell(CheckpointSaved(1, 5, 0, 20, "f"))
    board.failed(failure_of(0, 9, reason="connection closed by peer"))
    assert board.workers_lost({0: "x", 1: "died"}, [1]) is None
    assert board.workers_lost({0: "x", 1: "died"}, [1]) is None  # Ray says it at every poll
    board_in_attempt(board, attempt=2, step=5)

    lost, recovered = (e for e in events_of(board) if isinstance(e, WorkersLost | Recovered))

    assert isinstance(lost, WorkersLost)
    assert [worker.pid for worker in lost.dead] == [12]
    assert lost.step == 9  # the survivor's last step is exact
    assert str(lost) == "worker 1 (pid 12) died after step 9"
    assert isinstance(recovered, Recovered)
    assert (recovered.resumed_step, recovered.num_steps_again) == (5, 4)
    assert board.get_num_restarts() == 1


def test_a_mistake_is_fatal_at_once() -> None:
    board = Board(fruitless_max=3)
    board_in_attempt(board)
    board.failed(failure_of(1, 3, is_retriable=False, reason="ValueError: no"))

    fatal = board.workers_lost({1: "x"}, [])

    assert fatal is not None
    assert fatal.reason == "ValueError: no"
    assert board.get_num_restarts() == 0


def test_attempts_that_fail_again_and_again_before_a_checkpoint_are_given_up() -> None:
    board = Board(fruitless_max=3)
    for _ in range(2):
        board_in_attempt(board)
        board.failed(failure_of(0, 2, reason="RuntimeError: out of memory"))
        assert board.workers_lost({0: "x"}, []) is None
    board_in_attempt(board)
    board.failed(failure_of(0, 2, reason="RuntimeError: out of memory"))

    fatal = board.workers_lost({0: "x"}, [])

    assert fatal is not None
    assert (
        fatal.reason
        == "3 attempts in a row failed before a checkpoint; the last: RuntimeError: out of memory"
    )


def test_workers_that_were_killed_say_nothing_about_the_loop() -> None:
    board = Board(fruitless_max=2)
    for _ in range(10):
        board_in_attempt(board)
        board.failed(failure_of(0, 1, reason="connection closed by peer"))  # what the other one sees
        assert board.workers_lost({0: "x", 1: "died"}, [1]) is None
    assert board.get_num_restarts() == 10


def test_a_loss_that_is_no_number_is_null_in_json() -> None:
    result = TrainResult("run", 3, 1, 10.0, [0.5, math.nan], {"eval_loss": math.inf}, [], 0, None, None)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["loss"] == [0.5, None]
    assert document["metrics"] == {"eval_loss": None}


def test_a_checkpoint_with_numbers_of_numpy_can_be_loaded() -> None:
    written = io.BytesIO()
    torch.save(detached_copy({"lr": np.float64(0.1), "steps": [np.int64(3)]}), written)
    assert torch.load(io.BytesIO(written.getvalue()), weights_only=True) == {"lr": 0.1, "steps": [3]}
    with pytest.raises(TypeError, match="make it a tensor"):
        detached_copy({"history": np.zeros(3)})


def test_a_loss_that_is_not_known_yet_is_none() -> None:
    agreement = Agreement(Peers())
    agreement.wish(Wishes())
    assert agreement.decide().mean_loss is None
    agreement.wish(Wishes(mean_loss=0.25))
    assert agreement.decide().mean_loss == 0.25


def test_what_a_worker_starts_finds_its_connection_secrets_included_and_nothing_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Connection(
        bootstrap_servers="broker:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="reader",
        sasl_password=SecretStr("secret"),
    )
    ask = (
        "from evenload.kafka_connection.environment import resolve_connection\n"
        "print(resolve_connection().sasl_password.get_secret_value())"
    )
    with _reachable(connection):
        assert resolve_connection() == connection
        told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert told.stdout == "secret\n"
    assert "EVENLOAD_CONNECTION" not in os.environ
    assert caplog.text == ""  # nobody else can read it


def test_a_worker_hands_on_where_tokens_come_from_and_the_secret_for_that() -> None:
    oauth = OAuth(token_url="https://there/token", client_id="me", client_secret=SecretStr("hush"))
    connection = Connection(
        bootstrap_servers="broker:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth=oauth,
    )
    with _reachable(connection):
        found = resolve_connection().sasl_oauth
    assert found == oauth
    assert found.client_secret is not None
    assert found.client_secret.get_secret_value() == "hush"


def test_a_loop_without_a_name_still_names_its_run() -> None:
    assert _loop_name(functools.partial(print)) == "loop"
    assert _loop_name(lambda _: None) == "lambda"


def test_a_checkpoint_makes_up_for_earlier_failures() -> None:
    board = Board(fruitless_max=2)
    for _ in range(5):
        board_in_attempt(board)
        board.tell(CheckpointSaved(1, 5, 0, 20, "f"))
        board.failed(failure_of(0, 6))
        assert board.workers_lost({0: "x"}, []) is None


def test_workers_hear_of_a_stop_at_their_next_beat() -> None:
    board = Board(fruitless_max=2)
    assert not board.beat(None)
    board.ask_stop()
    assert board.beat(step_done(1))


def test_a_board_that_was_started_again_learns_from_beats_who_the_workers_are() -> None:
    board = Board(fruitless_max=3)
    for worker in WORKERS:
        board.beat(step_done(7) if worker.rank == 0 else None, worker)
    board.workers_lost({1: "died"}, [1])
    board.beat(None, WORKERS[0])  # the last word of one that is being ended

    (lost,) = events_of(board)
    assert lost == WorkersLost(attempt=1, dead=(WORKERS[1],), step=7, reason="died")
    later = tuple(WorkerIdentity(worker.rank, worker.pid + 100, "here") for worker in WORKERS)
    for worker in later:
        board.arrived(worker)
        board.beat(None, WORKERS[worker.rank])
    board.workers_lost({0: "died"}, [0])
    (lost,) = events_of(board)
    assert isinstance(lost, WorkersLost)
    assert lost.dead == (later[0],)


# -- a worker's link -------------------------------------------------------------------------------


def test_only_a_machine_that_ray_has_not_named_before_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[PreemptionInfo | None] = []
    monkeypatch.setattr("ray.train.get_preemption_info", lambda: said[-1])
    link = RayLink(None, RunStorage(tmp_path, "toy"), rank=1, report_gap_s=1.0)
    heard = []
    for nodes in ({}, {"a": [0]}, {"a": [0]}, {"a": [0], "b": [1]}, {"a": [0], "b": [1]}, None, {"a": [0]}):
        said.append(None if nodes is None else PreemptionInfo(None, nodes))
        link.poll_preemption()
        link.flush_calls(30.0)
        heard.append(link.is_preempted)
        link.preemption_seen()
    link.close()

    assert heard == [False, True, False, True, False, False, True]
    assert link.num_failed_calls == 0


# -- errors ----------------------------------------------------------------------------------------

EXAMPLES = [
    errors.StorageUnwritableError("/x", "denied"),
    errors.StorageUnreadableError("/x", "throttled"),
    errors.NoCheckpointLeftError("/x", evidence="it finished", reasons=["a", "b", "c", "d"]),
    errors.RunDamagedError("/x/run.json", "is damaged"),
    errors.InvalidCheckpointError("/x", "short"),
    errors.CheckpointMismatchError("/x", {"dataset": ("a@1", "a@2")}),
    errors.ShardedStateError("model.0.weight", kind="DTensor", rank=1),
    errors.RanksDifferError(
        rank=1, differences={"model.w": ("[2] float32", "[3] float32")}, num_differences=7
    ),
    errors.StateUnavailableError("ema", rank=1, reason="KeyError: 'step'"),
    errors.CheckpointUnreadableError("/x", rank=1, host="h", reason="no such file"),
    errors.CheckpointWriteError("/x", "full"),
    errors.RunTakenOverError("r", attempt=1, newer_attempt=2),
    errors.RunMismatchError("r", {"seed": (1, 2)}),
    errors.UnknownRunError("/x", ["a"]),
    errors.UnknownRecipeError("x", ["a"]),
    errors.ColumnChoiceError("d@1", role="text", reason="two", columns={"a": "string"}),
    errors.LabelError("d@1", column="label", reason="none"),
    errors.RayUnavailableError(None, "too slow"),
    errors.WorkersUnavailableError({"CPU": 8.0}, {"CPU": 2.0}),
    errors.JobError("http://x", "refused"),
    errors.JobLostError("evenload-run-1", "refused"),
    errors.TrainingFailedError("r", "why", restarts=3),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_the_way_between_processes(error: TrainerError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert "\n" not in str(error)
