"""A loader as a process of its own, slow enough to be hit: tells how many samples it has written.

Its one argument is a JSON document: connection, name, num_samples, replication, strategy.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np

from evenload.dataset_catalog.errors import DatasetExistsError
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset

CONFIG = LoaderConfig(
    transaction_s=0.5, block_bytes=8_000, transaction_timeout_s=15, stall_timeout_s=90, recent_s=2
)


def main(told: dict[str, Any]) -> None:
    num_samples = told["num_samples"]

    def tell(done: int, *_: int) -> None:
        print(done, flush=True)
        time.sleep(0.03)

    # Whoever was killed before may have published it with its last breath.
    with suppress(DatasetExistsError):
        load_dataset(
            {"n": np.arange(num_samples), "x": np.zeros((num_samples, 500), np.uint8)},
            told["name"],
            connection=Connection(**told["connection"]),
            config=CONFIG,
            replication=told["replication"],
            strategy=told["strategy"],
            take_over=True,
            progress=tell,
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
