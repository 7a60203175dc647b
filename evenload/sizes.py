"""Numbers of bytes as people read and write them, in powers of 1024. Pure.

bytes_text(1536)      # '1.5 KiB'
parse_bytes("2GiB")   # 2147483648
"""

from __future__ import annotations

__all__ = ["bytes_text", "parse_bytes"]

_BYTES_BY_UNIT = {"": 1, "B": 1} | {
    name: 1024**power
    for power, letter in enumerate("KMGT", start=1)
    for name in (letter, f"{letter}IB", f"{letter}B")
}


def bytes_text(num_bytes: float | None) -> str:
    """1536 -> '1.5 KiB'; None -> 'unknown'."""
    if num_bytes is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def parse_bytes(text: str) -> int:
    """'2GiB', '500M', '1000' -> bytes, whichever way the unit is written.

    Raises:
        ValueError: The text is no size, or not above zero.
    """
    number = text.strip().rstrip("BbIiKkMmGgTt")
    unit = text.strip()[len(number) :].upper()
    try:
        size = int(float(number) * _BYTES_BY_UNIT[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{text!r} is no size; write for example 2GiB, 500MiB or 1000000") from None
    if size <= 0:
        raise ValueError(f"{text!r} is no size: it has to be above zero")
    return size
