"""What producers push counts as long as it should, and nobody takes all the room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.pushed.client_figures import ClientFigures
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients, PushingClient

BROKERS = (1, 2, 3)


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def client(number: int, *, address: str = "a", interval_s: float | None = 10.0) -> PushingClient:
    return PushingClient(instance_id=str(number), address=address, interval_s=interval_s)


def java(latency: dict[int, float]) -> ClientFigures:
    return ClientFigures(kind="java", latency_s_by_broker=latency)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(1, 3)), max_size=60),
    st.integers(1, 12),
    st.integers(5, 60),
)
def test_there_is_never_more_than_there_is_room_for_and_a_flood_pushes_out_its_own(
    pushes: list[tuple[int, str, int]], max_clients: int, max_figures: int
) -> None:
    clients = PushedClients(max_clients=max_clients, max_figures=max_figures)
    kept: dict[str, tuple[str, float]] = {}  # who was heard longest ago comes first
    for number, address, count in pushes:
        figures = java(dict.fromkeys(BROKERS[:count], 1.0))
        clients.hear(client(number, address=address), figures)
        kept.pop(str(number), None)
        kept[str(number)] = (address, 1 / max_clients + figures.num_figures / max_figures)
        assert len(clients._heard) <= max_clients
        assert sum(each.figures.num_figures for each in clients._heard.values()) <= max_figures
        gone = [id_ for id_ in kept if id_ not in clients._heard]
        assert clients._num_figures == sum(each.figures.num_figures for each in clients._heard.values())
        if gone:
            left = dict.fromkeys("abc", 0.0)
            for id_, (whose, part) in kept.items():
                left[whose] += part if id_ in clients._heard else 0.0
            for id_ in gone:
                whose, _ = kept[id_]
                older = list(kept)[: list(kept).index(id_)]
                assert not [each for each in older if kept[each][0] == whose and each in clients._heard]
                # Those of its address that are newer, and it: nobody else has more left.
                newer = sum(
                    kept[each][1] for each in list(kept)[list(kept).index(id_) :] if kept[each][0] == whose
                )
                assert newer >= max(left[other] for other in "abc" if other != whose) - 1e-9
            for id_ in gone:
                del kept[id_]
        else:
            assert len(kept) <= max_clients


@given(st.floats(0, 2000), st.none() | st.floats(0.001, 1e6), st.floats(0, 4000))
def test_a_client_counts_for_two_and_a_half_intervals(
    gap_s: float, interval_s: float | None, later_s: float
) -> None:
    clock = _Clock()
    clients = PushedClients(clock=clock)
    who = client(1, interval_s=interval_s)
    clients.hear(who, java({1: 1.0, 2: 1.0}))
    clock.now_s = gap_s
    clients.hear(who, java({1: 1.0, 2: 1.0}))
    clock.now_s = gap_s + later_s
    known_s = interval_s
    if known_s is None:
        known_s = max(gap_s, 10.0) if gap_s < 2.5 * 30 else 30.0
    until_s = gap_s + 2.5 * min(max(known_s, 1.0), 600.0)
    assert clients.felt()["java"].num_clients == (1 if clock.now_s < until_s else 0)


def test_one_that_ends_counts_no_more() -> None:
    clients = PushedClients()
    clients.hear(client(1), java({1: 1.0, 2: 1.0}))
    clients.end("1")
    clients.end("never heard of")
    assert clients.felt()["java"].num_clients == 0


def test_kinds_are_never_mixed() -> None:
    clients = PushedClients()
    for number in range(2):
        clients.hear(client(number), java({1: 1.0, 2: 1.0}))
    other = ClientFigures(kind="librdkafka", latency_s_by_broker={1: 9.0, 2: 9.0}, queue_time_s=3.0)
    for number in range(2, 5):
        clients.hear(client(number), other)
    felt = clients.felt()
    assert felt["java"].latency_s_by_broker == {}
    assert felt["java"].queue_time_s is None
    assert felt["librdkafka"].latency_s_by_broker == {1: 9.0, 2: 9.0}
    assert felt["librdkafka"].queue_time_s == 3.0


def test_whoever_asks_while_it_is_summed_up_gets_what_was_before() -> None:
    clock = _Clock()
    clients = PushedClients(clock=clock)
    clients.hear(client(1), java({1: 1.0, 2: 1.0}))
    assert clients.felt()["java"].num_clients == 1
    clients.hear(client(2), java({1: 1.0, 2: 1.0}))
    assert clients.felt()["java"].num_clients == 1  # it is young enough
    clock.now_s = 2.0
    with clients._summing:
        assert clients.felt()["java"].num_clients == 1
    assert clients.felt()["java"].num_clients == 2
