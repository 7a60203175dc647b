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

import click

_INSIDE = "EVENLOAD_BENCHMARK_NAMESPACE"
_PROGRAMS = ("unshare", "ip", "tc")
# Loopback's own packets have 64 KiB, which is a second's worth of a slow link.
_PACKET_BYTES = 1500
_BURST_S = 0.05
_BURST_MIN_BYTES = 8 * _PACKET_BYTES


def run_inside(arguments: Sequence[str]) -> int | None:
    """Run the benchmark in a network namespace of its own.

    Args:
        arguments: Of `python -m benchmarks`.

    Returns:
        With which status that ended; None: this process is inside already.

    Raises:
        click.ClickException: There can be no such namespace here.
    """
    if os.environ.get(_INSIDE):
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
    again = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        ["unshare", "--net", *again], env={**os.environ, _INSIDE: "1"}, check=False
    ).returncode


class Links:
    """The links of brokers that run already; unlimited until `limit` is called.

    Args:
        ports: Where each broker listens, by its id.
    """

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = ports
        self._is_limited = False

    def limit(self, bytes_per_s: float | None) -> None:
        """Let no more bytes a second leave each broker; None: as many as it likes."""
        if self._is_limited:
            _tc("qdisc", "del", "dev", "lo", "root")
        self._is_limited = bytes_per_s is not None
        if bytes_per_s is None:
            return
        _tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
        burst = max(_BURST_MIN_BYTES, int(bytes_per_s * _BURST_S))
        for broker_id, port in self._ports.items():
            rate = ["rate", f"{int(bytes_per_s)}bps", "burst", str(burst), "cburst", str(burst)]
            _tc("class", "add", "dev", "lo", "parent", "1:", "classid", f"1:{broker_id}", "htb", *rate)
            match = ["match", "ip", "sport", str(port), "0xffff"]
            _tc("filter", "add", "dev", "lo", "parent", "1:", "u32", *match, "flowid", f"1:{broker_id}")


def _tc(*arguments: str) -> None:
    _run("tc", *arguments)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise click.ClickException(f"{' '.join(command)}: {ran.stderr.strip()}")
