"""What a run is called when nobody says: RECIPE-DATASET."""

from __future__ import annotations

__all__ = ["default_run_name"]


def default_run_name(recipe: str, dataset: str) -> str:
    """`cola` gives `text-classification-cola`, `cola@2` the same with `-v2`: another version, another run."""
    return f"{recipe}-{dataset.replace('@', '-v')}"
