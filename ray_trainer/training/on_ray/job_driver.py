"""The driver of a job that `submit` made: `train`, told through the environment, speaking through its log.

    python -m evenload.ray_trainer.training.on_ray.job_driver

Its last line is the result, for the submitter; its exit status is that of `evenload train`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from evenload.ray_trainer.training.events import LOADING, Event

if TYPE_CHECKING:
    from evenload.ray_trainer.training.on_ray.worker import Loop

__all__ = ["JOB_VARIABLE", "REPORT_VARIABLE", "RESULT_PREFIX", "main"]

JOB_VARIABLE: Final = "EVENLOAD_JOB"
REPORT_VARIABLE: Final = "EVENLOAD_REPORT"
RESULT_PREFIX: Final = "evenload-result: "
_PROGRESS_S: Final = 5.0


def main(loop: Loop | None = None) -> int:
    """0 done, 1 failed with one sentence, 130 stopped.

    Args:
        loop: To be trained by, as `train` takes one; None: by the job's recipe.
    """
    print(LOADING, flush=True)
    # Imported here: the submitter needs the names above, and neither torch nor Ray Train.
    from evenload.kafka_connection.connection import Connection
    from evenload.ray_trainer.training.on_ray.reporter import reporter_of
    from evenload.ray_trainer.training.on_ray.trainer import train
    from evenload.ray_trainer.training.train_config import TrainConfig

    job: dict[str, Any] = json.loads(os.environ[JOB_VARIABLE])
    connection = Connection.model_validate(job["connection"]) if job["connection"] else None
    config = TrainConfig.model_validate({**job["config"], "connection": connection})
    reporter = reporter_of(os.environ.get(REPORT_VARIABLE))

    def tell(event: Event) -> None:
        print(event, flush=True)
        if reporter is not None:
            reporter.tell(event)

    try:
        result = train(
            loop or job["recipe"],
            config,
            on_event=tell,
            progress_interval_s=_PROGRESS_S,
        )
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(getattr(type(error), "retriable", None), bool):
            raise  # not one of ours: its trace is what helps
        print(error, file=sys.stderr, flush=True)
        return 1
    print(RESULT_PREFIX + json.dumps(result.to_dict()), flush=True)
    return 130 if result.is_stopped else 0


if __name__ == "__main__":
    sys.exit(main())
