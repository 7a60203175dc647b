"""Where evenload keeps what it makes on this machine: the embedded cluster, and runs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["evenload_home"]


def evenload_home() -> Path:
    """The folder, absolute: `EVENLOAD_HOME` or `.evenload`."""
    return Path(os.environ.get("EVENLOAD_HOME") or ".evenload").expanduser().absolute()
