"""Policies of other packages, in processes of their own: one that never answers is put aside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = {
    "odd.py": '''
import os


def odd(state):
    """Does with each job what its name says."""
    for job in state.jobs:
        while job.job_id == "hang":
            pass
        if job.job_id == "end":
            os._exit(3)
        if job.job_id == "raise":
            raise ValueError("no")
    return {job.job_id: job.min_size for job in state.jobs}
''',
    "odd-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n",
    "odd-1.0.dist-info/entry_points.txt": "[evenload.policies]\nodd = odd:odd\nbroken = odd:nothing\n",
}
PROGRAM = """
import sys
from evenload.governor.errors import PolicyError
from evenload.governor.governing import policy_process
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.testing import make_job, make_state

if __name__ == "__main__":
    policy_process._ANSWER_S = 2.0
    for what in ("go", "hang", "end", "raise"):
        policy = governing_policy("odd")
        print(dict(policy(make_state(make_job(what), num_slots=4))), policy.fault)
        policy.close()
    try:
        governing_policy("broken")
    except PolicyError as error:
        print(error)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name, content in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_whatever_it_does_somebody_decides_and_it_is_said(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=300
    )
    went, hung, ended, raised, broken = done.stdout.splitlines()
    assert went == "{'go': 1} None"
    aside = "policy 'odd' is put aside, elastic_fifo decides: it raised RuntimeError: "
    assert hung == "{'hang': 4} " + aside + "no answer for 2 s"
    assert ended == "{'end': 4} " + aside + "its process has ended"
    assert raised == "{'raise': 4} " + aside + "ValueError: no"
    assert broken.startswith("policy 'broken' can't be used: policy 'broken' can't be imported (Attrib")
