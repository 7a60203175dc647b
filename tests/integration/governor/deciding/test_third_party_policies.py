"""What docs/policies.md teaches works as it stands, with a package that is really installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "policies.md"

DECIDE = """
from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.plugins import GuardedPolicy, known_policies, load_policy
from evenload.governor.testing import make_job, make_state

guarded = GuardedPolicy(load_policy("small_first"), name="small_first")
state = make_state(make_job("large", samples_left=9e5), make_job("small", samples_left=1e5), num_slots=9)
print("small_first" in known_policies(), decide(state, guarded), guarded.fault)
"""


def test_a_package_that_follows_the_page_appears_by_its_entry_point(
    run_with_package: Callable[[Path, str], str],
) -> None:
    assert run_with_package(PAGE, DECIDE) == "True {'large': 1, 'small': 8} None\n"
