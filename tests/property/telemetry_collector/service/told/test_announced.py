"""The sum of what loads have announced is that of what they said last."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.service.told.announced import AnnouncedBytes

LOADS = st.sampled_from("abcd")
BYTES_BY_BROKER = st.dictionaries(st.integers(0, 3), st.integers(0, 5), max_size=3)


@given(
    st.lists(st.tuples(st.dictionaries(LOADS, BYTES_BY_BROKER), st.sets(LOADS)), min_size=1, max_size=6),
    st.data(),
)
def test_the_sum_is_that_of_the_intents_counted_last_without_those_left_out(
    rounds: list[tuple[dict[str, dict[int, int]], set[str]]], data: st.DataObject
) -> None:
    announced = AnnouncedBytes()
    intents: dict[str, Intent] = {}
    for said, without in rounds:
        kept = data.draw(st.sets(st.sampled_from(sorted(intents)))) if intents else set()
        intents = {load: intents[load] for load in kept} | {
            load: Intent(load=load, topic="t", bytes_by_broker=by_broker) for load, by_broker in said.items()
        }
        announced.count(intents.values())
        expected: Counter[int] = Counter()
        for load, intent in intents.items():
            if load not in without:
                expected.update(intent.bytes_by_broker)
        assert announced.without(without) == dict(+expected)
