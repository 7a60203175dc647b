"""Get Kafka's jars: resolved once through jgo, then found in the user's cache.

Any version of Kafka from 3.3 on may be asked for; the tests run on KAFKA_VERSIONS.

The one idea: a finished resolution is a file, `classpath-VERSION.json`, that lists the jars with
their sizes and is written last. While it is there and every jar has its size, nothing is asked
of the network; a half-fetched jar (jgo writes in place) has no line in it and is fetched again.

What a jar has to be is written down in jars.json, by its SHA-256, for all that KAFKA_VERSIONS, the tools
and the exporter need: a jar that is another one, or one more, never runs, whether it was just fetched or lay
in the cache. Other versions have none there: whoever names one gets jars that are unchecked, and is told so
at each start.

A lock on the cache folder makes two first starts at once one download.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evenload.local_cluster.errors import JarsUnavailableError, LocalPartsMissingError, WrongJarError

KAFKA_VERSIONS = ("3.3.2", "3.7.2", "3.9.1", "4.3.1")
KAFKA_VERSION = KAFKA_VERSIONS[-1]
# Without a binding of its slf4j 1.7, a broker logs nothing, not even why it died.
_LOG_ARTIFACT = "org.slf4j:slf4j-simple:1.7.36"
_EXPORTER_VERSION = "1.0.1"
_COMPILER_VERSION = "3.46.0"
_JUNIT_VERSION = "1.13.4"
_FLINK_VERSION, _FLINK_SINK_VERSION = "2.0.0", "4.0.0-2.0"
_FLINK_PARTS = ("flink-clients", "flink-streaming-java", "flink-connector-base")
_NUM_DOWNLOADS = 4
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_OLDEST = [3, 3, 0]

_CHECKSUMS = Path(__file__).with_name("jars.json")

Progress = Callable[[str], None]


def is_usable(kafka_version: str) -> bool:
    """Whether this is spelled like a version, of a Kafka that tells the size of its volumes (3.3)."""
    return bool(_VERSION.fullmatch(kafka_version)) and _numbers(kafka_version) >= _OLDEST


def is_older(kafka_version: str, other: str) -> bool:
    """Whether one version comes before another."""
    return _numbers(kafka_version) < _numbers(other)


def _numbers(kafka_version: str) -> list[int]:
    return [int(number) for number in kafka_version.split(".")]


def cache_folder() -> Path:
    """Where jars are kept between clusters: the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evenload" / "jars"


def kafka_classpath(progress: Progress = lambda _: None, *, kafka_version: str = KAFKA_VERSION) -> list[Path]:
    """The jars a Kafka server needs, fetched if they aren't there.

    Args:
        progress: is told in a sentence when something has to be fetched.

    Raises:
        JarsUnavailableError: they aren't cached and can't be fetched.
        WrongJarError: one of them is another than it has to be.
    """

    def fetch(cache: Path) -> list[Path]:
        wanted = (f"org.apache.kafka:kafka_2.13:{kafka_version}", _LOG_ARTIFACT)
        return _fetch(cache, wanted, with_dependencies=True)

    what = f"Kafka {kafka_version} (about 44 MB, once)"
    jars, num_unchecked = _cached_or_fetched(
        f"classpath-{kafka_version}", what, fetch, progress, is_pinned=kafka_version in KAFKA_VERSIONS
    )
    if num_unchecked:
        progress(
            f"{num_unchecked} of the jars of Kafka {kafka_version} have no known checksum, and run "
            f"unchecked; those of {', '.join(KAFKA_VERSIONS)} are checked"
        )
    return jars


def tools_classpath(progress: Progress = lambda _: None) -> list[Path]:
    """The jars Kafka's own command-line tools need (`org.apache.kafka.tools`): a server's and one more.

    Raises:
        JarsUnavailableError: they aren't cached and can't be fetched.
    """
    # What it depends on is a server's class path: the jars have the same version.
    what = f"Kafka's tools {KAFKA_VERSION} (1 MB, once)"
    tools = _pinned_jar("tools", "org.apache.kafka:kafka-tools", KAFKA_VERSION, what, progress)
    return [*kafka_classpath(progress), tools]


def connect_classpath(progress: Progress = lambda _: None) -> list[Path]:
    """The jars of a Kafka Connect worker; the last one is the connector that reads and writes files.

    Raises:
        JarsUnavailableError: they aren't cached and can't be fetched.
        WrongJarError: one of them is another than it has to be.
    """

    def fetch(cache: Path) -> list[Path]:
        wanted = (f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}", _LOG_ARTIFACT)
        return _fetch(cache, wanted, with_dependencies=True)

    what = f"Kafka Connect {KAFKA_VERSION} (33 MB, once)"
    worker, _ = _cached_or_fetched(f"connect-{KAFKA_VERSION}", what, fetch, progress, is_pinned=True)
    what = f"Kafka Connect's file connector {KAFKA_VERSION} (1 MB, once)"
    artifact = "org.apache.kafka:connect-file"
    return [*worker, _pinned_jar("connect-file", artifact, KAFKA_VERSION, what, progress)]


def flink_classpath(progress: Progress = lambda _: None) -> list[Path]:
    """The jars of a Flink job that runs in its own process and writes to Kafka.

    Raises:
        JarsUnavailableError: they aren't cached and can't be fetched.
        WrongJarError: one of them is another than it has to be.
    """

    def fetch(cache: Path) -> list[Path]:
        flink = "org.apache.flink"
        parts = [f"{flink}:{part}:{_FLINK_VERSION}" for part in _FLINK_PARTS]
        wanted = (*parts, f"{flink}:flink-connector-kafka:{_FLINK_SINK_VERSION}", _LOG_ARTIFACT)
        return _fetch(cache, wanted, with_dependencies=True)

    what = f"Flink {_FLINK_VERSION} (86 MB, once)"
    jars, _ = _cached_or_fetched(f"flink-{_FLINK_VERSION}", what, fetch, progress, is_pinned=True)
    return jars


