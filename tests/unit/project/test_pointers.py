"""Files that docstrings and comments send a reader to are there: a claim of coverage has a test behind it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
USE_ALL = ("benchmarks", "tests")  # their pointers may lead into any package
FILES = {
    path.relative_to(ROOT).as_posix()
    for top in (*PACKAGES, "tests", "docs", "examples")
    for path in (ROOT / top).rglob("*.py")
}
_POINTER = re.compile(r"(?<![\w/.-])[\w./-]*\w\.py\b(?!/)")


def pointers(source: str) -> Iterator[str]:
    """Names of Python files in the docstrings and comments of a module."""
    texts = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts.append(ast.get_docstring(node) or "")
    for text in texts:
        yield from _POINTER.findall(text)


def leads_somewhere(pointer: str, package: str) -> bool:
    """A path from the repository's root, or the end of one of a file in the same package."""
    there = FILES if package in USE_ALL else {path for path in FILES if path.split("/")[0] == package}
    return pointer in FILES or any(path.endswith(f"/{pointer}") for path in there)


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_every_file_that_a_docstring_or_comment_names_is_there(package: str) -> None:
    dead = [
        f"{path}: {pointer}"
        for path in sorted(FILES)
        if path.split("/")[0] == package
        for pointer in pointers((ROOT / path).read_text())
        if not leads_somewhere(pointer, package)
    ]
    assert dead == []


def test_a_pointer_to_nothing_is_found() -> None:
    source = '"""Checked in tests/unit/test_no_such_thing.py."""\n\n# read next: nowhere.py\nx = "ours.py"\n'
    assert sorted(pointers(source)) == ["nowhere.py", "tests/unit/test_no_such_thing.py"]
    assert not any(leads_somewhere(pointer, "router") for pointer in pointers(source))
    assert leads_somewhere("tests/unit/project/test_pointers.py", "router")
