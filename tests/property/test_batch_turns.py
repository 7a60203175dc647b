"""A batch cut into turns is the batch: in its order, each record where it wants to go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kafka_plugin.batch_turns import REFUSED, UNASSIGNED, size_of, turns_of

CALLBACK = print

message = st.fixed_dictionaries(
    {},
    optional={
        "value": st.binary(max_size=40) | st.text(max_size=10) | st.none(),
        "key": st.sampled_from([b"", b"k", "key", None]),
        "partition": st.sampled_from([UNASSIGNED, 0, 3, None]),
        "callback": st.sampled_from([CALLBACK, None]),
        "headers": st.sampled_from([None, {}, {"a": b"b"}]),
        "timestamp": st.sampled_from([0, 17]),
        REFUSED: st.just("as of an earlier try"),
    },
)
plain = st.builds(lambda size: {"value": bytes(size)}, st.integers(0, 40))


@given(
    messages=st.lists(plain | message, max_size=40),
    partition=st.sampled_from([UNASSIGNED, 2]),
    spread_keys=st.booleans(),
    turn_bytes=st.integers(1, 100),
)
def test_turns_are_the_batch_in_its_order(
    messages: list[dict[str, Any]], partition: int, spread_keys: bool, turn_bytes: int
) -> None:
    turns = list(turns_of(messages, partition=partition, spread_keys=spread_keys, turn_bytes=turn_bytes))

    cut = [each for turn in turns for each in turn.messages]
    assert len(cut) == len(messages)
    assert all(one is other for one, other in zip(cut, messages, strict=True))
    for turn in turns:
        assert turn.messages
        assert turn.size_bytes == sum(map(size_of, turn.messages))
        assert turn.size_bytes - size_of(turn.messages[-1]) < turn_bytes or len(turn.messages) == 1
        assert len(turn.messages) == 1 or not turn.destination.is_single
        for each in turn.messages:
            told = each.get("partition")
            wanted = partition if told is None else told
            has_key = each.get("key") is not None
            is_free = wanted == UNASSIGNED and (spread_keys or not has_key)
            assert turn.destination.partition == (None if is_free else wanted)
            assert turn.destination.has_callbacks == (each.get("callback") is not None)
            assert turn.destination.is_single == bool(each.get("headers") or each.get("timestamp"))
            assert REFUSED not in each or len(each) == 1
    for one, other in pairwise(turns):
        same = one.destination == other.destination and not one.destination.is_single
        assert not same or one.size_bytes >= turn_bytes
