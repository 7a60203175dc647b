"""Tokens come from a file or a provider; neither is trusted, and what they say doesn't show."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import pickle
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import SaslAuthenticationFailedError
from pydantic import SecretStr, ValidationError

from evenload.kafka_connection import Connection, NoCredentialsError, OAuth
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer
from evenload.kafka_connection.oauth import Tokens, _checked, _warn_if_readable

NOW_S = 1e9


def jwt(**claims: Any) -> str:
    parts = ({"alg": "none"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


class Provider:
    """Gives tokens to who proves to be `me`; `answer` may be exchanged."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.answer: tuple[int, bytes, dict[str, str]] = (200, b"{}", {})
        self.packs = False  # where the client says that it unpacks
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.asked.append({**parse_qs(body), "proof": [self.headers["Authorization"]]})
                status, answer, headers = provider.answer
                if provider.packs and "gzip" in self.headers.get("Accept-Encoding", "gzip"):
                    answer, headers = gzip.compress(answer), {"Content-Encoding": "gzip"}
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Not on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"

    def gives(self, token: str, **more: Any) -> None:
        self.answer = (200, json.dumps({"access_token": token, **more}).encode(), {})

    @property
    def oauth(self) -> OAuth:
        return OAuth(token_url=self.url, client_id="me", client_secret=SecretStr("hush"), scope="kafka")


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever)
    thread.start()
    yield provider
    provider.server.shutdown()
    thread.join()
    provider.server.server_close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    return path


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def text_of(tokens: Tokens) -> str:
    return tokens.latest().secret.get_secret_value()


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_renewed_is_read_anew_by_both_clients(token_file: Path) -> None:
    tokens = Tokens(OAuth(token_path=token_file), clock=Clock())
    for token in ("first", jwt(sub="me", exp=NOW_S + 60)):
        token_file.write_text(f"{token}\n")
        assert tokens.for_librdkafka("")[0] == token
        assert tokens.for_kafka_python().token() == token


def test_a_token_counts_until_it_says_or_for_some_minutes(token_file: Path) -> None:
    tokens = Tokens(OAuth(token_path=token_file), clock=Clock())
    token_file.write_text(jwt(exp=NOW_S + 60))
    assert tokens.for_librdkafka("")[1] == NOW_S + 60
    token_file.write_text("opaque")
    assert tokens.for_librdkafka("")[1] == NOW_S + 300


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "can't be read: No such file"),
        (b"", "is empty"),
        (b"\xff\xfe", "holds no text"),
        (b"two words", "visible ASCII"),
        (jwt(exp=NOW_S - 7).encode(), "expired 7 s ago"),
    ],
)
def test_a_file_without_a_token_that_counts_is_said_to_be_so_to_both_clients(
    token_file: Path, content: bytes | None, reason: str
) -> None:
    if content is None:
        token_file.unlink()
    else:
        token_file.write_bytes(content)
    tokens = Tokens(OAuth(token_path=token_file), clock=Clock())
    with pytest.raises(NoCredentialsError, match=reason) as raised:
        tokens.for_librdkafka("")
    assert str(token_file) in str(raised.value)
    with pytest.raises(SaslAuthenticationFailedError, match=reason):
        tokens.for_kafka_python().token()


# -- providers -----------------------------------------------------------------------------------------------


def test_a_provider_is_asked_as_the_standard_says_and_again_late_in_a_tokens_life(provider: Provider) -> None:
    clock = Clock()
    tokens = Tokens(provider.oauth, clock=clock)
    provider.gives("first", expires_in=100)
    assert text_of(tokens) == "first"
    assert provider.asked == [
        {
            "grant_type": ["client_credentials"],
            "scope": ["kafka"],
            "proof": [f"Basic {base64.b64encode(b'me:hush').decode()}"],
        }
    ]
    provider.gives("second", expires_in=100)
    clock.now_s += 79
    assert text_of(tokens) == "first"
    clock.now_s += 2
    assert text_of(tokens) == "second"
    assert len(provider.asked) == 2


def test_the_secret_of_a_provider_is_read_from_its_file_for_each_question(
    provider: Provider, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    oauth = OAuth(token_url=provider.url, client_id="me", client_secret_path=path)
    clock = Clock()
    tokens = Tokens(oauth, clock=clock)
    provider.gives("token", expires_in=10)
    for secret in ("old", "new"):
        path.touch(0o600)
        path.write_text(secret)
        tokens.latest()
        assert provider.asked[-1]["proof"] == [f"Basic {base64.b64encode(f'me:{secret}'.encode()).decode()}"]
        clock.now_s += 10
    path.unlink()
    with pytest.raises(NoCredentialsError, match="client_secret_path for the brokers can't be had"):
        tokens.latest()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((401, b"hush", {}), "answered with status 401"),
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), "answered with status 302"),
        ((200, b"<html>", {}), "holds no access_token"),
        ((200, b"[]", {}), "holds no access_token"),
        ((200, b"{}", {}), "holds no access_token"),
        ((200, b"[" * 50_000, {}), "holds no access_token"),
        ((200, b'{"access_token": "a b"}', {}), "visible ASCII"),
        ((200, b'{"access_token": 7}', {}), "visible ASCII"),
        ((200, b'{"access_token": "' + b"x" * (1 << 20) + b'"}', {}), "is longer than 65536 bytes"),
    ],
)
def test_what_a_provider_answers_is_a_token_or_an_error_in_a_sentence(
    provider: Provider, answer: Any, reason: str
) -> None:
    provider.answer = answer
    with pytest.raises(NoCredentialsError, match=reason) as raised:
        Tokens(provider.oauth).latest()
    assert provider.url in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_provider_that_is_not_there_is_named() -> None:
    oauth = OAuth(token_url="http://127.0.0.1:9/token", client_id="me", client_secret=SecretStr("hush"))
    with pytest.raises(NoCredentialsError, match=r"http://127\.0\.0\.1:9/token doesn't answer: .*refused"):
        Tokens(oauth).latest()


