"""Random state that needs no file: set anew for each step, from (seed, step, rank) and what it is for.

A resumed run goes on with the numbers it would have had, and a rank that a resize brings has defined ones.
"""

from __future__ import annotations

import enum
import random

import numpy as np
import torch

from evenload.dataset_catalog.splitmix64 import next_output

__all__ = ["Purpose", "seed_step", "step_seed"]


class Purpose(enum.Enum):
    """What a step's random numbers are for, each its own: a transform's must not come again in dropout."""

    LOOP = ()
    BATCH = (1,)
    # The number is the epoch's, not a step's.
    EPOCH = (2,)
    LOADER = (3,)


def step_seed(seed: int, step: int, rank: int, purpose: Purpose = Purpose.LOOP) -> int:
    """64 bits, different for every (seed, step, rank, purpose): SplitMix64 folded over them."""
    mixed = 0
    for part in (seed, step, rank, *purpose.value):
        mixed = next_output(mixed + part)
    return mixed


def seed_step(seed: int, step: int, rank: int, *, purpose: Purpose) -> None:
    """Set what torch (all devices), NumPy and Python draw from, in this process."""
    mixed = step_seed(seed, step, rank, purpose)
    torch.manual_seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)
    random.seed(mixed)
