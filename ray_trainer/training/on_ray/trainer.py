"""The driver: start workers, go on when they fail, stop when asked, and say what came of it.

    result = train("image-classification", TrainConfig(dataset="digits", workers=2))

What can be refused is refused before anything starts, in one sentence. Then Ray Train runs the workers, and
our own checkpoints carry the run: each driver's life has a fresh Ray name (RUN/attempt-N), so what Ray
remembers of an earlier one can't hurt, and checkpoints that are complete but were never reported count.
Failed workers are started again by Ray, all of them, and go on from the newest valid checkpoint; an error
that would only come again ends the run at once.

Ctrl-C: Ray would abort without a checkpoint, so `fit` runs on a thread where Ray handles no signals, and the
signal becomes a wish that the workers hear within a fifth of a second (resume/stop_signal.py, board.py).

Read next: worker.py (the other side), ray_cluster.py, session.py.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

import ray
import ray.train
from ray.train import FailureConfig, LoggingConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

from evenload.home import evenload_home
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer.recipes.registry import find_recipe
from evenload.ray_trainer.training.audit import covered_steps
from evenload.ray_trainer.training.books.loss_curve import (
    CURVE_NAME,
    LossPoint,
    mean_by_epoch,
    read_curve,
    write_curve,
)
from evenload.ray_trainer.training.events import Event, Note, StepDone, Stopping, counted
from evenload.ray_trainer.training.on_ray.board_line import BoardLine
from evenload.ray_trainer.training.on_ray.errors import TrainingFailedError
from evenload.ray_trainer.training.on_ray.ray_cluster import ClusterFacts, joined_cluster
from evenload.ray_trainer.training.on_ray.worker import Loop, WorkerJob, run_worker
from evenload.ray_trainer.training.run_record import (
    FinishedRecord,
    counted_finish,
    find_run,
    write_finished,
)
from evenload.ray_trainer.training.train_config import (
    TrainConfig,
    TrainResult,
    default_run_name,
    few_steps_note,
)
from evenload.resume.attempts import attempt_folder
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import InvalidCheckpointError, RunMismatchError
from evenload.resume.fence import DriverClaim, FenceWatch, claim_run, require_newest
from evenload.resume.stop_signal import stop_on_signal
from evenload.resume.storage import RunStorage

__all__ = ["TrainConfig", "TrainResult", "train"]

_train_v2: Any = ray.train  # its names are those of Ray Train V2; what type checkers see is V1

_FRUITLESS_MAX: Final = 4  # attempts in a row that failed before a checkpoint
_LOOK_S: Final = 0.1
_ANSWER_S: Final = 10.0
_MODEL_NAME: Final = "model"

logger = logging.getLogger(__name__)


def train(
    recipe: str | Loop,
    config: TrainConfig,
    *,
    on_event: Callable[[Event], None] = lambda event: logger.info("%s", event),
    progress_interval_s: float = 2.0,
) -> TrainResult:
    """Train, or go on with a run, to its last epoch or until asked to stop.

    The same run name and storage go on with the run. In the main thread, the first SIGINT or SIGTERM asks to
    stop after a checkpoint, the second ends at once (KeyboardInterrupt).

    Args:
        recipe: A recipe's name, or a loop of one's own: a function that takes a dict with the fields of
            `config` and its options, as in the example of session.py.
        on_event: Called on this thread with what happens, as it happens.
        progress_interval_s: Least time between two `StepDone` events.

    Raises:
        RunError: The run can't begin, or failed for good; the sentence says why.
        CatalogError, KafkaConnectionError: The dataset can't be had.
    """
    connection = config.connection
    name = recipe if isinstance(recipe, str) else _loop_name(recipe)
    run = config.run or default_run_name(name, config.dataset)
    storage = RunStorage(
        config.storage or evenload_home() / "runs", run, patience_s=config.storage_patience_s
    )
    if isinstance(recipe, str):
        connection = connection or resolve_connection()
        on_event(Note(f"checking dataset {config.dataset!r} and the options"))
        config = find_recipe(recipe).load().check(config, connection, storage)
    storage.require_writable()
    finished = None if config.begin_anew else counted_finish(storage)
    if finished is not None and finished.epochs >= config.epochs:
        of = _check_same_data(storage, finished, config)
        on_event(
            Note(
                f"run {run!r} has finished its {finished.epochs} epochs of {of}; more --epochs go on with it"
            )
        )
        return TrainResult(**{**finished.result, "was_finished": True})
    driver = _Driver(recipe, config, connection, storage, on_event, progress_interval_s)
    return driver.run()


class _Driver:
    """One driver's life."""

    def __init__(
        self,
        recipe: str | Loop,
        config: TrainConfig,
        connection: Connection | None,
        storage: RunStorage,
        on_event: Callable[[Event], None],
        progress_interval_s: float,
    ) -> None:
        self._progress_interval_s = progress_interval_s
        self._recipe = recipe
        self._config = config
        self._connection = connection
        self._storage = storage
        self._on_event = on_event
        self._told_step: StepDone | None = None
        self._told_at_s = float("-inf")

    def run(self) -> TrainResult:
        with joined_cluster(self._config, self._on_event) as cluster:
            # A driver that gets no cluster must not stop the one that has the run: so only now.
            claim = claim_run(self._storage)
            fence = FenceWatch(lambda: require_newest(self._storage, claim))
            with closing(fence):
                line = BoardLine(fruitless_max=_FRUITLESS_MAX, tell=self._on_event)
                self._on_event(Note(f"waiting for {counted(self._config.workers, 'worker')}"))
                outcome = self._watch(line, self._trainer(line.board, cluster, claim), fence)
                restarts = line.num_restarts(has_failed=False)
        return self._result(outcome, restarts)

    def _trainer(self, board: Any, cluster: ClusterFacts, claim: DriverClaim) -> TorchTrainer:
        config, storage = self._config, self._storage
        device = config.device or ("gpu" if cluster.has_gpus else "cpu")
        resources: dict[str, float] = {"CPU": cluster.cpus_per_worker}
        if device == "gpu":
            resources["GPU"] = 1
        job = WorkerJob(
            config=config,
            connection=self._connection,
            recipe=self._recipe,
            run=storage.run,
            storage=storage.storage,
            claim=claim,
            board=board,
            default_threads=cluster.cpus_per_worker,
            device=device,
        )
        loop: Any = _train_loop
        return _LeanTrainer(
            loop,
            train_loop_config={"job": job},
            scaling_config=ScalingConfig(
                num_workers=config.workers, use_gpu=device == "gpu", resources_per_worker=resources
            ),
            run_config=_train_v2.RunConfig(
                name=f"{storage.run}/{attempt_folder(claim.number)}",
                storage_path=storage.storage,
                failure_config=FailureConfig(max_failures=config.max_restarts),
                callbacks=[_FailureCallback(board)],
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )

    def _watch(self, line: BoardLine, trainer: TorchTrainer, fence: FenceWatch) -> Mapping[str, Any]:
        """Run `fit` on a thread of its own, and tell what happens until it ends.

        Raises:
            RunTakenOverError: Another driver has claimed the run; the workers end with the cluster's session.
        """
        fitted: dict[str, Any] = {}

        def fit() -> None:
            try:
                fitted["result"] = trainer.fit()
            except BaseException as error:  # noqa: BLE001 -- raised again below, on the caller's thread
                fitted["error"] = error

        asked = threading.Event()
        thread = threading.Thread(target=fit, name="ray-train-fit", daemon=True)
        thread.start()
        with stop_on_signal(asked.set, signal.SIGINT, signal.SIGTERM, even_if_handled=True):
            is_told = False
            while thread.is_alive():
                thread.join(_LOOK_S)
                if fence.error is not None:
                    raise fence.error
                if asked.is_set() and not is_told:
                    is_told = True
                    self._on_event(Stopping())
                self._tell(line, is_stop_asked=is_told)
        self._tell(line, is_stop_asked=is_told)
        if "error" in fitted:
            raise self._translated(line, fitted["error"])
        outcome = fitted["result"].return_value
        if not isinstance(outcome, Mapping):
            raise TrainingFailedError(self._storage.run, "Ray Train ended without an answer of rank 0")
        return outcome

    def _tell(self, line: BoardLine, *, is_stop_asked: bool) -> None:
        events, latest = line.look(is_stop_asked=is_stop_asked)
        for event in events:
            self._on_event(event)
        now_s = time.monotonic()
        is_time = now_s - self._told_at_s >= self._progress_interval_s
        if latest is not None and latest != self._told_step and is_time:
            self._told_step, self._told_at_s = latest, now_s
            self._on_event(latest)

    def _translated(self, line: BoardLine, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        failure = line.why_fatal()
        restarts = line.num_restarts(has_failed=True)
        if failure is None:
            lines = str(error).strip().splitlines()
            reason = lines[-1] if lines else type(error).__name__
            logger.debug("Ray Train failed", exc_info=error)
            return TrainingFailedError(self._storage.run, reason, restarts=restarts)
        logger.debug("a worker failed:\n%s", failure.trace)
        if failure.error is not None and not failure.is_retriable:
            return failure.error
        return TrainingFailedError(self._storage.run, failure.reason, restarts=restarts)

    def _result(self, outcome: Mapping[str, Any], restarts: int) -> TrainResult:
        storage, config = self._storage, self._config
        curve = self._write_curve()
        result = TrainResult(
            run=storage.run,
            steps=outcome["steps"],
            epochs=outcome["epochs"] if outcome["is_stopped"] else config.epochs,
            samples_per_s=round(outcome["samples_per_s"], 1),
            loss=mean_by_epoch(curve),
            metrics=dict(outcome["metrics"]),
            checkpoints=_finished_checkpoints(storage),
            restarts=restarts,
            # Of a run that was stopped, what lies there is the model of an earlier finish.
            model_path=(
                storage.place(_MODEL_NAME)
                if not outcome["is_stopped"] and storage.exists(_MODEL_NAME)
                else None
            ),
            loss_path=storage.place(CURVE_NAME) if curve else None,
            is_stopped=outcome["is_stopped"],
            notes=self._notes(outcome),
        )
        if not result.is_stopped:
            finished = FinishedRecord(
                epochs=config.epochs,
                attempt=max(1, outcome["attempt"]),
                step=outcome["steps"],
                result=result.to_dict(),
                asked={"dataset": config.dataset, "seed": config.seed},
            )
            write_finished(storage, finished)
        return result

    def _notes(self, outcome: Mapping[str, Any]) -> list[str]:
        """For recipes only: a loop of one's own may learn in one step."""
        record = find_run(self._storage)
        if outcome["is_stopped"] or record is None or not isinstance(self._recipe, str):
            return []
        note = few_steps_note(outcome["steps"], record.num_samples, self._config)
        return [] if note is None else [note]

    def _write_curve(self) -> list[LossPoint]:
        record = find_run(self._storage)
        if record is None:  # a loop of one's own, without a session
            return []
        step_ranges, _ = covered_steps(self._storage, record.run_id)
        curve = read_curve(self._storage, [step_range for step_range, _ in step_ranges])
        write_curve(self._storage, curve)
        return curve


class _LeanTrainer(TorchTrainer):
    """Without the process that Ray Train 2.60 starts for its own datasets, at each start of the workers.

    There are none in a run, and on a small machine that process takes seconds from those that are waited for.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in callbacks if type(callback).__name__ != "DatasetsCallback"]


class _FailureCallback(UserCallback):
    """Runs in Ray's controller: tells the board which workers failed, and ends a run that can't go on.

    Raising here is what ends a run whose workers would be started again otherwise; so nothing else may raise.
    """

    def __init__(self, board: Any) -> None:
        self._board = board

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        del run_context
        reasons = {rank: (str(e).strip().splitlines() or [""])[-1] for rank, e in worker_exceptions.items()}
        dead = [rank for rank, error in worker_exceptions.items() if _is_death(error)]
        try:
            failure = ray.get(self._board.workers_lost.remote(reasons, dead), timeout=_ANSWER_S)
        except ray.exceptions.RayError as error:
            logger.warning("the driver could not be told of failed workers: %s", error)
            return
        if failure is not None:
            raise TrainingFailedError("", failure.reason)


def _is_death(error: Exception) -> bool:
    """Whether the process is gone, and not just its loop."""
    cause = getattr(error, "health_check_failure", error)
    return isinstance(cause, ray.exceptions.RayActorError)


def _train_loop(config: dict[str, Any]) -> dict[str, Any]:
    return run_worker(config["job"])


def _finished_checkpoints(storage: RunStorage) -> list[str]:
    """Those with an index, newest first; their files were verified when they were written."""
    store = CheckpointStore(storage, None)
    found = []
    for folder in store.folders():
        try:
            store.read_index(folder.name)
        except InvalidCheckpointError:
            continue
        found.append(storage.place(folder.name))
    return found


def _check_same_data(storage: RunStorage, finished: FinishedRecord, config: TrainConfig) -> str:
    """Refuse the result of another training. A recipe has compared more already; a loop of one's own has not.

    Returns:
        The dataset that the run was trained on. (A name without a version means any version of it.)

    Raises:
        RunMismatchError: The finished run is of another dataset or seed.
    """
    record = find_run(storage)  # there is none of a loop of one's own, without a session
    asked = finished.asked
    trained = record.dataset if record else str(asked.get("dataset", config.dataset))
    # What a loop makes of the configuration is its own: so what was asked for is compared with what is asked.
    seed = asked.get("seed", record.plan_facts.get("seed") if record else None)
    has_version = "@" in config.dataset and "@" in trained
    is_same = config.dataset == asked.get("dataset") or (
        trained == config.dataset
        if has_version
        else trained.partition("@")[0] == config.dataset.partition("@")[0]
    )
    differences: dict[str, tuple[object, object]] = {} if is_same else {"dataset": (trained, config.dataset)}
    if seed is not None and seed != config.seed:
        differences["seed"] = (seed, config.seed)
    if differences:
        raise RunMismatchError(storage.run, differences)
    return trained


def _loop_name(loop: Loop) -> str:
    """A run's default name begins with it; what is made at run time (`functools.partial`) has none."""
    return getattr(loop, "__name__", "loop").strip("<>_").replace("_", "-") or "loop"
