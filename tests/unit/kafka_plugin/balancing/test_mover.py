"""What a balance does where brokers don't do what they are told: whatever is ours stays written down.

And what the next start does with what a dead one left, wherever that died.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Self

import pytest
from kafka.errors import KafkaTimeoutError

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.balancing import admin as balance_admin
from evenload.kafka_plugin.balancing import balance, reassignment
from evenload.kafka_plugin.balancing.admin import BalanceAdmin, Reassignment, SettingChange
from evenload.kafka_plugin.balancing.balance import cancel_balance, execute_balance, preview_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.reassignment import Mover
from evenload.kafka_plugin.balancing.record import BalanceRecord, Target, ThrottleRecord
from evenload.kafka_plugin.balancing.replication_throttle import lift_throttle
from evenload.kafka_plugin.errors import BalanceCancelledError, BalanceInterruptedError
from evenload.router.moves import schedule
from evenload.router.moves.plan import Move, MovePlan
from evenload.router.moves.planning import plan_moves
from evenload.router.moves.schedule import MoveSchedule
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot

LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
CONFIG = BalanceConfig(poll_s=0.001, throttle_bytes_per_s=2000, look_s=0.001, patience_s=0.01)
AT = TopicPartition("t", 0)
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
CONNECTION = Connection(bootstrap_servers="broker:9092")


class Log:
    def __init__(self, record: BalanceRecord | None) -> None:
        self.standing = record
        self.is_late = False

    def read(self) -> BalanceRecord | None:
        return self.standing

    def read_unless_at_work(self, recent_s: float) -> BalanceRecord | None:  # noqa: ARG002
        return self.standing

    def take(self, recent_s: float, *, from_the_living: bool = False) -> BalanceRecord:  # noqa: ARG002
        return self.write(BalanceRecord.begin(self.standing))

    def changing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, record: BalanceRecord) -> BalanceRecord:
        self.standing = record
        return record

    def clear(self) -> None:
        self.standing = None

    def close(self) -> None:
        """Nothing is open."""


class Admin:
    """Brokers that keep settings, and make reassignments at once unless they are deaf."""

    def __init__(self) -> None:
        self.by_name: dict[int | str, dict[str, str]] = {}
        self.running: dict[TopicPartition, Reassignment] = {}
        self.placed: dict[TopicPartition, tuple[int, ...]] = {}

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        return self.running

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Told, and not done."""

    def reassign(self, replica_ids: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, str]:
        self.placed |= {at: tuple(ids) for at, ids in replica_ids.items()}
        return {}

    def replicas(self, topics: Collection[str]) -> dict[TopicPartition, tuple[int, ...]]:  # noqa: ARG002
        return self.placed

    def settings(self, of: int | str, names: Sequence[str]) -> dict[str, str]:
        return {name: value for name, value in self.by_name.get(of, {}).items() if name in names}

    def own_settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        return Admin.settings(self, topic, names)

    def change_settings(self, of: int | str, changes: Sequence[SettingChange]) -> None:
        there = self.by_name.setdefault(of, {})
        for change in changes:
            value = change.value or ""
            listed = [entry for entry in there.get(change.name, "").split(",") if entry]
            match change.operation:
                case "DELETE":
                    there.pop(change.name)
                case "SET":
                    there[change.name] = value
                case "APPEND":
                    there[change.name] = ",".join([*listed, *value.split(",")])
                case "SUBTRACT":
                    there[change.name] = ",".join(e for e in listed if e not in value.split(","))


def _mover(admin: Any, **left: Any) -> tuple[Mover, Log]:
    record = BalanceRecord.begin(None).model_copy(update=left)
    log: Any = Log(record)
    return Mover(admin, log, record, CONFIG), log


def test_moves_that_kafka_goes_on_with_stay_ours_and_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "_CANCEL_TIMEOUT_S", 0.01)
    admin = Admin()
    admin.by_name = {1: {LEADER: "5"}}
    admin.running = {AT: Reassignment(replica_ids=(1, 2), adding_ids=(2,), removing_ids=(1,))}
    target = Target(topic="t", partition=0, replica_ids=(2,))
    mover, log = _mover(admin, targets=(target,), throttle=ThrottleRecord(rates={1: {LEADER: "5"}}))
    with pytest.raises(BalanceInterruptedError, match="still makes 1 of them"):
        mover.take_back()
    assert admin.by_name == {1: {LEADER: "5"}}
    assert log.standing is not None
    assert log.standing.targets == (target,)
    assert log.standing.throttle is not None


