"""Results can be read back and compared, and tell nothing about whose machine it was."""

from __future__ import annotations

import getpass
import json
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.exceptions import Exit
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks import results
from benchmarks.results import keep, machine, tell_misses, to_text


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_text({"runs": [{"spread": float("nan")}]})


def test_machine_says_what_but_not_whose() -> None:
    told = machine("confluent-kafka")
    assert {"cores", "memory_gib", "python", "kafka", "confluent-kafka", "date"} <= set(told)
    text = json.dumps(told)
    assert socket.gethostname() not in text
    assert "/" not in text
    assert getpass.getuser() not in text


@pytest.mark.parametrize(
    ("is_asked", "is_whole"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_results_go_where_it_was_asked_and_those_of_a_whole_run_always_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool, is_whole: bool
) -> None:
    monkeypatch.setattr(results, "RESULTS_FOLDER", tmp_path / "default")
    asked = tmp_path / "asked" if is_asked else None
    keep({"benchmark": "balance"}, Figure, asked, is_whole=is_whole)
    folder = "asked" if is_asked else "default"
    expected = [f"{folder}/balance.json", f"{folder}/balance.svg"] if is_asked or is_whole else []
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == expected


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_missed_goal_is_said_and_fails_the_command_where_it_is_judged(is_judged: bool) -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as captured, nullcontext() if not is_judged else pytest.raises(Exit) as ended:
        tell_misses(console, ["it took too long"], is_judged=is_judged)
    assert captured.get() == "missed: it took too long\n"
    assert ended is None or ended.value.exit_code == 1
    tell_misses(console, [], is_judged=True)