@pytest.mark.parametrize("is_body", [False, True], ids=["within its head", "within its body"])
def test_a_provider_that_sends_a_byte_now_and_then_has_not_answered(is_body: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n" + (b"\r\n" if is_body else b"X-More: ")
    has_left = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                self.request.sendall(head)
                while not is_over.wait(0.01):
                    self.request.sendall(b" ")
            except OSError:
                has_left.set()

    is_over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/token"
        oauth = OAuth(token_url=url, client_id="me", client_secret=SecretStr("hush"))
        waiting = ThreadPoolExecutor(1)
        try:
            token = waiting.submit(Tokens(oauth, answer_timeout_s=0.5).latest)
            with pytest.raises(NoCredentialsError, match=r"/token didn't answer within 0\.5 s"):
                token.result(60)
            assert has_left.wait(60)
        finally:
            is_over.set()
            server.shutdown()
            serving.join()
            waiting.shutdown()


def test_a_provider_can_be_asked_by_who_runs_a_loop(provider: Provider) -> None:
    provider.gives("token", expires_in=100)

    async def ask() -> str:
        return text_of(Tokens(provider.oauth))

    assert asyncio.run(ask()) == "token"


def test_what_this_machine_knows_of_the_providers_host_is_not_used(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.touch(0o600)
    netrc.write_text("default login somebody password else")
    monkeypatch.setenv("NETRC", str(netrc))
    provider.gives("token", expires_in=100)
    assert text_of(Tokens(provider.oauth)) == "token"
    assert provider.asked[-1]["proof"] == [f"Basic {base64.b64encode(b'me:hush').decode()}"]


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_provider_is_asked_by_the_environments_proxy(
    provider: Provider, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.gives("token", expires_in=100)
    address = provider.url.removeprefix("http://").removesuffix("/token")
    monkeypatch.setenv("http_proxy", scheme + address)
    monkeypatch.setenv("no_proxy", "there.example")
    elsewhere = provider.oauth.model_copy(update={"token_url": "http://elsewhere.example/token"})
    assert text_of(Tokens(elsewhere)) == "token"
    monkeypatch.setenv("no_proxy", "elsewhere.example")
    with pytest.raises(NoCredentialsError, match="doesn't answer"):
        Tokens(elsewhere).latest()


def test_over_tls_a_provider_has_to_be_one_that_is_trusted(provider: Provider, certificate: Path) -> None:
    plain = provider.url.replace("http:", "https:")
    oauth = provider.oauth.model_copy(update={"token_url": plain})
    with pytest.raises(NoCredentialsError, match=r"doesn't answer: .*SSL"):
        Tokens(oauth).latest()

    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    provider.server.socket = serving.wrap_socket(provider.server.socket, server_side=True)
    provider.gives("token", expires_in=100)
    with pytest.raises(NoCredentialsError, match=r"doesn't answer: .*certificate verify failed"):
        Tokens(oauth).latest()
    trusting = oauth.model_copy(update={"ca_path": certificate.with_name("ca.pem")})
    assert text_of(Tokens(trusting)) == "token"


def test_a_provider_that_packs_for_whoever_can_unpack_answers_plainly(provider: Provider) -> None:
    provider.gives("token", expires_in=100)
    provider.packs = True
    assert text_of(Tokens(provider.oauth)) == "token"


def test_an_answer_that_is_packed_is_not_unpacked(provider: Provider) -> None:
    packed = gzip.compress(b'{"access_token": "' + b"x" * (1 << 24) + b'"}')
    provider.answer = (200, packed, {"Content-Encoding": "gzip"})
    with pytest.raises(NoCredentialsError, match="holds no access_token"):
        Tokens(provider.oauth).latest()


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("http://there.example/token", True),
        ("http://192.0.2.1/token", True),
        ("http://[2001:db8::1]:80/token", True),
        ("https://there.example/token", False),
        ("http://localhost:8080/token", False),
        ("http://127.1.2.3/token", False),
        ("http://[::1]/token", False),
    ],
)
def test_a_secret_that_would_travel_without_tls_is_warned_of_once(
    url: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_if_readable.cache_clear()
    for _ in range(3):  # each client has its own
        Tokens(OAuth(token_url=url, client_id="me", client_secret=SecretStr("hush")))
    assert caplog.text.count(f"{url} is asked without TLS: ") == is_warned
    assert "hush" not in caplog.text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.one_of(_json, st.text().map(lambda text: f"a.{text}.b"), st.builds(lambda exp: jwt(exp=exp), _json)),
    _json,
)
def test_whatever_a_token_and_its_lifetime_are_it_counts_for_a_while_or_is_refused(
    text: object, lasts_s: object
) -> None:
    try:
        token = _checked(text, lasts_s, NOW_S, origin="there")
    except NoCredentialsError:
        return
    assert NOW_S < token.expires_at_s < 1e13
    assert token.secret.get_secret_value().isascii()


# -- descriptions --------------------------------------------------------------------------------------------

OAUTHBEARER: dict[str, Any] = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
}
BY_PROVIDER = {"token_url": "https://there/token", "client_id": "me", "client_secret": "hush"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "SASL_SSL needs sasl_oauth"),
        (
            {"sasl_oauth": BY_PROVIDER, "sasl_username": "me"},
            "sasl_username would be ignored with OAUTHBEARER",
        ),
        ({"sasl_oauth": {}}, "give one of token_path and token_url"),
        ({"sasl_oauth": {**BY_PROVIDER, "token_path": "/t"}}, "give one of token_path and token_url"),
        ({"sasl_oauth": {"token_path": "/t", "scope": "s"}}, "scope would be ignored with token_path"),
        ({"sasl_oauth": {"token_url": "https://there"}}, "token_url needs client_id"),
        ({"sasl_oauth": {**BY_PROVIDER, "client_secret_path": "/s"}}, "needs one of client_secret and"),
        ({"sasl_oauth": {**BY_PROVIDER, "token_url": "ftp://there"}}, "it is not https://host/path"),
        (
            {"sasl_oauth": {**BY_PROVIDER, "token_url": "https://me:hush@there"}},
            "it is not https://host/path",
        ),
        (
            {"sasl_oauth": {**BY_PROVIDER, "token_url": "https://:hush@there"}},
            "it is not https://host/path",
        ),
        (
            {"sasl_oauth": {**BY_PROVIDER, "token_url": "http://there", "ca_path": "/ca"}},
            "ca_path would be ignored with a token_url that isn't https",
        ),
        (
            {
                "sasl_mechanism": "PLAIN",
                "sasl_username": "me",
                "sasl_password": "x",
                "sasl_oauth": BY_PROVIDER,
            },
            "sasl_oauth would be ignored with PLAIN",
        ),
    ],
)
def test_a_description_that_says_too_little_or_too_much_is_refused(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence) as raised:
        Connection.model_validate({**OAUTHBEARER, **fields})
    assert "hush" not in str(raised.value)


