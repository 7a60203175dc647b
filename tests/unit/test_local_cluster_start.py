"""Formatting a server's folders has an end, whatever becomes of the program that does it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from evenload.local_cluster import start
from evenload.local_cluster.errors import BrokerTimeoutError
from evenload.local_cluster.java import JavaRuntime
from evenload.local_cluster.process import JavaServer
from evenload.local_cluster.settings import CONTROLLER, ClusterSettings


class _Hangs:
    """A program that neither ends nor does anything, until it is killed."""

    has_ended = False

    def signal(self, number: signal.Signals) -> None:
        self.has_ended = number == signal.SIGKILL


@pytest.mark.timeout(20)
def test_formatting_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _Hangs()

    def run(*_: Any) -> _Hangs:
        return program

    monkeypatch.setattr(start, "_FORMAT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(JavaServer, "run", run)
    server = JavaServer(CONTROLLER, tmp_path / CONTROLLER, dies_with_parent=False)
    with pytest.raises(BrokerTimeoutError, match="controller runs but did not answer within"):
        start.start_servers([server], ClusterSettings.make({1: 10}), JavaRuntime(Path("java"), ()))
    assert program.has_ended
