"""Where results go, what they were measured on, and which goals were missed. Shared by all benchmarks.

A result is a JSON document with, beside its own keys, `benchmark` and `machine`; lists in it are written one
entry a line, so that two results can be compared line by line. Pictures are SVG without a date in them.
Nothing here tells whose machine it was: no hostname, no path, no user.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psutil
from rich.console import Console

from evenload.local_cluster.jars import KAFKA_VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS_FOLDER = Path(__file__).parent / "results"

results_option = click.option(
    "--results",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the JSON and the SVG go. Default: benchmarks/results, for a whole run.",
)


def machine(*packages: str) -> dict[str, Any]:
    """What it was measured on, and with what.

    Args:
        packages: Distributions whose versions matter.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        **{package: version(package) for package in packages},
    }


def keep(
    document: Mapping[str, Any], draw: Callable[[], Figure], folder: Path | None, *, is_whole: bool
) -> None:
    """Write a result and its picture, named after the benchmark.

    Args:
        document: The result.
        draw: Makes the picture, where there is somewhere to put it.
        folder: Where `--results` says; None: `RESULTS_FOLDER` for a whole run, nowhere for another.
        is_whole: Whether nothing was left out or made shorter.
    """
    if folder is None and is_whole:
        folder = RESULTS_FOLDER
    if folder is not None:
        write_json(folder / f"{document['benchmark']}.json", document)
        write_svg(folder / f"{document['benchmark']}.svg", draw())


def tell_misses(console: Console, misses: Sequence[str], *, is_judged: bool = True) -> None:
    """Print the goals that were missed, a sentence each; with any, the command ends with status 1.

    Args:
        console: Where to.
        misses: The sentences.
        is_judged: False where so little was measured that a miss may be chance: status 0 all the same.
    """
    for sentence in misses:
        console.print(f"[bold]missed[/bold]: {sentence}")
    if misses and is_judged:
        raise click.exceptions.Exit(1)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a result. NaN and infinity are refused, as JSON has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(document))


def to_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, its lists one entry a line."""
    members = (f"  {json.dumps(key)}: {_member(value)}" for key, value in document.items())
    return "{\n" + ",\n".join(members) + "\n}\n"


def write_svg(path: Path, figure: Figure) -> None:
    """Write a picture; the same figure gives the same bytes."""
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "evenload", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _member(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(entry, allow_nan=False)}" for entry in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
