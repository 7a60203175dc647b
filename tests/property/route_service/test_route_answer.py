from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.route_service.route_answer import RouteAnswer, decode_route, encode_route
from evenload.telemetry_collector.errors import ServiceUnusableError

BYTES = st.integers(1, (1 << 63) - 1)
ANSWERS = st.builds(
    RouteAnswer,
    cluster_id=st.text(),
    topic=st.text(),
    version=st.integers(1, 1 << 60),
    shares=st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20).map(tuple),
    expires_s=st.floats(0.001, 300.0),
    turn_max_bytes=BYTES,
    poll_s=st.floats(0.001, 60.0),
    report_bytes=BYTES,
    reason=st.none() | st.text(),
    notes=st.lists(st.text(), max_size=3).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(ANSWERS)
def test_what_was_encoded_is_decoded_with_shares_to_six_digits(answer: RouteAnswer) -> None:
    decoded = decode_route(encode_route(answer), answer.topic)
    assert decoded.shares == pytest.approx(answer.shares, rel=1e-5)
    assert decoded.model_copy(update={"shares": answer.shares}) == answer


@given(
    ANSWERS, st.dictionaries(st.sampled_from(sorted(RouteAnswer.model_fields)), JSON, min_size=1), st.binary()
)
def test_there_is_an_answer_or_a_sentence_whatever_is_read(
    answer: RouteAnswer, change: dict[str, Any], more: bytes
) -> None:
    document = json.loads(encode_route(answer)) | change
    for body in (json.dumps(document).encode(), encode_route(answer) + more, more):
        try:
            decoded = decode_route(body, answer.topic)
        except ServiceUnusableError:
            continue
        assert decoded.topic == answer.topic
        assert decoded.shares or decoded.reason is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"shares": [0.5, -0.1]}, "shares.1"),
        ({"shares": [0.0, 0.0]}, "not all 0"),
        ({"shares": [1e308, 1e308]}, "finite"),
        ({"shares": [], "reason": None}, "neither shares nor a reason"),
        ({"expires_s": 301}, "expires_s"),
        ({"topic": "views"}, "about another"),
    ],
)
def test_what_can_not_be_followed_is_refused(change: dict[str, Any], reason: str) -> None:
    answer = RouteAnswer(
        cluster_id="c",
        topic="clicks",
        version=1,
        shares=(0.25, 0.75),
        expires_s=30.0,
        turn_max_bytes=1,
        poll_s=1.0,
        report_bytes=1,
    )
    body = json.dumps(json.loads(encode_route(answer)) | change).encode()
    with pytest.raises(ServiceUnusableError, match=reason):
        decode_route(body, "clicks")


def test_a_route_of_twelve_partitions_takes_a_few_hundred_bytes() -> None:
    answer = RouteAnswer(
        cluster_id="mmtNvCcnQdW0vVhVnqZxYQ",
        topic="clicks",
        version=120,
        shares=tuple(1 / (7 + number) for number in range(12)),
        expires_s=30.0,
        turn_max_bytes=4 << 20,
        poll_s=1.0,
        report_bytes=2 << 20,
    )
    assert len(encode_route(answer)) < 400
