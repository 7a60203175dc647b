"""What the board concludes from what workers, Ray's controller and the driver say."""

from __future__ import annotations

from evenload.ray_trainer.training.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    Recovered,
    StepDone,
    WorkerIdentity,
    WorkersLost,
)
from evenload.ray_trainer.training.on_ray.board import Board, WorkerFailure

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
