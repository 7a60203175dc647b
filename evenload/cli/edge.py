"""The edge between the command line and the packages: shared options, connection, errors as sentences."""

from __future__ import annotations

import functools
import ipaddress
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from evenload.cli.output import Output
from evenload.dataset_catalog.foreign_content import printable
from evenload.extras import missing_extra
from evenload.kafka_connection.environment import resolve_connection
from evenload.sizes import parse_bytes

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_STOPPED = 130
_SENTENCE_MAX = 4000


class StoppedError(Exception):
    """The work was stopped by the user after it had put itself in order; the message says where it stands."""


class SizeType(click.ParamType[int]):
    """A number of bytes: 1000000, 500MiB, 2GiB; of a rate, also with /s."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """What was written, as a number."""
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value.removesuffix("/s"))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SentenceGroup(click.Group):
    """A group whose commands fail with one clear sentence on stderr instead of a traceback.

    EVENLOAD_DEBUG=1 shows the traceback as well.

    Attributes:
        extra_by_command: What to install for a command, where one of its packages isn't.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra_by_command: dict[str | None, str] = {}

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if missing := missing_extra(error, self.extra_by_command.get(ctx.invoked_subcommand)):
                raise click.ClickException(missing) from error
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            # Not standalone, click gives an Exit's code back where a command's result would be.
            code = super().main(*args, **kwargs)
        except click.UsageError as error:
            error.show()
            sys.exit(error.exit_code)
        except (StoppedError, KeyboardInterrupt, click.Abort) as stop:
            click.echo(f"evenload: stopped. {stop}".rstrip(), err=True)
            sys.exit(EXIT_STOPPED)
        except BrokenPipeError:  # `evenload datasets | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_FAILED)
        except Exception as error:  # noqa: BLE001 -- the edge: whatever it is, the user gets a sentence
            if os.environ.get("EVENLOAD_DEBUG"):
                traceback.print_exception(error)
            click.echo(f"evenload: {sentence(error)}", err=True)
            sys.exit(EXIT_FAILED)
        sys.exit(code if isinstance(code, int) else 0)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def sentence(error: BaseException) -> str:
    """What happened, in one line. Errors of ours and of the operating system speak for themselves; others
    are named, because their text alone (KeyError: 'label') would tell nobody anything."""
    # An error may quote what stands in a topic.
    text = printable(" ".join(str(error).split()), max_chars=_SENTENCE_MAX)
    if _is_ours(error) or isinstance(error, OSError | ValueError | click.ClickException):
        return text or type(error).__name__
    return f"unexpected {type(error).__name__}: {text} (EVENLOAD_DEBUG=1 shows where)"


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "evenload"


def json_option(command: F) -> F:
    """Give a command `--json` and hand it an `Output` as `output`."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress on stderr.")
    @functools.wraps(command)
    def with_output(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        return command(*args, output=Output(as_json=as_json or bool(_given_before("as_json"))), **kwargs)

    return with_output  # type: ignore[return-value]  # functools.wraps keeps the signature but not its type


def cluster_options(command: F) -> F:
    """Give a command `--bootstrap-servers`, `--connection` and `--json`, and hand it a `connection`."""

    @click.option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="The Kafka cluster. Default: EVENLOAD_BOOTSTRAP_SERVERS, else the embedded one.",
    )
    @click.option(
        "--connection",
        "connection_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="JSON file with bootstrap servers, TLS and SASL settings.",
    )
    @json_option
    @functools.wraps(command)
    def with_connection(
        *args: Any, bootstrap_servers: str | None, connection_file: Path | None, **kwargs: Any
    ) -> Any:
        connection = None
        if click.get_current_context().invoked_subcommand is None:
            connection = resolve_connection(
                bootstrap_servers or _given_before("bootstrap_servers"),
                connection_file or _given_before("connection_file"),
            )
        return command(*args, connection=connection, **kwargs)

    return with_connection  # type: ignore[return-value]  # as above


def _given_before(option: str) -> Any:
    """What was given for an option before a subcommand's name (`evenload datasets --json show cola`)."""
    context = click.get_current_context().parent
    while context is not None:
        if context.params.get(option):
            return context.params[option]
        context = context.parent
    return None
