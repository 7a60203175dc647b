"""What docs/score-functions.md teaches works as it stands, with a package that is really installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "score-functions.md"

DECIDE = """
from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.testing import make_snapshot

def shares(router, hour):
    now_s = 86400 * 20000 + 3600 * hour
    snapshot = make_snapshot([0, 0, 600], 1000, racks=["office", "cellar", None], taken_at_s=now_s,
                             topics={"t": [(1,), (2,), (2,), (3,)]})
    route = router.route(snapshot, "t", num_partitions=4, remaining_bytes=600, now_s=now_s)
    return {partition: round(share, 3) for partition, share in route.shares.items()}

config = RouterConfig(score_functions={"reachability": 1, "night_shift": 1}, function_time_max_s=10)
router = Router(config)
print(shares(router, 3), shares(router, 12))
print(router.reload(goals={"by_leaders": 1}))
print(shares(router, 3))
"""


def test_a_package_that_follows_the_page_appears_by_its_entry_points(
    run_with_package: Callable[[Path, str], str],
) -> None:
    assert run_with_package(PAGE, DECIDE).splitlines() == [
        "{0: 0.5, 1: 0.25, 2: 0.25} {1: 0.5, 2: 0.5}",
        "()",
        "{0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}",
    ]
