"""What `evenload balance` and `evenload forecast` refuse before they ask anybody, and what Ctrl-C leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evenload.cli import main
from evenload.kafka_plugin.balancing import balance


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["balance", "--cancel", "--execute"], "--cancel and --execute exclude each other"),
        (["balance", "--cancel", "--drain", "3"], "it takes no --drain or --max-bytes"),
        (["balance", "--cancel", "--max-bytes", "1GiB"], "it takes no --drain or --max-bytes"),
        (["balance", "--forget", "--execute"], "--forget goes with no --execute"),
        (["balance", "--forget", "--drain", "3"], "--forget goes with no --execute"),
        (["balance", "--throttle", "3"], "it has to be at least 1KiB/s"),
        (["balance", "--throttle", "fast"], "'fast' is no size"),
        (["balance", "--max-bytes", "0"], "it has to be above zero"),
        (["forecast", "cola"], "Missing option '--size'"),
        (["forecast", "cola", "--size", "1GiB", "--strategy", "best"], "'best' is not one of"),
        (["forecast", "cola", "--size", "1GiB", "--keyed", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_usage_is_two_and_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--bootstrap-servers", "a:1"])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@contextmanager
def _taking_back(num_stops: int) -> Iterator[None]:
    """As a balance is left: what is running is taken back, which may be stopped as well."""
    try:
        yield
    finally:
        if num_stops == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("num_stops", "said", "not_said"),
    [(1, "throttles are off", "may still be on"), (2, "throttles may still be on", "are off")],
)
def test_who_stops_it_twice_is_not_told_that_throttles_are_off(
    num_stops: int,
    said: str,
    not_said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def execute(*_: Any, **__: Any) -> None:
        with _taking_back(num_stops):
            raise KeyboardInterrupt

    monkeypatch.setattr(balance, "execute_balance", execute)
    with pytest.raises(SystemExit) as ended:
        main(["balance", "--execute", "--bootstrap-servers", "a:1"])
    assert ended.value.code == 130
    told = capsys.readouterr().err
    assert said in told
    assert not_said not in told


@pytest.mark.parametrize(
    ("untold", "said"),
    [
        ((), []),
        ((3,), ["not looked at, as they don't answer: 1 brokers (3)"]),
        (
            ("a", "b"),
            ["not looked at, which takes DESCRIBE_CONFIGS on them: 2 topics (a, b)"],
        ),
        (
            (3, *(f"t{number:02d}" for number in range(30))),
            ["1 brokers (3)", "30 topics (t00, ", "t19 and 10 more)"],
        ),
    ],
)
def test_forgetting_says_what_it_could_not_look_at(
    untold: tuple[int | str, ...],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = balance.ForgottenBalance("7 bytes; it is none", (), (), untold)
    monkeypatch.setattr(balance, "forget_balance", lambda *_, **__: found)
    with pytest.raises(SystemExit):
        main(["balance", "--forget", "--bootstrap-servers", "a:1"])
    told = capsys.readouterr().out
    assert all(words in told for words in said)
    assert ("not looked at" in told) is bool(untold)
    with pytest.raises(SystemExit):
        main(["balance", "--forget", "--json", "--bootstrap-servers", "a:1"])
    document = json.loads(capsys.readouterr().out)["not_looked_at"]
    assert (*document["brokers"], *document["topics"]) == untold
