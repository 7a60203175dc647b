"""A loop with a hook is killed at any moment, alone or with other ranks, and loses or repeats nothing."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).with_name("hooked_loop.py")
NUM_SAMPLES, EPOCHS = 96, 3

Start = Callable[..., "Ranks"]
WaitUntil = Callable[[Callable[[], bool]], None]


class Ranks:
    """The program as so many processes."""

    def __init__(self, folder: Path, num_ranks: int, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self._log_path = folder / "log"
        shared = {"OMP_NUM_THREADS": "1"}
        if num_ranks > 1:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
        with self._log_path.open("ab") as log:
            self._processes = [
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), str(folder), *options],
                    stdout=log,
                    stderr=log,
                    env=os.environ | shared | ({"RANK": str(rank)} if num_ranks > 1 else {}),
                )
                for rank in range(num_ranks)
            ]

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def terminate(self, rank: int) -> None:
        self._processes[rank].terminate()

    def wait(self) -> None:
        """All have ended well."""
        assert [process.wait(300) for process in self._processes] == [0] * len(self._processes), self.log

    @property
    def log(self) -> str:
        return self._log_path.read_text()


def lines(folder: Path) -> list[dict[str, Any]]:
    """What was done, in its order on each rank; a line that was cut off is of a step that wasn't."""
    found = []
    for path in sorted(folder.glob("seen-*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return found


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the program; no process of it is left."""
    started: list[Ranks] = []

    def begin(folder: Path, num_ranks: int, *options: str) -> Ranks:
        started.append(Ranks(folder, num_ranks, *options))
        return started[-1]

    yield begin
    for ranks in started:
        ranks.kill()


@pytest.mark.parametrize(
    ("num_ranks", "options", "is_in_store"),
    [(1, [], False), (2, [], False), (2, ["sharded"], False), (2, ["sharded"], True)],
    ids=["alone", "two", "two, sharded", "two, sharded, in an object store"],
)
def test_killed_at_any_moment_it_equals_a_run_that_was_never_killed(
    num_ranks: int,
    options: list[str],
    is_in_store: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start: Start,
    wait_until: WaitUntil,
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start(whole, num_ranks, *options).wait()
    if is_in_store:
        options = [*options, f"{request.getfixturevalue('object_store').url}/runs"]
    expected = {(line["step"], *line["samples"]): line["epoch"] for line in lines(whole)}
    rng = random.Random(num_ranks)
    num_killed = 0
    while not (broken / "final.pt").exists():
        before = len(lines(broken)) if broken.exists() else 0
        ranks = start(broken, num_ranks, *options)
        more = rng.randint(1, len(expected) // 2)
        wait_until(
            lambda ranks=ranks, before=before, more=more: (  # type: ignore[misc]
                ranks.has_ended or len(lines(broken)) - before >= more
            )
        )
        if ranks.has_ended:
            ranks.wait()
        else:
            ranks.kill()
            wait_until(lambda ranks=ranks: ranks.has_ended)  # type: ignore[misc]
            num_killed += 1
    assert num_killed > 0
    done = {(line["step"], *line["samples"]): line["epoch"] for line in lines(broken)}
    assert done == expected
    for epoch in range(EPOCHS):
        of_epoch = Counter(
            sample for (_, *samples), number in done.items() if number == epoch for sample in samples
        )
        assert of_epoch == dict.fromkeys(range(NUM_SAMPLES), 1)
    ours, theirs = (torch.load(folder / "final.pt", weights_only=True) for folder in (broken, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_rank_that_is_asked_to_end_stops_all_and_other_numbers_of_ranks_go_on(
    tmp_path: Path, start: Start, wait_until: WaitUntil
) -> None:
    for num_ranks in (2, 3):
        before = len(lines(tmp_path))
        ranks = start(tmp_path, num_ranks)
        wait_until(lambda before=before: len(lines(tmp_path)) - before >= 10)  # type: ignore[misc]
        ranks.terminate(num_ranks - 1)
        ranks.wait()
        stops = [json.loads((tmp_path / f"stopped-{rank}.json").read_text()) for rank in range(num_ranks)]
        assert len({stop["step"] for stop in stops}) == 1
        assert {stop["saved_step"] for stop in stops} == {stops[0]["step"]}
        assert not (tmp_path / "final.pt").exists()
    start(tmp_path, 1).wait()
    for epoch in range(EPOCHS):
        of_epoch = Counter(
            sample for line in lines(tmp_path) if line["epoch"] == epoch for sample in line["samples"]
        )
        assert set(of_epoch.values()) == {1}
        assert len(of_epoch) > NUM_SAMPLES - 3 * 4  # less than a step of three ranks is left out
