"""The board is where the driver is, and losing it costs a run nothing: real Ray, no brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

DRIVER = Path(__file__).with_name("board_driver.py")


def drive(mode: str, **arguments: Any) -> list[dict[str, Any]]:
    """Run the driver to its end; what it printed. Whatever is left of it is killed."""
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), mode, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=500)
    finally:
        for left in psutil.process_iter():
            if _session_id(left.pid) == process.pid:
                left.kill()
        process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    loop = {"die_at": -1, "stop_at": -1, "step_s": 0.3, **more}
    return {"storage": str(tmp_path / "runs"), "checkpoint_interval_s": 0.5, "options": loop}


def only(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [event for event in events if event["kind"] == kind]
    assert len(found) == 1, events
    return found[0]


@pytest.mark.timeout(600)
def test_a_killed_board_costs_nothing_and_the_next_one_knows_which_worker_dies(tmp_path: Path) -> None:
    events = drive("run", **options(tmp_path, die_at=25))

    (started, *_) = [event for event in events if event["kind"] == "AttemptStarted"]
    victim = started["workers"][1]
    lost = only(events, "WorkersLost")
    assert lost["dead"] == [victim]
    assert lost["attempt"] == 1
    assert only(events, "Recovered")["attempt"] == 2
    result = only(events, "Result")
    assert (result["steps"], result["epochs"], result["restarts"]) == (40, 1, 1)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_stop_is_heard_through_the_board_that_took_a_killed_ones_place(tmp_path: Path) -> None:
    events = drive("run", **options(tmp_path, stop_at=15))

    only(events, "Stopping")
    result = only(events, "Result")
    assert result["is_stopped"]
    assert result["restarts"] == 0
    assert 15 < result["steps"] < 40


@pytest.mark.timeout(600)
def test_boards_are_on_the_drivers_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray's test cluster kills its servers, and what they had in the temporary folder stays.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    placed = only(drive("place"), "Placed")

    assert placed["nodes"] == [placed["here"]] * 8
