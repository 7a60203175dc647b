"""Brokers whose links have a rate, in a network namespace of the benchmark's own.

Linux's token buckets (`tc`, htb) hold what leaves each broker's port to a rate, whoever it goes to. All of
loopback is in the namespace: nothing else on the machine is slowed down. It takes root, `unshare`, `ip` and
`tc`; the benchmark starts itself once more, inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from evenload.local_cluster.jars import kafka_classpath

_OUTSIDE = "EVENLOAD_BENCHMARK_OUTSIDE"  # the namespace that the benchmark was started in
_PROGRAMS = ("unshare", "ip", "tc")
# Loopback's own packets have 64 KiB, which is a second's worth of a slow link.
_PACKET_BYTES = 1500
_BURST_S = 0.05
_BURST_MIN_BYTES = 8 * _PACKET_BYTES
_UNLIMITED_BYTES_PER_S = 1e9
# What the kernel counts of a packet, over what it carries of a stream: headers of Ethernet, IP and TCP.
BYTES_ON_LINK = (_PACKET_BYTES + 14) / (_PACKET_BYTES - 52)


def run_inside(arguments: Sequence[str]) -> int | None:
    """Run the benchmark in a network namespace of its own.

    Args:
        arguments: Of `python -m benchmarks`.

    Returns:
        With which status that ended; None: this process is inside already.

    Raises:
        click.ClickException: There can be no such namespace here.
    """
    here = str(Path("/proc/self/ns/net").readlink())
    if os.environ.get(_OUTSIDE, here) != here:
        _run("ip", "link", "set", "dev", "lo", "mtu", str(_PACKET_BYTES))
        _run("ip", "link", "set", "dev", "lo", "gso_max_segs", "1")
        _run("ip", "link", "set", "dev", "lo", "up")
        return None
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        lacks = f" (not found: {', '.join(missing)})" if missing else ""
        raise click.ClickException(
            f"links of brokers are limited by Linux's tc, which takes root, {', '.join(_PROGRAMS)}{lacks}"
        )
    kafka_classpath()  # inside, nothing can be fetched
    again = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        ["unshare", "--net", *again], env={**os.environ, _OUTSIDE: here}, check=False
    ).returncode


class Links:
    """The links of brokers that run already; as good as unlimited until `limit` is called.

    Args:
        ports: Where each broker listens, by its id.
    """

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._broker_ids = list(ports)
        _tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
        self._set("add", _UNLIMITED_BYTES_PER_S)
        for broker_id, port in ports.items():
            match = ["match", "ip", "sport", str(port), "0xffff"]
            _tc("filter", "add", "dev", "lo", "parent", "1:", "u32", *match, "flowid", f"1:{broker_id}")

    def limit(self, bytes_per_s: float | None) -> None:
        """Let no more bytes a second leave each broker; None: as good as unlimited."""
        self._set("change", _UNLIMITED_BYTES_PER_S if bytes_per_s is None else bytes_per_s)

    def _set(self, how: str, bytes_per_s: float) -> None:
        burst = max(_BURST_MIN_BYTES, int(bytes_per_s * _BURST_S))
        rate = ["rate", f"{int(bytes_per_s)}bps", "burst", str(burst), "cburst", str(burst)]
        for broker_id in self._broker_ids:
            _tc("class", how, "dev", "lo", "parent", "1:", "classid", f"1:{broker_id}", "htb", *rate)


def _tc(*arguments: str) -> None:
    _run("tc", *arguments)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise click.ClickException(f"{' '.join(command)}: {ran.stderr.strip()}")
