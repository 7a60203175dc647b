"""The command before there is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pytest

from evenload.__main__ import main


class InterruptedAt(MetaPathFinder):
    """Somebody presses Ctrl-C while a module is loaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:  # noqa: ARG002
        """Nothing, or an interrupt."""
        if fullname == self._name:
            raise KeyboardInterrupt


def test_an_interrupt_while_the_command_is_loaded_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "evenload.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [InterruptedAt("evenload.cli"), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
