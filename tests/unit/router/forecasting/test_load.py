"""What a forecast counts of a topic that forgets."""

from __future__ import annotations

from dataclasses import replace

from evenload.router.forecasting.load import _kept_bytes
from evenload.telemetry_collector.snapshot import TopicConfig
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20


def test_a_topic_with_retention_by_size_grows_to_its_limit_and_no_further() -> None:
    snapshot = make_snapshot([0, 0], 1 << 40, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 30 * MIB})
    assert _kept_bytes(snapshot, "t", 500 * MIB, None) == (500 * MIB, ())
    limited = replace(snapshot, topic_configs={"t": TopicConfig(partition_max_bytes=100 * MIB)})
    assert _kept_bytes(limited, "t", 170 * MIB, None) == (170 * MIB, ())
    kept_bytes, [told] = _kept_bytes(limited, "t", 500 * MIB, None)
    assert kept_bytes == 170 * MIB
    assert told == "'t' grows by 170.0 MiB at most: from then on retention.bytes deletes as much as comes."


def test_a_topic_with_retention_by_age_holds_what_comes_in_that_time_and_a_segment_of_each_partition() -> (
    None
):
    snapshot = make_snapshot([0, 0], 1 << 40, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 30 * MIB})
    config = TopicConfig(max_age_s=100.0, segment_bytes=10 * MIB)
    aging = replace(snapshot, topic_configs={"t": config})
    assert _kept_bytes(aging, "t", 500 * MIB, None) == (500 * MIB, ())
    assert _kept_bytes(aging, "t", 500 * MIB, 50.0) == (500 * MIB, ())  # all of it is younger
    kept_bytes, [told] = _kept_bytes(aging, "t", 500 * MIB, 500.0)
    assert kept_bytes == (100 + 2 * 10 - 30) * MIB
    assert told == "'t' grows by 90.0 MiB at most: from then on retention.ms deletes as much as comes."
    by_size = replace(aging, topic_configs={"t": replace(config, partition_max_bytes=40 * MIB)})
    assert _kept_bytes(by_size, "t", 500 * MIB, 500.0)[0] == (40 + 40 - 30) * MIB
