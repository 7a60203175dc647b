"""A process is told from every other: one in another container, and a later one that has its number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from evenload.dataset_catalog.process_identity import is_running, this_process

SAY_WHO = (
    "from evenload.dataset_catalog.process_identity import this_process; print(this_process(), flush=True)"
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who a process is")


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of ours that waits, and its identity."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{SAY_WHO}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_a_process_runs_until_it_has_ended(other: tuple[subprocess.Popen[str], str]) -> None:
    process, identity = other
    assert identity != this_process()
    assert is_running(identity) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_running(identity) is False, "a zombie"
    process.wait()
    assert is_running(identity) is False


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    boot, namespace, pid, started = this_process().split(" ")
    assert is_running(this_process()) is True
    assert is_running(f"{boot} {namespace} {pid} {int(started) - 1}") is False


def test_of_another_boot_or_namespace_nothing_is_known() -> None:
    boot, namespace, pid, started = this_process().split(" ")
    assert is_running(f"{boot} {int(namespace) + 1} {pid} {started}") is None
    assert is_running(f"{boot[::-1]} {namespace} {pid} {started}") is None


@pytest.mark.parametrize(
    "identity", ["", "1", "a b c d", f"{'0' * 36} 1 {'9' * 5000} 1", "\x00", "x" * 1_000_000]
)
def test_of_what_is_no_identity_nothing_is_known(identity: str) -> None:
    assert is_running(identity) is None


def test_a_number_that_no_process_can_have_does_not_run() -> None:
    boot, namespace, _, started = this_process().split(" ")
    assert is_running(f"{boot} {namespace} 9999999999 {started}") is False


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes root and unshare")
def test_the_first_process_of_another_container_is_not_taken_for_ours() -> None:
    in_container = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    told = subprocess.run([*in_container, SAY_WHO], capture_output=True, text=True, check=True).stdout.strip()
    assert told.split(" ")[2] == "1"
    assert is_running(told) is None
    asked = (
        "from evenload.dataset_catalog.process_identity import is_running; "
        f"print(is_running({this_process()!r}))"
    )
    assert (
        subprocess.run([*in_container, asked], capture_output=True, text=True, check=True).stdout == "None\n"
    )


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes root and unshare")
def test_who_sees_the_processes_of_others_only_says_nothing() -> None:
    without_proc = ["unshare", "--pid", "--fork", sys.executable, "-c", SAY_WHO]
    assert subprocess.run(without_proc, capture_output=True, text=True, check=True).stdout == "\n"
