"""What all clients of a service have in common, by whatever library they speak HTTP. No I/O but for files.

Read next: service_requests.py, which is such a client.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from pydantic import SecretStr, TypeAdapter, ValidationError

from evenload.kafka_connection import Connection
from evenload.kafka_connection.connection import first_reason
from evenload.kafka_connection.secrets import BearerToken, read_secret
from evenload.telemetry_collector.errors import ServiceUnusableError
from evenload.telemetry_collector.reports import RouteReport

__all__ = ["GOOD", "SENTENCE_MAX_CHARS", "authorization", "refusal", "report_bodies", "trusted"]

GOOD = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
SENTENCE_MAX_CHARS = 300
_BODY_BYTES = 256 << 10  # a service takes some times that
_TOKEN: TypeAdapter[SecretStr] = TypeAdapter(BearerToken)


def authorization(connection: Connection) -> dict[str, str]:
    """The header with the token; from a file anew each time, as it is replaced while we run.

    Raises:
        ServiceUnusableError: it can't be read, or is none.
    """
    path = connection.collector_token_path
    try:
        token = _TOKEN.validate_python(read_secret(path)) if path else connection.collector_token
    except ValueError as error:
        reason = first_reason(error) if isinstance(error, ValidationError) else str(error)
        raise ServiceUnusableError(f"there is no token to show it: {reason}") from error
    return {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}


def trusted(connection: Connection) -> ssl.SSLContext:
    """By whose certificates a service is believed.

    Raises:
        ServiceUnusableError: the file that names them can't be read.
    """
    path = connection.collector_ca_path
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # of the file, or of what is in it
        reason = error.strerror or str(error)
        raise ServiceUnusableError(f"the authorities in {path} can't be read: {reason}") from error


def refusal(status: int, body: bytes) -> str:
    """What a service says about its refusal, if it is one of ours."""
    reason = f"it answered with status {status}"
    try:
        said = json.loads(body)["error"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return reason
    return f"{reason}: {said}"[:SENTENCE_MAX_CHARS] if isinstance(said, str) else reason


def report_bodies(reports: Sequence[RouteReport]) -> Iterator[bytes]:
    """The reports as JSON lists, each about as large as a service takes at least."""
    said: list[str] = []
    size_chars = 0
    for report in reports:
        said.append(report.model_dump_json())
        size_chars += len(said[-1])
        if size_chars > _BODY_BYTES:
            yield f"[{','.join(said)}]".encode()
            said, size_chars = [], 0
    if said:
        yield f"[{','.join(said)}]".encode()
