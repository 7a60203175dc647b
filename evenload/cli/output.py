"""How results and progress reach a person or a script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from evenload.dataset_catalog.foreign_content import printable

_LINE_MAX = 10_000


class Output:
    """Results on stdout (text or one JSON document), everything else on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._stdout = Console(highlight=False, soft_wrap=True)
        self._stderr = Console(stderr=True, highlight=False)

    def document(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """The result as JSON, when asked for."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2, allow_nan=False))

    def line(self, text: str = "") -> None:
        """A line of the result for people."""
        if not self.as_json:
            self._stdout.print(_printable(text), markup=False)

    def note(self, text: str) -> None:
        """What is going on, on stderr."""
        self._stderr.print(_printable(text), markup=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table for people: the first column to the left, the others to the right; cells are plain text."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for position, column in enumerate(columns):
            table.add_column(Text(column), justify="right" if position else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._stdout.print(table)

    @contextmanager
    def progress(self, title: str, unit: str) -> Iterator[Progress]:
        """A progress bar on stderr; off when stderr is no terminal."""
        with Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[detail]}"),
            console=self._stderr,
            disable=not self._stderr.is_terminal,
        ) as bar:
            yield bar


def _printable(text: str) -> str:
    """Lines that may quote what a topic or a broker says, without control characters; line ends stay."""
    return "\n".join(printable(line, max_chars=_LINE_MAX) for line in text.split("\n"))


def percent_text(fraction: float | None) -> str:
    """0.1234 -> '12.3 %'; None -> 'unknown'."""
    return "unknown" if fraction is None else f"{100 * fraction:.1f} %"