def test_a_rate_that_was_left_behind_is_taken_off_beside_a_new_one_of_the_same_broker() -> None:
    admin = Admin()
    # Both were ours on broker 1, which was down then; somebody has taken one of them off since.
    admin.by_name = {1: {LEADER: "1000"}}
    left = ThrottleRecord(rates={1: {LEADER: "1000", FOLLOWER: "1000"}})
    mover, log = _mover(admin, throttle=left)
    move = Move(
        topic_partition=AT, size_bytes=1, replica_ids_before=(1,), leader_id_before=1, replica_ids=(2,)
    )
    with mover:
        waiting = MoveSchedule([move], small_bytes=0)
        waiting.look(make_snapshot([1, 0], topics={"t": [(1,)]}, stored_bytes={("t", 0): 1}))
        moved = mover.carry_out(waiting, lambda: pytest.fail("nothing waits"), lambda _: None)
    assert moved == (1, [])
    assert not any(admin.by_name.values())
    assert log.standing is None


def test_what_kafka_refuses_stays_and_the_others_go_on() -> None:
    class Refusing(Brokers):
        def reassign(self, replica_ids: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, str]:
            super().reassign({at: ids for at, ids in replica_ids.items() if at.partition != 0})
            return {at: "UnknownTopicOrPartitionError" for at in replica_ids if at.partition == 0}

    brokers = Refusing()
    moves = [
        Move(
            topic_partition=TopicPartition("t", number),
            size_bytes=Brokers.SIZE_BYTES,
            replica_ids_before=(1,),
            leader_id_before=1,
            replica_ids=(2,),
        )
        for number in range(3)
    ]
    waiting = MoveSchedule(moves, small_bytes=0)
    waiting.look(brokers.snapshot())
    mover, log = _mover(brokers)
    with mover:
        moved_bytes, notes = mover.carry_out(waiting, brokers.snapshot, lambda _: None)
    assert moved_bytes == 2 * Brokers.SIZE_BYTES
    assert notes == ["partition 0 of 't' stays: Kafka refuses to move it (UnknownTopicOrPartitionError)."]
    assert [brokers.placed[each.topic_partition] for each in moves] == [(1,), (2,), (2,)]
    assert not brokers.has_other_settings
    assert log.standing is None


def test_a_list_in_which_others_stay_is_never_deleted_whatever_the_broker_knows_of_it() -> None:
    behind = Admin()
    behind.by_name = {"t": {LEADERS: "0:1"}}  # it hasn't heard of the entry that was added last
    done = ThrottleRecord(replicas={"t": {LEADERS: ["0:1"]}})
    changes: list[SettingChange] = []
    behind.change_settings = lambda _, made: changes.extend(made)  # type: ignore[method-assign]
    lift_throttle(behind, done, kept=ThrottleRecord(replicas={"t": {LEADERS: ["1:1"]}}))  # type: ignore[arg-type]
    lift_throttle(behind, done)  # type: ignore[arg-type]
    assert [change.operation for change in changes] == ["SUBTRACT", "DELETE"]


def test_an_empty_list_is_deleted_though_brokers_knew_too_late_that_nothing_would_be_left() -> None:
    class Late(Admin):
        """Two answers are older than what was changed a moment ago."""

        old = ["0:1,1:1", "0:1,1:1"]  # noqa: RUF012

        def settings(self, of: int | str, names: Sequence[str]) -> dict[str, str]:
            return {LEADERS: self.old.pop()} if len(self.old) == 2 else super().settings(of, names)

        def own_settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
            return {LEADERS: self.old.pop()} if self.old else super().own_settings(topic, names)

    late = Late()
    late.by_name = {"t": {LEADERS: "1:1"}}  # 0:1 was taken out before
    lift_throttle(late, ThrottleRecord(replicas={"t": {LEADERS: ["1:1"]}}))  # type: ignore[arg-type]
    assert late.by_name == {"t": {}}


