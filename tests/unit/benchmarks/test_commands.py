"""`python -m benchmarks` runs all benchmarks, and fails if one misses its goal."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

import benchmarks.__main__ as command


@click.command("good")
def _good() -> None:
    click.echo("good ran")


@click.command("bad")
def _bad() -> None:
    click.echo("bad ran")
    raise click.exceptions.Exit(1)


@click.command("without data")
def _without_data() -> None:
    raise click.ClickException("no data")


def test_one_that_misses_its_goal_does_not_keep_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", (_bad, _good))
    told = CliRunner().invoke(command.main, [])
    assert told.output.split("\n")[:2] == ["bad ran", "good ran"]
    assert told.exit_code == 1


def test_one_that_cant_run_does_not_keep_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", (_without_data, _good))
    told = CliRunner().invoke(command.main, [])
    assert told.stderr == "Error: no data\n"
    assert told.stdout == "good ran\n"
    assert told.exit_code == 1


def test_all_that_meet_theirs_exit_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", (_good, _good))
    assert CliRunner().invoke(command.main, []).exit_code == 0


def test_a_benchmark_is_known_by_name() -> None:
    told = CliRunner().invoke(command.main, ["balance", "--help"])
    assert told.exit_code == 0
    assert "--quick" in told.output


def test_an_unknown_layout_is_wrong_usage() -> None:
    told = CliRunner().invoke(command.main, ["balance", "--layout", "nowhere"])
    assert told.exit_code == 2
    assert "no layout's name holds nowhere" in told.stderr
