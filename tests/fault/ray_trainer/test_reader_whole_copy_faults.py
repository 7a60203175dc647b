"""Processes that share a copy of a dataset are killed while they build or use it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from evenload.ray_trainer.reading.whole_copy import WholeCopy

SCHEMA = pa.schema({"n": pa.int64()})

# Says what it does on its output, and goes on when a line comes in.
PROGRAM = """
import sys
from pathlib import Path
import pyarrow as pa
from evenload.ray_trainer.reading.whole_copy import WholeCopy

schema = pa.schema({"n": pa.int64()})

def build():
    yield pa.RecordBatch.from_pydict({"n": list(range(1000))}, schema)
    print("building", flush=True)
    sys.stdin.readline()
    yield pa.RecordBatch.from_pydict({"n": list(range(1000, 2000))}, schema)

copy = WholeCopy.open("f" * 32, schema, build, size_bytes=1, folders=[Path(sys.argv[1])])
print("open", sum(sum(batch.column("n").to_pylist()) for batch in copy.batches), flush=True)
sys.stdin.readline()
copy.close()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def build_here() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": list(range(2000))}, SCHEMA)


def test_when_the_builder_is_killed_the_one_that_waits_builds(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    builder = start(folder)
    assert line(builder) == "building"
    waiting = start(folder)
    builder.kill()
    end(builder)
    assert line(waiting) == "building"
    go_on(waiting)
    assert line(waiting) == f"open {sum(range(2000))}"
    go_on(waiting)
    end(waiting)
    assert list(folder.iterdir()) == []


def test_a_copy_whose_users_were_killed_is_used_again_and_then_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    user = start(folder)
    assert line(user) == "building"
    go_on(user)
    assert line(user) == f"open {sum(range(2000))}"
    user.kill()
    end(user)
    copy = WholeCopy.open("e" * 32, SCHEMA, build_here, size_bytes=1, folders=[folder])
    assert {path.stem for path in folder.iterdir()} == {"e" * 32}
    copy.close()
    assert list(folder.iterdir()) == []
