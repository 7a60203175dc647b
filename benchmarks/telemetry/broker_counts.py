"""What brokers themselves say was asked of them, and what processor time they took.

Requests and bytes come from Kafka's own metrics, through a JMX exporter inside each broker; processor time
from the operating system. An exporter takes time only while it is asked: `read` before and after a window in
which `cpu_s` is compared, never within.
"""

from __future__ import annotations

import os
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from unittest.mock import patch

import psutil
from prometheus_client.parser import text_string_to_metric_families

from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.jars import exporter_jar

_TIMEOUT_S = 30.0
_RULES = r"""
includeObjectNames:
- kafka.network:type=RequestMetrics,name=RequestsPerSec,*
- kafka.server:type=socket-server-metrics,*
rules:
- pattern: kafka.network<type=RequestMetrics, name=RequestsPerSec, request=(\w+), version=(.+)><>Count
  name: requests
  labels: {"request": "$1", "version": "$2"}
- pattern: kafka.server<type=socket-server-metrics, listener=(\w+), networkProcessor=(\d+)><>(\w+)-byte-total
  name: $3_bytes
  labels: {"processor": "$2"}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCounts:
    """Since the brokers were started, all of them together.

    Attributes:
        at_s: When, by the monotonic clock.
        requests: By kind, those of other brokers too.
        received_bytes, sent_bytes: On all connections, those between brokers too.
    """

    at_s: float
    requests: Mapping[str, float]
    received_bytes: float
    sent_bytes: float

    def __sub__(self, earlier: Self) -> BrokerCounts:
        """What happened since then; `at_s` is how long that was."""
        return BrokerCounts(
            at_s=self.at_s - earlier.at_s,
            requests={kind: num - earlier.requests.get(kind, 0) for kind, num in self.requests.items()},
            received_bytes=self.received_bytes - earlier.received_bytes,
            sent_bytes=self.sent_bytes - earlier.sent_bytes,
        )


class CountedBrokers:
    """Brokers that run already, each with an exporter.

    Args:
        cluster: As `counted_cluster` starts it.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._processes = [psutil.Process(cluster.broker_pid(broker_id)) for broker_id in cluster.broker_ids]
        self._urls = [f"http://127.0.0.1:{self._exporter_port(each)}/metrics" for each in self._processes]

    def read(self) -> BrokerCounts:
        """The counts now."""
        at_s = time.monotonic()
        counts: defaultdict[str, float] = defaultdict(float)
        requests: defaultdict[str, float] = defaultdict(float)
        for url in self._urls:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
                families = text_string_to_metric_families(response.read().decode())
            for sample in (sample for family in families for sample in family.samples):
                if sample.name == "requests":
                    requests[sample.labels["request"]] += sample.value
                else:
                    counts[sample.name] += sample.value
        return BrokerCounts(
            at_s=at_s,
            requests=requests,
            received_bytes=counts["incoming_bytes"],
            sent_bytes=counts["outgoing_bytes"],
        )

    def cpu_s(self) -> float:
        """Processor time that the brokers' processes took so far."""
        return sum(cpu_s_of(process) for process in self._processes)

    def _exporter_port(self, process: psutil.Process) -> int:
        """The other port on which a broker listens."""
        listening = {c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
        known = {int(each.rpartition(":")[2]) for each in self.cluster.bootstrap_servers.split(",")}
        (port,) = listening - known
        return port


def cpu_s_of(process: psutil.Process) -> float:
    """Processor time that a process took so far, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def counted_cluster(num_brokers: int, environment: Mapping[str, str]) -> Iterator[CountedBrokers]:
    """Fresh brokers with exporters, started with more environment variables; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="evenload-exporter-") as folder:
        rules = Path(folder) / "rules.yml"
        rules.write_text(_RULES)
        agent = f"-javaagent:{exporter_jar()}=127.0.0.1:0:{rules}"
        with (
            patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": agent, **environment}),
            temporary_cluster(num_brokers=num_brokers) as cluster,
        ):
            yield CountedBrokers(cluster)
