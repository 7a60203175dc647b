"""What GitHub, pre-commit and PyPI are told is in the form they want, and agrees with the rest."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def read(workflow: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())


def recipe(target: str) -> list[str]:
    """What make runs for a target, with the environment's programs."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


@pytest.mark.parametrize("schema", ["vendor.github-workflows", "custom.github-workflows-require-timeout"])
def test_workflows_satisfy_githubs_schema_and_have_time_limits(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, WORKFLOWS)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert len(WORKFLOWS) == 2
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_whatever_a_workflow_makes_can_be_made(workflow: Path) -> None:
    steps = [step for job in read(workflow.name)["jobs"].values() for step in job["steps"]]
    lines = re.findall(r"^make (.+)", "\n".join(step.get("run", "") for step in steps), re.MULTILINE)
    targets = set(" ".join(lines).split())
    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_each_python_that_is_named_is_tested() -> None:
    named = {text.split(" :: ")[-1] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    tested = read("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert set(tested) == named
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_only_the_job_that_uploads_may_act_as_the_project() -> None:
    workflow = read("release.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == ["publish"]
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in workflow["jobs"]["publish"]["steps"])


def test_a_commit_is_checked_as_make_check_does() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == recipe("check")


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased"
