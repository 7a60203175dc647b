"""What can go wrong in deciding.

    RouterError
    +-- PluginError               a goal or score function that is named can't be had
    +-- WeightError               weights that can't be used
    +-- NotEnoughBrokersError     more replicas are wanted than there are brokers to hold them

Deciding where the next bytes go never raises because of what was measured: a missing or stale snapshot
makes a route that is a fallback, with the reason in it.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["NotEnoughBrokersError", "PluginError", "RouterError", "WeightError"]


class RouterError(Exception):
    """Root of the errors of this package; its attributes are the facts, and it survives pickling."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[RouterError], args: tuple[Any, ...], facts: dict[str, Any]) -> RouterError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class PluginError(RouterError):
    """A goal or score function is named that can't be had.

    Attributes:
        group: the entry-point group.
        name: the name that was asked for.
        known: the names that there are.
        reason: why it can't be had.
    """

    def __init__(self, group: str, name: str, known: tuple[str, ...], reason: str) -> None:
        self.group, self.name, self.known, self.reason = group, name, known, reason
        super().__init__(f"{group} {name!r}: {reason}. There are: {', '.join(known) or 'none'}.")


class WeightError(RouterError):
    """Weights that can't be used.

    Attributes:
        group: the entry-point group that they are for.
        name: the name whose weight it is, or None when it is all of them.
        value: the weight that was given.
        reason: what is wrong with it.
    """

    def __init__(self, group: str, name: str | None, value: object, reason: str) -> None:
        self.group, self.name, self.value, self.reason = group, name, value, reason
        what = group if name is None else f"{group} {name!r}"
        super().__init__(f"weight of {what} is {value!r}: {reason}.")


class NotEnoughBrokersError(RouterError):
    """More replicas are wanted than there are brokers to hold them.

    Attributes:
        replication: copies of each partition that were asked for.
        broker_ids: the brokers that can hold one.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, replication: int, broker_ids: tuple[int, ...]) -> None:
        self.replication, self.broker_ids = replication, broker_ids
        super().__init__(
            f"replication {replication} needs as many brokers, but only {len(broker_ids)} can be used "
            f"({', '.join(map(str, broker_ids)) or 'none'}). Ask for fewer copies, or bring the others back."
        )
