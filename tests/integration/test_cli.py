"""The command line as scripts use it: exit codes, one JSON document, one sentence for a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from evenload.cli.edge import SentenceGroup, StoppedError
from evenload.kafka_connection import Connection


class Shell:
    """Runs `evenload` in a folder, on the session's cluster."""

    def __init__(self, folder: Path, connection: Connection) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "EVENLOAD_HOME": str(folder / "home"),
            "EVENLOAD_BOOTSTRAP_SERVERS": connection.bootstrap_servers,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("evenload")), *arguments],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def shell(tmp_path: Path, connection: Connection) -> Shell:
    return Shell(tmp_path, connection)


def test_a_dataset_from_its_file_to_its_end(shell: Shell, tmp_path: Path, topic_name: str) -> None:
    name = topic_name[-30:].strip("-").lower()
    (tmp_path / "few.csv").write_text("text,label\n" + "".join(f"line {n},{n % 2}\n" for n in range(90)))

    manifest = shell.json("ingest", name, "few.csv")
    assert (manifest["name"], manifest["version"], manifest["num_samples"]) == (name, 1, 90)
    assert {"topic", "num_records", "num_bytes", "partitions"} <= manifest.keys()
    assert {"broker_id", "capacity_bytes", "used_bytes", "utilisation"} <= manifest["brokers"][0].keys()
    assert f"{name}@1" in shell.run("datasets").stdout
    assert shell.json("datasets", "show", name)["num_samples"] == 90
    verified = shell.json("datasets", "verify", name)
    assert [verified[fault] for fault in ("missing", "repeated", "corrupt", "extra")] == [0, 0, 0, 0]

    taken = shell.run("ingest", name, "few.csv")
    assert (taken.returncode, taken.stdout) == (1, "")
    assert taken.stderr.count("\n") == 1
    assert "exists already (version 1)" in taken.stderr
    assert shell.run("datasets", "drop", name).returncode == 0
    gone = shell.run("datasets", "show", name)
    assert (gone.returncode, gone.stderr.startswith(f"evenload: no dataset is named {name!r}")) == (1, True)


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        (None, ("nowhere.csv",), "nowhere.csv"),
        ("", ("few.csv",), "few.csv"),
        ("a,b\n1,2\n3\n", ("few.csv",), "line 3"),
        ("a,b\n1,2\n", ("few.csv", "--column", "a", "--column", "b", "--column", "c"), "few.csv"),
    ],
    ids=["missing", "empty", "ragged", "columns"],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(
    shell: Shell,
    tmp_path: Path,
    topic_name: str,
    content: str | None,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    if content is not None:
        (tmp_path / "few.csv").write_text(content)
    failed = shell.run("ingest", topic_name[-30:].strip("-").lower(), *arguments)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith("evenload: ")
    assert sentence in failed.stderr
    assert "unexpected" not in failed.stderr
    assert topic_name[-30:].strip("-").lower() not in shell.run("datasets").stdout


def test_wrong_usage_is_two_and_help_suffices(shell: Shell) -> None:
    assert shell.run("ingest").returncode == 2
    assert shell.run("no-such-command").returncode == 2
    assert shell.run("train", "text-classification", "--dataset", "x", "--workers", "0").returncode == 2
    told = shell.run("train", "text-classification", "--help")
    assert (told.returncode, "--eval-dataset" in told.stdout) == (0, True)


def test_no_brokers_at_the_address_is_one_sentence(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("a\n1\n")
    failed = shell.run("ingest", "few", "few.csv", "--bootstrap-servers", "127.0.0.1:9")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "127.0.0.1:9" in failed.stderr


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (130, 130), (3, 3), (None, 0)])
def test_a_command_ends_with_the_code_that_it_says(code: int | None, expected: int) -> None:
    @click.command(cls=SentenceGroup, invoke_without_command=True)
    def command() -> None:
        if code is not None:
            raise click.exceptions.Exit(code)

    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == expected


def test_what_was_stopped_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command(cls=SentenceGroup, invoke_without_command=True)
    def command() -> None:
        raise StoppedError("it goes on from step 3")

    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "evenload: stopped. it goes on from step 3\n"
