"""`evenload governor` in a process of its own: for the demo, benchmarks and tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from evenload.governor.governing.engine import StintId
from evenload.governor.governing.journal import KafkaJournal
from evenload.governor.governing.kinds import Kind, MeasuredSpeed
from evenload.governor.governing.records import Records
from evenload.governor.service.client import GovernorClient
from evenload.kafka_connection.connection import Connection


class OwnGovernor(NamedTuple):
    """One that can be asked.

    Attributes:
        client: To ask it.
        process: To signal it.
        url: Where it serves.
    """

    client: GovernorClient
    process: subprocess.Popen[str]
    url: str


def write_down_speeds(
    connection: Connection, speeds_by_kind: Mapping[str, Mapping[int, float]], resize_cost_s: float
) -> None:
    """Has the next governor know what another one would have measured: samples/s by workers, for each kind.

    Whoever writes the journal looks like a governor, so the next one is started with `--take-over`.

    Raises:
        JournalError: It can't be written.
    """
    kinds = {
        kind: Kind(
            speeds={size: (MeasuredSpeed(StintId("before", size), per_s),) for size, per_s in speeds.items()},
            resize_costs_s=(resize_cost_s,),
        )
        for kind, speeds in speeds_by_kind.items()
    }
    journal = KafkaJournal(connection)
    try:
        journal.open()
        journal.write(Records({}, kinds, None))
    finally:
        journal.close()


def start_governor(
    connection: Connection,
    dashboard_url: str,
    *options: str,
    program: Sequence[str] = ("-m", "evenload"),
) -> OwnGovernor:
    """Starts one over CPUs, and returns when it can be asked. Whoever started it ends it.

    Args:
        connection: The cluster of its journal; its address alone is passed on.
        dashboard_url: Of the Ray cluster.
        options: More of the command line.
        program: What Python runs.

    Raises:
        RuntimeError: It ended before it could be asked; it has said why.
    """
    process = subprocess.Popen(
        [
            *(sys.executable, *program, "governor", "--port", "0", "--json"),
            *("--ray", dashboard_url, "--slots-from", "CPU"),
            *("--bootstrap-servers", connection.bootstrap_servers),
            *options,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while not said.rstrip().endswith("}"):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the governor ended with status {process.wait()} before it could be asked")
        said += line
    url = json.loads(said)["governor_url"]
    return OwnGovernor(GovernorClient(url), process, url)


@contextmanager
def own_governor(
    connection: Connection,
    dashboard_url: str,
    *options: str,
    program: Sequence[str] = ("-m", "evenload"),
) -> Iterator[OwnGovernor]:
    """The same, killed at the end if it still runs; what it has started runs on."""
    governor = start_governor(connection, dashboard_url, *options, program=program)
    try:
        yield governor
    finally:
        governor.process.kill()
        governor.process.communicate()
