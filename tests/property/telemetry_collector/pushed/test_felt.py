"""What many producers claim, for any claims: few can't bend it."""

from __future__ import annotations

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from evenload.router.score_functions import latency as latency_score
from evenload.router.scoring import ScoreContext
from evenload.telemetry_collector.pushed.client_figures import ClientFigures
from evenload.telemetry_collector.pushed.felt import VOICES_MIN, felt_by
from evenload.telemetry_collector.testing import make_snapshot

BROKERS = (1, 2, 3)
latencies = st.dictionaries(st.sampled_from(BROKERS), st.floats(0.001, 3000), min_size=1)
rates = st.dictionaries(st.sampled_from(BROKERS), st.floats(0, 1e15))


def java(latency: dict[int, float], rate: dict[int, float] | None = None) -> ClientFigures:
    return ClientFigures(kind="java", latency_s_by_broker=latency, sent_bytes_per_s_by_broker=rate or {})


@given(
    st.lists(st.floats(0.001, 3000), min_size=VOICES_MIN, max_size=9),
    st.lists(latencies, max_size=8),
)
def test_fewer_liars_than_honest_voices_dont_leave_what_these_say(
    honest: list[float], lies: list[dict[int, float]]
) -> None:
    lies = lies[: len(honest) - 1]
    truth = [java(dict.fromkeys(BROKERS, latency_s)) for latency_s in honest]
    felt = felt_by([*truth, *map(java, lies)]).latency_s_by_broker
    for broker_id in BROKERS:
        assert min(honest) <= felt[broker_id] <= max(honest)


@given(st.lists(st.tuples(latencies, rates), max_size=12))
def test_figures_are_the_voices_median_and_the_rates_sum(
    told: list[tuple[dict[int, float], dict[int, float]]],
) -> None:
    voices: dict[int, list[float]] = {}
    sent: dict[int, list[float]] = {}
    for latency, rate in told:
        for broker_id, bytes_per_s in rate.items():
            sent.setdefault(broker_id, []).append(bytes_per_s)
        for broker_id, latency_s in latency.items() if len(latency) > 1 else ():
            voices.setdefault(broker_id, []).append(latency_s)
    felt = felt_by([java(latency, rate) for latency, rate in told])
    medians = {b: median(values) for b, values in voices.items() if len(values) >= VOICES_MIN}
    assert felt.latency_s_by_broker == medians
    assert felt.sent_bytes_per_s_by_broker == {
        broker_id: sum(values) for broker_id, values in sent.items() if len(values) >= VOICES_MIN
    }
    for broker_id in BROKERS:
        cut_s = felt.cut_latency_s(broker_id)
        if broker_id not in medians:
            assert cut_s is None
        else:
            assert cut_s == min(medians[broker_id], max(0.080, 8 * median(medians.values())))


@given(st.lists(st.dictionaries(st.sampled_from(BROKERS), st.floats(0.001, 3600)), min_size=3, max_size=9))
def test_whatever_is_claimed_no_brokers_latency_scores_less_than_a_quarter(
    claims: list[dict[int, float]],
) -> None:
    felt = felt_by([java(claim) for claim in claims])
    told = {b: told_s for b in BROKERS if (told_s := felt.cut_latency_s(b)) is not None}
    snapshot = make_snapshot([100] * len(BROKERS), request_latency_s=told)
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=snapshot.taken_at_s)
    for broker in snapshot.brokers.values():
        assert latency_score(broker, context) >= 0.25
