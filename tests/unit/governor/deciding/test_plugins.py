"""Policies by name, and what becomes of one that misbehaves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from itertools import count
from typing import Any

import pytest

from evenload.governor.deciding import plugins
from evenload.governor.deciding.plugins import GuardedPolicy, known_policies, load_policy
from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.errors import PolicyError
from evenload.governor.testing import make_job, make_state

STATE = make_state(make_job("a"), make_job("b", submitted_s=1))


def test_the_built_in_ones_are_known_by_name() -> None:
    assert set(known_policies()) >= {
        "afs",
        "elastic_fifo",
        "equi",
        "fifo",
        "fifo_backfill",
        "hesrpt",
        "las",
        "optimus",
        "power_mean",
        "round_robin",
        "smartfill",
        "srtf",
    }
    for name in known_policies():
        assert plugins.nonsense(STATE, load_policy(name)(STATE)) is None


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(PolicyError, match=r"policy 'fastest' is not known. There are: .*smartfill") as caught:
        load_policy("fastest")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.name, copied.known) == (str(caught.value), "fastest", known_policies())


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([("mine", "a:f"), ("mine", "b:f")], r"is offered by more than one package \(a:f and b:f\)"),
        ([("mine", "no_such_package:f")], r"can't be imported \(ModuleNotFoundError"),
        ([("mine", "math:pi")], "is no function, but of type float"),
    ],
)
def test_one_that_can_not_be_had_is_refused(
    monkeypatch: pytest.MonkeyPatch, offers: list[tuple[str, str]], reason: str
) -> None:
    offered = [EntryPoint(name, value, plugins.GROUP) for name, value in offers]
    monkeypatch.setattr(plugins, "offered", lambda _: {"mine": offered})
    with pytest.raises(PolicyError, match=reason):
        load_policy("mine")


def _raise(_: object) -> Any:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (_raise, "it raised RuntimeError: no idea"),
        (lambda _: None, "it answered NoneType, not a mapping"),
        (lambda _: {"c": 1}, "it named 'c', which is no job"),
        (sys.exit, "it raised SystemExit: ClusterState("),
        (lambda _: {"a": 1.0}, "it gave a a size of type float, not int"),
        (lambda _: {"a": True}, "it gave a a size of type bool, not int"),
        (lambda _: {"a": -1}, "it gave a -1 slots, which may have 0 to 8"),
        (lambda _: {"a": 9}, "it gave a 9 slots, which may have 0 to 8"),
        (lambda _: {"a": 5, "b": 5}, "it gave out 10 slots of 8"),
    ],
)
def test_one_that_misbehaves_is_put_aside_and_said(policy: Callable[..., Any], fault: str) -> None:
    guarded = GuardedPolicy(policy, name="mine")
    assert guarded(STATE) == elastic_fifo(STATE)
    assert guarded.fault is not None
    assert guarded.fault.startswith(f"policy 'mine' is put aside, elastic_fifo decides: {fault}")


def test_one_that_is_slow_is_put_aside_and_not_asked_again() -> None:
    asked = []
    guarded = GuardedPolicy(lambda _: asked.append(1) or {"a": 1}, name="mine", clock=count(0, 1.5).__next__)
    assert guarded(STATE) == elastic_fifo(STATE)
    assert guarded(STATE) == elastic_fifo(STATE)
    assert asked == [1]
    assert guarded.fault is not None
    assert guarded.fault.endswith("it took 1.5 s, more than 1 s")


def test_one_that_behaves_decides() -> None:
    guarded = GuardedPolicy(lambda _: {"b": 3}, name="mine")
    assert guarded(STATE) == {"b": 3}
    assert guarded.fault is None
