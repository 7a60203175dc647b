"""A jar runs only if it is the one that its checksum says."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from evenload.local_cluster import jars
from evenload.local_cluster.errors import WrongJarError

GOOD, BAD = b"a jar", b"another jar"
NAME = "org/kafka/kafka.jar"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar in the cache, listed there; its checksum is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checksums = tmp_path / "jars.json"
    checksums.write_text(json.dumps({NAME: hashlib.sha256(GOOD).hexdigest()}))
    monkeypatch.setattr(jars, "_CHECKSUMS", checksums)
    jar = jars.cache_folder() / "maven" / NAME
    jar.parent.mkdir(parents=True)
    jar.write_bytes(GOOD)
    return jar


def _list(jar: Path) -> None:
    listing = jars.cache_folder() / f"classpath-{jars.KAFKA_VERSION}.json"
    listing.write_text(json.dumps({str(jar.relative_to(jars.cache_folder())): jar.stat().st_size}))


def test_a_jar_of_the_cache_is_used_if_it_is_the_right_one(cached: Path) -> None:
    _list(cached)
    assert jars.kafka_classpath() == [cached]


def test_a_jar_of_the_cache_that_is_another_one_is_not_used(cached: Path) -> None:
    cached.write_bytes(BAD)
    _list(cached)
    with pytest.raises(WrongJarError) as raised:
        jars.kafka_classpath()
    assert str(raised.value) == (
        f"{cached} has the SHA-256 {hashlib.sha256(BAD).hexdigest()}, but has to have "
        f"{hashlib.sha256(GOOD).hexdigest()}, so it isn't run; remove it and start again, which fetches it "
        "anew. If that ends here again, what it is fetched from has another one"
    )


def test_a_jar_that_was_fetched_and_is_another_one_is_never_listed(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: Path, *__: object, **___: object) -> list[Path]:
        return [cached]

    monkeypatch.setattr(jars, "_fetch", fetch)
    cached.write_bytes(BAD)
    for _ in range(2):  # a second start doesn't find it good either
        with pytest.raises(WrongJarError):
            jars.kafka_classpath()
    cached.write_bytes(GOOD)
    said: list[str] = []
    assert jars.kafka_classpath(said.append) == [cached]
    assert said == [f"fetching Kafka {jars.KAFKA_VERSION} (about 44 MB, once)"]


@pytest.mark.parametrize("name", ["maven/org/kafka/more.jar", "more.jar", "../more.jar"])
def test_a_jar_without_a_known_checksum_does_not_run_as_part_of_a_version_that_has_them(
    cached: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = jars.cache_folder() / name
    more.write_bytes(BAD)
    monkeypatch.setattr(jars, "_fetch", lambda *_, **__: [cached, more])
    listing = jars.cache_folder() / f"classpath-{jars.KAFKA_VERSION}.json"
    for _ in range(2):  # what was refused isn't in the cache at the next start
        with pytest.raises(WrongJarError) as raised:
            jars.kafka_classpath()
        assert raised.value.path == more
        assert raised.value.expected is None
        assert "is none of the jars that this version is known to need" in str(raised.value)
        assert not listing.exists()

    listing.write_text(json.dumps({f"maven/{NAME}": len(GOOD), name: len(BAD)}))
    with pytest.raises(WrongJarError):
        jars.kafka_classpath()


def test_jars_of_other_versions_are_said_to_be_unchecked_at_each_start(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cached.with_name("other.jar")
    other.write_bytes(BAD)
    monkeypatch.setattr(jars, "_fetch", lambda *_, **__: [cached, other])
    said: list[str] = []
    for _ in range(2):
        assert jars.kafka_classpath(said.append, kafka_version="4.1.0") == [cached, other]
    unchecked = (
        "1 of the jars of Kafka 4.1.0 have no known checksum, and run unchecked; "
        "those of 3.3.2, 3.7.2, 3.9.1, 4.3.1 are checked"
    )
    assert said == ["fetching Kafka 4.1.0 (about 44 MB, once)", unchecked, unchecked]

    cached.write_bytes(BAD)  # those that every version needs are checked
    with pytest.raises(WrongJarError):
        jars.kafka_classpath(kafka_version="4.1.0")


def test_all_that_the_tests_run_on_has_a_checksum() -> None:
    known = json.loads(jars._CHECKSUMS.read_bytes())
    for version in jars.KAFKA_VERSIONS:
        assert f"org/apache/kafka/kafka_2.13/{version}/kafka_2.13-{version}.jar" in known
        assert f"org/apache/kafka/kafka-clients/{version}/kafka-clients-{version}.jar" in known
    for folder in (
        "io/prometheus/jmx/",
        "org/apache/kafka/kafka-tools/",
        "org/eclipse/jdt/ecj/",
        "org/junit/",
    ):
        assert any(name.startswith(folder) for name in known)
    assert all(re.fullmatch(r"[0-9a-f]{64}", checksum) for checksum in known.values())
