"""Images as tensors: whatever was stored, to [n, channels, height, width] of one size; varied at random.

Everything works on a batch at a time and on the tensors' own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

__all__ = ["CHANNELS", "is_channels_last", "mirrored", "moments", "shifted", "to_planes"]

CHANNELS: Final = (1, 3, 4)  # grey, colour, colour and transparency


def is_channels_last(shape: Sequence[int]) -> bool:
    """Whether a shape of three dimensions is [H, W, C]; [C, H, W] where both could be."""
    return shape[0] not in CHANNELS and shape[2] in CHANNELS


def to_planes(images: torch.Tensor, channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Images of one shape as [n, channels, height, width]: bytes as bytes, all other numbers as float32.

    Colour is made grey and grey is repeated, where another number of channels is wanted; sizes are changed
    with antialiasing.

    Args:
        images: [n, H, W], [n, H, W, C] or [n, C, H, W].
    """
    is_bytes = images.dtype == torch.uint8
    planes = images[:, None] if images.ndim == 3 else images
    if images.ndim == 4 and is_channels_last(images.shape[1:]):
        planes = images.permute(0, 3, 1, 2)
    if planes.shape[1] != channels:
        planes = _with_channels(planes, channels)
    if tuple(planes.shape[2:]) != size:
        planes = F.interpolate(planes.float(), size=size, mode="bilinear", antialias=True)
    if is_bytes:
        return (planes.round() if planes.is_floating_point() else planes).to(torch.uint8).contiguous()
    return planes.float().contiguous()


def _with_channels(planes: torch.Tensor, channels: int) -> torch.Tensor:
    colours = planes[:, :3]  # without transparency
    if channels <= 3 and colours.shape[1] == channels:
        return colours
    grey = colours.float().mean(dim=1, keepdim=True)
    return grey.expand(-1, channels, -1, -1)


def moments(planes: torch.Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, the latter at least a little above 0.

    Args:
        planes: [n, channels, height, width].
    """
    values = planes.double().transpose(0, 1).flatten(1)
    deviation = values.std(dim=1, correction=0)
    smallest = 1e-6 * max(1.0, float(values.abs().max()))
    return values.mean(dim=1).tolist(), deviation.clamp(min=smallest).tolist()


def shifted(planes: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to an eighth of its side, up or down and left or right; its edge is repeated.

    Args:
        planes: [n, channels, height, width].
        seeds: [n] int64, 0 or more: what an image's shift follows from, and nothing else.
    """
    height, width = planes.shape[2:]
    down = _draw(seeds, 0, height // 8)
    right = _draw(seeds, 1, width // 8)
    rows = (torch.arange(height, device=planes.device) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=planes.device) - right[:, None]).clamp(0, width - 1)
    sample = torch.arange(len(planes), device=planes.device)[:, None, None]
    moved = planes.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def mirrored(planes: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Each image as it is, or left and right exchanged.

    Args:
        planes: [n, channels, height, width].
        seeds: [n] int64, 0 or more: what the choice follows from, and nothing else.
    """
    is_mirrored = (seeds >> 48) % 2 == 1
    return torch.where(is_mirrored[:, None, None, None], planes.flip(3), planes)


def _draw(seeds: torch.Tensor, number: int, largest: int) -> torch.Tensor:
    """[n] integers from -largest to largest; another 16 bits of the seed for each number."""
    return ((seeds >> (16 * number)) % (1 << 16)) % (2 * largest + 1) - largest
