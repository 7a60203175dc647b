"""What many producers claim, for any course of claims: few can't bend it, and nobody takes all the room."""

from __future__ import annotations

from collections import Counter
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.pushed.client_figures import ClientFigures
from evenload.telemetry_collector.pushed.pushed_clients import VOICES_MIN, PushedClients, PushingClient

BROKERS = (1, 2, 3)
latencies = st.dictionaries(st.sampled_from(BROKERS), st.floats(0.001, 3000), min_size=1)
rates = st.dictionaries(st.sampled_from(BROKERS), st.floats(0, 1e15))


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def client(number: int, *, address: str = "a", interval_s: float | None = 10.0) -> PushingClient:
    return PushingClient(instance_id=str(number), client_id="c", address=address, interval_s=interval_s)


def java(latency: dict[int, float], rate: dict[int, float] | None = None) -> ClientFigures:
    return ClientFigures(kind="java", latency_s_by_broker=latency, sent_bytes_per_s_by_broker=rate or {})


@given(
    st.lists(st.floats(0.001, 0.079), min_size=VOICES_MIN, max_size=9),
    st.lists(latencies, max_size=8),
)
def test_fewer_liars_than_honest_voices_dont_leave_what_these_say(
    honest: list[float], lies: list[dict[int, float]]
) -> None:
    lies = lies[: len(honest) - 1]
    clients = PushedClients()
    for number, latency_s in enumerate(honest):
        clients.hear(client(number), java(dict.fromkeys(BROKERS, latency_s)))
    for number, lie in enumerate(lies):
        clients.hear(client(1000 + number), java(lie))
    felt = clients.felt()["java"].latency_s_by_broker
    for broker_id in BROKERS:
        assert min(honest) <= felt[broker_id] <= max(honest)


@given(st.lists(st.tuples(latencies, rates), max_size=12))
def test_figures_are_the_voices_median_and_the_rates_sum_both_cut(
    told: list[tuple[dict[int, float], dict[int, float]]],
) -> None:
    clients = PushedClients()
    voices: dict[int, list[float]] = {}
    sent: Counter[int] = Counter()
    for number, (latency, rate) in enumerate(told):
        clients.hear(client(number), java(latency, rate))
        sent.update(rate)  # type: ignore[arg-type]
        for broker_id, latency_s in latency.items() if len(latency) > 1 else ():
            voices.setdefault(broker_id, []).append(latency_s)
    felt = clients.felt()["java"]
    medians = {b: median(values) for b, values in voices.items() if len(values) >= VOICES_MIN}
    most_s = max(0.080, 8 * median(medians.values())) if medians else 0.0
    assert felt.latency_s_by_broker == {b: min(value, most_s) for b, value in medians.items()}
    assert felt.num_voices_by_broker == {b: len(values) for b, values in voices.items()}
    most = max(4 << 20, 2 * median(sent.values())) if sent else 0.0
    assert set(felt.sent_bytes_per_s_by_broker) == set(sent)
    assert all(0 <= value <= most for value in felt.sent_bytes_per_s_by_broker.values())


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(1, 3)), max_size=60),
    st.integers(1, 6),
    st.integers(5, 40),
)
def test_there_is_never_more_than_there_is_room_for_and_a_flood_pushes_out_its_own(
    pushes: list[tuple[int, str, int]], max_clients: int, max_figures: int
) -> None:
    clients = PushedClients(max_clients=max_clients, max_figures=max_figures)
    kept: dict[str, tuple[str, int]] = {}  # who was heard longest ago comes first
    for number, address, count in pushes:
        figures = java(dict.fromkeys(BROKERS[:count], 1.0))
        clients.hear(client(number, address=address), figures)
        kept.pop(str(number), None)
        kept[str(number)] = (address, figures.num_figures)
        while len(kept) > max_clients or sum(size for _, size in kept.values()) > max_figures:
            by_address = Counter(each for each, _ in kept.values())
            most = {address for address, count in by_address.items() if count == max(by_address.values())}
            gone = [id_ for id_ in kept if id_ not in clients._heard and kept[id_][0] in most]
            assert gone, "of whoever has most, one went"
            oldest = next(id_ for id_, (address, _) in kept.items() if address == kept[gone[0]][0])
            assert gone[0] == oldest
            del kept[oldest]
        assert set(kept) == set(clients._heard)


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
    life_s = 2.5 * min(max(gap_s if interval_s is None else interval_s, 2.0), 600.0)
    assert clients.felt()["java"].num_clients == (1 if later_s < life_s else 0)


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