@pytest.mark.parametrize(("age_s", "may_be"), [(30.0, True), (31.0, False), (-30.0, True), (-31.0, False)])
def test_a_balance_elsewhere_is_at_work_while_its_date_is_near_our_clock(age_s: float, may_be: bool) -> None:
    left = BalanceRecord(run_id="r", host="elsewhere", pid=1, updated_at_s=1000.0 - age_s)
    assert left.may_be_at_work(now_s=1000.0, recent_s=30.0) is may_be


class DeafKafka:
    """An admin client whose first answer doesn't come; says which orders it was given."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self._controller_id = 1

    def _order(self, name: str) -> None:
        self.orders.append(name)
        if len(self.orders) == 1:
            raise KafkaTimeoutError("no answer")

    def alter_configs(self, resources: Any, **_: Any) -> Any:
        self._order("settings")
        return {"broker": {resources[0].name: "OK"}}

    def alter_partition_reassignments(self, asked: Any, **_: Any) -> Any:
        self._order("reassignments")
        return dict.fromkeys(asked)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.change_settings(1, [SettingChange(name=LEADER, operation="SET", value="5")]),
        lambda admin: admin.reassign({AT: (2,)}),
        lambda admin: admin.cancel([AT]),
    ],
    ids=["settings", "reassign", "cancel"],
)
def test_before_each_time_that_a_change_is_sent_it_is_asked_whether_it_is_ours_to_make(
    change: Callable[[BalanceAdmin], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = DeafKafka()
    monkeypatch.setattr(balance_admin, "open_admin", lambda *_, **__: kafka)
    num_asked = 0

    @contextmanager
    def ours_once() -> Iterator[None]:
        nonlocal num_asked
        num_asked += 1
        if num_asked > 1:
            raise BalanceCancelledError(1)
        yield

    with (
        BalanceAdmin(CONNECTION, timeout_s=30, changing=ours_once) as admin,
        pytest.raises(BalanceCancelledError),
    ):
        change(admin)
    assert (num_asked, len(kafka.orders)) == (2, 1), "the repetition is not sent"


def test_who_was_late_takes_back_what_nobody_else_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Brokers()
    other = TopicPartition("t", 1)
    admin.reassign({AT: (2,), other: (3,)})
    admin.by_name = {1: {LEADER: "5"}, 2: {LEADER: "5"}, "t": {LEADERS: "0:1,1:1", FOLLOWERS: "9:9"}}
    targets = (
        Target(topic="t", partition=0, replica_ids=(2,)),
        Target(topic="t", partition=1, replica_ids=(3,)),
    )
    rates = {1: {LEADER: "5"}, 2: {LEADER: "5"}}
    mine = ThrottleRecord(rates=rates, replicas={"t": {LEADERS: ["0:1", "1:1"]}})
    theirs = ThrottleRecord(rates={2: {LEADER: "5"}}, replicas={"t": {LEADERS: ["1:1"]}})
    late: Any = Log(BalanceRecord.begin(None).model_copy(update={"targets": targets, "throttle": mine}))
    standing = late.standing.model_copy(update={"targets": targets[1:], "throttle": theirs})
    late.is_late = True
    monkeypatch.setattr(late, "take", lambda *_, **__: late.standing)
    monkeypatch.setattr(balance, "BalanceAdmin", lambda *_, **__: Mortal(Life(), admin))

    def be_suspended() -> None:
        late.standing = standing
        raise BalanceCancelledError(2)

    monkeypatch.setattr(late, "write", lambda _: be_suspended())
    with (
        pytest.raises(BalanceCancelledError),
        balance._moving(CONNECTION, Admin(), late, CONFIG) as mover,  # type: ignore[arg-type]
    ):
        mover.finish_left(lambda _: None)
    assert set(admin.running) == {other}
    assert admin.by_name == {1: {}, 2: {LEADER: "5"}, "t": {LEADERS: "1:1", FOLLOWERS: "9:9"}}


class Killed(BaseException):
    """By `kill -9`: nothing comes after it, not even what takes back."""


class Life:
    """A process that dies at a call, before it is made or when the answer is on its way."""

    def __init__(self, *, dies_at: int | None = None, is_made: bool = False) -> None:
        self.num_calls = 0
        self.outcome: Any = None
        self._dies_at = dies_at
        self._is_made = is_made

    def call(self, make: Callable[[], Any]) -> Any:
        self.num_calls += 1
        if self._dies_at is None or self.num_calls < self._dies_at:
            return make()
        if self._is_made and self.num_calls == self._dies_at:
            make()
        raise Killed


class Mortal:
    """Passes calls on, as one process makes them."""

    def __init__(self, life: Life, to: Any) -> None:
        self._life = life
        self._to = to

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._to, name)
        if not callable(found):
            return found
        return lambda *given, **options: self._life.call(partial(found, *given, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The connection ends, whatever of."""


