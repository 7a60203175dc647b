"""The driver's line to its board: an actor on the driver's own machine, started again if it dies.

The board lives where the driver does: wherever else it were, losing that machine would end a run whose
workers could go on. And nothing that it says or doesn't say ends a run: a call that fails is told once, and
made again at the next look. What a new board doesn't know it is told again: workers say who they are with
each beat, and the driver says at each look whether the run is to stop.

Read next: board.py, trainer.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evenload.ray_trainer.training.events import Event, Note, StepDone, WorkersLost
from evenload.ray_trainer.training.on_ray.board import Board, WorkerFailure

__all__ = ["BoardLine"]

_ANSWER_S: Final = 10.0
_CALL_TRIES: Final = 3  # over the board's restarts

logger = logging.getLogger(__name__)


class BoardLine:
    """For one driver's life, on the driver's thread.

    Args:
        tell: Gets a sentence when the board doesn't answer, and when it does again.
        answer_s: How long a call may take.

    Attributes:
        board: The actor's handle, for workers.
    """

    def __init__(
        self, *, fruitless_max: int, tell: Callable[[Note], None], answer_s: float = _ANSWER_S
    ) -> None:
        here = ray.get_runtime_context().get_node_id()
        actor: Any = ray.remote(Board)
        self.board = actor.options(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=_CALL_TRIES,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        ).remote(fruitless_max=fruitless_max)
        self._tell = tell
        self._answer_s = answer_s
        self._is_lost = False
        self._num_lost = 0  # groups of workers

    def look(self, *, is_stop_asked: bool) -> tuple[list[Event], StepDone | None]:
        """What happened since the last look; nothing while the board doesn't answer."""
        if is_stop_asked:
            self.board.ask_stop.remote()
        events, latest = self._ask(self.board.take, ([], None))
        self._num_lost += sum(isinstance(event, WorkersLost) for event in events)
        return events, latest

    def why_fatal(self) -> WorkerFailure | None:
        """What the workers said, as far as the board knows."""
        failure: WorkerFailure | None = self._ask(self.board.why_fatal, None)
        return failure

    def num_restarts(self, *, has_failed: bool) -> int:
        """How often workers were started again. A board that was itself started again knows too few."""
        seen = max(0, self._num_lost - has_failed)
        restarts: int = max(seen, self._ask(self.board.get_num_restarts, 0))
        return restarts

    def _ask(self, method: Any, otherwise: Any) -> Any:
        try:
            answer = ray.get(method.remote(), timeout=self._answer_s)
        except ray.exceptions.RayError as error:
            logger.debug("the board does not answer", exc_info=error)
            if not self._is_lost:
                self._is_lost = True
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._say(
                    f"the board, through which workers tell how far they are, does not answer: {reason}"
                )
            return otherwise
        if self._is_lost:
            self._is_lost = False
            self._say("the board answers again")
        return answer

    def _say(self, what: str) -> None:
        self._tell(Note(f"{what}; the workers go on"))
