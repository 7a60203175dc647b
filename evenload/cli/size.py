"""Sizes in bytes as options of the command line."""

from __future__ import annotations

from typing import Any

import click

from evenload.cli.output import parse_bytes


class SizeType(click.ParamType[int]):
    """A number of bytes: 1000000, 500MiB, 2GiB; of a rate, also with /s."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value.removesuffix("/s"))
        except ValueError as error:
            self.fail(str(error), param, ctx)
