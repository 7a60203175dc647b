"""What goes wrong while reading is said with its facts, and goes from process to process."""

from __future__ import annotations

import pickle

import pytest

from evenload.ray_trainer.errors import (
    CorruptRecordError,
    FetchRefusedError,
    FetchTimeoutError,
    LoaderWorkersError,
    ReaderRankError,
    RecordsGoneError,
    TrainerError,
    UndecodableColumnError,
    UnknownRankError,
)

PLACE = {"topic": "flowers-1", "partition": 3, "offset": 1234}
ERRORS = [
    FetchTimeoutError(**PLACE, waited_s=120.0, reason="127.0.0.1:9092 closed the connection"),
    FetchRefusedError(topic="flowers-1", reason="not authorised"),
    RecordsGoneError(**PLACE, reason="out of range"),
    CorruptRecordError(**PLACE, reason="its value does not match the hash in its header"),
    UndecodableColumnError(column="label", reason="2 of its values are null"),
    LoaderWorkersError(num_workers=4),
    UnknownRankError("WORLD_SIZE is 2, but there is no RANK"),
    ReaderRankError(reader=(0, 1), session=(0, 2)),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_keep_their_facts_in_another_process(error: TrainerError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", ERRORS[2:4] + ERRORS[:1], ids=lambda error: type(error).__name__)
def test_a_place_in_kafka_is_named_in_full(error: TrainerError) -> None:
    assert "offset 1234 of partition 3 of topic 'flowers-1'" in str(error)


def test_only_waiting_in_vain_may_be_tried_again() -> None:
    assert [type(error) for error in ERRORS if error.retriable] == [FetchTimeoutError]
