"""What can go wrong with evenload's jar; local_cluster/errors.py has what can with jars that are fetched."""

from __future__ import annotations

__all__ = ["JarNotBuiltError"]


class JarNotBuiltError(Exception):
    """The jar can't be built from the packaged sources.

    Args:
        reason: What the compiler said, or what is missing.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"evenload's jar can't be built: {self.reason}"
