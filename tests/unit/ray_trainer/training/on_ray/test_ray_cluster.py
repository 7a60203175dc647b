"""Whoever waits for Ray is told for what."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
import stamina

from evenload.ray_trainer.training.on_ray import ray_cluster
from evenload.ray_trainer.training.on_ray.errors import RayUnavailableError
from evenload.ray_trainer.training.train_config import TrainConfig

CONFIG = TrainConfig(dataset="digits")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was told when a start was tried; a machine on which Ray only starts at the third try."""
    said: list[str] = []
    num_tries = 0

    def init(_: TrainConfig, address: str | None) -> list[psutil.Process]:
        nonlocal num_tries
        num_tries += 1
        if address is None and num_tries < 3:
            raise RayUnavailableError(address, "it timed out")
        return []

    monkeypatch.setattr(ray_cluster, "_init", init)
    with stamina.set_testing(True, attempts=4):  # tries follow each other at once
        yield said


def test_each_try_to_start_a_cluster_is_told(told: list[str]) -> None:
    assert ray_cluster._join(CONFIG, None, lambda note: told.append(str(note))) == []
    assert told == [
        "starting Ray on this machine",
        "Ray did not start in time; starting it again (try 2 of 4)",
        "Ray did not start in time; starting it again (try 3 of 4)",
    ]


def test_which_cluster_is_joined_is_told(told: list[str]) -> None:
    ray_cluster._join(CONFIG, "10.0.0.1:6379", lambda note: told.append(str(note)))
    assert told == ["joining the Ray cluster at 10.0.0.1:6379"]