class Brokers(Admin):
    """Three of them, the first too full. An operator has throttled some of what goes on, too.

    Copies are complete when they have been asked for a few times; whoever died, Kafka goes on with them.
    """

    SIZE_BYTES = 50_000
    NUM_QUESTIONS = 2

    def __init__(self) -> None:
        super().__init__()
        self.by_name = {2: {LEADER: "777"}, "t": {LEADERS: "4:1,8:2"}}
        self.placed = {TopicPartition("t", number): (1,) for number in range(6)}
        self._num_left: dict[TopicPartition, int] = {}
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}

    def snapshot(self) -> ClusterSnapshot:
        layout = [self.placed[TopicPartition("t", number)] for number in range(len(self.placed))]
        used = [self.SIZE_BYTES * sum(broker_id in ids for ids in layout) for broker_id in (1, 2, 3)]
        stored = {("t", number): self.SIZE_BYTES for number in range(len(layout))}
        return make_snapshot(used, topics={"t": layout}, stored_bytes=stored)

    def reassign(self, replica_ids: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, str]:
        for at, ids in replica_ids.items():
            old, new = set(self.placed[at]), set(ids)
            self.running[at] = Reassignment(
                replica_ids=(*ids, *(old - new)), adding_ids=tuple(new - old), removing_ids=tuple(old - new)
            )
            self.targets[at] = tuple(ids)
            self._num_left[at] = self.NUM_QUESTIONS + at.partition % 2  # some end while others are under way
        return {}

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        running = dict(self.running)
        for at in running:
            self._num_left[at] -= 1
            if not self._num_left[at]:
                self.placed[at] = self.targets[at]
                del self.running[at]
        return running

    def finish(self) -> None:
        """Kafka has time, and nobody asks it."""
        while self.running:
            self.reassignments()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self.running.pop(at, None)

    def copy_bytes(self, broker_id: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:  # noqa: ARG002
        return dict.fromkeys(partitions, 0)

    @property
    def has_other_settings(self) -> bool:
        """Than those of the operator."""
        return {of: there for of, there in self.by_name.items() if there} != Brokers().by_name

    def is_throttled(self, at: TopicPartition) -> bool:
        topic = self.by_name["t"]
        return all(
            any(entry.startswith(f"{at.partition}:") for entry in topic.get(name, "").split(","))
            for name in (LEADERS, FOLLOWERS)
        )


_plans: dict[str, MovePlan] = {}


def plan_once(snapshot: ClusterSnapshot, **options: Any) -> MovePlan:
    """As `plan_moves`, whose linear programs take longer than all the rest of a life."""
    situation = repr((snapshot, options))
    if situation not in _plans:
        _plans[situation] = plan_moves(snapshot, **options)
    return _plans[situation]


class Stage:
    """Brokers and a record, and processes that come and go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers = Brokers()
        self.log = Log(None)
        self._monkeypatch = monkeypatch

    def live(self, act: Callable[..., Any], **life: Any) -> Life:
        """Runs a command, to its end or its death."""
        living = Life(**life)
        self._monkeypatch.setattr(balance, "BalanceAdmin", lambda *_, **__: Mortal(living, self.brokers))
        self._monkeypatch.setattr(balance, "BalanceLog", lambda *_, **__: Mortal(living, self.log))
        self._monkeypatch.setattr(balance, "sample_once", lambda *_, **__: self.brokers.snapshot())
        self._monkeypatch.setattr(balance, "plan_moves", plan_once)
        self._monkeypatch.setattr(schedule, "AT_ONCE", 2)
        with suppress(Killed):
            living.outcome = act(CONNECTION, config=CONFIG.model_copy(update={"poll_s": 1e-6}))
        return living

    def check_that_nothing_is_left(self) -> None:
        """Settings are as they were, each move is made or taken back, and the record says so."""
        assert not self.brokers.has_other_settings
        assert self.brokers.running == {}
        for at, ids in self.brokers.placed.items():
            assert ids in ((1,), self.brokers.targets.get(at))
        assert self.log.standing is None


@pytest.fixture
def new_stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Stage]:
    return partial(Stage, monkeypatch)


@pytest.mark.parametrize("does_kafka_finish", [False, True], ids=["kafka-goes-on", "kafka-finishes"])
@pytest.mark.parametrize("is_made", [False, True], ids=["before-a-call", "before-its-answer"])
@pytest.mark.parametrize("next_start", [execute_balance, cancel_balance, preview_balance])
def test_wherever_a_balance_is_killed_the_next_start_leaves_nothing_of_it(
    new_stage: Callable[[], Stage], next_start: Callable[..., Any], is_made: bool, does_kafka_finish: bool
) -> None:
    has_left_throttles = set()
    for dies_at in range(1, new_stage().live(execute_balance).num_calls + 1):
        stage = new_stage()
        stage.live(execute_balance, dies_at=dies_at, is_made=is_made)
        is_throttled = stage.brokers.has_other_settings
        has_left_throttles.add(is_throttled)
        assert all(stage.brokers.is_throttled(at) for at in stage.brokers.running)
        if does_kafka_finish or next_start is preview_balance:  # which touches nothing that moves
            stage.brokers.finish()
        outcome = stage.live(next_start).outcome
        stage.check_that_nothing_is_left()
        if next_start is execute_balance:
            assert stage.brokers.snapshot().utilisation_spread < 0.01
        if next_start is preview_balance and is_throttled:
            assert "an earlier balance had left its throttles behind; they are off now." in outcome.notes
    assert has_left_throttles == {False, True}


@pytest.mark.parametrize("is_made", [False, True], ids=["before-a-call", "before-its-answer"])
@pytest.mark.parametrize("killed_next", [execute_balance, cancel_balance, preview_balance])
def test_who_is_killed_while_it_puts_in_order_what_a_dead_one_left_leaves_it_to_the_next(
    new_stage: Callable[[], Stage], killed_next: Callable[..., Any], is_made: bool
) -> None:
    def stage_of_a_death(at: int) -> Stage:
        stage = new_stage()
        stage.live(execute_balance, dies_at=at, is_made=True)
        return stage

    is_ordered_at = next(at for at in itertools.count(1) if stage_of_a_death(at).brokers.running)

    def stage_to_put_in_order() -> Stage:
        stage = stage_of_a_death(is_ordered_at)
        if killed_next is preview_balance:  # which touches nothing that moves
            stage.brokers.finish()
        return stage

    for dies_at in range(1, stage_to_put_in_order().live(killed_next).num_calls + 1):
        stage = stage_to_put_in_order()
        stage.live(killed_next, dies_at=dies_at, is_made=is_made)
        assert all(stage.brokers.is_throttled(at) for at in stage.brokers.running)
        stage.live(execute_balance)
        stage.check_that_nothing_is_left()
        assert stage.brokers.snapshot().utilisation_spread < 0.01


def test_a_dry_run_says_nothing_of_throttles_where_a_dead_balance_had_planned_none(
    new_stage: Callable[[], Stage],
) -> None:
    stage = new_stage()
    stage.live(execute_balance, dies_at=3)
    assert stage.log.standing is not None
    notes = stage.live(preview_balance).outcome.notes
    assert not any("throttles" in note for note in notes)
    stage.check_that_nothing_is_left()
