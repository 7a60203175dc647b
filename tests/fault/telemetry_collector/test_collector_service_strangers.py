"""Strangers send a real collector service what they like: its memory stays bounded, and it serves on."""

from __future__ import annotations

import asyncio
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from evenload.kafka_connection import Connection

StartCollector = Callable[..., Any]

NOWHERE = Connection(bootstrap_servers="127.0.0.1:1")
MEMORY_MAX_BYTES = 600 << 20
NUM_STRANGERS = 12


def _hostile(number: int) -> Iterator[bytes]:
    """Texts as large as the service takes, or larger, that hold as much as they can."""
    shares = ",".join(f'"{partition}":0' for partition in range(50_000)).encode()
    wrong = ",".join(f'"{partition}":-1' for partition in range(50_000)).encode()
    route = b'[{"producer":"p%d","topic":"t","shares":{%%s}}]' % number
    yield b"[" + b"0," * 500_000 + b"0]"
    yield route % shares
    yield route % wrong
    yield b"[" * 100_000
    yield b'[{"producer":"p%d","topic":"t","shares":{},"notes":["%s"]}]' % (number, b"x" * 1_000_000)
    yield b"0" * (8 << 20)


def _most_memory_bytes(pid: int) -> int:
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) << 10


async def _attack(url: str) -> Counter[int | str]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def put(path: str, body: bytes) -> int | str:
            try:
                async with client.put(url + path, data=io.BytesIO(body)) as response:
                    return response.status
            except aiohttp.ClientError as error:  # it hung up before all was sent
                return type(error).__name__

        sent = [
            put(path, body)
            for number in range(NUM_STRANGERS)
            for body in _hostile(number)
            for path in ("/v1/reports", "/v1/intents")
        ]
        statuses = Counter(await asyncio.gather(*sent))
        async with client.get(f"{url}/metrics") as response:
            assert response.status == 200
        return statuses


def test_a_service_that_is_sent_whatever_fits_into_a_body_stays_within_its_memory_and_serves(
    start_collector: StartCollector,
) -> None:
    service = start_collector(NOWHERE)
    statuses = asyncio.run(_attack(service.url))
    assert {204, 400, 413} <= statuses.keys()
    assert 500 not in statuses
    assert _most_memory_bytes(service.process.pid) < MEMORY_MAX_BYTES
