"""What is used of Ray without its promise is there, and used in one module alone."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.worker import listen_error_messages

from evenload.ray_trainer.training.on_ray import ray_internals

ROOT = Path(__file__).parents[5]


def test_notices_are_printed_by_a_function_that_is_looked_up_when_it_is_called() -> None:
    called = re.search(r"print_to_stdstream\((.*?)\)", inspect.getsource(listen_error_messages), re.DOTALL)
    assert called is not None
    assert re.sub(r"\s", "", called[1]) == (
        '{"lines":[error_message],"pid":"raylet","is_err":False,},ignore_prefix=False,'
    )


def test_the_function_that_uses_a_token_at_hand_is_called_as_before() -> None:
    signature = inspect.signature(maybe_enable_token_auth_if_token_available)
    assert str(signature) == "(warn_if_disabled: bool = True) -> bool"


@pytest.mark.parametrize(
    "module", ["ray._private.worker", "ray._private.authentication.authentication_token_setup"]
)
def test_a_ray_without_them_will_do(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray_internals.divert_notices()
    ray_internals.use_token_at_hand()


def test_no_other_module_uses_what_is_private_to_ray() -> None:
    private = re.compile(r"^\s*(from|import) ray\.(_|\w+(\.\w+)*\._)", re.MULTILINE)
    using = [path for path in (ROOT / "ray_trainer").rglob("*.py") if private.search(path.read_text())]
    assert [path.name for path in using] == ["ray_internals.py"]
