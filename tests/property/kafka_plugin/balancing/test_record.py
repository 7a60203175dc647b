"""Whatever stands in `evenload.balance`, reading it ends soon, in a record or in its one error."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.kafka_plugin.balancing.record import BalanceRecord, Target, ThrottleRecord, decode_record
from evenload.kafka_plugin.errors import UnreadableBalanceError

LEADER, FOLLOWERS = "leader.replication.throttled.rate", "follower.replication.throttled.replicas"
RECORD = BalanceRecord.begin(None).model_copy(
    update={
        # What differs between processes stands still: values name tests.
        "run_id": "0123456789abcdef",
        "host": "here",
        "pid": 7,
        "process": "",
        "updated_at_s": 1.0,
        "targets": (Target(topic="t", partition=3, replica_ids=(1, 2)),),
        "throttle": ThrottleRecord(rates={1: {LEADER: "5"}}, replicas={"t": {FOLLOWERS: ["3:2"]}}),
    }
)
VALUE = RECORD.model_dump_json().encode()
HUGE = b"9" * 5000


def with_field(name: str, value: Any) -> bytes:
    return json.dumps({**json.loads(VALUE), name: value}, separators=(",", ":")).encode()


def test_what_a_balance_writes_is_read_as_it_was() -> None:
    assert decode_record(VALUE).model_dump_json().encode() == VALUE
    before = {name: value for name, value in json.loads(VALUE).items() if name != "process"}
    assert decode_record(json.dumps(before).encode()).model_dump_json().encode() == with_field("process", "")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"null",
        b"[" * 1_000_000,
        b'{"throttle":' * 100_000,
        b'{"run_id":"' + b"x" * 5_000_000 + b'"}',
        VALUE.replace(b'"partition":3', b'"partition":' + HUGE),
        VALUE.replace(b'"partition":3', b'"partition":-1'),
        VALUE.replace(b'"partition":3', b'"partition":2147483648'),
        VALUE.replace(b'"rates":{"1"', b'"rates":{"' + HUGE + b'"'),
        with_field("updated_at_s", float("nan")),
        with_field("updated_at_s", float("inf")),
        with_field("updated_at_s", -1e308),
        with_field("updated_at_s", 1e308),
        with_field("pid", -1),
        with_field("pid", 1 << 70),
        with_field("host", "\x1b[2J"),
        with_field("host", "h" * 300),
        with_field("run_id", "\u202e"),
        with_field("process", "p" * 1000),
        with_field("targets", [{"topic": "../t", "partition": 0, "replica_ids": [1]}]),
        with_field("throttle", {"rates": {"1": {"log.retention.bytes": "1"}}}),
        with_field("throttle", {"rates": {"1": {LEADER: "-1"}}}),
        with_field("throttle", {"replicas": {"t": {"cleanup.policy": ["3:2"]}}}),
        with_field("throttle", {"replicas": {"t": {FOLLOWERS: ["*"]}}}),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_what_no_balance_writes_is_refused_in_a_sentence(value: bytes) -> None:
    with pytest.raises(UnreadableBalanceError, match="--forget") as refused:
        decode_record(value)
    assert refused.value.size_bytes == len(value)
    assert len(str(refused.value)) < 700
    assert str(refused.value).isprintable()
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.one_of(
        st.binary(),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.tuples(st.sampled_from(sorted(json.loads(VALUE))), json_values).map(lambda at: with_field(*at)),
        st.tuples(st.integers(0, len(VALUE)), st.integers(0, len(VALUE)), st.binary()).map(
            lambda cut: VALUE[: min(cut[:2])] + cut[2] + VALUE[max(cut[:2]) :]
        ),
    )
)
def test_anything_else_is_a_record_or_that_error(value: bytes) -> None:
    read, refused = _decoded(value)
    assert str(refused).isprintable()
    if read is None:
        return
    assert decode_record(read.model_dump_json().encode()) == read
    assert read.may_be_at_work(now_s=0.0, recent_s=1.0) in (True, False)
    assert {target.topic.isprintable() for target in read.targets} <= {True}
    assert read.host.isprintable()


def _decoded(value: bytes) -> tuple[BalanceRecord | None, UnreadableBalanceError | None]:
    try:
        return decode_record(value), None
    except UnreadableBalanceError as refused:
        return None, refused
