"""Real data for the demo: scikit-learn's handwritten digits, drawn larger and moved.

The 1,797 digits that scikit-learn ships (UCI, Alpaydin and Kaynak 1998; 8 x 8 pixels) are 64 bytes each: too
few to see anything balance. Each is drawn at 32 x 32 and turned, scaled and shifted a little, in seeded ways,
which gives about 50 MB. An original is either in the training set or held out, never in both.

Reproducible: the same seed gives the same bytes with the same versions of NumPy and SciPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits

SIDE = 32
VARIANTS = 32
HELD_OUT_EVERY = 6
TURN_MAX_DEGREES = 14.0
SCALE_RANGE = (0.85, 1.15)
SHIFT_MAX_PIXELS = 2.5

Arrays = dict[str, NDArray[Any]]


def draw_digits(seed: int = 0, *, variants: int = VARIANTS) -> tuple[Arrays, Arrays]:
    """Draw the training set and the held-out set.

    Args:
        seed: Decides how each variant is moved.
        variants: Images drawn of each training original; of each held-out one a quarter as many, at least 1.

    Returns:
        (training, held out), each {"image": [n, 32, 32] uint8, "label": [n] int64, 0 to 9}: about 47,900 and
        2,400 images with the default number of variants.
    """
    originals = load_digits()
    held_out = np.arange(len(originals.images)) % HELD_OUT_EVERY == 0
    rng = np.random.default_rng(seed)
    training = _draw(originals.images[~held_out], originals.target[~held_out], variants, rng)
    return training, _draw(originals.images[held_out], originals.target[held_out], max(1, variants // 4), rng)


def _draw(
    images: NDArray[np.float64], labels: NDArray[np.int64], variants: int, rng: np.random.Generator
) -> Arrays:
    drawn = np.empty((len(images) * variants, SIDE, SIDE), dtype=np.uint8)
    for position, image in enumerate(np.repeat(images / 16.0, variants, axis=0)):
        drawn[position] = _moved(image, rng)
    return {"image": drawn, "label": np.repeat(labels, variants).astype(np.int64)}


def _moved(image: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One 8 x 8 image with values in [0, 1] as [32, 32] uint8, turned, scaled and shifted."""
    turn = np.deg2rad(rng.uniform(-TURN_MAX_DEGREES, TURN_MAX_DEGREES))
    scale = rng.uniform(*SCALE_RANGE) * SIDE / 8
    shift = rng.uniform(-SHIFT_MAX_PIXELS, SHIFT_MAX_PIXELS, size=2)
    to_original = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / scale
    centre_drawn, centre_original = (SIDE - 1) / 2, (8 - 1) / 2
    offset = centre_original - to_original @ (centre_drawn + shift)
    moved: NDArray[np.float64] = ndimage.affine_transform(
        image, to_original, offset, output_shape=(SIDE, SIDE), order=1
    )
    drawn: NDArray[np.uint8] = np.rint(255 * np.clip(moved, 0, 1)).astype(np.uint8)
    return drawn
