"""Run the governor until somebody stops it, or another one takes over.

It opens its port first and takes the journal then, so that `/readyz` can say what keeps it from being ready.
When it ends, stints run on: the next governor follows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Literal

from aiohttp import web

from evenload.governor.deciding.plugins import check_known
from evenload.governor.governing.journal import KafkaJournal
from evenload.governor.governing.loop import Governing
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.on_ray.gpu_state import GpuState
from evenload.governor.on_ray.ray_jobs import RayJobs, log_of
from evenload.governor.on_ray.reports import Reports
from evenload.governor.on_ray.runs import left_by, submission_of
from evenload.governor.service.dataset_reads import AWAITED_S, NO_BUDGETS, DatasetReads, ReadBudgets
from evenload.governor.service.http import GovernorHttp
from evenload.governor.service.tokens import Tokens
from evenload.http_edge.listening import listening, url_of
from evenload.kafka_connection.connection import Connection

_REQUESTS_END_S: Final = 0.3
_KEEPALIVE_S: Final = 75.0


async def serve(
    connection: Connection,
    *,
    host: str,
    port: int,
    ray_address: str | None,
    slot: Literal["CPU", "GPU"],
    policy: str | None,
    wait_max_s: float,
    take_over: bool,
    tls: ssl.SSLContext | None = None,
    tokens: Tokens,
    allowed_hosts: Collection[str] = (),
    report_url: str | None = None,
    read_budgets: ReadBudgets = NO_BUDGETS,
    gpu_metrics: Sequence[str] = (),
    on_ready: Callable[[str], None],
) -> signal.Signals:
    """Serve until SIGINT or SIGTERM. For the main thread's loop.

    Args:
        connection: The cluster of the journal, and of the datasets that runs read.
        host: Where to listen.
        port: Likewise; 0: any that is free.
        ray_address: Of the Ray cluster's dashboard.
        slot: The resource of which each worker takes one.
        policy: The name of what decides; None: as it was set before, else the default.
        wait_max_s: Who has waited so long gets a turn, in seconds.
        take_over: Also from a governor that is at work.
        tls: With the service's certificate; None: plain http.
        tokens: Who may ask for what.
        allowed_hosts: By which names clients call it, beside addresses and localhost, in lower case.
        report_url: Where drivers on the cluster reach this service; None: where it listens.
        read_budgets: What brokers can give to runs.
        gpu_metrics: Where exporters say how busy GPUs are.
        on_ready: Told the service's URL when it can be asked.

    Returns:
        What stopped it.

    Raises:
        PolicyError: There is no such policy.
        JournalError: Kafka doesn't answer, or refuses the journal's topic.
        EngineUnreachableError: No Ray cluster answers there.
        OSError: It can't listen there.
        JournalTakenError, GovernorAtWorkError: Another governor has taken over, or is at work.
    """
    if policy is not None:
        check_known(policy)  # a slip is said at once
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[signal.Signals] = loop.create_future()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, _stop, stopped, each)
    reports = Reports(time.monotonic)
    report_to: dict[str, str] = {}
    journal = KafkaJournal(connection, take_over=take_over)
    owner = await asyncio.to_thread(journal.identify)
    engine = await asyncio.to_thread(
        RayJobs,
        ray_address,
        slot=slot,
        owner=owner,
        submission=partial(
            submission_of,
            connection=connection,
            owner=owner,
            report_to=report_to,
            token_of=tokens.of_stint,
        ),
        left_by=left_by,
        reports=reports,
    )
    governing = Governing(
        journal,
        engine,
        governing_policy,
        policy,
        wait_max_s=wait_max_s,
        awaits_reads_s=AWAITED_S if read_budgets.are_set else 0.0,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, governing.close)
        gpus = GpuState(gpu_metrics)
        stack.callback(gpus.close)
        if gpu_metrics:
            gpus.start()
        application = GovernorHttp(
            governing,
            reports,
            connection,
            tokens=tokens,
            allowed_hosts=allowed_hosts,
            log_of=partial(log_of, ray_address),
            device="gpu" if slot == "GPU" else "cpu",
            gpus=gpus,
        ).app()
        runner = web.AppRunner(
            application,
            access_log=None,
            auto_decompress=False,  # http_edge/bodies.py
            shutdown_timeout=_REQUESTS_END_S,
            keepalive_timeout=_KEEPALIVE_S,
        )
        port = await stack.enter_async_context(listening(runner, host, port, tls=tls))
        url = url_of(host, port, is_tls=tls is not None)
        report_to["url"] = f"{(report_url or url).rstrip('/')}/v1/reports"
        if read_budgets.are_set:
            reads = DatasetReads(connection, governing, read_budgets)
            stack.callback(reads.close)
            reads.start()
        governing.start()  # not before: it may start stints at once, which have to know where to report
        watching = asyncio.create_task(asyncio.to_thread(governing.has_ended.wait))
        watching.add_done_callback(partial(_end_with, stopped, governing))
        on_ready(url)
        return await stopped
    raise AssertionError("the stack lets nothing pass")


def _stop(stopped: asyncio.Future[signal.Signals], by: signal.Signals) -> None:
    if not stopped.done():
        stopped.set_result(by)


def _end_with(stopped: asyncio.Future[signal.Signals], governing: Governing, _: asyncio.Task[bool]) -> None:
    """A service that governs nothing any more doesn't go on."""
    if not stopped.done():
        stopped.set_exception(governing.fault or RuntimeError("the governor has ended"))
