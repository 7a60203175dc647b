"""Which permission is missing, when brokers refuse. Pure.

Brokers say what they refuse access to (a topic, the cluster), by one of a few error codes that are the same
numbers in both clients, and never which operation was missing. Who asked knows that, so it passes it along,
and the sentence names both. docs/permissions.md has the whole table, found by trying.
"""

from __future__ import annotations

_CLUSTER = 31
_RESOURCE_BY_CODE = {
    29: "topic",
    30: "consumer group",
    _CLUSTER: "cluster",
    53: "transactional id",
}


def missing_permission(code: int | None, operation: str) -> str | None:
    """What an account has to be granted, as a clause; None when it isn't that.

    Args:
        code: Kafka's error code.
        operation: What the refused request takes (`READ`, `CREATE`).
    """
    if code == _CLUSTER and operation == "WRITE":
        return "it needs WRITE on a topic, without which a producer can't even begin"
    resource = _RESOURCE_BY_CODE.get(code) if code is not None else None
    return f"it needs {operation} on the {resource}" if resource else None
