"""What a forecast counts of a topic that forgets."""

from __future__ import annotations

from dataclasses import replace

from evenload.router.forecasting.load import _kept_bytes
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20


def test_a_topic_with_retention_by_size_grows_to_its_limit_and_no_further() -> None:
    snapshot = make_snapshot([0, 0], 1 << 40, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 30 * MIB})
    assert _kept_bytes(snapshot, "t", 500 * MIB) == (500 * MIB, ())
    limited = replace(snapshot, partition_max_bytes={"t": 100 * MIB})
    assert _kept_bytes(limited, "t", 170 * MIB) == (170 * MIB, ())
    kept_bytes, [told] = _kept_bytes(limited, "t", 500 * MIB)
    assert kept_bytes == 170 * MIB
    assert told == "'t' grows by 170.0 MiB at most: from then on retention.bytes deletes as much as comes."
