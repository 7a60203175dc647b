"""Turns and key partitions as Java's tests run them as well (java/src/test): both read tests/vectors.

Running this file as a program writes the vectors anew, as Python goes by then.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from evenload.kafka_plugin.key_partition import java_partition
from evenload.router.route import Route

VECTORS = Path(__file__).parents[2] / "vectors"
NUM_CASES, NUM_STEPS = 60, 200


def follow(case: dict[str, Any]) -> list[int]:
    """Where records go in a case."""
    shares = dict(enumerate(case["shares"]))
    route = Route(shares, batch_bytes=case["batch_bytes"], skip_turns=case["skip_turns"])
    went = []
    for step in case["steps"]:
        if "send" in step:
            went.append(route.partition_for(step["send"]))
        elif "give_back" in step:
            route.give_back(step["partition"], step["give_back"])
        else:
            shares = dict(enumerate(step["shares"]))
            route = Route(shares, batch_bytes=step["batch_bytes"], previous=route)
    return went


def _shares(rng: random.Random) -> list[float]:
    shares = [rng.choice([0.0, rng.random(), 1.0, rng.random() ** 4]) for _ in range(rng.randint(1, 20))]
    return shares if sum(shares) else [*shares, 1.0]


def _step(rng: random.Random, batch_bytes: int, last: int) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.93:
        most = batch_bytes * 20 if rng.random() < 0.02 else batch_bytes * rng.choice([0.01, 0.3, 1.5])
        return {"send": rng.randint(0, max(1, int(most)))}
    if kind < 0.98:
        return {"give_back": rng.randint(0, batch_bytes), "partition": last}
    return {"shares": _shares(rng), "batch_bytes": rng.choice([100, 16_384, 262_144])}


def make_turn_routes() -> list[dict[str, Any]]:
    """Cases with records of 0 to 20 batches, some given back, and routes that hand over to others."""
    rng = random.Random(1)
    cases = []
    for _ in range(NUM_CASES):
        case: dict[str, Any] = {
            "shares": _shares(rng),
            "batch_bytes": rng.choice([1, 100, 16_384, 262_144]),
            "skip_turns": rng.choice([0, rng.randint(1, 60)]),
            "steps": [],
        }
        batch_bytes, last = case["batch_bytes"], 0
        for _ in range(NUM_STEPS):
            step = _step(rng, batch_bytes, last)
            case["steps"].append(step)
            batch_bytes = step.get("batch_bytes", batch_bytes)
            if went := follow(case):
                last = went[-1]
        cases.append(case | {"partitions": follow(case)})
    return cases


def make_key_partitions() -> list[dict[str, Any]]:
    """Keys of 0 to 40 bytes."""
    rng = random.Random(2)
    keys = [rng.randbytes(size) for size in range(41) for _ in range(4)]
    counts = [rng.choice([1, 2, 3, 12, 3000]) for _ in keys]
    return [
        {"key": key.hex(), "num_partitions": count, "partition": java_partition(key, count)}
        for key, count in zip(keys, counts, strict=True)
    ]


MADE = {"turn_routes.json": make_turn_routes, "key_partitions.json": make_key_partitions}


@pytest.mark.parametrize("name", MADE)
def test_the_vectors_are_how_python_goes(name: str) -> None:
    assert json.loads((VECTORS / name).read_text()) == MADE[name]()


if __name__ == "__main__":
    for name, make in MADE.items():
        lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in make())
        (VECTORS / name).write_text(f"[\n{lines}\n]\n")
