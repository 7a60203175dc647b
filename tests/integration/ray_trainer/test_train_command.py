"""`evenload train` on Ray as a person sees it: what it waits for, and whether it was worth it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset

# What is said as well where processes take long to answer.
OF_BUSY_MACHINES = ("Ray did not start in time", "the board")


@pytest.mark.timeout(1800)
def test_it_says_what_it_waits_for_and_that_one_step_teaches_nothing(
    tmp_path: Path, connection: Connection, topic_name: str
) -> None:
    name = topic_name.lower()
    columns = {"text": [f"sentence {n}" for n in range(178)], "label": [n % 2 for n in range(178)]}
    load_dataset(columns, name, connection=connection)
    command = ["train", "text-classification", "--dataset", name, "--workers", "1", "--max-tokens", "8"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("evenload")), *command, "--run", "short"],
        cwd=tmp_path,
        env={
            **os.environ,
            "EVENLOAD_HOME": str(tmp_path / "home"),
            "EVENLOAD_BOOTSTRAP_SERVERS": connection.bootstrap_servers,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith(OF_BUSY_MACHINES)]
    assert said[:4] == [
        "loading PyTorch and Ray",
        f"checking dataset '{name}' and the options",
        "starting Ray on this machine",
        "waiting for 1 worker",
    ]
    assert said[4].startswith("attempt 1: 1 worker (pid ")
    *_, model, note = done.stdout.splitlines()
    assert model.startswith("model: ")
    assert note.startswith("after 1 step, hardly anything can have been learned: an epoch of 178 samples")
