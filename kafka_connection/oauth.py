"""SASL OAUTHBEARER: where a token comes from, for both clients alike.

    {"token_path": "/run/secrets/token"}                    a file that somebody else renews
    {"token_url": "https://...", "client_id": "...", ...}   an OpenID provider, by client credentials

The idea: `OAuth` is a description, as `Connection` is; `Tokens` gets tokens by it, for one client. A file is
read anew whenever a token is needed; a provider is asked once for most of a token's lifetime. Both clients
ask `Tokens`, so that they behave alike: librdkafka by `oauth_cb`, kafka-python by a token provider.

What a file or a provider says is not trusted: it is bounded, in size and in time, and has to be what a header
can carry.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import json
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from evenload.extras import naming_extra
from evenload.kafka_connection.errors import NoCredentialsError
from evenload.kafka_connection.secrets import read_secret

__all__ = ["OAuth", "Token", "Tokens"]

_log = logging.getLogger(__name__)

_ANSWER_MAX_BYTES = 64 << 10
_LIFETIME_S = 300.0  # of a token that doesn't say until when it counts
_RENEW_AT = 0.8  # of its lifetime, as librdkafka and the Java client do


class OAuth(BaseModel):
    """Where tokens come from. A value, as `Connection` is."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    token_path: Path | None = Field(
        default=None, description="File that holds a token, which somebody else renews; read for each use."
    )
    token_url: str | None = Field(
        default=None, description="Where an OpenID provider gives tokens, as https://host/path."
    )
    client_id: str | None = Field(default=None, description="Who we are to the provider.")
    client_secret: SecretStr | None = Field(default=None, description="What proves it.")
    client_secret_path: Path | None = Field(default=None, description="File that holds it.")
    scope: str | None = Field(default=None, description="What the token shall be good for.")
    ca_path: Path | None = Field(
        default=None, description="PEM file of the authorities to trust with `token_url`; None: the system's."
    )

    @field_validator("token_url")
    @classmethod
    def _provider_is_reached_by_http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("it is not https://host/path without a user in it")
        return value

    @model_validator(mode="after")
    def _there_is_one_origin(self) -> Self:
        if (self.token_path is None) == (self.token_url is None):
            raise ValueError("give one of token_path and token_url")
        of_provider = ("client_id", "client_secret", "client_secret_path", "scope", "ca_path")
        given = [name for name in of_provider if getattr(self, name) is not None]
        if self.token_path is not None and given:
            raise ValueError(f"{', '.join(given)} would be ignored with token_path")
        if self.token_url is not None:
            if self.client_id is None:
                raise ValueError("token_url needs client_id")
            if (self.client_secret is None) == (self.client_secret_path is None):
                raise ValueError("token_url needs one of client_secret and client_secret_path")
            if self.ca_path is not None and urlsplit(self.token_url).scheme != "https":
                raise ValueError("ca_path would be ignored with a token_url that isn't https")
        return self


class Token(NamedTuple):
    """What proves who we are, and until when, in seconds since 1970."""

    secret: SecretStr
    expires_at_s: float


