"""Who may ask the collector service for what: tokens, its names, and pages of other origins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr, ValidationError

from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.testing import FakeCluster

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
NewCluster = Callable[[], FakeCluster]

INTENT = Intent(load="l", topic="t", bytes_by_broker={1: 1}).model_dump_json()
# What can be asked for, with what it needs.
ASKED: list[tuple[str, str, str | None, str]] = [
    ("GET", "/v1/snapshot", None, "read"),
    ("GET", "/v1/snapshot?topics=*", None, "read"),
    ("GET", "/v1/weights", None, "read"),
    ("GET", "/metrics", None, "read"),
    ("HEAD", "/metrics", None, "read"),
    ("GET", "/no/such/page", None, "read"),
    ("PUT", "/v1/intents", INTENT, "ingest"),
    ("DELETE", "/v1/intents?load=l", None, "ingest"),
    ("PUT", "/v1/reports", "[]", "ingest"),
    ("POST", "/v1/more", "[]", "ingest"),
    ("PUT", "/v1/weights", "{}", "operate"),
    ("PUT", "/v1/%77eights", "{}", "operate"),
]
RUNGS = ["read", "ingest", "operate"]


def _config(*rights: str, **more: Any) -> ServiceConfig:
    return ServiceConfig(**{f"{right}_token": SecretStr(f"to-{right}") for right in rights}, **more)


def _bearer(right: str | None) -> dict[str, str]:
    return {} if right is None else {"Authorization": f"Bearer to-{right}"}


def test_with_all_tokens_each_right_includes_those_below_and_no_other(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(_config(*RUNGS)) as served:
            for method, path, body, needed in ASKED:
                for given in (None, "guess", *RUNGS):
                    answer = await served.client.request(method, path, data=body, headers=_bearer(given))
                    is_enough = given in RUNGS[RUNGS.index(needed) :]
                    assert (answer.status != 401) == is_enough, (method, path, given, answer.status)
                    if not is_enough and method != "HEAD":
                        sentence = await served.error(answer, 401)
                        assert "needs the header 'Authorization: Bearer TOKEN'" in sentence
                        assert f"--{needed}-token-file" in sentence
                        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert not served.service.intents  # what was let in was withdrawn in turn

    run(test)


@pytest.mark.parametrize(
    ("are_set", "open_to_all", "opened_by"),
    [
        ((), ["read", "ingest"], {}),
        (("operate",), ["read", "ingest"], {"operate": ["operate"]}),
        (("ingest",), ["read"], {"ingest": ["ingest"]}),
        # What writes is never easier to get at than what reads.
        (("read",), [], {"read": ["read"], "ingest": ["read"]}),
        (
            ("read", "operate"),
            [],
            {"read": ["read", "operate"], "ingest": ["read", "operate"], "operate": ["operate"]},
        ),
    ],
)
def test_a_right_without_a_token_of_its_own_takes_that_of_the_rung_below(
    are_set: tuple[str, ...],
    open_to_all: list[str],
    opened_by: dict[str, list[str]],
    serving: Serving,
    run: Run,
) -> None:
    async def test() -> None:
        async with serving(_config(*are_set)) as served:
            for method, path, body, needed in ASKED:
                for given in (None, "guess", *RUNGS):
                    answer = await served.client.request(method, path, data=body, headers=_bearer(given))
                    may = needed in open_to_all or given in opened_by.get(needed, [])
                    assert (answer.status not in (401, 403)) == may, (method, path, given, answer.status)

    run(test)


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer to-rea",
        "Bearer to-readx",
        "Basic to-read",
        "to-read",
        "Bearer to-r\udce9ad",
    ],
)
def test_what_is_no_token_opens_nothing(authorization: str, serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(_config("read")) as served:
            headers = {"Authorization": authorization}
            await served.error(await served.client.get("/v1/snapshot", headers=headers), 401)
            twice = [("Authorization", "Bearer to-read"), ("Authorization", "Bearer x")]
            await served.error(await served.client.get("/v1/snapshot", headers=twice), 401)

    run(test)


def test_probes_need_no_token_and_hear_no_reason(serving: Serving, run: Run, new_cluster: NewCluster) -> None:
    async def test() -> None:
        cluster = new_cluster()
        cluster.killed |= {1, 2, 3}
        async with serving(_config("read"), cluster=cluster, is_measured=False) as served:
            assert (await served.client.get("/healthz")).status == 200
            while not served.service.collector.statistics.failures:
                await asyncio.sleep(0.01)
            said = await served.error(await served.client.get("/readyz"), 503)
            assert said == "nothing has been measured yet"
            known = await served.client.get("/readyz", headers=_bearer("read"))
            assert "connection refused" in await served.error(known, 503)

    run(test)


def test_a_stranger_costs_no_more_than_the_refusal(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(_config("ingest", body_max_bytes=1024)) as served:
            refused = await served.client.put("/v1/intents", data=b"x" * 2000)
            await served.error(refused, 401)  # before the body is looked at
            assert served.service.num_clients == 0

    run(test)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:9405", True),
        ("localhost:9405", True),
        ("LocalHost", True),
        ("[::1]:9405", True),
        ("10.1.2.3", True),
        ("collector.example:9405", True),
        ("Collector.Example.", True),
        ("evil.example:9405", False),
        ("collector.example.evil.example", False),
        ("collector.example@evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("localhost:9405:1", False),
        ("[evil.example]", False),
        ("", False),
    ],
)
def test_a_page_whose_name_was_pointed_here_reads_and_writes_nothing(
    method: str, host: str, is_own: bool, serving: Serving, run: Run
) -> None:
    path = "/v1/snapshot" if method == "GET" else "/v1/intents?load=l"

    async def test() -> None:
        async with serving(_config(allowed_hosts={"collector.example"})) as served:
            answer = await served.client.request(
                method, path, data=INTENT if method == "PUT" else None, headers={"Host": host}
            )
            if is_own:
                assert answer.status in (200, 204)
            else:
                assert "--allowed-host" in await served.error(answer, 421)
                assert not served.service.intents

    run(test)


def test_two_names_in_one_request_are_none(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
            writer.write(
                b"GET /v1/snapshot HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n"
                b"Connection: close\r\n\r\n"
            )
            answer = await reader.read()
            assert answer.split(b" ", 2)[1] in (b"400", b"421")
            writer.close()

    run(test)


@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("http://127.0.0.1:9405", True),
        ("https://127.0.0.1:9405", True),  # TLS may end before the service
        ("http://127.0.0.1:8000", False),
        ("http://127.0.0.1", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_a_page_of_another_origin_writes_nothing(
    origin: str, is_own: bool, serving: Serving, run: Run
) -> None:
    headers = {"Host": "127.0.0.1:9405", "Origin": origin}

    async def test() -> None:
        async with serving() as served:
            told = await served.client.put("/v1/intents", data=INTENT, headers=headers)
            assert (told.status == 204) == is_own
            if not is_own:
                assert "changes nothing here" in await served.error(told, 403)
                assert not served.service.intents
                await served.error(await served.client.delete("/v1/intents?load=l", headers=headers), 403)
                await served.error(await served.client.put("/v1/weights", data="{}", headers=headers), 403)
            read = await served.client.get("/v1/snapshot", headers=headers)
            assert read.status == 200  # but for its own origin the browser keeps it from the page
            assert "Access-Control-Allow-Origin" not in read.headers

    run(test)


def test_no_answer_is_taken_for_something_else_than_it_says(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            for path in ("/v1/snapshot", "/metrics", "/no/such/page"):
                answer = await served.client.get(path)
                assert answer.headers["X-Content-Type-Options"] == "nosniff"

    run(test)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(token: str) -> None:
    for right in RUNGS:
        with pytest.raises(ValidationError, match=f"{right}_token") as refused:
            ServiceConfig(**{f"{right}_token": token})  # type: ignore[arg-type]
        assert not token or repr(token)[1:-1] not in str(refused.value)


@pytest.mark.parametrize("host", ["", "http://collector", "collector:9405", "*"])
def test_a_name_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ValidationError, match="allowed_hosts"):
        ServiceConfig(allowed_hosts=frozenset({host}))


def test_a_page_of_the_services_own_may_be_given_to_all(serving: Serving, run: Run) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="nothing measured")

    async def test() -> None:
        routes = (web.get("/", page), web.get("/v1/overview", page))
        async with serving(_config("read"), more_routes=routes) as served:
            assert (await served.client.get("/")).status == 200
            await served.error(await served.client.get("/v1/overview"), 401)
            assert (await served.client.get("/v1/overview", headers=_bearer("read"))).status == 200

    run(test)
