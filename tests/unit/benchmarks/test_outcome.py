"""What came out is told from the bytes in the log folders alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.layouts import MIB, Layout
from benchmarks.log_folders import ReplicasDifferError, held_bytes, settled_bytes, wait_until_gone
from benchmarks.outcome import Outcome, are_all_within_a_point, judge
from evenload.telemetry_collector.snapshot import TopicPartition

LAYOUT = Layout(name="test", capacity_mib=(100, 100, 50), assignment=[(1,), (2,), (3,)], held_mib={1: 10})


def _judged(first: int, second: int, third: int) -> Outcome:
    held = {
        1: {TopicPartition("t", 0): first * MIB, TopicPartition("held", 0): 10 * MIB},
        2: {TopicPartition("t", 1): second * MIB},
        3: {TopicPartition("t", 2): third * MIB},
    }
    return judge(LAYOUT, "t", held=held, leaders={0: 1, 1: 2, 2: 3})


def test_an_even_outcome_is_at_the_best() -> None:
    outcome = _judged(30, 40, 20)
    assert outcome.utilisation == pytest.approx({1: 0.4, 2: 0.4, 3: 0.4})
    assert outcome.best == pytest.approx(outcome.utilisation, abs=2e-4)
    assert outcome.leader_bytes == {1: 30 * MIB, 2: 40 * MIB, 3: 20 * MIB}
    assert outcome.topic_bytes == 90 * MIB
    assert outcome.is_within_a_point


def test_a_point_too_much_spread_or_height_fails() -> None:
    spread_out = _judged(31, 39, 20)  # 0.41, 0.39, 0.40
    assert spread_out.spread_over_best == pytest.approx(0.02, abs=4e-4)
    assert not spread_out.is_within_a_point
    assert not are_all_within_a_point([_judged(30, 40, 20), spread_out])
    assert not are_all_within_a_point([])


def test_each_copy_counts_but_only_leaders_read() -> None:
    layout = Layout(name="two", capacity_mib=(100, 100), assignment=[(1, 2), (2, 1)])
    copies = {TopicPartition("t", 0): 30 * MIB, TopicPartition("t", 1): 10 * MIB}
    outcome = judge(layout, "t", held={1: copies, 2: copies}, leaders={0: 1, 1: 2})
    assert outcome.topic_bytes == 40 * MIB
    assert outcome.leader_bytes == {1: 30 * MIB, 2: 10 * MIB}
    assert outcome.utilisation == pytest.approx({1: 0.4, 2: 0.4})


def _make_partition(broker: Path, name: str, size_bytes: int) -> None:
    folder = broker / name
    folder.mkdir(parents=True)
    (folder / "00000000000000000000.log").write_bytes(bytes(size_bytes))
    (folder / "00000000000000000000.index").write_bytes(bytes(1000))


def test_only_logs_of_partitions_that_are_still_held_count(tmp_path: Path) -> None:
    _make_partition(tmp_path, "a-topic-3", 10)
    _make_partition(tmp_path, "a-topic-4.0123456789abcdef-delete", 10)
    (tmp_path / "meta.properties").write_text("version=1")
    assert held_bytes({1: tmp_path}) == {1: {TopicPartition("a-topic", 3): 10}}


def test_copies_that_stay_different_are_said(tmp_path: Path) -> None:
    _make_partition(tmp_path / "1", "t-0", 10)
    _make_partition(tmp_path / "2", "t-0", 9)
    with pytest.raises(ReplicasDifferError, match=r"\[9, 10\]"):
        settled_bytes({1: tmp_path / "1", 2: tmp_path / "2"}, timeout_s=0.01)


def test_files_that_stay_are_said(tmp_path: Path) -> None:
    _make_partition(tmp_path, "t-0", 10)
    with pytest.raises(TimeoutError, match="1 folders of topic 't' are left"):
        wait_until_gone({1: tmp_path}, "t", timeout_s=0.01)
    wait_until_gone({1: tmp_path}, "u", timeout_s=0.01)
