"""Which cluster is meant: the one place that reads the environment and connection files.

Asked in this order, the first answer counts:

1. what the caller passes (`--bootstrap-servers`, `--connection FILE`),
2. `EVENLOAD_BOOTSTRAP_SERVERS`, `EVENLOAD_CONNECTION`,
3. the embedded cluster that runs in `EVENLOAD_HOME` (default: `.evenload` here).

An address and a file may be given together: the file then says how, the address where.

What a description leaves open about telemetry is added from `EVENLOAD_COLLECTOR_URL` (a collector service)
and, without one, `EVENLOAD_WEIGHTS` (a file of weights). The token that a service asks for is in
`EVENLOAD_COLLECTOR_TOKEN`, or in a file, `EVENLOAD_COLLECTOR_TOKEN_FILE`; `EVENLOAD_COLLECTOR_CA` is a file
of the authorities that its certificate is checked against.

A password that a connection file needs and doesn't hold, nor names a file of, is taken from
`EVENLOAD_SASL_PASSWORD`, else from the file that `EVENLOAD_SASL_PASSWORD_FILE` names; the one of an encrypted
private key likewise, from `EVENLOAD_SSL_KEY_PASSWORD` and `EVENLOAD_SSL_KEY_PASSWORD_FILE`.

Where a machine is, which no description of a cluster can say for all, is in `EVENLOAD_CLIENT_RACK`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from evenload.home import evenload_home
from evenload.kafka_connection.connection import Connection, first_reason
from evenload.kafka_connection.errors import BadConnectionFileError, NoClusterError
from evenload.kafka_connection.secrets import read_secret, warn_if_others_can_read

CLUSTER_FOLDER = "cluster"
CLUSTER_FILE = "cluster.json"
_PROBE_TIMEOUT_S = 0.5


def resolve_connection(
    bootstrap_servers: str | None = None,
    connection_file: Path | None = None,
    home: Path | None = None,
) -> Connection:
    """Find out which cluster is meant; opens no client.

    Args:
        bootstrap_servers: addresses that the user gave, as host:port,host:port.
        connection_file: a JSON file with the fields of `Connection`.
        home: the folder of the embedded cluster; None: `evenload_home()`.

    Raises:
        NoClusterError: nothing was given, and no embedded cluster runs in `home`.
        BadConnectionFileError: the file can't be read, or says something impossible.
        ValueError: the address is not host:port, or the collector's is not http://host:port.
    """
    if bootstrap_servers is None and connection_file is None:
        bootstrap_servers = os.environ.get("EVENLOAD_BOOTSTRAP_SERVERS") or None
        named_file = os.environ.get("EVENLOAD_CONNECTION")
        connection_file = Path(named_file) if named_file else None
    if connection_file is not None:
        connection = _read_connection_file(connection_file, bootstrap_servers)
    elif bootstrap_servers is not None:
        connection = _from_address(bootstrap_servers)
    else:
        connection = _embedded_connection((home or evenload_home()).absolute())
    return with_telemetry(connection)


def with_telemetry(connection: Connection) -> Connection:
    """The same cluster, with the collector service or the weights that the environment names.

    What the description says itself stays.

    Raises:
        ValueError: `EVENLOAD_COLLECTOR_URL` is not a URL, or what is said about its service doesn't fit.
    """
    found: dict[str, str] = {}
    if connection.collector_url is None and connection.weights_path is None:
        # Not both: weights are the service's.
        found = _of_environment(("collector_url",)) or _of_environment(("weights_path",))
    if connection.collector_url is not None or "collector_url" in found:
        has_token = connection.collector_token is not None or connection.collector_token_path is not None
        found |= {} if has_token else _of_environment(("collector_token", "collector_token_path"))
        found |= {} if connection.collector_ca_path is not None else _of_environment(("collector_ca_path",))
    try:
        return Connection.model_validate({**dict(connection), **found}) if found else connection
    except ValidationError as error:
        names = ", ".join(_ENVIRONMENT[field] for field in found)
        raise ValueError(f"{names}: {first_reason(error)}") from error


_ENVIRONMENT = {
    "collector_url": "EVENLOAD_COLLECTOR_URL",
    "weights_path": "EVENLOAD_WEIGHTS",
    "collector_token": "EVENLOAD_COLLECTOR_TOKEN",
    "collector_token_path": "EVENLOAD_COLLECTOR_TOKEN_FILE",
    "collector_ca_path": "EVENLOAD_COLLECTOR_CA",
    "sasl_password": "EVENLOAD_SASL_PASSWORD",
    "sasl_password_path": "EVENLOAD_SASL_PASSWORD_FILE",
    "ssl_key_password": "EVENLOAD_SSL_KEY_PASSWORD",
    "ssl_key_password_path": "EVENLOAD_SSL_KEY_PASSWORD_FILE",
}


def _of_environment(fields: Iterable[str]) -> dict[str, str]:
    return {field: value for field in fields if (value := os.environ.get(_ENVIRONMENT[field]))}


def service_token(right: str) -> SecretStr | None:
    """What a collector service that runs here asks for: `EVENLOAD_COLLECTOR_OPERATE_TOKEN` for "operate"."""
    token = os.environ.get(f"EVENLOAD_COLLECTOR_{right.upper()}_TOKEN")
    return SecretStr(token) if token else None


def client_rack() -> str:
    """The rack that this machine is in, as brokers' `broker.rack` names it; empty: nobody said."""
    return os.environ.get("EVENLOAD_CLIENT_RACK", "")


