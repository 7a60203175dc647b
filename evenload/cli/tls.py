"""The options of a service that serves https, the same for each."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def tls_options(command: F) -> F:
    """Give a command `--tls-certificate` and `--tls-key`, and hand it what they come to as `tls`."""

    @click.option(
        "--tls-certificate",
        "certificate_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Serve https: the service's certificate and those between it and its authority (PEM).",
    )
    @click.option(
        "--tls-key",
        "key_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The certificate's private key (PEM, not encrypted).  [default: in the certificate's file]",
    )
    @functools.wraps(command)
    def with_tls(*args: Any, certificate_path: Path | None, key_path: Path | None, **kwargs: Any) -> Any:
        return command(*args, tls=_tls(certificate_path, key_path), **kwargs)

    return with_tls  # type: ignore[return-value]  # functools.wraps keeps the signature but not its type


def _tls(certificate_path: Path | None, key_path: Path | None) -> ssl.SSLContext | None:
    if certificate_path is None:
        if key_path is not None:
            raise click.UsageError("--tls-key needs --tls-certificate")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An encrypted key would be asked for at a terminal that isn't there.
        context.load_cert_chain(certificate_path, key_path, password=lambda: b"")
    except (OSError, ValueError) as error:
        files = f"{certificate_path} and {key_path}" if key_path else f"{certificate_path}"
        raise ValueError(
            f"no TLS with {files}: {error.strerror if isinstance(error, OSError) else error}; it takes a "
            "certificate and its key, as PEM, the key not encrypted"
        ) from error
    return context