def test_both_clients_are_told_in_their_words() -> None:
    connection = Connection.model_validate({**OAUTHBEARER, "sasl_oauth": BY_PROVIDER})
    confluent = connection.confluent_config()
    assert callable(confluent.pop("oauth_cb"))
    assert confluent == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    assert "sasl_oauth_token_provider" in connection.kafka_python_config()


def test_the_secret_does_not_show_and_travels_to_other_processes() -> None:
    connection = Connection.model_validate({**OAUTHBEARER, "sasl_oauth": BY_PROVIDER})
    assert connection.has_secrets
    for shown in (repr(connection), str(connection), connection.model_dump_json()):
        assert "hush" not in shown
    copy = pickle.loads(pickle.dumps(connection))
    assert copy == connection
    assert copy.sasl_oauth.client_secret.get_secret_value() == "hush"
    by_file = {**BY_PROVIDER, "client_secret": None, "client_secret_path": "/secret"}
    assert not Connection.model_validate({**OAUTHBEARER, "sasl_oauth": by_file}).has_secrets


def test_a_password_is_read_from_its_file_for_each_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "password"
    path.touch(0o600)
    fields = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "me"}
    connection = Connection.model_validate({"bootstrap_servers": "a:1", **fields, "sasl_password_path": path})
    assert not connection.has_secrets
    for password in ("old", "new"):
        path.write_text(f"{password}\n")
        assert connection.confluent_config()["sasl.password"] == password
        assert connection.kafka_python_config()["sasl_plain_password"] == password
    assert caplog.text == ""
    path.chmod(0o644)
    connection.confluent_config()
    assert f"{path} holds a secret, and every user of this machine may read it" in caplog.text
    path.unlink()
    with pytest.raises(
        NoCredentialsError, match=r"sasl_password_path for the brokers can't be had: .*No such file"
    ):
        connection.confluent_config()


@pytest.mark.parametrize("open_client", [confluent_producer, confluent_consumer])
def test_a_client_of_librdkafka_without_a_token_says_why_at_once(
    open_client: Callable[[Connection], object], tmp_path: Path
) -> None:
    fields = {**OAUTHBEARER, "sasl_oauth": {"token_path": tmp_path / "absent"}}
    with pytest.raises(
        NoCredentialsError, match=r"a token for the brokers can't be had: .*absent can't be read"
    ):
        open_client(Connection.model_validate(fields))
