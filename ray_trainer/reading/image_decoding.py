"""Encoded images (PNG, JPEG, WebP, AVIF, GIF, BMP, TIFF, JPEG 2000, PPM) to tensors.

Of these alone, as of others Pillow hands some to programs (EPS to Ghostscript), and images are foreign.

Layout: [channels, height, width] uint8; one channel for grey images, three (red, green, blue) for all
others: palettes are resolved, transparency is dropped. Images of 16 or 32 bits per channel are refused, as
8 bits would silently ruin them.

Images of one batch that have the same shape become one tensor [n, C, H, W]. When they differ, a loop could do
nothing with them, but a transform can make them equal: with a transform it gets a list of tensors, without
one the difference is an error.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from evenload.dataset_catalog.foreign_content import reason_of
from evenload.ray_trainer.reading.errors import UndecodableColumnError

_GREY_MODES: Final = frozenset({"1", "L", "LA", "La"})
_DEEP_MODES: Final = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTH: Final = 24  # where the header says how many bits a channel has
_FORMATS: Final = ("PNG", "JPEG", "MPO", "WEBP", "AVIF", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "PPM")
# An image of a few kilobytes can unfold to gigabytes. Larger ones than this, 128 MiB once decoded, are scaled
# down before anybody trains on them.
PIXELS_MAX: Final = 1 << 25
_LARGE_PIXELS: Final = 1 << 22  # such are decoded one at a time
_NUM_THREADS_MAX: Final = 8
_NUM_IMAGES_PER_TASK: Final = 16  # small images take less time to decode than to hand to a thread


class ImageDecoder:
    """Decodes batches of images in a few threads (Pillow lets go of the interpreter's lock). Close it.

    Args:
        column: for error messages.
        may_differ: images of different shapes give a list; else they are an error.
    """

    def __init__(self, column: str, *, may_differ: bool) -> None:
        self._column = column
        self._may_differ = may_differ
        num_threads = min(_NUM_THREADS_MAX, os.cpu_count() or 1)
        self._large_one = threading.Lock()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="decode-images")

    def decode(self, encoded: Sequence[memoryview]) -> torch.Tensor | list[torch.Tensor]:
        """The images, in the same order.

        Raises:
            UndecodableColumnError: bytes that are no image, too many pixels, or shapes that differ where they
                may not.
        """
        tasks = [
            encoded[start : start + _NUM_IMAGES_PER_TASK]
            for start in range(0, len(encoded), _NUM_IMAGES_PER_TASK)
        ]
        images = [image for part in self._pool.map(self._decode_some, tasks) for image in part]
        shapes = {image.shape for image in images}
        if len(shapes) == 1:
            return torch.from_numpy(np.stack(images))
        if self._may_differ:
            return [torch.from_numpy(image) for image in images]
        listed = ", ".join(str(list(shape)) for shape in sorted(shapes)[:4])
        raise UndecodableColumnError(
            column=self._column,
            reason=f"images of one batch have different shapes [channels, height, width]: {listed}; give "
            "DatasetReader a transform that makes them equal (it gets them as a list)",
        )

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _decode_some(self, encoded: Sequence[memoryview]) -> list[npt.NDArray[np.uint8]]:
        return [self._decode_one(image) for image in encoded]

    def _decode_one(self, encoded: memoryview) -> npt.NDArray[np.uint8]:
        try:
            with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
                num_pixels = image.width * image.height
                if num_pixels > PIXELS_MAX:
                    raise UndecodableColumnError(
                        column=self._column,
                        reason=f"an image has {image.width} x {image.height} pixels, at most {PIXELS_MAX} "
                        "are decoded; scale it down before loading the dataset",
                    )
                if image.mode in _DEEP_MODES or _is_deep_png(encoded):
                    raise UndecodableColumnError(
                        column=self._column,
                        reason=f"an image has mode {image.mode}, more than 8 bits a channel; store arrays",
                    )
                with self._large_one if num_pixels > _LARGE_PIXELS else nullcontext():
                    return _planes(image)
        except UndecodableColumnError:
            raise
        except Exception as error:
            raise UndecodableColumnError(
                column=self._column,
                reason=f"{len(encoded)} bytes are not an image that Pillow reads: {reason_of(error)}",
            ) from error


def _planes(image: Image.Image) -> npt.NDArray[np.uint8]:
    grey = image.mode in _GREY_MODES
    has_clear_colours = image.mode == "P" and "transparency" in image.info
    # Pillow warns unless such a palette goes by way of RGBA.
    colours = image.convert("RGBA") if has_clear_colours else image
    wanted = "L" if grey else "RGB"
    pixels = np.asarray(colours if colours.mode == wanted else colours.convert(wanted))
    # a copy, as what Pillow gives may not be written to, and planes come first here
    return np.array(pixels[None] if grey else pixels.transpose(2, 0, 1), order="C")


def _is_deep_png(encoded: memoryview) -> bool:
    """Whether it is a PNG of 16 bits a channel, whose colours Pillow cuts to 8 without a word."""
    return bytes(encoded[:8]) == _PNG_SIGNATURE and len(encoded) > _PNG_DEPTH and encoded[_PNG_DEPTH] == 16
