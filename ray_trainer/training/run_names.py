"""Names: what a run is called when nobody says, and what its folders of attempts are.

Checkpoints and books both have a folder for each attempt, named alike (storage.py draws them), and know
nothing of each other. So the name stands here, below both.
"""

from __future__ import annotations

import re

__all__ = ["attempt_folder", "attempt_number", "default_run_name"]

_ATTEMPT = re.compile(r"attempt-(\d{6,})")


def default_run_name(recipe: str, dataset: str) -> str:
    """`cola` gives `text-classification-cola`, `cola@2` the same with `-v2`: another version, another run."""
    return f"{recipe}-{dataset.replace('@', '-v')}"


def attempt_folder(attempt: int) -> str:
    """The name of an attempt's folder; or of a driver's, whose first attempt this is."""
    return f"attempt-{attempt:06d}"


def attempt_number(folder: str) -> int | None:
    """The number in such a name; None for other names."""
    match = _ATTEMPT.fullmatch(folder)
    return int(match[1]) if match else None
