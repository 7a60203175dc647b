"""What a route makes of what an operator says, and of clusters that are not nice."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from evenload.route_service import patience_in_thread
from evenload.route_service.patience_in_thread import PatienceInThread
from evenload.router.config import RouterConfig
from evenload.router.levelling import GoalContext
from evenload.router.min_max import FloatArray
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    LogDirSnapshot,
    TopicConfig,
    TopicPartition,
)
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20
GIB = 1 << 30


def changed(snapshot: ClusterSnapshot, broker_id: int, **changes: object) -> ClusterSnapshot:
    broker = replace(snapshot.brokers[broker_id], **changes)  # type: ignore[arg-type]
    return replace(snapshot, brokers={**snapshot.brokers, broker_id: broker})


def decide(router: Router, snapshot: ClusterSnapshot, remaining_bytes: int = 300 * MIB) -> Route:
    return router.route(
        snapshot,
        "t",
        num_partitions=len(snapshot.topics["t"]),
        remaining_bytes=remaining_bytes,
        now_s=snapshot.taken_at_s + 1,
    )


def three_brokers(used: tuple[int, int, int] = (0, 0, 0)) -> ClusterSnapshot:
    return make_snapshot([size * MIB for size in used], 1000 * MIB, topics={"t": [(1,), (2,), (3,)]})


def test_a_drained_broker_gets_nothing_and_is_named() -> None:
    router = Router()
    assert router.reload(brokers={2: 0}) == ()
    route = decide(router, three_brokers())
    assert route.shares == pytest.approx({0: 0.5, 2: 0.5})
    assert "broker 2 left out: drained." in route.notes
    assert router.reload(brokers={}) == ()
    assert decide(router, three_brokers()).shares == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})


def test_a_half_willing_broker_looks_half_as_free() -> None:
    router = Router()
    router.reload(brokers={2: 0.5})
    shares = decide(router, three_brokers(), remaining_bytes=1000 * MIB).shares
    assert shares[1] == pytest.approx(0.2)


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan"), True, "0"])
def test_a_bad_weight_of_a_broker_is_refused_and_the_old_ones_stay(weight: float) -> None:
    router = Router()
    router.reload(brokers={2: 0})
    (told,) = router.reload(brokers={2: 1, 3: weight})
    assert "weight of broker 3" in told
    assert set(decide(router, three_brokers()).shares) == {0, 2}


def test_a_cordoned_broker_gets_nothing_and_is_named() -> None:
    route = decide(Router(), changed(three_brokers(), 3, is_cordoned=True))
    assert set(route.shares) == {0, 1}
    assert "broker 3 left out: cordoned." in route.notes


def test_the_only_broker_of_a_topic_is_written_to_though_it_is_drained() -> None:
    router = Router()
    router.reload(brokers={1: 0})
    snapshot = make_snapshot([0, 0], 1000 * MIB, topics={"t": [(1,)]})
    route = decide(router, snapshot)
    assert route.shares == {0: 1.0}
    assert any("should get nothing (drained), but no other can take data" in note for note in route.notes)


def test_a_drained_broker_without_a_partition_is_not_recommended() -> None:
    snapshot = make_snapshot([500 * MIB, 0, 0], 1000 * MIB, topics={"t": [(1,)]})
    router = Router()
    router.reload(brokers={2: 0})
    (note,) = [note for note in decide(router, snapshot).notes if "no partition of" in note]
    assert note.startswith("broker 3 could take data")


def test_bytes_that_others_announced_count_as_if_they_were_there() -> None:
    announced = changed(three_brokers(), 1, announced_bytes=100 * MIB)
    there = three_brokers((100, 0, 0))
    assert decide(Router(), announced).shares == pytest.approx(dict(decide(Router(), there).shares))


def test_a_broker_is_not_full_because_of_what_was_only_announced() -> None:
    route = decide(Router(), changed(three_brokers((900, 900, 900)), 1, announced_bytes=400 * MIB))
    assert not any("full" in note and "left out" in note for note in route.notes)


def test_more_used_than_configured_is_said() -> None:
    route = decide(Router(), three_brokers((1200, 0, 0)))
    assert any(note.startswith("broker 1 holds more than the capacity") for note in route.notes)


def two_volumes(used: tuple[int, int], held: tuple[int, int]) -> dict[str, object]:
    return {
        "used_bytes": sum(used) * MIB,
        "capacity_bytes": 1000 * MIB,
        "log_dirs": {
            path: LogDirSnapshot(
                capacity_bytes=500 * MIB,
                used_bytes=size * MIB,
                topic_partitions=frozenset({TopicPartition("t", number)}),
            )
            for path, size, number in zip(("/a", "/b"), used, held, strict=True)
        },
    }


def test_a_full_volume_gets_nothing_though_its_broker_has_room() -> None:
    snapshot = make_snapshot([0, 0], 1000 * MIB, topics={"t": [(1,), (1,), (2,)]})
    snapshot = changed(snapshot, 1, **two_volumes((490, 0), (0, 1)))
    route = decide(Router(), snapshot)
    assert route.shares == pytest.approx({1: 1 / 3, 2: 2 / 3})
    assert any("broker 1 (volume 1) left out: 95% full or more" in note for note in route.notes)


def test_volumes_are_levelled_as_brokers_are() -> None:
    snapshot = make_snapshot([0, 100 * MIB], 1000 * MIB, topics={"t": [(1,), (1,), (2,)]})
    snapshot = changed(snapshot, 1, **two_volumes((100, 0), (0, 1)))
    shares = decide(Router(), snapshot, remaining_bytes=400 * MIB).shares
    after = [
        (100 + 400 * shares.get(0, 0)) / 500,
        400 * shares[1] / 500,
        (100 + 400 * shares[2]) / 1000,
    ]
    assert max(after) - min(after) < 0.002


def test_a_load_for_readers_is_even_over_brokers_however_many_volumes_they_have() -> None:
    snapshot = make_snapshot([0, 100 * MIB], 1000 * MIB, topics={"t": [(1,), (1,), (2,)]})
    snapshot = changed(snapshot, 1, **two_volumes((100, 0), (0, 1)))
    router = Router(RouterConfig(goals={"dataset_spread": 1.0}))
    shares = decide(router, snapshot, remaining_bytes=400 * MIB).shares
    assert shares[2] == pytest.approx(0.5, abs=0.01)


def test_a_load_for_readers_spares_a_broker_of_half_a_weight() -> None:
    router = Router(RouterConfig(goals={"dataset_spread": 1.0}))
    router.reload(brokers={1: 0.5})
    snapshot = make_snapshot([0, 0, 0], 1000 * MIB, topics={"t": [(1,), (2,), (3,)]})
    assert decide(router, snapshot, remaining_bytes=100 * MIB).shares == pytest.approx(
        {0: 0.2, 1: 0.4, 2: 0.4}
    )


def never(broker: BrokerSnapshot, context: object) -> float:  # noqa: ARG001
    raise RuntimeError("no")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_slow_function_is_put_aside_named_and_tried_again_after_a_while() -> None:
    clock = Clock()
    asked: list[int] = []

    def slow(broker: BrokerSnapshot, context: object) -> float:  # noqa: ARG001
        asked.append(broker.broker_id)
        clock.now_s += 0.2
        return 0.0 if broker.broker_id == 1 else 1.0

    config = RouterConfig(score_functions={"slow": 1.0, "reachability": 1.0}, put_aside_s=60)
    router = Router(config, score_functions={"slow": slow}, clock=clock)
    route = decide(router, three_brokers())
    assert asked == [1, 2]
    assert set(route.shares) == {0, 1, 2}
    said = "took 0.4 s for 2 of 3 brokers, where 0.25 s is allowed"
    assert router.put_aside == {"slow": said}
    assert f"'slow' was put aside: it {said}." in route.notes
    clock.now_s += 30
    decide(router, three_brokers())
    assert asked == [1, 2]
    clock.now_s += 31
    assert router.put_aside == {}
    decide(router, three_brokers())
    assert asked == [1, 2, 1, 2]
    assert router.put_aside_counts == {"slow": 2}


def test_a_function_that_does_not_come_back_is_left_to_itself_and_not_asked_again_before_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, is_asked, is_over = Clock(), threading.Event(), threading.Event()
    asked: list[int] = []

    def hanging(broker: BrokerSnapshot, context: object) -> float:  # noqa: ARG001
        asked.append(broker.broker_id)
        is_asked.set()
        is_over.wait()
        return 0.0 if broker.broker_id == 1 else 1.0

    config = RouterConfig(
        score_functions={"hanging": 1.0, "reachability": 1.0}, function_time_max_s=0.01, put_aside_s=60
    )
    router = Router(config, score_functions={"hanging": hanging}, clock=clock, patience=PatienceInThread)
    assert set(decide(router, three_brokers()).shares) == {0, 1, 2}
    assert router.put_aside == {"hanging": "hasn't come back, where 0.01 s is allowed; it is left to itself"}
    assert is_asked.wait(60)
    clock.now_s += 61
    decide(router, three_brokers())
    assert router.put_aside == {"hanging": "still hasn't come back from when it was asked before"}
    assert asked == [1]
    is_over.set()
    for thread in threading.enumerate():
        if thread.name == "evenload-function":
            thread.join()
    monkeypatch.setattr(patience_in_thread, "_LEFT_AFTER", 60.0 / 0.01)  # a busy machine comes to it late
    clock.now_s += 61
    assert set(decide(router, three_brokers()).shares) == {1, 2}
    assert asked == [1, 1, 2, 3]


def test_a_goal_that_does_not_come_back_is_left_to_itself() -> None:
    is_over = threading.Event()

    def hanging(context: GoalContext) -> FloatArray:
        is_over.wait()
        return np.ones(len(context.replica_sets))

    config = RouterConfig(goals={"hanging": 1.0, "disk_usage": 1.0}, function_time_max_s=0.01)
    router = Router(config, goals={"hanging": hanging}, patience=PatienceInThread)
    route = decide(router, three_brokers())
    is_over.set()
    said = "hasn't come back, where 0.01 s is allowed; it is left to itself"
    assert not route.is_fallback
    assert f"'hanging' was put aside: it {said}." in route.notes


def test_new_weights_give_what_was_put_aside_another_chance() -> None:
    config = RouterConfig(score_functions={"never": 1.0})
    router = Router(config, score_functions={"never": never}, clock=Clock())
    decide(router, three_brokers())
    assert set(router.put_aside) == {"never"}
    router.reload(score_functions={"never": 2.0})
    assert router.put_aside == {}


def test_an_explanation_names_each_functions_part_and_each_veto() -> None:
    snapshot = changed(three_brokers(), 1, ingest_bytes_per_s=100.0 * MIB)
    snapshot = changed(changed(snapshot, 2, ingest_bytes_per_s=0.0), 3, unreachable_since_s=1000.0)
    config = RouterConfig(score_functions={"reachability": 1.0, "ingest_rate": 1.0, "never": 1.0})
    router = Router(config, score_functions={"never": never}, clock=Clock())
    router.reload(brokers={2: 0})
    told = router.explain(snapshot)
    assert told.scores == {"reachability": {1: 1.0, 2: 1.0, 3: 0.0}, "ingest_rate": {1: 0.5, 2: 1.0, 3: 1.0}}
    assert told.by_broker == {1: 0.5, 2: 0.0, 3: 0.0}
    assert told.vetoes == {2: "drained", 3: "unreachable"}
    assert told.put_aside == {"never": "raised RuntimeError: no for broker 1"}
    assert set(router.explain(snapshot).put_aside) == {"never"}


def limited(snapshot: ClusterSnapshot, max_mib: int) -> ClusterSnapshot:
    return replace(snapshot, topic_configs={"t": TopicConfig(partition_max_bytes=max_mib * MIB)})


def holding(held_mib: tuple[int, int, int], used_mib: tuple[int, int, int]) -> ClusterSnapshot:
    return make_snapshot(
        [size * MIB for size in used_mib],
        1000 * MIB,
        topics={"t": [(1,), (2,), (3,)]},
        stored_bytes={("t", number): size * MIB for number, size in enumerate(held_mib)},
    )


def test_where_retention_deletes_as_much_as_comes_shares_are_even_and_it_is_said() -> None:
    router = Router()
    snapshot = limited(holding((100, 100, 100), (500, 100, 100)), 100)
    route = decide(router, snapshot)
    assert route.shares == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert not route.is_fallback
    assert route.notes[0].startswith("retention.bytes deletes as much as comes")
    again = router.route(
        snapshot, "t", num_partitions=3, remaining_bytes=None, now_s=snapshot.taken_at_s, previous=route
    )
    assert again is route


def test_what_retention_will_delete_is_not_counted_as_coming() -> None:
    """Of 900 MiB to come only 150 stay; levelled for all of them, broker 1 would be lowered too little."""
    route = decide(Router(), limited(holding((50, 50, 50), (200, 50, 50)), 100), remaining_bytes=900 * MIB)
    assert route.shares.get(0, 0.0) == pytest.approx(0.0, abs=1e-6)


def test_a_topic_without_a_limit_by_size_is_levelled_as_ever() -> None:
    snapshot = holding((100, 100, 100), (500, 100, 100))
    other = replace(snapshot, topic_configs={"other": TopicConfig(partition_max_bytes=1)})
    assert decide(Router(), other).shares == decide(Router(), snapshot).shares


def test_that_a_drained_broker_stays_emptier_is_no_news() -> None:
    router = Router()
    router.reload(brokers={3: 0})
    assert decide(router, three_brokers((300, 300, 0))).notes == ("broker 3 left out: drained.",)
