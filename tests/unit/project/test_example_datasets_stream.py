"""The example that streams a dataset comes to its end, also with a row that Kafka takes no record of."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import datasets
from confluent_kafka import KafkaError, Producer

SCRIPT = Path(__file__).parents[3] / "examples" / "datasets_stream.py"


def test_a_row_that_is_too_large_is_told_and_the_others_are_sent() -> None:
    example: dict[str, Any] = runpy.run_path(str(SCRIPT))
    producer = Producer({"log_level": 0})  # without a server there are no errors that it would count, too
    rows = datasets.Dataset.from_dict({"text": ["a", "b" * 2_000_000, "c"]}).to_iterable_dataset()
    failures: list[KafkaError] = []
    assert example["send_all"](producer, "reviews", rows, failures) == 3
    assert [error.code() for error in failures] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert len(producer) == 2
    producer.purge()
    producer.flush(5)
