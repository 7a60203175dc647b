from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenload.route_service.sent_bytes import SentBytes

# A producer, how long after the one before, and what it has sent since it was heard of last.
WORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.floats(0.0, 5.0),
        st.dictionaries(st.integers(0, 3), st.integers(0, 1000), max_size=4),
    ),
    max_size=30,
)


def _told(sent: SentBytes, words: list[tuple[str, float, dict[int, int]]]) -> list[tuple[float, int]]:
    """When each word came, and how much it added."""
    totals: dict[str, dict[int, int]] = {"a": {}, "b": {}, "c": {}}
    for producer in totals:
        sent.hear(producer, {0: 7}, now_s=0.0)  # where it stands when it is first heard of
        totals[producer] = {0: 7}
    now_s, came = 0.0, []
    for producer, after_s, more in words:
        now_s += after_s
        for number, size_bytes in more.items():
            totals[producer][number] = totals[producer].get(number, 0) + size_bytes
        sent.hear(producer, totals[producer], now_s=now_s)
        came.append((now_s, sum(more.values())))
    return came


@given(WORDS)
def test_all_that_was_said_counts_once(words: list[tuple[str, float, dict[int, int]]]) -> None:
    sent = SentBytes()
    came = _told(sent, words)
    assert sum(sent.since(float("-inf")).values()) == sum(size_bytes for _, size_bytes in came)


@given(WORDS, st.floats(0.0, 150.0))
def test_what_was_heard_of_after_a_measurement_counts_and_at_most_a_moment_more(
    words: list[tuple[str, float, dict[int, int]]], measured_at_s: float
) -> None:
    sent = SentBytes()
    came = _told(sent, words)
    if came and came[-1][0] > 120.0:
        return  # what is older than two minutes is forgotten, and counts as sent since
    least = sum(size_bytes for at_s, size_bytes in came if at_s > measured_at_s)
    most = sum(size_bytes for at_s, size_bytes in came if at_s > measured_at_s - 0.2)
    assert least <= sum(sent.since(measured_at_s).values()) <= most


def test_who_repeats_himself_adds_nothing_and_who_goes_back_begins_anew() -> None:
    sent = SentBytes()
    sent.hear("a", {0: 10}, now_s=1.0)
    assert sent.since(0.0) == {}  # nobody knows since when
    sent.hear("a", {0: 15}, now_s=2.0)
    sent.hear("a", {0: 15}, now_s=3.0)
    assert sent.since(0.0) == {0: 5}
    sent.hear("a", {0: 4}, now_s=4.0)  # another producer by that name
    sent.hear("a", {0: 6}, now_s=5.0)
    assert sent.since(0.0) == {0: 7}
    assert sent.since(4.5) == {0: 2}
