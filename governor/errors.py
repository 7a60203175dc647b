"""What can go wrong in sizing runs.

GovernorError
+-- PolicyError   a policy that is named can't be had
+-- StuckError    a policy starts nothing, though all slots are free
"""

from __future__ import annotations

from typing import Any, ClassVar


class GovernorError(Exception):
    """Root of the errors of this package; its attributes are the facts, and it survives pickling."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[GovernorError], args: tuple[Any, ...], facts: dict[str, Any]) -> GovernorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class PolicyError(GovernorError):
    """A policy is named that can't be had.

    Attributes:
        name: The name that was asked for.
        known: The names that there are.
        reason: Why it can't be had.
    """

    def __init__(self, name: str, known: tuple[str, ...], reason: str) -> None:
        self.name, self.known, self.reason = name, known, reason
        super().__init__(f"policy {name!r} {reason}. There are: {', '.join(known) or 'none'}.")


class StuckError(GovernorError):
    """A simulation would never end: its policy starts nothing, though all slots are free.

    Attributes:
        waiting: The ids of the jobs that wait.
        num_slots: What there is.
    """

    def __init__(self, waiting: tuple[str, ...], num_slots: int) -> None:
        self.waiting, self.num_slots = waiting, num_slots
        named = ", ".join(waiting[:5]) + (", ..." if len(waiting) > 5 else "")
        super().__init__(
            f"the policy starts none of the {len(waiting)} jobs that wait ({named}) on {num_slots} free "
            "slots: was one asked to have more?"
        )
