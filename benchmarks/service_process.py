"""A collector service as an operator starts it: `evenload collector`, a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

from evenload.kafka_connection import Connection

_ANSWER_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 20.0


class ServiceProcess:
    """`evenload collector` at its default settings; a context manager that starts and ends it.

    Args:
        connection: Of the cluster.
        port: Where it serves; 0: wherever there is room.
    """

    def __init__(self, connection: Connection, *, port: int = 0) -> None:
        self._connection = connection
        self._port = port

    def __enter__(self) -> Self:
        with tempfile.TemporaryDirectory(prefix="evenload-service-") as folder:
            path = Path(folder) / "connection.json"
            path.write_text(self._connection.model_dump_json())
            program = str(Path(sys.executable).with_name("evenload"))
            options = ("--json", "--port", str(self._port), "--connection", str(path))
            self._process = subprocess.Popen(
                [program, "collector", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self._process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                line = self._process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the collector service ended with status {self._process.wait()}")
                said += line
        self.url: str = json.loads(said)["collector_url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def cpu_s(self) -> float:
        """Processor time so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def num_requests(self) -> float:
        """How much it was asked so far, by producers."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=_ANSWER_TIMEOUT_S) as response:
            families = text_string_to_metric_families(response.read().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == "evenload_service_requests_total" and sample.labels["route"].startswith("/v1/")
        )
