"""What runs in each Ray Train worker: the context around the loop, and what becomes of its errors.

An error is told to the driver before the worker ends, with the step it came after and whether starting again
can help; Ray then gets a plain one, as errors of libraries do not always survive the way between processes.

Read next: trainer.py (who starts this), run_context.py, recipes/.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ray.train

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.recipes.registry import find_recipe
from evenload.ray_trainer.training.on_ray.board import WorkerFailure
from evenload.ray_trainer.training.on_ray.errors import TrainingFailedError
from evenload.ray_trainer.training.on_ray.worker_link import RayLink
from evenload.ray_trainer.training.run_context import RunContext, entered
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.fence import DriverClaim
from evenload.resume.storage import RunStorage

__all__ = ["Loop", "WorkerJob", "run_worker"]

Loop: TypeAlias = Callable[[dict[str, Any]], Any]

# What a program does wrong, it does wrong again.
_MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerJob:
    """What every worker gets.

    Attributes:
        recipe: A recipe's name, or a loop: a function of one dict.
        claim: The driver's.
        board: Handle of the board's actor.
        default_threads: torch threads of a run that begins.
    """

    config: TrainConfig
    connection: Connection | None
    recipe: str | Loop
    run: str
    storage: str
    claim: DriverClaim
    board: Any
    default_threads: int
    device: str


def run_worker(job: WorkerJob) -> dict[str, Any]:
    """Train, as one rank; what rank 0 returns is the driver's to read.

    Returns:
        `steps`, `epochs`, `attempt`, `samples_per_s`, `is_stopped`, `metrics`.
    """
    rank = ray.train.get_context().get_world_rank()
    link = RayLink(
        job.board,
        RunStorage(job.storage, job.run),
        rank=rank,
        report_gap_s=2 * job.config.health_check_interval_s,
    )
    link.arrived()
    config = job.config
    context = RunContext(
        run=job.run,
        storage=job.storage,
        claim=job.claim,
        begin_anew=config.begin_anew,
        storage_patience_s=config.storage_patience_s,
        checkpoint_interval_s=config.checkpoint_interval_s,
        keep_checkpoints=config.keep_checkpoints,
        torch_threads=config.cpus_per_worker,
        default_threads=job.default_threads,
        device=job.device,
        connection=job.connection,
        link=link,
    )
    try:
        with _reachable(job.connection), entered(context):
            metrics = _run_loop(job, context)
        return _outcome(context, metrics)
    except BaseException as error:  # noqa: BLE001 -- told, and raised again as a plain one
        for session in context.sessions:
            session.abandon()
        failure = _describe(error, rank=rank, step=_step(context))
        logger.error("the loop of rank %d failed:\n%s", rank, failure.trace)
        link.failed(failure)
        raise TrainingFailedError(job.run, f"rank {rank}: {failure.reason}") from None
    finally:
        link.close()


def _run_loop(job: WorkerJob, context: RunContext) -> Mapping[str, float]:
    if isinstance(job.recipe, str):
        metrics = find_recipe(job.recipe).load().train(job.config)
    else:
        metrics = job.recipe(
            {**job.config.model_dump(exclude={"connection", "options"}), **job.config.options}
        )
    for session in context.sessions:
        session.close()
    return metrics if isinstance(metrics, Mapping) else {}


def _outcome(context: RunContext, metrics: Mapping[str, float]) -> dict[str, Any]:
    last = context.sessions[-1] if context.sessions else None
    return {
        "steps": last.step if last else 0,
        "epochs": last.epochs_done if last else 0,
        "attempt": last.attempt if last else 0,
        "samples_per_s": last.samples_per_s if last else 0.0,
        "is_stopped": any(session.is_stopped for session in context.sessions),
        "metrics": {name: float(value) for name, value in metrics.items()},
    }


def _step(context: RunContext) -> int:
    return max((session.step for session in context.sessions), default=0)


def _describe(error: BaseException, *, rank: int, step: int) -> WorkerFailure:
    declared = getattr(type(error), "retriable", None)
    is_retriable = declared if isinstance(declared, bool) else not isinstance(error, _MISTAKES)
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    is_ours = isinstance(declared, bool) and isinstance(error, Exception) and _pickles(error)
    return WorkerFailure(
        rank=rank,
        step=step,
        error=error if is_ours else None,  # type: ignore[arg-type]  # an Exception then
        reason=(lines[0] if is_ours and lines else f"{name}: {lines[0]}" if lines else name),
        trace="".join(traceback.format_exception(error)),
        is_retriable=is_retriable,
    )


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 -- whatever it raises, it can't be sent
        return False
    return True


@contextmanager
def _reachable(connection: Connection | None) -> Iterator[None]:
    """Let a loop that names no connection find the driver's: the environment is where it looks."""
    if connection is None:
        yield
        return
    # A file in memory, gone with this process however it ends: secrets don't stay on a disk.
    with open(os.memfd_create("evenload-connection"), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)  # it is nobody else's to read, and would be warned of
        json.dump(connection.plain_fields(), file)
        file.flush()
        before = {
            name: os.environ.get(name) for name in ("EVENLOAD_CONNECTION", "EVENLOAD_BOOTSTRAP_SERVERS")
        }
        os.environ["EVENLOAD_CONNECTION"] = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        os.environ.pop("EVENLOAD_BOOTSTRAP_SERVERS", None)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
