"""What a user may import from `evenload` is the same for Python, `dir()`, star imports and type checkers.

Both type checkers read one file that reveals each public name twice, as `evenload` and as its home shows it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import evenload

ROOT = Path(__file__).parents[3]
HOMES = {name: home for name, (home, _) in evenload._HOMES.items()}


def test_dir_and_star_import_show_the_public_names() -> None:
    assert dir(evenload) == sorted(evenload.__all__)
    starred: dict[str, object] = {}
    exec("from evenload import *", starred)
    assert sorted(starred.keys() - {"__builtins__"}) == dir(evenload)


@pytest.mark.parametrize("name", evenload.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(evenload, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names() -> None:
    with pytest.raises(AttributeError, match="load_dataset"):
        evenload.no_such_name  # noqa: B018 -- the attribute access is what is tested


def run_mypy(program: Path) -> list[tuple[int, str]]:
    """What it says, by line. It reads the names' homes and nothing that those import, so that it is quick."""
    read = sorted({f"{home.replace('.', '/')}.py" for home in HOMES.values()})
    options = ["--config-file=", f"--cache-dir={program.parent / 'mypy'}", "--no-error-summary", "--strict"]
    options += ["--follow-imports=skip", "--ignore-missing-imports"]
    told = _run([sys.executable, "-m", "mypy", *options, "evenload/__init__.py", *read, str(program)])
    found = re.finditer(rf"^{re.escape(str(program))}:(\d+): (.+)$", told, re.MULTILINE)
    return [(int(line), text) for line, text in (each.groups() for each in found)]


def run_pyright(program: Path) -> list[tuple[int, str]]:
    """What it says, by line."""
    (program.parent / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    told = json.loads(_run([*command, "--project", str(program.parent)]))["generalDiagnostics"]
    return [(each["range"]["start"]["line"] + 1, each["message"]) for each in told]


def _run(command: list[str]) -> str:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # of a newer version
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=800
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_a_type_checker_sees_the_public_names_and_no_others(
    check: Callable[[Path], list[tuple[int, str]]], tmp_path: Path
) -> None:
    names = sorted(HOMES)
    lines = ["import evenload", "from evenload import *"]
    lines += [f"from {HOMES[name]} import {name} as Its{name}" for name in names]
    first_line = len(lines) + 1
    for name in names:
        lines += [f"reveal_type(evenload.{name})", f"reveal_type({name})", f"reveal_type(Its{name})"]
    # The second is what evenload has imported for itself.
    lines += ["_ = evenload.no_such_name", "_ = TYPE_CHECKING"]
    (tmp_path / "program.py").write_text("\n".join(lines))

    told = check(tmp_path / "program.py")

    assert [line for line, _ in told] == list(range(first_line, len(lines) + 1))
    shown = [text.partition(' is "')[2] for _, text in told[:-2]]
    for position in range(0, len(shown), 3):
        as_public, starred, at_home = shown[position : position + 3]
        assert as_public == starred == at_home
        assert not at_home.startswith(("Any", "Unknown"))
    assert ["no_such_name" in told[-2][1], "TYPE_CHECKING" in told[-1][1]] == [True, True]
