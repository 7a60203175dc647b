"""One cycle of the governor: look, think, write down, then order.

What is ordered was written down before, so a crash in between leaves records that say what is to be ordered.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from evenload.governor.errors import EngineUnreachableError, StintRefusedError
from evenload.governor.governing.engine import Engine, Stint
from evenload.governor.governing.governor import Governor, Orders
from evenload.governor.governing.records import Records

FAULTS_MAX: Final = 3  # orders of one cycle that could not be given


class Journal(Protocol):
    """Keeps what is written down."""

    def write(self, changes: Records) -> None:
        """All of it or nothing; when it returns, it is kept.

        Raises:
            JournalError: It may be kept or not, and no more can be written: begin anew with what was kept.
        """

    def prove(self) -> None:
        """Shows that nobody else writes.

        Raises:
            JournalError: As `write`.
        """


def run_cycle(governor: Governor, journal: Journal, engine: Engine, now_s: float) -> str | None:
    """Does what is to be done now.

    While the engine can't be reached nothing is decided or ordered, but what was asked for is written down.

    Returns:
        Why the engine couldn't be reached; None if it could.

    Raises:
        JournalError: As `write` raises it.
    """
    try:
        seen = engine.look(governor.current_stints)
    except EngineUnreachableError as error:
        journal.write(governor.take_changes())
        return str(error)
    governor.observe(seen, now_s)
    governor.decide_if_due(now_s)
    journal.write(governor.take_changes())
    orders = governor.orders()
    if orders.strays:
        # One that was fenced and doesn't know it yet knows nothing of what its successor starts.
        journal.prove()
    return _give(orders, governor, engine)


def _give(orders: Orders, governor: Governor, engine: Engine) -> str | None:
    """Gives all orders; says why some could not be given. The next cycle gives again what isn't seen."""
    faults: list[str] = []
    calls = [partial(engine.stop, stint_id) for stint_id in (*orders.stops, *orders.strays)]
    calls += [partial(_start, stint, governor, engine) for stint in orders.starts]
    for call in calls:
        try:
            call()
        except EngineUnreachableError as error:
            # One that fails holds up no others; a cluster that is gone isn't asked for long.
            faults.append(str(error))
            if len(faults) == FAULTS_MAX:
                break
    return faults[0] if faults else None


def _start(stint: Stint, governor: Governor, engine: Engine) -> None:
    try:
        engine.start(stint)
    except StintRefusedError as error:
        governor.refuse(stint.id, str(error))
