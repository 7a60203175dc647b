"""What docs/ makes the pictures of pages with still fits the product that it draws."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def test_the_made_up_evening_is_what_the_page_shows() -> None:
    evening = runpy.run_path(str(DOCS / "live_page.py"))["Evening"]()
    evening.pass_by(60)
    seen = json.loads(evening.overview_json())
    assert len(seen["brokers"]) == 5
    assert len(seen["routes"]) == 2
    slow, *others = sorted(seen["brokers"], key=lambda broker: broker["willingness"])
    assert slow["broker_id"] == 4
    assert {broker["willingness"] for broker in others} == {1.0}


def test_the_made_up_afternoon_is_what_the_governors_page_shows() -> None:
    afternoon = runpy.run_path(str(DOCS / "governor_page.py"))["Afternoon"]()
    afternoon.pass_by(12)
    seen = afternoon.overview()
    assert [finding.kind for finding in seen.findings] == ["fine"]
    assert {job.state for job in seen.jobs} >= {"running"}
    assert seen.kinds
    assert seen.decisions
    assert seen.history
    assert len(seen.history.from_ago_s) > 5