class Tokens:
    """Tokens for one client. Any thread may call any method; one that asks a provider waits for it.

    Args:
        oauth: Where they come from.
        clock: Seconds since 1970.
        answer_timeout_s: A provider that hasn't answered whole by then has not answered.
    """

    def __init__(
        self, oauth: OAuth, *, clock: Callable[[], float] = time.time, answer_timeout_s: float = 10.0
    ) -> None:
        if oauth.token_url is not None:
            _warn_if_readable(oauth.token_url)
        self._oauth = oauth
        self._answer_timeout_s = answer_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at_s = 0.0

    def latest(self) -> Token:
        """One that counts now.

        Raises:
            NoCredentialsError: the file or the provider gives none.
        """
        with self._lock:
            now_s = self._clock()
            if self._token is None or now_s >= self._renew_at_s:
                self._token = self._of_file(now_s) if self._oauth.token_path else self._of_provider(now_s)
                lasts_s = self._token.expires_at_s - now_s
                # Whoever renews a file does so when they like.
                self._renew_at_s = now_s if self._oauth.token_path else now_s + _RENEW_AT * lasts_s
            return self._token

    def for_librdkafka(self, _: object) -> tuple[str, float]:
        """As `oauth_cb` of confluent-kafka."""
        try:
            token = self.latest()
        except NoCredentialsError as error:
            _log.warning("%s", error)  # the client only knows that there was an error, and asks again
            raise
        return token.secret.get_secret_value(), token.expires_at_s

    def for_kafka_python(self) -> Any:
        """As `sasl_oauth_token_provider` of kafka-python."""
        # Loads a Kafka client, which describing a connection needn't.
        from kafka.errors import SaslAuthenticationFailedError

        from evenload.kafka_connection.kafka_python_internals import TokenProvider

        latest = self.latest

        class Provider(TokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                try:
                    return latest().secret.get_secret_value()
                except NoCredentialsError as error:  # only its own errors reach whoever has connected
                    raise SaslAuthenticationFailedError(str(error)) from error

        return Provider()

    def _of_file(self, now_s: float) -> Token:
        path = self._oauth.token_path
        assert path is not None
        try:
            secret = read_secret(path)
        except ValueError as error:
            raise NoCredentialsError("a token", str(error)) from error
        return _checked(secret.get_secret_value(), None, now_s, origin=str(path))

    def _of_provider(self, now_s: float) -> Token:
        url = self._oauth.token_url
        assert url is not None
        try:
            answer = json.loads(_in_own_thread(self._ask(url)))
            text, lasts_s = answer["access_token"], answer.get("expires_in")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            # Without its cause, whose text may quote a token.
            raise NoCredentialsError("a token", f"what {url} answered holds no access_token") from None
        return _checked(text, lasts_s, now_s, origin=url)

    async def _ask(self, url: str) -> bytes:
        # Takes long to load, and most connections have no provider.
        with naming_extra("measure", "Asking an OpenID provider for a token"):
            import aiohttp

        oauth = self._oauth
        secret = secret_of(oauth.client_secret, oauth.client_secret_path, "client_secret_path")
        assert secret is not None
        said = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
        proof = base64.b64encode(f"{oauth.client_id}:{secret.get_secret_value()}".encode()).decode()
        try:
            async with (
                asyncio.timeout(self._answer_timeout_s),
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=oauth.ca_path)),
                    auto_decompress=False,  # what unpacks to gigabytes
                ) as session,
                session.post(
                    url,
                    data=said,
                    headers={
                        "Authorization": f"Basic {proof}",
                        "Accept": "application/json",
                        "Accept-Encoding": "identity",  # else aiohttp asks for what it is told not to unpack
                    },
                    proxy=_proxy(url),
                    allow_redirects=False,  # our secret is for the provider alone
                ) as response,
            ):
                if not 200 <= response.status < 300:
                    raise NoCredentialsError("a token", f"{url} answered with status {response.status}")
                answer = b""
                async for part in response.content.iter_any():
                    answer += part
                    if len(answer) > _ANSWER_MAX_BYTES:
                        raise NoCredentialsError(
                            "a token", f"what {url} answered is longer than {_ANSWER_MAX_BYTES} bytes"
                        )
                return answer
        except TimeoutError as error:
            reason = f"{url} didn't answer within {self._answer_timeout_s:g} s"
            raise NoCredentialsError("a token", reason) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoCredentialsError("a token", f"{url} doesn't answer: {_reason(error)}") from error


def _in_own_thread(asking: Coroutine[Any, Any, bytes]) -> bytes:
    """Wait for what is asked; whoever waits may be an asyncio loop of its own, which can't run another."""
    answer: Future[bytes] = Future()

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            answer.set_result(loop.run_until_complete(asking))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)
        finally:
            loop.close()  # doesn't wait for a name server, as asyncio.run would

    threading.Thread(target=run, name="evenload-token", daemon=True).start()
    return answer.result()


def _proxy(url: str) -> str | None:
    """What the environment says (`https_proxy`, `no_proxy`).

    aiohttp would read it too, and a ~/.netrc beside it, whose entry for the host it takes for an error.
    """
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxy = getproxies().get(parts.scheme)
    # `proxy:3128` is what curl and Python's own client take, too.
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def _reason(error: Exception) -> str:
    number = None if isinstance(error, ssl.SSLError) else getattr(error, "errno", None)  # its own numbers
    return os.strerror(number).lower() if isinstance(number, int) and number > 0 else str(error)


@functools.cache  # each client has tokens of its own, and a program may open one after the other
def _warn_if_readable(url: str) -> None:
    if _is_readable_on_the_way(url):
        _log.warning(
            "%s is asked without TLS: whoever sees the connection can read the client secret and the "
            "tokens; use https://",
            url,
        )


def _is_readable_on_the_way(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True  # a name


def secret_of(given: SecretStr | None, path: Path | None, field: str) -> SecretStr | None:
    """A secret that a description holds, or that is in a file; None: neither.

    Raises:
        NoCredentialsError: the file can't be read.
    """
    if path is None:
        return given
    try:
        return read_secret(path)
    except ValueError as error:
        raise NoCredentialsError(field, str(error)) from error


def _checked(text: object, lasts_s: object, now_s: float, *, origin: str) -> Token:
    if not isinstance(text, str) or not text or not all("!" <= character <= "~" for character in text):
        raise NoCredentialsError(
            "a token", f"what {origin} holds is none: it has to be visible ASCII characters"
        )
    expires_at_s = _expiry(text)
    if expires_at_s is None:
        is_number = isinstance(lasts_s, int | float) and not isinstance(lasts_s, bool) and 0 < lasts_s < 1e9
        expires_at_s = now_s + (float(lasts_s) if is_number else _LIFETIME_S)  # type: ignore[arg-type]
    if expires_at_s <= now_s:
        raise NoCredentialsError("a token", f"the one of {origin} expired {now_s - expires_at_s:.0f} s ago")
    return Token(SecretStr(text), expires_at_s)


def _expiry(token: str) -> float | None:
    """When a token ends, in seconds since 1970, if it is a JSON web token that says so (RFC 7519)."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_at_s = float(claims["exp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return expires_at_s if math.isfinite(expires_at_s) and 0 < expires_at_s < 1e12 else None
