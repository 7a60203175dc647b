"""Whether somebody still loads, as far as can be told from the last progress record.

Only a hint, so that two loaders don't fence each other by accident; what keeps them from mixing is
Kafka's fencing of the older transactional id.
"""

from __future__ import annotations

from evenload.dataset_catalog.process_identity import is_running
from evenload.dataset_catalog.progress import LoadProgress

RECENT_S = 30.0  # a load commits at least each 5 s; brokers that fail over hold it up for some more


def may_be_loading(last: LoadProgress, *, now_s: float, recent_s: float = RECENT_S) -> bool:
    """False when the load is complete, silent for `recent_s`, or its process is known to have ended.

    A date that is further ahead than `recent_s` counts as silence too: a dead host whose clock was wrong
    would hold up everybody else until then. So clocks have to agree to within that, either way.

    Args:
        last: The load's newest progress record.
        now_s: Seconds since 1970.
        recent_s: How long a loader may be silent, in seconds.
    """
    if last.is_complete or abs(now_s - last.updated_at_s) > recent_s:
        return False
    return is_running(last.process) is not False
