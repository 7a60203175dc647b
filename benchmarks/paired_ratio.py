"""How many times as much as the other, and between which bounds, where each was measured many times in turn.

What else the machine does hits two short windows that follow each other alike, so each pair gives a ratio;
what counts is their median, and how far it could lie by chance: the interval of its bootstrap distribution
(Efron, 1979), in which pairs are drawn anew with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap

CONFIDENCE = 0.95
_NUM_DRAWS = 9999


class Ratio(NamedTuple):
    """The median ratio of pairs, and its 95 % interval."""

    median: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ours over theirs, pair by pair.

    Args:
        ours: Above 0; entry i was measured right before or after entry i of `theirs`. At least two.
        theirs: Above 0, as many.
    """
    ratios = np.asarray(ours) / np.asarray(theirs)
    if np.ptp(ratios) == 0:  # all alike, of which nothing can be drawn
        return Ratio(*[float(ratios[0])] * 3)
    drawn = bootstrap(
        (ratios,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=_NUM_DRAWS,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = drawn.confidence_interval
    return Ratio(float(np.median(ratios)), float(low), float(high))
