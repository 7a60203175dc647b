"""A file of weights is followed while people edit it; what can't be read changes nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from evenload.telemetry_collector.weights import Weights
from evenload.telemetry_collector.weights_file import WeightsFile

HALF, NONE = Weights(brokers={1: 0.5}), Weights(brokers={1: 0.0})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.json"


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_until_there_is_a_file_there_are_none_which_is_said_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = WeightsFile(path)
    for _ in range(3):
        assert file.latest() is None
    assert _said(caplog) == [f"weights file {path}: it isn't there; no weights are in force until it is"]
    file.write(HALF)
    assert file.latest() == HALF
    assert file.complaint is None


def test_a_file_that_vanishes_changes_nothing_until_there_is_another(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = WeightsFile(path)
    file.write(NONE)
    assert file.latest() == NONE
    moved = path.rename(path.with_name("moved.json"))  # what an editor and a swapped mount do
    for _ in range(3):
        assert file.latest() == NONE
    assert _said(caplog) == [
        f"weights file {path}: it is gone; the weights in force are kept "
        "(a file that says {} takes them away)"
    ]
    moved.rename(path)
    assert file.latest() == NONE
    assert file.complaint is None
    path.write_text("{}")
    assert file.latest() == Weights()


@pytest.mark.parametrize("content", [None, b"{"])
def test_the_course_of_a_file_never_takes_weights_away(path: Path, content: bytes | None) -> None:
    file = WeightsFile(path)
    file.write(NONE)
    file.latest()
    if content is not None:
        path.write_bytes(content)
        assert file.latest() == NONE
    path.unlink()
    assert file.latest() == NONE
    path.write_bytes(b"{")
    assert file.latest() == NONE
    path.write_text('{"brokers": {"1": 0.5}}')
    assert file.latest() == HALF


def test_an_edit_is_seen_and_an_unchanged_file_is_not_read(path: Path) -> None:
    file = WeightsFile(path)
    file.write(HALF)
    first = file.latest()
    assert file.latest() is first
    path.write_text('{"brokers": {"1": 0}}')
    assert file.latest() == NONE


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"brokers": {"1": 2}}', "brokers.1: Input should be less than or equal to 1"),
        (b"\xff", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b" " * (2 << 20), "it is larger than 1048576 bytes"),
    ],
)
def test_what_can_not_be_read_keeps_the_old_and_is_said_once(
    path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    file = WeightsFile(path)
    file.write(HALF)
    file.latest()
    path.write_bytes(content)
    for _ in range(3):
        assert file.latest() == HALF
    (said,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert reason in said
    assert said.startswith(f"weights file {path}: ")
    assert file.complaint == said
    file.write(NONE)
    assert file.latest() == NONE
    assert file.complaint is None


@pytest.mark.parametrize("broken", ["stat", "open"])
def test_what_could_not_be_read_for_a_while_is_read_when_it_can_be_though_it_did_not_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    file = WeightsFile(path)
    file.write(HALF)
    file.latest()
    path.write_text('{"brokers": {"1": 0}}')

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, broken, refused)
        assert file.latest() == HALF
        assert "Permission denied" in str(file.complaint)
    assert file.latest() == NONE
    assert file.complaint is None


def test_whoever_could_read_the_file_can_read_it_after_a_write(path: Path) -> None:
    file = WeightsFile(path)
    file.write(HALF)
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    path.chmod(0o640)
    file.write(NONE)
    assert path.stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WeightsFile(path)
    file.write(HALF)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(NONE)
    assert os.listdir(path.parent) == [path.name]
    assert file.latest() == HALF