def governor_token() -> SecretStr | None:
    """What is shown to a governor: `EVENLOAD_GOVERNOR_TOKEN`, or what the file `..._TOKEN_FILE` holds.

    Raises:
        ValueError: The file can't be read, is no text, or holds nothing.
    """
    if path := os.environ.get("EVENLOAD_GOVERNOR_TOKEN_FILE"):
        return read_secret(Path(path))
    token = os.environ.get("EVENLOAD_GOVERNOR_TOKEN")
    return SecretStr(token) if token else None


def governor_ca_path() -> str | None:
    """Whose certificates are trusted of a governor, in place of the usual ones: `EVENLOAD_GOVERNOR_CA`."""
    return os.environ.get("EVENLOAD_GOVERNOR_CA") or None


def _from_address(bootstrap_servers: str) -> Connection:
    try:
        return Connection(bootstrap_servers=bootstrap_servers)
    except ValidationError as error:
        raise ValueError(f"bootstrap servers: {first_reason(error)}") from error


def _read_connection_file(path: Path, bootstrap_servers: str | None) -> Connection:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadConnectionFileError(path, f"can't be read: {error}") from error
    except json.JSONDecodeError as error:
        raise BadConnectionFileError(path, f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadConnectionFileError(path, f"holds a JSON {type(fields).__name__}, not an object")
    if bootstrap_servers is not None:
        fields["bootstrap_servers"] = bootstrap_servers
    try:
        connection = Connection.model_validate({**fields, **_passwords_for(fields)})
    except ValidationError as error:
        raise BadConnectionFileError(path, first_reason(error)) from error
    if Connection.model_construct(**{field: getattr(connection, field) for field in fields}).has_secrets:
        warn_if_others_can_read(path)
    return connection


def _passwords_for(fields: Mapping[str, Any]) -> dict[str, str]:
    """What the environment says of passwords that a description of these fields lacks."""
    found: dict[str, str] = {}
    wanted = {
        "sasl_password": fields.get("sasl_mechanism") not in (None, "OAUTHBEARER"),
        "ssl_key_password": fields.get("ssl_key_path") is not None,
    }
    for field, is_wanted in wanted.items():
        if is_wanted and fields.get(field) is None and fields.get(f"{field}_path") is None:
            found |= _of_environment((field,)) or _of_environment((f"{field}_path",))
    return found


def _embedded_connection(home: Path) -> Connection:
    path = home / CLUSTER_FOLDER / CLUSTER_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NoClusterError(home, "no address was given, and there is no embedded cluster") from error
    except (OSError, ValueError) as error:
        raise BadConnectionFileError(path, f"can't be read: {error}") from error
    connection = Connection(
        bootstrap_servers=fields["bootstrap_servers"],
        capacity_bytes_by_broker=fields["capacity_bytes_by_broker"],
    )
    # The file outlives the brokers (their ports have to stay), so look whether anybody listens.
    if not any(_listens(address) for address in connection.bootstrap_servers.split(",")):
        raise NoClusterError(home, "no address was given, and the embedded cluster doesn't run")
    return connection


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
