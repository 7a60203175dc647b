"""`python -m benchmarks telemetry`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import click
from rich.console import Console

from benchmarks.results import keep, results_option, tell_misses
from benchmarks.service_process import ServiceProcess
from benchmarks.stage import FULL_COMPILER
from benchmarks.telemetry.broker_counts import CountedBrokers, counted_cluster
from benchmarks.telemetry.report import (
    OWN,
    ROUTED,
    ROUTES_OF_MANY,
    ROUTES_OF_ONE,
    SERVICE,
    Case,
    Window,
    document,
    draw,
    misses,
    tables,
)
from benchmarks.telemetry.windows import measure_window
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.topics import create_topic
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig

NUM_BROKERS = 3
NUM_TOPICS, PARTITIONS_A_TOPIC = 10, 30
TIMEOUT_S = 60.0

WITHOUT_SERVICE = (Case(OWN, 100), Case(OWN, 10), Case(OWN, 0), Case(OWN, 1))
# A service each: it goes on deciding about topics, and so measuring, for a minute after they were asked for.
WITH_SERVICE = ((Case(SERVICE, 100), Case(SERVICE, 10), Case(SERVICE, 1)), *((case,) for case in ROUTED))
NUM_ROUTED_TOPICS, PARTITIONS_A_ROUTED_TOPIC = 500, 2
NUM_ROUNDS, WINDOW_S = 4, 30.0  # about six measurements of each collector
QUICK_ROUNDS, QUICK_WINDOW_S = 2, 6.0  # one at least

WARM_UP_S, WARM_UP_COLLECTORS = 10.0, 20
OFTEN = CollectorConfig(interval_s=0.05, full_interval_s=0.05)


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Fewer, shorter windows: whether it works at all. Writes no result unless --results is given.",
)
@results_option
def telemetry(quick: bool, folder: Path | None) -> None:
    """What measuring costs brokers; exit status 1 where many producers cost more than one."""
    console = Console(highlight=False)
    console.width = max(console.width, 140)
    num_rounds, window_s = (QUICK_ROUNDS, QUICK_WINDOW_S) if quick else (NUM_ROUNDS, WINDOW_S)
    windows: list[Window] = []
    with counted_cluster(NUM_BROKERS, FULL_COMPILER) as brokers:
        topics = make_topics(brokers)
        many = make_many_topics(brokers)
        connection = as_operators_have_it(brokers)
        console.print("warming up")
        warm_up(connection, topics)
        by_way = {OWN: topics, SERVICE: topics, ROUTES_OF_ONE: topics[:1], ROUTES_OF_MANY: many}
        for number in range(num_rounds):
            console.print(f"[dim]round {number + 1} of {num_rounds}[/dim]")
            windows += measure_round(brokers, by_way, window_s=window_s, is_way_back=number % 2 == 1)
    num_partitions = NUM_TOPICS * PARTITIONS_A_TOPIC + NUM_ROUTED_TOPICS * PARTITIONS_A_ROUTED_TOPIC
    result = document(windows, num_partitions=num_partitions, window_s=window_s)
    for each in tables(result):
        console.print(each)
    keep(result, lambda: draw(result), folder, is_whole=not quick)
    tell_misses(console, misses(result), is_judged=not quick)


def make_topics(brokers: CountedBrokers) -> Sequence[str]:
    """Topics whose replicas are on two brokers each, in all pairs."""
    pairs = list(itertools.permutations(brokers.cluster.broker_ids, 2))
    topics = [f"telemetry-{number}" for number in range(NUM_TOPICS)]
    for topic in topics:
        create_topic(
            brokers.cluster.connection,
            topic,
            num_partitions=PARTITIONS_A_TOPIC,
            replication=None,
            assignments=list(itertools.islice(itertools.cycle(pairs), PARTITIONS_A_TOPIC)),
            configs={},
            timeout_s=TIMEOUT_S,
        )
    return topics


def make_many_topics(brokers: CountedBrokers) -> Sequence[str]:
    """Small ones, which many producers write."""
    topics = [f"routes-{number}" for number in range(NUM_ROUTED_TOPICS)]
    wanted = {"num_partitions": PARTITIONS_A_ROUTED_TOPIC, "replication_factor": 2}
    with open_admin(brokers.cluster.connection, timeout_s=TIMEOUT_S) as admin:
        admin.create_topics(dict.fromkeys(topics, wanted))
    return topics


def as_operators_have_it(brokers: CountedBrokers) -> Connection:
    """Brokers tell their capacities themselves; where one is configured, all sizes are asked each time."""
    return brokers.cluster.connection.model_copy(update={"capacity_bytes_by_broker": {}})


def warm_up(connection: Connection, topics: Sequence[str]) -> None:
    """Ask often, until Java has compiled what answers."""
    with ExitStack() as opened:
        for number in range(WARM_UP_COLLECTORS):
            opened.enter_context(Collector(connection, OFTEN, [topics[number % len(topics)]]))
        time.sleep(WARM_UP_S)


def measure_round(
    brokers: CountedBrokers, topics: Mapping[str, Sequence[str]], *, window_s: float, is_way_back: bool
) -> list[Window]:
    """A window of each case, those with a service while one runs."""
    connection = as_operators_have_it(brokers)
    parts: list[tuple[AbstractContextManager[ServiceProcess | None], Sequence[Case]]] = [
        (nullcontext(), WITHOUT_SERVICE),
        *((ServiceProcess(connection), cases) for cases in WITH_SERVICE),
    ]
    windows = []
    for opening, cases in reversed(parts) if is_way_back else parts:
        with opening as service:
            for case in reversed(cases) if is_way_back else cases:
                windows.append(
                    measure_window(brokers, connection, topics, case=case, service=service, window_s=window_s)
                )
    return windows
