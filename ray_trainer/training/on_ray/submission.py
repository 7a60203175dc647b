"""What Ray is sent for a run to be trained as a job: pure, so that whoever queues runs can keep it.

Read next: submit.py (sends it), job_driver.py (what it starts).
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from evenload.home import evenload_home
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer.recipes.registry import find_recipe
from evenload.ray_trainer.training.on_ray.job_driver import JOB_VARIABLE, REPORT_VARIABLE
from evenload.ray_trainer.training.train_config import TrainConfig, default_run_name
from evenload.resume.storage import RunStorage

__all__ = ["make_submission", "resolved", "stopped_softly", "submitted_config"]

_STOP_WAIT_S: Final = 300  # a worker in the middle of a long step has to end it first


def resolved(recipe: str, config: TrainConfig) -> TrainConfig:
    """The configuration with all that would be looked up here: the run's name, storage, how to reach Kafka.

    Raises:
        UnknownRecipeError: There is no such recipe.
    """
    find_recipe(recipe)
    run = config.run or default_run_name(recipe, config.dataset)
    storage = RunStorage(config.storage or evenload_home() / "runs", run)
    connection = config.connection or resolve_connection()
    return config.model_copy(update={"connection": connection, "run": run, "storage": storage.storage})


def make_submission(
    recipe: str,
    config: TrainConfig,
    submission_id: str,
    *,
    metadata: Mapping[str, str] | None = None,
    report: Mapping[str, Any] | None = None,
    working_dir: Path | None = None,
) -> dict[str, Any]:
    """What `JobSubmissionClient.submit_job` takes.

    Args:
        config: As `resolved` gives it.
        submission_id: Ray's name for the job; it takes each once.
        metadata: What the job's description has beside; everybody with the dashboard can read it.
        report: As reporter.py takes it: where the driver says how far it is; None: nowhere.
        working_dir: A checkout of evenload to send along, where it isn't installed on the cluster.
    """
    content = {
        "recipe": recipe,
        # An address of a cluster means nothing within one.
        "config": config.model_copy(update={"connection": None, "ray_address": None}).model_dump(mode="json"),
        "connection": _public_connection(config.connection),
    }
    runtime: dict[str, Any] = {
        "env_vars": {
            **({} if report is None else {REPORT_VARIABLE: json.dumps(report)}),
            JOB_VARIABLE: json.dumps(content),
            **stopped_softly(),
        }
    }
    if working_dir is not None:
        runtime["working_dir"] = str(working_dir)
    return {
        "entrypoint": _entrypoint(),
        "submission_id": submission_id,
        "runtime_env": runtime,
        "metadata": dict(metadata or {}),
    }


def stopped_softly() -> dict[str, str]:
    """What has Ray interrupt a job that is stopped, and wait before it kills it."""
    return {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}


def submitted_config(variables: Mapping[str, str]) -> TrainConfig:
    """The configuration that stands in the environment of a job that was made here.

    Raises:
        ValueError: There is none.
    """
    try:
        return TrainConfig.model_validate(json.loads(variables[JOB_VARIABLE])["config"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"it isn't a job of ours: {error!r}") from error


def _entrypoint() -> str:
    """This interpreter where the cluster has it too (as on one machine), else the cluster's own."""
    own = shlex.quote(sys.executable)
    driver = "evenload.ray_trainer.training.on_ray.job_driver"
    return f"python={own}; [ -x $python ] || python=python; exec $python -m {driver}"


def _public_connection(connection: Connection | None) -> dict[str, Any] | None:
    """What may stand in a job's description, which everybody with the dashboard can read.

    With a secret in it: nothing; the driver then looks where it runs (EVENLOAD_CONNECTION).
    """
    if connection is None or connection.has_secrets:
        return None
    return connection.model_dump(mode="json")
