"""A cursor goes with one plan, and says where it stands."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evenload.ray_trainer.errors import CursorMismatchError
from evenload.ray_trainer.planning.cursor import Cursor, kafka_view
from evenload.ray_trainer.planning.plan import BlockTable, EpochPlan, PlanRule


def make_plan(*, epoch: int = 0) -> EpochPlan:
    table = BlockTable.from_extents(
        partition=np.array([0, 0, 2]),
        first_offset=np.array([10, 20, 5]),
        num_records=np.array([2, 1, 2]),
        samples_per_record=np.array([4, 2, 4]),
    )
    rule = PlanRule(num_lanes=1, block_bytes=1, whole=False, shuffle=False)
    return EpochPlan(table, seed=0, epoch=epoch, rule=rule)


def test_a_cursor_survives_json() -> None:
    cursor = Cursor(3, 1 << 40, "abc")
    assert Cursor.from_dict(json.loads(json.dumps(cursor.to_dict()))) == cursor


@pytest.mark.parametrize(
    "fields", [{}, {"epoch": 1}, {"epoch": None, "samples_consumed": 1, "plan_fingerprint": ""}]
)
def test_what_is_no_cursor_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a cursor"):
        Cursor.from_dict(fields)


def test_a_negative_cursor_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Cursor(0, -1, "abc")


def test_a_cursor_of_another_plan_is_refused_with_both_values_and_what_differs() -> None:
    cursor = Cursor(0, 5, "aaaa")
    cursor.check("aaaa")
    with pytest.raises(
        CursorMismatchError, match=r"plan aaaa, .* now bbbb \(seed was 1, is now 2\)"
    ) as caught:
        cursor.check("bbbb", facts_then={"seed": 1, "whole": True}, facts_now={"seed": 2, "whole": True})
    assert caught.value.cursor_fingerprint == "aaaa"
    assert caught.value.plan_fingerprint == "bbbb"
    assert caught.value.differences == {"seed": (1, 2)}


def test_kafkas_words_for_an_epoch_part_way() -> None:
    view = kafka_view(make_plan(), Cursor(0, 6, "f"))
    assert view.records_consumed == {0: 1, 2: 0}
    assert view.group_offset == {0: 11, 2: 5}
    assert view.partial_blocks == ((0, 11, 2),)
    assert view.to_dict() == {"records_consumed": {"0": 1, "2": 0}, "open_blocks": [[0, 11, 2]]}


def test_kafkas_words_at_the_ends_of_an_epoch() -> None:
    assert kafka_view(make_plan(), Cursor(0, 0, "f")).records_consumed == {0: 0, 2: 0}
    done = kafka_view(make_plan(), Cursor(0, 18, "f"))
    assert done.records_consumed == {0: 3, 2: 2}
    assert done.partial_blocks == ()


@pytest.mark.parametrize("cursor", [Cursor(1, 0, "f"), Cursor(0, 19, "f")])
def test_a_cursor_outside_the_plan_has_no_kafka_view(cursor: Cursor) -> None:
    with pytest.raises(ValueError, match="is not within epoch 0"):
        kafka_view(make_plan(), cursor)
