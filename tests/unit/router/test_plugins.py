from __future__ import annotations

import math
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from evenload.router.errors import PluginError, WeightError
from evenload.router.levelling import dataset_spread, disk_usage
from evenload.router.patience import OverdueError, Patience
from evenload.router.plugins import GOALS, SCORE_FUNCTIONS, Weighted, WeightedPlugins
from evenload.router.score_functions import ingest_rate, latency, reachability


def half() -> float:
    return 0.5


def whole() -> float:
    return 1.0


FUNCTIONS = {"half": half, "whole": whole}


def names(plugins: WeightedPlugins[object]) -> list[str]:
    return [name for name, _, _ in plugins.current]


def test_the_built_in_ones_come_from_entry_points() -> None:
    assert WeightedPlugins(GOALS, {"disk_usage": 1.0}).current == (Weighted("disk_usage", 1.0, disk_usage),)
    assert WeightedPlugins(SCORE_FUNCTIONS, {"reachability": 2.0}).current == (
        Weighted("reachability", 2.0, reachability),
    )


@pytest.mark.parametrize("function", [disk_usage, dataset_spread, reachability, ingest_rate, latency])
def test_the_built_in_ones_take_their_time(function: object) -> None:
    seconds = iter(range(100))
    impatient = Patience(time_max_s=0.5, clock=lambda: float(next(seconds)))
    assert impatient.ask(function, lambda check: check("") or "answered") == "answered"
    with pytest.raises(OverdueError, match=r"took 1 s, where 0\.5 s is allowed"):
        impatient.ask(half, lambda _: "answered")


def test_weight_zero_leaves_one_out() -> None:
    plugins = WeightedPlugins("test.group", {"half": 0, "whole": 2}, functions=FUNCTIONS)
    assert plugins.current == (Weighted("whole", 2.0, whole),)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"half": math.nan}, "nan: has to be from 0 to 1000000"),
        ({"half": math.inf}, "inf: has to be from 0 to 1000000"),
        ({"half": -1}, "-1: has to be from 0 to 1000000"),
        ({"half": 1e308}, "1e+308: has to be from 0 to 1000000"),
        ({"half": "2"}, "'2': has to be a number"),
        ({"half": True}, "True: has to be a number"),
        ({"half": None}, "None: has to be a number"),
        ({"whole": 0}, "at least one has to be above 0"),
        ({}, "at least one has to be above 0"),
        (["half"], "has to be a mapping"),
    ],
)
def test_a_bad_weight_keeps_the_old_ones_and_says_so(weights: object, said: str) -> None:
    plugins = WeightedPlugins("test.group", {"half": 2}, functions=FUNCTIONS, needs_one=True)
    complaint = plugins.replace(weights)  # type: ignore[arg-type]
    assert complaint is not None
    assert said in complaint
    assert complaint.endswith("What was in force stays: half 2.")
    assert plugins.current == (Weighted("half", 2.0, half),)
    with pytest.raises(WeightError, match="weight of test"):
        WeightedPlugins("test.group", weights, functions=FUNCTIONS, needs_one=True)  # type: ignore[arg-type]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        PluginError, match=r"test.group 'third': is not known. There are: half, whole."
    ) as caught:
        WeightedPlugins("test.group", {"third": 1.0}, functions=FUNCTIONS)
    assert caught.value.known == ("half", "whole")


def test_good_weights_replace_all_that_were_in_force() -> None:
    plugins = WeightedPlugins("test.group", {"half": 2}, functions=FUNCTIONS)
    assert plugins.replace({"whole": 0.5}) is None
    assert names(plugins) == ["whole"]
    assert plugins.replace({}) is None
    assert names(plugins) == []


def install(folder: Path, name: str, points: str, module: str) -> None:
    """Leaves what `pip install` of a package with entry points leaves."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    (folder / f"{name}.py").write_text(module)


def test_a_third_partys_function_appears_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path,
        "evenload_night_shift",
        "[evenload.score_functions]\nnight_shift = evenload_night_shift:night_shift\n"
        "broken = evenload_night_shift:nothing\n",
        "def night_shift(broker, context):\n    return 0.25\n",
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    plugins: WeightedPlugins[object] = WeightedPlugins(SCORE_FUNCTIONS, {"night_shift": 1.0})
    assert names(plugins) == ["night_shift"]
    complaint = plugins.replace({"broken": 1.0})
    assert complaint is not None
    assert "can't be imported (AttributeError" in complaint
    assert names(plugins) == ["night_shift"]


def test_a_package_that_is_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = WeightedPlugins(SCORE_FUNCTIONS, {"reachability": 1.0})  # type: ignore[var-annotated]
    assert "late_shift" not in before.known
    points = "[evenload.score_functions]\nlate_shift = evenload_late_shift:late_shift\n"
    install(tmp_path, "evenload_late_shift", points, "def late_shift(broker, context): ...\n")
    later = WeightedPlugins(SCORE_FUNCTIONS, {"late_shift": 1.0})  # type: ignore[var-annotated]
    assert names(later) == ["late_shift"]


def test_a_name_that_two_packages_offer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("evenload_one", "evenload_two"):
        install(tmp_path, name, f"[evenload.goals]\nsame = {name}:goal\n", "def goal(context): ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert len(entry_points(group=GOALS, name="same")) == 2
    with pytest.raises(PluginError, match="more than one package"):
        WeightedPlugins(GOALS, {"same": 1.0})
