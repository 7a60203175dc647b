"""Simulated producers that follow a service's routes: they ask as often as told, and tell what they send.

They tell what `FollowedRoutes` tells, have no Kafka client, and a connection each. All of them are tasks of
one loop in a thread.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import click

from evenload.telemetry_collector.service.wire import CLIENT_HEADER

_REPORT_S = 5.0  # as ProducerConfig has it
_JITTER = 0.2
_BYTES_A_REPORT = 1 << 20
_FAILURES_MAX = 0.01  # part of the questions


class FollowingProducers:
    """So many producers, until the end of `with`, each of one of the topics.

    Args:
        url: The service's.
        topics: Written in turn.
        num_producers: How many.
        timeout_s: How long all of them may take to have a route.
    """

    def __init__(self, url: str, topics: Sequence[str], num_producers: int, *, timeout_s: float) -> None:
        self._url = url
        self._topics = topics
        self._num_producers = num_producers
        self._timeout_s = timeout_s
        self._num_asked = 0
        self._failed: Counter[str] = Counter()  # questions, by what came of them
        self._num_routed = 0
        self._are_routed = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._follow_all(),))
        self._end: asyncio.Event | None = None
        self._has_begun = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._are_routed.wait(self._timeout_s):
            self._stop()
            routed = f"{self._num_routed} of {self._num_producers} producers have a route"
            raise click.ClickException(
                f"{routed} after {self._timeout_s:g} s; is the machine busy otherwise?"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._failed.total() > _FAILURES_MAX * self._num_asked:
            raise RuntimeError(f"of {self._num_asked} questions, these had no answer: {dict(self._failed)}")

    def _stop(self) -> None:
        self._has_begun.wait()
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _follow_all(self) -> None:
        self._end = asyncio.Event()
        self._has_begun.set()
        following = [
            asyncio.create_task(self._follow(number, self._topics[number % len(self._topics)]))
            for number in range(self._num_producers)
        ]
        await self._end.wait()
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, number: int, topic: str) -> None:
        rng = random.Random(number)
        headers = {CLIENT_HEADER: f"benchmark/{number}"}
        poll_s, sent_bytes, reported_s, is_routed = 1.0, 0, float("-inf"), False
        shares: list[float] = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            await asyncio.sleep(poll_s * rng.random())
            while True:
                self._num_asked += 1
                try:
                    async with session.get(f"{self._url}/v1/routes/{topic}", headers=headers) as response:
                        body = await response.read()
                    if response.status == 200:
                        answer = json.loads(body)
                        poll_s, shares = answer["poll_s"], answer["shares"]
                        headers["If-None-Match"] = response.headers["ETag"]
                        if answer["reason"] is None and not is_routed:
                            is_routed = True
                            self._count_routed()
                    elif response.status != 304 and is_routed:  # before, nothing may have been decided yet
                        self._failed[f"route: {response.status}"] += 1
                    if shares and time.monotonic() - reported_s > _REPORT_S:
                        reported_s = time.monotonic()
                        sent_bytes += _BYTES_A_REPORT
                        report = _report(number, topic, shares, sent_bytes)
                        async with session.put(f"{self._url}/v1/reports", json=[report]) as response:
                            if response.status != 204:
                                self._failed[f"report: {response.status}"] += 1
                except aiohttp.ClientError as error:
                    self._failed[type(error).__name__] += 1
                await asyncio.sleep(poll_s * rng.uniform(1 - _JITTER, 1 + _JITTER))

    def _count_routed(self) -> None:
        self._num_routed += 1
        if self._num_routed == self._num_producers:
            self._are_routed.set()


def _report(number: int, topic: str, shares: Sequence[float], sent_bytes: int) -> dict[str, Any]:
    return {
        "producer": f"benchmark/{number}",
        "topic": topic,
        "shares": dict(enumerate(shares)),
        "sent_bytes": sent_bytes,
        "sent_bytes_by_partition": {n: int(share * sent_bytes) for n, share in enumerate(shares)},
    }
