"""What producers say that they send, for any claims: seen where it may be true, and never a veto."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from evenload.router.score_functions import ingest_rate
from evenload.router.scoring import ScoreContext
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.observation import BrokerStorage, ClusterLayout, Observations

BROKERS = (1, 2, 3, 4, 5)
GAP_S = 10.0
MIB = 1 << 20
growths = st.fixed_dictionaries(dict.fromkeys(BROKERS, st.integers(0, 1 << 40)))


def measured(growth: Mapping[int, int], claims: Mapping[int, float]) -> ClusterSnapshot:
    """Brokers that grew by so much within 10 s, and what producers say that they send to them."""
    observations = Observations(metrics_sources=["pushed"], metrics_claims=["pushed"])
    layout = ClusterLayout(cluster_id="c", racks=dict.fromkeys(BROKERS), topics={})
    observations.hear_layout(layout, asked_at_s=0.0)
    for at_s in (0.0, GAP_S):
        for broker_id in BROKERS:
            storage = BrokerStorage(
                capacity_bytes=1 << 50,
                used_bytes=int(growth[broker_id] * at_s / GAP_S),
                usable_bytes=None,
                bytes_by_topic_partition=None,
            )
            observations.hear_storage(broker_id, storage, asked_at_s=at_s, latency_s=0.001)
    for broker_id, claim in claims.items():
        told = BrokerMetrics(sent_bytes_per_s=claim)
        observations.hear_metrics("pushed", broker_id, told, asked_at_s=GAP_S)
    assembled = observations.assemble(now_s=GAP_S, wall_now_s=GAP_S)
    assert assembled is not None
    return assembled.snapshot


def scores(snapshot: ClusterSnapshot) -> dict[int, float]:
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=snapshot.taken_at_s)
    return {broker_id: ingest_rate(broker, context) for broker_id, broker in snapshot.brokers.items()}


@given(growths, st.dictionaries(st.sampled_from(BROKERS), st.floats(0, 1e18)))
def test_no_claim_makes_a_score_less_than_a_quarter(growth: dict[int, int], claims: dict[int, float]) -> None:
    before, after = scores(measured(growth, {})), scores(measured(growth, claims))
    for broker_id in BROKERS:
        assert after[broker_id] >= min(0.25, before[broker_id]) * (1 - 1e-9)


def test_bytes_that_retention_deletes_as_fast_are_seen() -> None:
    growth = {1: 0, 2: 40 * MIB, 3: 40 * MIB, 4: 40 * MIB, 5: 40 * MIB}
    snapshot = measured(growth, {1: 6.0 * MIB, 2: 1.0 * MIB})
    assert snapshot.brokers[1].ingest_bytes_per_s == 6.0 * MIB
    assert snapshot.brokers[2].ingest_bytes_per_s == 4.0 * MIB  # as stored: the claim is a part of it
