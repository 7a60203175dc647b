"""A broker dies while a model is trained: the training goes on, and its audit is exact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.session import Session

NUM_SAMPLES = 900


@pytest.mark.torture
@pytest.mark.parametrize("replication", [1, 3])
def test_a_broker_killed_while_training_costs_no_sample_and_repeats_none(
    tmp_path: Path, make_cluster: Callable[..., LocalCluster], replication: int
) -> None:
    cluster = make_cluster(num_brokers=3)
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(NUM_SAMPLES),
        "x": rng.integers(0, 255, size=(NUM_SAMPLES, 20_000)).astype(np.uint8),
        "label": rng.integers(0, 2, NUM_SAMPLES),
    }
    load_dataset(columns, "killed", connection=cluster.connection, partitions=6, replication=replication)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Little is read ahead, so that most of the dataset has still to come when the broker dies.
    reader = DatasetReader(
        "killed", global_batch_size=15, connection=cluster.connection, hold_whole=False, prefetch_bytes=1
    )
    restart = threading.Thread(target=cluster.restart_broker, args=(2,))
    seen: list[tuple[int, int]] = []
    with Session(
        model, optimizer, None, reader, run="run", storage=tmp_path, checkpoint_interval_s=0.0
    ) as session:
        for epoch in range(2):
            for batch in session.steps():
                logits = model(batch["x"][:, :64].float() / 255)
                session.backward(F.cross_entropy(logits, batch["label"], reduction="sum"))
                optimizer.step()
                optimizer.zero_grad()
                seen += [(epoch, int(i)) for i in batch["id"]]
                session.end_step(batch)
                if session.step == 20:
                    cluster.kill_broker(2)
                    restart.start()
    restart.join()

    assert sorted(seen) == [(epoch, i) for epoch in range(2) for i in range(NUM_SAMPLES)]
    assert audit("run", tmp_path, cluster.connection).exactly_once