def exporter_jar(progress: Progress = lambda _: None) -> Path:
    """The Java agent that serves a broker's own metrics to Prometheus (the JMX exporter).

    Raises:
        JarsUnavailableError: it isn't cached and can't be fetched.
    """
    what = f"the JMX exporter {_EXPORTER_VERSION} (3 MB, once)"
    artifact = "io.prometheus.jmx:jmx_prometheus_javaagent"
    return _pinned_jar("exporter", artifact, _EXPORTER_VERSION, what, progress)


def compiler_jar(progress: Progress = lambda _: None) -> Path:
    """Eclipse's compiler of Java, which runs on a Java without a JDK.

    Raises:
        JarsUnavailableError: it isn't cached and can't be fetched.
    """
    what = f"a compiler of Java, ecj {_COMPILER_VERSION} (3 MB, once)"
    return _pinned_jar("compiler", "org.eclipse.jdt:ecj", _COMPILER_VERSION, what, progress)


def junit_jar(progress: Progress = lambda _: None) -> Path:
    """JUnit and what runs it, in one jar.

    Raises:
        JarsUnavailableError: it isn't cached and can't be fetched.
    """
    what = f"JUnit {_JUNIT_VERSION} (3 MB, once)"
    artifact = "org.junit.platform:junit-platform-console-standalone"
    return _pinned_jar("junit", artifact, _JUNIT_VERSION, what, progress)


def _pinned_jar(name: str, artifact: str, version: str, what: str, progress: Progress) -> Path:
    """One jar, without what it depends on, whose checksum is known."""

    def fetch(cache: Path) -> list[Path]:
        return _fetch(cache, (f"{artifact}:{version}",), with_dependencies=False)

    (jar,), _ = _cached_or_fetched(f"{name}-{version}", what, fetch, progress, is_pinned=True)
    return jar


def _cached_or_fetched(
    name: str, what: str, fetch: Callable[[Path], list[Path]], progress: Progress, *, is_pinned: bool
) -> tuple[list[Path], int]:
    """The jars, and how many of them couldn't be checked."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    listing = cache / f"{name}.json"
    jars = _cached_jars(listing)
    if jars:
        return jars, _check(jars, cache, is_pinned=is_pinned)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = _cached_jars(listing)  # another process may have just done it
        if jars:
            return jars, _check(jars, cache, is_pinned=is_pinned)
        progress(f"fetching {what}")
        jars = fetch(cache)
        num_unchecked = _check(jars, cache, is_pinned=is_pinned)
        unfinished = listing.with_suffix(".part")
        unfinished.write_text(json.dumps({str(jar.relative_to(cache)): jar.stat().st_size for jar in jars}))
        unfinished.replace(listing)
        return jars, num_unchecked


def _cached_jars(listing: Path) -> list[Path]:
    try:
        sizes: dict[str, int] = json.loads(listing.read_text())
        jars = {listing.parent / name: size for name, size in sizes.items()}
        return list(jars) if all(jar.stat().st_size == size for jar, size in jars.items()) else []
    except (OSError, ValueError):
        return []


def _check(jars: Sequence[Path], cache: Path, *, is_pinned: bool) -> int:
    """Compare jars with what they have to be. Returns how many of them aren't known.

    Args:
        is_pinned: whether all of them have to be known. What names the jars (a description that was fetched
            with them, then the listing in the cache) may name others than when their checksums were taken.

    Raises:
        WrongJarError: one is another than it has to be; it stays where it is.
    """
    known: dict[str, str] = json.loads(_CHECKSUMS.read_bytes())
    num_unknown = 0
    for jar in jars:
        expected = known.get(os.path.relpath(jar, cache / "maven"))
        if expected is None and not is_pinned:
            num_unknown += 1
            continue
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise WrongJarError(jar, expected, found)
    return num_unknown


def _fetch(cache: Path, wanted: Sequence[str], *, with_dependencies: bool) -> list[Path]:
    # Imported when needed: with cached jars, `up` starts without jgo and requests.
    try:
        import requests
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
        from jgo.parse import Coordinate
    except ModuleNotFoundError as error:
        raise LocalPartsMissingError(str(error.name)) from error

    # A mirror that the user named in jgo's own settings is used, Maven Central otherwise.
    repositories = GlobalSettings.load().repositories or {"central": MAVEN_CENTRAL_URL}
    context = MavenContext(repo_cache=cache / "maven", remote_repos=repositories)
    try:
        asked = [context.create_dependency(Coordinate.parse(artifact)) for artifact in wanted]
        direct, transitive = context.resolver.resolve(asked) if with_dependencies else (asked, ())
        artifacts = [d.artifact for d in (*direct, *transitive) if d.scope in (None, "compile", "runtime")]
        with ThreadPoolExecutor(_NUM_DOWNLOADS, "jars") as threads:
            return list(threads.map(_download, artifacts))
    except (requests.RequestException, RuntimeError, OSError, ValueError) as error:
        raise JarsUnavailableError(wanted[0], cache, _reason(error)) from error


def _download(artifact: Any) -> Path:
    path: Path = artifact.resolve()
    if not zipfile.is_zipfile(path):  # a download that was killed left its beginning
        path.unlink()
        path = artifact.resolve()
    return path


def _reason(error: Exception) -> str:
    """What the system said at the bottom of the pile ("connection refused"), if it said anything."""
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return reason
