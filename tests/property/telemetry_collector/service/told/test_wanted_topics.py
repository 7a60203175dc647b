"""Who asks for topics, in any order: places are bounded, and nobody takes those of others."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.service.told.wanted_topics import WantedTopics

MAX_TOPICS, LIFETIME_S, UNKNOWN_LIFETIME_S = 6, 100.0, 10.0
EXISTING = frozenset("abcd")


class Step(NamedTuple):
    topics: frozenset[str]
    by: str
    may_ingest: bool
    after_s: float


STEPS = st.lists(
    st.builds(
        Step,
        topics=st.frozensets(st.sampled_from("abcdefghijklmnop"), max_size=MAX_TOPICS),
        by=st.sampled_from(["x", "y", "z"]),
        may_ingest=st.booleans(),
        after_s=st.sampled_from([0.0, 1.0, 9.0, 60.0]),
    ),
    max_size=20,
)


@given(STEPS)
def test_places_are_bounded_and_firm_ones_are_kept(steps: list[Step]) -> None:
    wanted = WantedTopics(MAX_TOPICS, lifetime_s=LIFETIME_S, unknown_lifetime_s=UNKNOWN_LIFETIME_S)
    now_s = 0.0
    firm_until_s: dict[str, float] = {}
    for step in steps:
        now_s += step.after_s
        ended = wanted.expire(EXISTING, now_s)
        assert all(firm_until_s.get(topic, 0.0) <= now_s for topic in ended)
        before = {topic for topic in "abcdefghijklmnop" if topic in wanted}
        asked = wanted.ask(
            step.topics, by=step.by, may_ingest=step.may_ingest, existing=EXISTING, now_s=now_s
        )
        after = {topic for topic in "abcdefghijklmnop" if topic in wanted}
        assert len(wanted) == len(after) <= MAX_TOPICS
        assert set(asked.added) == after - before
        assert set(asked.removed) == before - after
        assert asked.has_room == (step.topics <= after)
        firm = {topic for topic, until_s in firm_until_s.items() if until_s > now_s}
        assert firm <= after
        if step.may_ingest:
            firm_until_s |= dict.fromkeys(step.topics & after & EXISTING, now_s + LIFETIME_S)


@given(st.lists(st.integers(1, MAX_TOPICS), min_size=1, max_size=20))
def test_whoever_makes_up_names_pushes_out_their_own(sizes: list[int]) -> None:
    wanted = WantedTopics(MAX_TOPICS, lifetime_s=LIFETIME_S, unknown_lifetime_s=UNKNOWN_LIFETIME_S)
    wanted.ask(["soon", "later"], by="producer", may_ingest=True, existing=EXISTING, now_s=0.0)
    for number, size in enumerate(sizes):
        names = [f"{number}-{name}" for name in range(size)]
        wanted.ask(names, by="stranger", may_ingest=False, existing=EXISTING, now_s=1.0 + number)
        assert "soon" in wanted
        assert "later" in wanted


@given(st.permutations(["x", "y", "z"]), st.integers(1, MAX_TOPICS))
def test_strangers_share_what_is_left(holders: list[str], num_names: int) -> None:
    wanted = WantedTopics(MAX_TOPICS, lifetime_s=LIFETIME_S, unknown_lifetime_s=UNKNOWN_LIFETIME_S)
    names = {holder: [f"{holder}{number}" for number in range(num_names)] for holder in "xyz"}
    for now_s, holder in enumerate(holders):
        wanted.ask(names[holder], by=holder, may_ingest=False, existing=EXISTING, now_s=float(now_s))
    held = Counter({holder: sum(name in wanted for name in names[holder]) for holder in "xyz"})
    assert sum(held.values()) == min(MAX_TOPICS, 3 * num_names)
    assert max(held.values()) - min(held.values()) <= 1


def test_a_name_that_nobody_knows_is_forgotten_sooner_and_a_topic_that_is_made_stays() -> None:
    wanted = WantedTopics(MAX_TOPICS, lifetime_s=LIFETIME_S, unknown_lifetime_s=UNKNOWN_LIFETIME_S)
    wanted.ask(["made-up", "made"], by="x", may_ingest=True, existing=(), now_s=0.0)
    assert wanted.expire({"made"}, UNKNOWN_LIFETIME_S) == ["made-up"]
    assert wanted.expire({"made"}, LIFETIME_S - 1) == []
    assert wanted.expire({"made"}, LIFETIME_S) == ["made"]
