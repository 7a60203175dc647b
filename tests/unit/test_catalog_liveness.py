from __future__ import annotations

import os
import socket
import subprocess
import sys

from dataset_catalog.liveness import RECENT_S, may_be_loading
from dataset_catalog.progress import LoadProgress
from dataset_catalog.testing import make_progress

NOW_S = 1_000_000.0


def _last(*, host: str, pid: int, age_s: float = 1.0, is_complete: bool = False) -> LoadProgress:
    return make_progress(host=host, pid=pid, updated_at_s=NOW_S - age_s, is_complete=is_complete)


def test_a_process_of_this_host_that_ended_loads_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not may_be_loading(_last(host=socket.gethostname(), pid=ended.pid), now_s=NOW_S)


def test_a_running_process_may_be_loading_while_it_was_heard_of_lately() -> None:
    mine = {"host": socket.gethostname(), "pid": os.getpid()}
    assert may_be_loading(_last(**mine), now_s=NOW_S)
    assert not may_be_loading(_last(**mine, age_s=RECENT_S + 1), now_s=NOW_S)


def test_of_another_host_only_the_age_is_known() -> None:
    assert may_be_loading(_last(host="elsewhere", pid=1), now_s=NOW_S)
    assert not may_be_loading(_last(host="elsewhere", pid=1, age_s=RECENT_S + 1), now_s=NOW_S)


def test_a_date_ahead_of_our_clock_is_a_sign_of_life_only_within_the_silence_that_is_allowed() -> None:
    assert may_be_loading(_last(host="elsewhere", pid=1, age_s=-RECENT_S), now_s=NOW_S)
    assert not may_be_loading(_last(host="elsewhere", pid=1, age_s=-RECENT_S - 1), now_s=NOW_S)


def test_a_complete_load_is_not_loading() -> None:
    mine = {"host": socket.gethostname(), "pid": os.getpid()}
    assert not may_be_loading(_last(**mine, is_complete=True), now_s=NOW_S)


def test_a_process_of_another_user_is_running() -> None:
    assert may_be_loading(_last(host=socket.gethostname(), pid=1), now_s=NOW_S)
