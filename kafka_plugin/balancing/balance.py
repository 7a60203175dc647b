"""Level what is there: plan moves of replicas from what brokers hold, and carry them out.

    preview = preview_balance(connection)     # changes no replica
    outcome = execute_balance(connection)     # the same plan, made true

One process balances a cluster at a time: the one that holds the record in `evenload.balance` (log.py). Each
begins with what a dead one has left. `execute_balance` waits for the reassignments that it had ordered, takes
its throttles off and plans anew; `preview_balance` takes its throttles off when nothing is being moved under
them any more, and otherwise says so; `cancel_balance` takes everything back.

A broker that an operator drains by a weight of 0 takes nothing, like a cordoned one. A plan is carried out
as it was shown, several moves at the same time. While moves wait for their turn, it looks now and then at
what has changed (a broker gone, room taken), leaves out what isn't possible any more, and says so.

Faults are tested in tests/fault/kafka_plugin/test_balance_faults.py. Read next: router/moves/planning.py,
reassignment.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from evenload.dataset_catalog.errors import CatalogError, CatalogRefusedError
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.balancing.admin import BalanceAdmin
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BALANCE_TOPIC, BalanceLog
from evenload.kafka_plugin.balancing.reassignment import Mover, ours_running
from evenload.kafka_plugin.balancing.record import BalanceRecord
from evenload.kafka_plugin.balancing.replication_throttle import FoundThrottle, find_throttles, lift_throttle
from evenload.kafka_plugin.errors import (
    BalanceCancelledError,
    BalanceError,
    BalanceInProgressError,
    BalanceInterruptedError,
    BalanceRefusedError,
    UnreadableBalanceError,
)
from evenload.router.moves.plan import MovePlan
from evenload.router.moves.planning import plan_moves, settled
from evenload.router.moves.schedule import MoveSchedule
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.opening import read_weights
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition
from evenload.telemetry_collector.weights import Weights

__all__ = [
    "BalanceOutcome",
    "BalanceProgress",
    "ForgottenBalance",
    "cancel_balance",
    "execute_balance",
    "forget_balance",
    "preview_balance",
]

_SNAPSHOT_TIMEOUT_S = 30.0
_THROTTLES_OFF = "an earlier balance had left its throttles behind; they are off now."


@dataclass(frozen=True, slots=True)
class BalanceProgress:
    """How far a balance is: bytes moved of those planned, and a sentence where something is to be said."""

    moved_bytes: int
    planned_bytes: int
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOutcome:
    """What was planned, and what came of it.

    Attributes:
        plan: what was to be moved.
        before: the cluster that it was planned from.
        after: the cluster when it was done; None where nothing was to be carried out.
        moved_bytes: what was moved.
        notes: what a dead balance had left, what was left out and why.
    """

    plan: MovePlan
    before: ClusterSnapshot
    after: ClusterSnapshot | None = None
    moved_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgottenBalance:
    """What was cleared, and what is left in the cluster, whoever has set it.

    Attributes:
        record: What was wrong with the record; None where there was none.
        throttles: All settings of replication throttles that were seen.
        moving: Partitions that are being moved.
        untold: Brokers (by id) and topics (by name) whose settings couldn't be looked at. Topics that may not
            be described are in neither.
    """

    record: str | None
    throttles: tuple[FoundThrottle, ...]
    moving: tuple[TopicPartition, ...]
    untold: tuple[int | str, ...] = ()


def preview_balance(
    connection: Connection,
    *,
    max_bytes: int | None = None,
    drained: Collection[int] = (),
    config: BalanceConfig | None = None,
) -> BalanceOutcome:
    """What `execute_balance` would do. Moves nothing; takes off throttles that a dead balance left behind.

    Raises:
        BalanceError: Brokers don't allow or answer what has to be asked.
        CollectorError: They can't be measured.
    """
    config = config or BalanceConfig()
    with _opened(connection, config) as (admin, log):
        notes = _tidy(connection, admin, log, config)
        before = _measure(connection)
        plan, more = _plan(admin, before, max_bytes, drained, config)
    return BalanceOutcome(plan=plan, before=before, notes=(*notes, *more))


def execute_balance(
    connection: Connection,
    *,
    max_bytes: int | None = None,
    drained: Collection[int] = (),
    config: BalanceConfig | None = None,
    progress: Callable[[BalanceProgress], None] = lambda _: None,
) -> BalanceOutcome:
    """Moves replicas until brokers are level, as planned.

    Given up (Ctrl-C), what is under way is taken back and its throttles are off; what is complete stays.
    Killed, the next call goes on from there.

    Args:
        connection: The cluster.
        max_bytes: The most that may be moved in this call; None: as much as it takes.
        drained: Brokers to be emptied.
        config: Rates and times.
        progress: Called a few times a second.

    Raises:
        BalanceInProgressError: Somebody else is at it.
        BalanceCancelledError: Somebody else has taken over.
        BalanceError: As in kafka_plugin/errors.py; what is complete stays.
        CollectorError: Brokers can't be measured.
    """
    config = config or BalanceConfig()
    with _opened(connection, config) as (admin, log), _moving(connection, admin, log, config) as mover:
        return _execute(connection, admin, mover, max_bytes, drained, config, progress)


def cancel_balance(connection: Connection, *, config: BalanceConfig | None = None) -> list[TopicPartition]:
    """Takes back what is being moved in our name, by a live process too, and takes throttles off.

    Returns:
        The partitions whose moves were cancelled.
    """
    config = config or BalanceConfig()
    with _opened(connection, config) as (admin, log):
        if log.read() is None:
            return []
        with _moving(connection, admin, log, config, from_the_living=True) as mover:
            return mover.take_back()


def forget_balance(connection: Connection, *, config: BalanceConfig | None = None) -> ForgottenBalance:
    """Clears a record that can't be understood, and looks in the cluster for what it may have told of.

    Whose the throttles and moves are that it finds, nobody can tell any more; they are left as they are.

    Raises:
        BalanceInProgressError: The record can be understood, and its balance is at work.
        BalanceError: It can be understood, so that `cancel_balance` takes back what it tells of.
    """
    config = config or BalanceConfig()
    with _opened(connection, config) as (admin, log):
        unreadable: UnreadableBalanceError | None = None
        try:
            left = log.read_unless_at_work(config.recent_s)
        except UnreadableBalanceError as error:
            unreadable = error
        else:
            if left is not None:
                raise BalanceError(
                    f"The record in topic {BALANCE_TOPIC!r} can be understood, so there is nothing to "
                    "forget: `evenload balance --cancel` takes back what it tells of, and clears it."
                )
        # Who may not look keeps the record: it is the only sign that something may be left.
        throttles, untold = find_throttles(admin)
        moving = tuple(sorted(admin.reassignments()))
        if unreadable is None:
            return ForgottenBalance(None, throttles, moving, untold)
        log.forget()
        wrong = f"{unreadable.size_bytes} bytes; {unreadable.reason}"
        return ForgottenBalance(wrong, throttles, moving, untold)


@contextmanager
def _opened(connection: Connection, config: BalanceConfig) -> Iterator[tuple[BalanceAdmin, BalanceLog]]:
    with (
        _translated(),
        closing(BalanceLog(connection, timeout_s=config.timeout_s)) as log,
        BalanceAdmin(connection, timeout_s=config.timeout_s, changing=log.changing) as admin,
    ):
        yield admin, log


@contextmanager
def _moving(
    connection: Connection,
    admin: BalanceAdmin,
    log: BalanceLog,
    config: BalanceConfig,
    *,
    from_the_living: bool = False,
) -> Iterator[Mover]:
    """A mover, in the name of this process."""
    mover = Mover(admin, log, log.take(config.recent_s, from_the_living=from_the_living), config)
    try:
        with mover:
            yield mover
    except BalanceCancelledError:
        if log.is_late:
            _take_back_late(connection, mover.record.without(log.read()), config)
        raise


def _take_back_late(connection: Connection, mine: BalanceRecord, config: BalanceConfig) -> None:
    """What was sent after somebody else had taken over: this process was suspended between look and request.

    The other one may have put all in order before, and be gone. So what is in its record is left to it, and
    the rest taken back, with an admin that doesn't ask whose turn it is.
    """
    with BalanceAdmin(connection, timeout_s=config.timeout_s) as admin:
        admin.cancel(sorted(ours_running(admin, mine)))
        if mine.throttle is not None:
            lift_throttle(admin, mine.throttle)


def _execute(
    connection: Connection,
    admin: BalanceAdmin,
    mover: Mover,
    max_bytes: int | None,
    drained: Collection[int],
    config: BalanceConfig,
    progress: Callable[[BalanceProgress], None],
) -> BalanceOutcome:
    notes = []
    is_left = mover.has_left_throttles
    if num_left := mover.finish_left(lambda at: progress(BalanceProgress(0, 0, at.waiting_for))):
        notes.append(f"{num_left} moves that an earlier balance had begun are complete.")
    elif is_left and not mover.has_left_throttles:
        notes.append(_THROTTLES_OFF)
    before = _measure(connection)
    plan, more = _plan(admin, before, max_bytes, drained, config)
    notes += more
    schedule = MoveSchedule(
        plan.moves, small_bytes=config.small_bytes, utilisation_limit=config.utilisation_limit
    )
    notes += schedule.look(before)
    moved_bytes, left_out = mover.carry_out(
        schedule,
        measure=lambda: settled(before, _measure(connection)),
        progress=lambda at: progress(BalanceProgress(at.moved_bytes, plan.moved_bytes, at.waiting_for)),
    )
    notes += left_out
    after = settled(before, _measure(connection)) if plan.moves else before
    notes += _left_behind(mover)
    return BalanceOutcome(plan=plan, before=before, after=after, moved_bytes=moved_bytes, notes=tuple(notes))


def _tidy(connection: Connection, admin: BalanceAdmin, log: BalanceLog, config: BalanceConfig) -> list[str]:
    """Takes off what a dead balance left, unless something is still being moved under it."""
    try:
        left = log.read_unless_at_work(config.recent_s)
    except (BalanceInProgressError, UnreadableBalanceError) as error:
        return [str(error)]
    if left is None:
        return []
    running = admin.reassignments()
    num_running = sum(target.topic_partition in running for target in left.targets)
    if num_running:
        return [
            f"{num_running} moves that an earlier balance had begun are still going on, throttled: --execute "
            "goes on with them, --cancel takes them back."
        ]
    try:
        with _moving(connection, admin, log, config) as mover:
            mover.take_back()
    except (BalanceInProgressError, BalanceCancelledError) as error:
        return [str(error)]  # somebody has begun in this very moment
    return _left_behind(mover) or ([_THROTTLES_OFF] if left.throttle is not None else [])


def _left_behind(mover: Mover) -> list[str]:
    return [
        f"broker {broker_id} doesn't answer, so its throttle rate stays, without effect; the next `evenload "
        "balance` takes it off."
        for broker_id in mover.left_behind
    ]


def _plan(
    admin: BalanceAdmin,
    snapshot: ClusterSnapshot,
    max_bytes: int | None,
    drained: Collection[int],
    config: BalanceConfig,
) -> tuple[MovePlan, list[str]]:
    if unknown := sorted(set(drained) - set(snapshot.brokers)):
        raise BalanceError(f"There is no broker {unknown[0]}; brokers are {sorted(snapshot.brokers)}.")
    others = admin.reassignments()
    plan = plan_moves(
        snapshot,
        max_bytes=max_bytes,
        spread_goal=config.spread_goal,
        utilisation_limit=config.utilisation_limit,
        drained=drained,
        excluded=others,
    )
    notes = []
    if others:
        notes.append(f"{len(others)} partitions are being reassigned by somebody else, and are left alone.")
    closed = sorted(b for b, broker in snapshot.brokers.items() if broker.is_cordoned and b not in drained)
    if closed:
        named = ", ".join(map(str, closed))
        notes.append(
            f"broker {named} takes nothing: cordoned, or drained by a weight of 0. What it holds only leaves "
            "with --drain, or where it is fuller than others."
        )
    return plan, [*notes, *plan.notes]


def _measure(connection: Connection) -> ClusterSnapshot:
    """The cluster; a broker that an operator drains is cordoned in it."""
    weights = read_weights(connection, timeout_s=_SNAPSHOT_TIMEOUT_S) or Weights()
    snapshot = sample_once(connection, timeout_s=_SNAPSHOT_TIMEOUT_S)
    brokers = {
        broker_id: replace(broker, is_cordoned=broker.is_cordoned or broker_id in weights.drained)
        for broker_id, broker in snapshot.brokers.items()
    }
    return replace(snapshot, brokers=brokers)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CatalogRefusedError as error:
        permission = error.permission.removeprefix("it needs ")
        raise BalanceRefusedError(error.doing, "it is not allowed", permission) from error
    except CatalogError as error:
        raise BalanceInterruptedError("writing down what is moved", str(error)) from error
