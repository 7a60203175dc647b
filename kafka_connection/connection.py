"""How a cluster is reached: one description, said in both clients' dialects.

confluent-kafka and kafka-python name the same things differently (`ssl.ca.location` and
`ssl_cafile`), so a user says them once here. A description is a value: frozen, comparable,
picklable, and without an open socket; clients.py opens things with it.

Secrets are `SecretStr`: they don't show in a repr, a log or an error, and leave only through
the two dialects. Better, a description names the files that hold them: it can then be shown to
anybody, and whoever opens a client reads them where it runs. Read next: environment.py (where a
description comes from), oauth.py, clients.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from evenload.kafka_connection.oauth import OAuth, Tokens, secret_of
from evenload.kafka_connection.secrets import BearerToken

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
WithoutCollector = Literal["sample", "even"]


class Connection(BaseModel):
    """Where a cluster is, how to authenticate there, and what can't be asked of it.

    A value: may be shared between threads and pickled to other processes.
    """

    # An error would quote what it was given, and that holds the password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bootstrap_servers: str = Field(description="Some of the brokers, as host:port,host:port.")
    security_protocol: SecurityProtocol = Field(
        default="PLAINTEXT", description="Encryption and authentication."
    )
    ssl_ca_path: Path | None = Field(default=None, description="PEM file of the authorities to trust.")
    ssl_certificate_path: Path | None = Field(default=None, description="PEM file of our own certificate.")
    ssl_key_path: Path | None = Field(default=None, description="PEM file of our own private key.")
    ssl_key_password: SecretStr | None = Field(
        default=None, description="What our private key is encrypted with."
    )
    ssl_key_password_path: Path | None = Field(default=None, description="File that holds it.")
    sasl_mechanism: SaslMechanism | None = Field(
        default=None, description="How it is proven who we are; OAUTHBEARER: by a token."
    )
    sasl_username: str | None = Field(default=None, description="Who we are.")
    sasl_password: SecretStr | None = Field(default=None, description="What proves it.")
    sasl_password_path: Path | None = Field(
        default=None, description="File that holds it; read anew for each client that is opened."
    )
    sasl_oauth: OAuth | None = Field(default=None, description="Where tokens come from, with OAUTHBEARER.")
    capacity_bytes_by_broker: Mapping[int, int] = Field(
        default_factory=dict,
        description="Capacity in bytes by broker id, where log dirs can't tell it (brokers on one volume).",
    )
    collector_url: str | None = Field(
        default=None,
        description="A collector service that measures this cluster for many (`evenload collector`), as "
        "http://host:port, or several with commas between them; None: whoever needs measurements makes them.",
    )
    collector_token: BearerToken | None = Field(
        default=None,
        description="What the service asks of those who use it: its token to ingest, or, for who only "
        "reads, the one to read.",
    )
    collector_token_path: Path | None = Field(
        default=None, description="File that holds `collector_token`; read anew for each request."
    )
    collector_ca_path: Path | None = Field(
        default=None,
        description="PEM file of the authorities to trust with an https `collector_url`; None: the system's.",
    )
    without_collector: WithoutCollector = Field(
        default="even",
        description="What to do while no service gives anything usable. With `collector_url`, only `even`: "
        "what is known grows stale, after which shares are even. `sample`, to measure the brokers oneself, "
        "is what is done anyway where no `collector_url` is given.",
    )
    weights_path: Path | None = Field(
        default=None,
        description="JSON file of weights, followed while producers run. With a collector service, weights "
        "are the service's.",
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses_have_a_host_and_a_port(cls, value: str) -> str:
        addresses = [address.strip() for address in value.split(",")]
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{address!r} is not host:port with a port from 1 to 65535")
        return ",".join(addresses)

    @field_validator("capacity_bytes_by_broker")
    @classmethod
    def _capacities_are_positive(cls, value: Mapping[int, int]) -> Mapping[int, int]:
        for broker_id, capacity_bytes in value.items():
            if capacity_bytes <= 0:
                raise ValueError(
                    f"broker {broker_id} has a capacity of {capacity_bytes} bytes, must be above 0"
                )
        return dict(value)

    @field_validator("collector_url")
    @classmethod
    def _collector_is_reached_by_http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if "@" in value:  # what is before it may be a password, so it isn't quoted
            raise ValueError("it is not http://host:port without a user in it; see collector_token")
        urls = [url.strip() for url in value.split(",")]
        for url in urls:
            try:
                parts = urlsplit(url)
                is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:  # of the port
                is_address = False
            if not is_address or parts.query or parts.fragment:
                raise ValueError(f"{url!r} is not http://host:port")
        return ",".join(url.rstrip("/") for url in urls)

    @model_validator(mode="after")
    def _weights_have_one_origin(self) -> Self:
        if self.collector_url is not None and self.weights_path is not None:
            raise ValueError(
                f"weights_path {self.weights_path} would be ignored: with collector_url "
                f"{self.collector_url}, weights are those of the service"
            )
        return self

    @model_validator(mode="after")
    def _a_collector_is_there_for_what_is_said_to_it(self) -> Self:
        given = [name for name in COLLECTOR_FIELDS if getattr(self, name) is not None]
        if self.collector_url is None and given:
            raise ValueError(f"{', '.join(given)} would be ignored without collector_url")
        if self.collector_token is not None and self.collector_token_path is not None:
            raise ValueError("collector_token and collector_token_path say the same; give one of them")
        schemes = {urlsplit(url).scheme for url in self.collector_urls}
        if len(schemes) > 1:
            raise ValueError("collector_url names services by http and by https; what is secret goes to both")
        if self.collector_ca_path is not None and "https" not in schemes:
            raise ValueError(
                f"collector_ca_path would be ignored with {self.collector_url}, which isn't https"
            )
        return self

    @model_validator(mode="after")
    def _nobody_measures_when_a_service_is_gone(self) -> Self:
        if self.collector_url is not None and self.without_collector == "sample":
            raise ValueError(
                "without_collector 'sample' can't be used with collector_url: all producers of the service "
                f"at {self.collector_url} would ask every broker themselves as soon as it fails, on top of "
                "what it failed of; leave it out (shares are then even until the service is back), or leave "
                "out collector_url to measure from here always"
            )
        return self

    @model_validator(mode="after")
    def _credentials_fit_the_protocol(self) -> Self:
        for name in ("sasl_password", "ssl_key_password"):
            if getattr(self, name) is not None and getattr(self, f"{name}_path") is not None:
                raise ValueError(f"{name} and {name}_path say the same; give one of them")
        self._sasl_fits()
        ssl = [name for name in _SSL_FIELDS if getattr(self, name) is not None]
        if "SSL" not in self.security_protocol.removeprefix("SASL_") and ssl:
            raise ValueError(f"{', '.join(ssl)} would be ignored with {self.security_protocol}")
        if (self.ssl_certificate_path is None) != (self.ssl_key_path is None):
            raise ValueError("ssl_certificate_path and ssl_key_path go together")
        return self

    def _sasl_fits(self) -> None:
        given = [name for name in _SASL_FIELDS if getattr(self, name) is not None]
        if not self.security_protocol.startswith("SASL"):
            if given:
                raise ValueError(f"{', '.join(given)} would be ignored with {self.security_protocol}")
            return
        if self.sasl_mechanism == "OAUTHBEARER":
            needed, other = ["sasl_oauth"], ["sasl_username", "sasl_password", "sasl_password_path"]
        else:
            by = "sasl_password_path" if self.sasl_password_path is not None else "sasl_password"
            needed, other = ["sasl_mechanism", "sasl_username", by], ["sasl_oauth"]
        if missing := [name for name in needed if name not in given]:
            raise ValueError(f"security_protocol {self.security_protocol} needs {', '.join(missing)}")
        if idle := [name for name in other if name in given]:
            raise ValueError(f"{', '.join(idle)} would be ignored with {self.sasl_mechanism}")

    @property
    def collector_urls(self) -> list[str]:
        """Each service that `collector_url` names; none: nobody measures for others."""
        return self.collector_url.split(",") if self.collector_url is not None else []

    def confluent_config(self) -> dict[str, Any]:
        """The same, in the words of librdkafka.

        Raises:
            NoCredentialsError: a file with a password can't be read.
        """
        tokens = {} if self.sasl_oauth is None else {"oauth_cb": Tokens(self.sasl_oauth).for_librdkafka}
        return {**self._dialect(_CONFLUENT_WORDS), **tokens}

    def kafka_python_config(self) -> dict[str, Any]:
        """The same, in the words of kafka-python.

        Raises:
            NoCredentialsError: a file with a password can't be read.
        """
        config: dict[str, Any] = {**self._dialect(_KAFKA_PYTHON_WORDS)}
        if self.sasl_oauth is not None:
            config["sasl_oauth_token_provider"] = Tokens(self.sasl_oauth).for_kafka_python()
        return config

    @property
    def has_secrets(self) -> bool:
        """Whether it holds what nobody else may read."""
        held = [getattr(self, field) for field in type(self).model_fields]
        if self.sasl_oauth is not None:
            held.append(self.sasl_oauth.client_secret)
        return any(isinstance(value, SecretStr) for value in held)

    def plain_fields(self) -> dict[str, Any]:
        """What a connection file says of it, secrets in clear: for a file that nobody else can read."""
        return _revealed(self)

    def _dialect(self, words: Mapping[str, str]) -> dict[str, str | int]:
        config: dict[str, str | int] = {}
        for field, word in words.items():
            value = getattr(self, field)
            if field in _FROM_FILES:
                path_field = f"{field}_path"
                value = secret_of(value, getattr(self, path_field), path_field)
            if value is not None:
                config[word] = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        return config


def _revealed(model: BaseModel) -> dict[str, Any]:
    fields = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, SecretStr):
            fields[name] = value.get_secret_value()
        elif isinstance(value, BaseModel):
            fields[name] = _revealed(value)
    return fields


def first_reason(error: ValidationError) -> str:
    """Which field of a description is wrong and why; a secret is not quoted."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    return f"{field}: {reason}" if field else reason


COLLECTOR_FIELDS = ("collector_url", "collector_token", "collector_token_path", "collector_ca_path")
_SSL_FIELDS = (
    "ssl_ca_path",
    "ssl_certificate_path",
    "ssl_key_path",
    "ssl_key_password",
    "ssl_key_password_path",
)
_SASL_FIELDS = ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_password_path", "sasl_oauth")
_FROM_FILES = ("sasl_password", "ssl_key_password")

_CONFLUENT_WORDS = {
    "bootstrap_servers": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "ssl_ca_path": "ssl.ca.location",
    "ssl_certificate_path": "ssl.certificate.location",
    "ssl_key_path": "ssl.key.location",
    "ssl_key_password": "ssl.key.password",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
}

_KAFKA_PYTHON_WORDS = {
    "bootstrap_servers": "bootstrap_servers",
    "security_protocol": "security_protocol",
    "ssl_ca_path": "ssl_cafile",
    "ssl_certificate_path": "ssl_certfile",
    "ssl_key_path": "ssl_keyfile",
    "ssl_key_password": "ssl_password",
    "sasl_mechanism": "sasl_mechanism",
    "sasl_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
}
