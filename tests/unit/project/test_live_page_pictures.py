"""docs/live_page.py, which makes the pictures of the live page, still fits the product that it draws."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "docs" / "live_page.py"


def test_the_made_up_evening_is_what_the_page_shows() -> None:
    evening = runpy.run_path(str(SCRIPT))["Evening"]()
    evening.pass_by(60)
    seen = json.loads(evening.overview_json())
    assert len(seen["brokers"]) == 5
    assert len(seen["routes"]) == 2
    slow, *others = sorted(seen["brokers"], key=lambda broker: broker["willingness"])
    assert slow["broker_id"] == 4
    assert {broker["willingness"] for broker in others} == {1.0}
