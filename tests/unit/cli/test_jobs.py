"""`evenload jobs`: what it prints and draws."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.cli import main

TRACE = """name,submitted,slots,duration_s,kind
a,0,4,420,A
b,10,2,600,B
c,20,2,180,
"""
SPEEDS = "kind,slots,samples_per_s\nA,1,1\nA,2,1.77\nA,3,2.39\nA,4,2.9\nB,1,1\nB,2,1.3\n"


Replay = Callable[..., str]


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "speeds.csv").write_text(SPEEDS)

    def replay(*more: str, code: int = 0) -> str:
        command = ["jobs", "replay", f"{tmp_path}/trace.csv", "--slots", "4", *more]
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return replay


def test_a_trace_is_replayed_under_every_policy_and_none_is_better_than_the_bound(
    replay: Replay, tmp_path: Path
) -> None:
    told = json.loads(replay("--speeds", f"{tmp_path}/speeds.csv", "--json"))
    assert {"fifo", "smartfill"} < told["policies"].keys()
    assert all(figures["mean_s"] > told["bound_s"] > 0 for figures in told["policies"].values())
    # a has all four slots for 15 + 420 s; then b and c, for 15 + 600 and 15 + 180 s.
    fifo = told["policies"]["fifo"]
    assert fifo["makespan_s"] == pytest.approx(0.5 + 435 + 0.5 + 615)
    assert fifo["fault"] is None


def test_the_best_comes_first_and_what_was_guessed_is_said(replay: Replay, tmp_path: Path) -> None:
    said = replay("--speeds", f"{tmp_path}/speeds.csv", "--policy", "fifo", "--policy", "smartfill")
    header, first, second, *_ = said.splitlines()
    assert header.split("  ")[0] == "policy"
    assert len(header) <= 80
    assert (first.split()[0], second.split()[0]) == ("smartfill", "fifo")
    assert "no policy has a mean completion below" in said
    assert "doesn't say how fast 1 jobs are at other sizes" in said
    assert "how fast 3 jobs" in replay()


def test_slots_over_time_are_drawn_a_panel_for_each_policy(replay: Replay, tmp_path: Path) -> None:
    svg = tmp_path / "slots.svg"
    said = replay("--policy", "fifo", "--policy", "srtf", "--svg", str(svg))
    assert f"slots over time: {svg}" in said
    assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert svg.read_text().count("mean completion") == 2


def test_a_policy_that_isnt_there_is_named_with_those_that_are(replay: Replay) -> None:
    said = replay("--policy", "magic", code=1)
    assert said.startswith("evenload: policy 'magic' is not known. There are: afs, ")
