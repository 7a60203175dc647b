"""A batch cut into portions is the batch: in its order, each record where it wants to go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenload.kafka_plugin.producing.batch_portions import REFUSED, UNASSIGNED, portions_of, size_of

CALLBACK = print

message = st.fixed_dictionaries(
    {},
    optional={
        "value": st.binary(max_size=40) | st.text(max_size=10) | st.none(),
        "key": st.sampled_from([b"", b"k", "key", None]),
        "partition": st.sampled_from([UNASSIGNED, 0, 3, None]),
        "callback": st.sampled_from([CALLBACK, None]),
        "headers": st.sampled_from([None, {}, {"a": b"b"}]),
        "timestamp": st.sampled_from([0, 17, None]),
        REFUSED: st.just("as of an earlier try"),
    },
)
plain = st.builds(lambda size: {"value": bytes(size)}, st.integers(0, 40))


@given(
    messages=st.lists(plain | message, max_size=40),
    partition=st.sampled_from([UNASSIGNED, 2]),
    spread_keys=st.booleans(),
    limit_bytes=st.integers(1, 100),
)
def test_turns_are_the_batch_in_its_order(
    messages: list[dict[str, Any]], partition: int, spread_keys: bool, limit_bytes: int
) -> None:
    portions = list(
        portions_of(messages, partition=partition, spread_keys=spread_keys, portion_bytes=limit_bytes)
    )

    cut = [each for portion in portions for each in portion.messages]
    assert len(cut) == len(messages)
    assert all(one is other for one, other in zip(cut, messages, strict=True))
    for portion in portions:
        assert portion.messages
        assert portion.size_bytes == sum(map(size_of, portion.messages))
        assert portion.size_bytes - size_of(portion.messages[-1]) < limit_bytes or len(portion.messages) == 1
        assert len(portion.messages) == 1 or not portion.destination.is_single
        for each in portion.messages:
            told = each.get("partition")
            wanted = partition if told is None else told
            has_key = each.get("key") is not None
            is_free = wanted == UNASSIGNED and (spread_keys or not has_key)
            assert portion.destination.partition == (None if is_free else wanted)
            assert portion.destination.has_callbacks == (each.get("callback") is not None)
            needs_produce = bool(each.get("headers")) or each.get("timestamp") is not None
            assert portion.destination.is_single == needs_produce
            assert REFUSED not in each or len(each) == 1
    for one, other in pairwise(portions):
        same = one.destination == other.destination and not one.destination.is_single
        assert not same or one.size_bytes >= limit_bytes
