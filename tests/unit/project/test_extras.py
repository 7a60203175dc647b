"""Each extra is enough for what comes with it, and whatever is missing says which extra brings it.

Packages are missing as if they were not installed; tests/integration/test_wheel.py really installs.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import evenload
from evenload.extras import EXTRAS_BY_PACKAGE, missing_extra, naming_extra

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Where a distribution is not called as what is imported of it.
PACKAGE_OF = {
    "kafka-python": "kafka",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-proto": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}
# What has to be importable with each; a star stands for a whole package.
PARTS = {
    "": (
        "evenload.kafka_connection",
        "evenload.kafka_plugin.producer",
        "evenload.kafka_plugin.routing.followed_routes",
        "evenload.route_service.client",
    ),
    "measure": (
        "evenload.kafka_plugin.partitioner",
        "evenload.kafka_plugin.routing.*",
        "evenload.router.*",
        "evenload.telemetry_collector.collector",
        "evenload.telemetry_collector.service.client",
    ),
    "load": ("evenload.cli.*", "evenload.kafka_plugin.*", "evenload.dataset_catalog.*"),
    "resume": ("evenload.resume.*",),
    "reader": ("evenload.ray_trainer.reading.*", "evenload.ray_trainer.training.session"),
    "train": ("evenload.cli.*", "evenload.ray_trainer.*"),
    "collector": (
        "evenload.cli.*",
        "evenload.explaining",
        "evenload.route_service.http_routes",
        "evenload.telemetry_collector.*",
    ),
    "governor": ("evenload.cli.*", "evenload.governor.*"),
    "local": ("evenload.cli.*", "evenload.jvm.jar", "evenload.local_cluster.*"),
}


def requirements(extra: str) -> Iterator[Requirement]:
    """All that is installed by name with an extra, or with none."""
    for requirement in map(Requirement, EXTRAS[extra] if extra else PROJECT["dependencies"]):
        if requirement.name == "evenload":
            for other in requirement.extras:
                yield from requirements(other)
        else:
            yield requirement


def packages(wanted: Iterable[Requirement]) -> set[str]:
    """What can be imported of them."""
    return {PACKAGE_OF.get(each.name, each.name.replace("-", "_")) for each in wanted}


def with_all_they_need(wanted: Iterable[Requirement]) -> dict[str, Requirement]:
    """Requirements, and theirs, as they are installed here."""
    found: dict[str, Requirement] = {}
    left = list(wanted)
    while left:
        requirement = left.pop()
        if found.get(str(requirement)):
            continue
        found[str(requirement)] = requirement
        for text in importlib.metadata.requires(requirement.name) or ():
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return found


def run(program: str, *, missing: Iterable[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter that lacks packages."""
    program = f"import sys; sys.modules.update(dict.fromkeys({list(missing)!r}))\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )


def test_what_is_said_of_extras_is_what_the_project_has() -> None:
    brought = {extra: packages(requirements(extra)) for extra in EXTRAS}
    assert {package: set(extras) for package, extras in EXTRAS_BY_PACKAGE.items()} == {
        package: {extra for extra in EXTRAS if package in brought[extra]}
        for package in set().union(*brought.values())
    }


def test_a_package_has_the_same_range_wherever_it_is_named() -> None:
    ranges: dict[str, set[str]] = {}
    for extra in ("", *EXTRAS):
        for requirement in requirements(extra):
            ranges.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_is_enough_for_what_comes_with_it(extra: str) -> None:
    installed = with_all_they_need([*requirements(""), *(requirements(extra) if extra else ())])
    missing = EXTRAS_BY_PACKAGE.keys() - packages(installed.values())
    program = (
        "from importlib import import_module\n"
        "from pkgutil import walk_packages\n"
        f"for part in {PARTS[extra]!r}:\n"
        "    package = import_module(part.removesuffix('.*'))\n"
        "    if part.endswith('.*'):\n"
        "        for module in walk_packages(package.__path__, package.__name__ + '.'):\n"
        "            import_module(module.name)\n"
        "import evenload\n"
        "for name, (_, extra) in evenload._HOMES.items():\n"
        f"    if extra in (None, {extra!r}):\n"
        "        getattr(evenload, name)"
    )
    done = run(program, missing=missing)
    assert done.stderr == ""


@pytest.mark.parametrize("name", [name for name, (_, extra) in evenload._HOMES.items() if extra is not None])
def test_a_public_name_without_its_packages_says_which_extra_it_comes_with(name: str) -> None:
    extra = evenload._HOMES[name][1]
    done = run(f"from evenload import {name}", missing=EXTRAS_BY_PACKAGE.keys() - packages(requirements("")))
    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: evenload.{name}: this needs the ")
    assert done.stderr.endswith(f"; install it with `pip install 'evenload[{extra}]'`\n")


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("datasets", "pyarrow", "load"),
        ("train text-classification --dataset x", "ray", "train"),
        ("audit x", "pyarrow", "train"),
        ("collector", "prometheus_client", "collector"),
        ("demo", "matplotlib", "local"),
    ],
)
def test_a_command_without_a_package_says_which_extra_it_comes_with(
    command: str, missing: str, extra: str
) -> None:
    program = f"from evenload.__main__ import main; sys.argv[1:] = {command.split()!r}; main()"
    done = run(program, missing={missing}, EVENLOAD_BOOTSTRAP_SERVERS="127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"evenload: this needs the package {missing}; install it with `pip install 'evenload[{extra}]'`"
    )


def test_a_plain_install_says_that_the_command_comes_with_an_extra() -> None:
    done = run("from evenload.__main__ import main; main()", missing={"click", "rich"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "evenload: this needs the package click; install it with `pip install 'evenload[load]'`; a plain "
        "install is a producer, the command comes with [load], [train], [collector], [governor], [local]\n"
    )


def test_an_error_about_any_other_package_stays_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
    assert missing_extra(error) is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nowhere'$"), naming_extra("load", "x"):
        raise error
