"""The balance benchmark on one small layout: real brokers, one baseline of each kind, evenload, a change."""

from __future__ import annotations

import pytest

from benchmarks.balance.runs import Case, run_all
from benchmarks.layouts import Layout
from benchmarks.strategies import STRATEGIES

LAYOUT = Layout(
    name="small",
    capacity_mib=(64, 64, 32),
    assignment=[(1,), (2,), (3,), (1,), (2,), (3,)],
    held_mib={1: 16},
    intrusion_mib={2: 8},
)


@pytest.mark.torture
def test_evenload_is_level_where_round_robin_is_not() -> None:
    case = Case(layout=LAYOUT, fraction=0.4, record_bytes=32 << 10, seed=1)
    names = ["Java client", "round robin", "evenload"]
    begun: list[str] = []

    (runs,) = run_all([case], [STRATEGIES[name] for name in names], lambda _, name: begun.append(name))

    assert begun == [run.strategy for run in runs] == names
    java, even, balanced = (run.outcome for run in runs)
    expected_bytes = case.num_records * case.record_bytes
    for outcome in (java, even, balanced):
        assert expected_bytes <= outcome.topic_bytes <= 1.02 * expected_bytes
        assert sum(outcome.leader_bytes.values()) == outcome.topic_bytes
    assert list(even.leader_bytes.values()) == pytest.approx([even.topic_bytes / 3] * 3, rel=1e-3)
    assert even.spread > 0.1  # the Java client is level by chance, now and then
    assert balanced.spread < 0.04  # at this size, a record is 0.1 points, a batch 0.8
    assert max(balanced.best.values()) - min(balanced.best.values()) < 0.001
