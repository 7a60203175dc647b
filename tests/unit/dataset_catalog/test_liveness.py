from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from evenload.dataset_catalog.liveness import RECENT_S, may_be_loading
from evenload.dataset_catalog.process_identity import this_process
from evenload.dataset_catalog.progress import LoadProgress
from evenload.dataset_catalog.testing import make_progress

NOW_S = 1_000_000.0
ELSEWHERE = f"{'0' * 36} 1 1 1"
SAY_WHO = "from evenload.dataset_catalog.process_identity import this_process; print(this_process())"


def _last(*, process: str, age_s: float = 1.0, is_complete: bool = False) -> LoadProgress:
    # A host's name and a process id say nothing: containers share them.
    mine = {"host": socket.gethostname(), "pid": os.getpid()}
    return make_progress(**mine, process=process, updated_at_s=NOW_S - age_s, is_complete=is_complete)


def test_a_process_that_ended_loads_nothing() -> None:
    told = subprocess.run([sys.executable, "-c", SAY_WHO], capture_output=True, text=True, check=True)
    assert not may_be_loading(_last(process=told.stdout.strip()), now_s=NOW_S)


def test_a_running_process_may_be_loading_while_it_was_heard_of_lately() -> None:
    assert may_be_loading(_last(process=this_process()), now_s=NOW_S)
    assert not may_be_loading(_last(process=this_process(), age_s=RECENT_S + 1), now_s=NOW_S)


def test_a_later_process_of_the_same_number_is_not_taken_for_the_one_that_loaded() -> None:
    *where, pid, started = this_process().split(" ")
    assert not may_be_loading(_last(process=" ".join([*where, pid, str(int(started) - 1)])), now_s=NOW_S)


def test_of_another_host_or_container_only_the_age_is_known() -> None:
    assert may_be_loading(_last(process=ELSEWHERE), now_s=NOW_S)
    assert not may_be_loading(_last(process=ELSEWHERE, age_s=RECENT_S + 1), now_s=NOW_S)


def test_a_date_ahead_of_our_clock_is_a_sign_of_life_only_within_the_silence_that_is_allowed() -> None:
    assert may_be_loading(_last(process=ELSEWHERE, age_s=-RECENT_S), now_s=NOW_S)
    assert not may_be_loading(_last(process=ELSEWHERE, age_s=-RECENT_S - 1), now_s=NOW_S)


def test_a_record_that_does_not_say_which_process_it_was_counts_until_it_is_old() -> None:
    assert may_be_loading(_last(process=""), now_s=NOW_S)
    assert not may_be_loading(_last(process="", age_s=RECENT_S + 1), now_s=NOW_S)


def test_a_complete_load_is_not_loading() -> None:
    assert not may_be_loading(_last(process=this_process(), is_complete=True), now_s=NOW_S)


def test_a_process_of_another_user_is_running() -> None:
    first = subprocess.run(
        [sys.executable, "-c", SAY_WHO], capture_output=True, text=True, check=True
    ).stdout.split(" ")
    started = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    assert may_be_loading(_last(process=" ".join([*first[:2], "1", started])), now_s=NOW_S)
