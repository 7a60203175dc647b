"""Formatting a server's folders has an end, whatever becomes of the program that does it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from evenload.local_cluster import start
from evenload.local_cluster.errors import BrokerDiedError, BrokerTimeoutError
from evenload.local_cluster.java import JavaRuntime
from evenload.local_cluster.process import JavaServer, RunningProcess
from evenload.local_cluster.settings import CONTROLLER, ClusterSettings

NO_JAVA = JavaRuntime(Path("java"), ())


def test_formatting_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as hangs:
        program = RunningProcess(hangs.pid)

        def run(*_: Any) -> RunningProcess:
            return program

        monkeypatch.setattr(start, "_FORMAT_TIMEOUT_S", 0.1)
        monkeypatch.setattr(JavaServer, "run", run)
        controller = JavaServer(CONTROLLER, tmp_path / CONTROLLER, dies_with_parent=False)
        with pytest.raises(BrokerTimeoutError, match="controller runs but did not answer within"):
            start.start_servers([controller], ClusterSettings.make({1: 10}), NO_JAVA)
        program.wait(60)


def test_a_folder_that_can_not_be_made_is_said(tmp_path: Path) -> None:
    broker = JavaServer("broker-1", tmp_path / "broker-1", dies_with_parent=False)
    broker.folder.mkdir()
    (broker.folder / "data").write_text("in the way")

    with pytest.raises(BrokerDiedError, match="File exists"):
        start.start_servers([broker], ClusterSettings.make({1: 10}), NO_JAVA)
