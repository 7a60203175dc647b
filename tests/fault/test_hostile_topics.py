"""Whole commands on topics that hold hostile records, each in a process of its own with bounded memory.

The memory of a process is the most that it had in use (VmHWM of /proc): limits on addresses (RLIMIT_AS) say
nothing of it, as Arrow and PyTorch reserve far more than they use.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
import pyarrow as pa
import pytest
import xxhash
from kafka.protocol.producer import ProduceRequest

from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC, Catalog
from evenload.dataset_catalog.logs.internal_topics import ensure_internal_topics, write_plain
from evenload.dataset_catalog.manifest import DatasetManifest, PartitionExtents
from evenload.dataset_catalog.parts import DOCUMENT_BYTES_MAX
from evenload.dataset_catalog.records.encoding import RECORD_HEADER, encode_samples, record_header
from evenload.dataset_catalog.testing import (
    LOAD_ID,
    create_topic,
    make_batch,
    make_manifest,
    write_dataset,
)
from evenload.kafka_connection import Connection
from evenload.kafka_connection.broker_connection import BrokerConnection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.balancing.log import BALANCE_TOPIC

MEMORY_MAX = 600 << 20

CLI = """
import sys
from evenload.cli import main
def run():
    main(sys.argv[1:])
"""
EACH = """
import contextlib, io, json, sys
from evenload.cli import main
def run():
    for arguments in map(json.loads, sys.argv[1:]):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main(arguments)
            except SystemExit as end:
                status = end.code
        print(json.dumps([status, said.getvalue()]))
"""
READ = """
import sys
from evenload.dataset_catalog.errors import CatalogError
from evenload.kafka_connection import Connection
from evenload.ray_trainer.errors import ReadError
from evenload.ray_trainer.reading.reader import DatasetReader
def run():
    connection = Connection(bootstrap_servers=sys.argv[1])
    for name in sys.argv[2:]:
        try:
            reader = DatasetReader(name, global_batch_size=16, connection=connection)
            print(name, "has", sum(len(batch.index) for batch in reader), "samples")
            reader.close()
        except (CatalogError, ReadError, ValueError) as error:
            print(name, "is refused:", error)
"""
# Before the work begins, libraries are there: what they take is mapped from files, and not the work's.
MEASURED = """
import atexit, resource, json, os, sys
def used(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
before = used("RssFile")
def tell():
    with open(os.environ["MEMORY_FILE"], "w") as file:
        json.dump(used("VmHWM") - before, file)
atexit.register(tell)
run()
"""


class Ended(NamedTuple):
    status: int
    out: str
    said: str
    memory_bytes: int


@pytest.fixture(scope="module")
def connection() -> Any:
    from evenload.local_cluster import temporary_cluster

    with temporary_cluster(num_brokers=1) as cluster:
        yield cluster.connection


@pytest.fixture
def run(tmp_path: Path, connection: Connection) -> Callable[..., Ended]:
    """Run a program to its end, and see that it ends as programs should."""

    def run(program: str, *arguments: str) -> Ended:
        memory_file = tmp_path / "memory"
        done = subprocess.run(
            [sys.executable, "-c", program + MEASURED, *arguments],
            env={
                **os.environ,
                "EVENLOAD_HOME": str(tmp_path / "home"),
                "EVENLOAD_BOOTSTRAP_SERVERS": connection.bootstrap_servers,
                "MEMORY_FILE": str(memory_file),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        assert (done.stdout + done.stderr).replace("\n", "").isprintable()
        memory_bytes = json.loads(memory_file.read_text())
        assert memory_bytes < MEMORY_MAX
        return Ended(done.returncode, done.stdout, done.stderr, memory_bytes)

    return run


def run_each(run: Callable[..., Ended], *commands: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Run commands in one process, and give status and output of each."""
    lines = run(EACH, *map(json.dumps, commands)).out.splitlines()
    for _, line in zip(commands, lines, strict=True):
        status, said = json.loads(line)
        assert said.replace("\n", "").isprintable()
        assert "Traceback" not in said
        yield status, said


def read(run: Callable[..., Ended], connection: Connection, *names: str) -> dict[str, int | None]:
    """How many samples a reader gets of each dataset, in one process; None for one that it refuses."""
    said = run(READ, connection.bootstrap_servers, *names).out.splitlines()
    num_samples: dict[str, int | None] = {}
    for name, line in zip(names, said, strict=True):
        is_refused = line.startswith(f"{name} is refused: ")
        num_samples[name] = None if is_refused else int(line.removeprefix(f"{name} has ").split()[0])
    return num_samples


def part(compressed: bytes) -> bytes:
    """The only part of a manifest, with right checksums, whatever is in it."""
    digest = xxhash.xxh3_128_digest(compressed)
    checksum = xxhash.xxh3_64_intdigest(struct.pack(">HH16s", 0, 1, digest) + compressed)
    return struct.pack(">4sBHH16sQ", b"EVLM", 1, 0, 1, digest, checksum) + compressed


def zeros(num_bytes: int) -> bytes:
    compressor = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(compressor.compress(block) for _ in range(num_bytes >> 20)) + compressor.flush()


def hostile_manifests() -> list[tuple[bytes, bytes]]:
    header = b'{"a":' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    wide = b'{"source":[' + b"[]," * 5_000_000 + b"[]]}"
    documents = {
        "nested": zlib.compress(struct.pack(">I", len(header)) + header),
        "wide": zlib.compress(struct.pack(">I", len(wide)) + wide),
        "bomb": zeros(900 << 20),
        "largest": zeros(DOCUMENT_BYTES_MAX),
        "second": zeros(DOCUMENT_BYTES_MAX),
        "noise": os.urandom(900_000),
    }
    records = [(f"{name}@1/0".encode(), part(document)) for name, document in documents.items()]
    records += [(f"filler-{n}@1/0".encode(), part(os.urandom(500_000))) for n in range(200)]
    records += [
        (b"plain@1/0", b"\x1b]0;owned\x07"),
        (b"x@" + b"9" * 5000 + b"/0", b"what"),
        (b"\x1b[2J\xff@1/0", b"what"),
    ]
    return records


def hostile_progress() -> list[tuple[bytes, bytes]]:
    runs = b'{"format":1,"runs":{"0":[' + b"[1,1,1]," * 100_000 + b"[1,1,1]]}}"
    return [
        (b"nested@1/0", b"[" * 500_000),
        (b"numbers@1/0", b'{"format":1,"sequence":' + b"9" * 100_000 + b"}"),
        *((f"runs@1/{n}".encode(), runs) for n in range(40)),
        (b"\x1b[2J", b"{}"),
    ]


@pytest.mark.timeout(3600)  # two dozen commands, one after the other
def test_hostile_records_of_the_catalog_hide_nothing_and_are_cleared(
    connection: Connection, run: Callable[..., Ended]
) -> None:
    catalog = Catalog(connection)
    catalog.ensure_internal_topics()
    batch = make_batch(60)
    catalog.publish(write_dataset(connection, batch, topic="roses-1", name="roses"))
    manifests = hostile_manifests()
    for topic, records in ((DATASETS_TOPIC, manifests), (LOADS_TOPIC, hostile_progress())):
        write_plain(connection, topic, records, timeout_s=60)

    listed = json.loads(run(CLI, "datasets", "--json").out)
    assert [each["name"] for each in listed["datasets"]] == ["roses"]
    damaged = {(each["topic"], each["name"]) for each in listed["damaged"]}
    assert len(damaged) == len(listed["damaged"]) == len(manifests) + 4
    assert {(DATASETS_TOPIC, "bomb@1"), (LOADS_TOPIC, "runs@1")} <= damaged
    table = run(CLI, "datasets").out
    assert "roses@1" in table
    assert "damaged: bomb@1 in topic evenload.datasets: decompressed it has more than" in table

    ended = run_each(run, ("datasets", "show", "roses"), ("datasets", "verify", "roses"))
    assert [status for status, _ in ended] == [0, 0]
    refused = ("bomb", "nested", "plain")
    shown = run_each(run, *(("datasets", "show", name) for name in refused))
    for name, (status, said) in zip(refused, shown, strict=True):
        assert (status, f"`evenload datasets drop {name}@1` clears it" in said) == (1, True)
    assert read(run, connection, "roses", *refused) == {"roses": 60} | dict.fromkeys(refused)
    catalog.publish(make_manifest(make_batch(0), [], name="daisies"))
    dropped = run_each(run, ("datasets", "drop", "nested"), ("datasets", "drop", "daisies"))
    assert [status for status, _ in dropped] == [0, 0]

    cleared = json.loads(run(CLI, "datasets", "drop", "--damaged", "--yes", "--json").out)
    assert "bomb@1" in cleared["dropped"]
    listed = json.loads(run(CLI, "datasets", "--json").out)
    assert ([each["name"] for each in listed["datasets"]], listed["damaged"]) == (["roses"], [])
    assert listed["unfinished"] == []


def blown_up(value: bytes, old: bytes, new: bytes) -> bytes:
    assert old in value
    return value.replace(old, new)


def hostile_values() -> tuple[pa.Schema, list[bytes]]:
    batch = pa.record_batch(
        {
            "texts": [["a" * 9, "b" * 8], ["c" * 7], []],
            "nothing": pa.nulls(3),
            "image": [{"bytes": b"d" * 9}, {"bytes": b"e" * 8}, {"bytes": b"f" * 7}],
        }
    )
    value = encode_samples(batch)
    return batch.schema, [
        blown_up(value, struct.pack("<i", 17), struct.pack("<i", 400_000_000)),
        blown_up(value, struct.pack("<i", 17), struct.pack("<i", -400_000_000)),
        blown_up(value, struct.pack("<q", 3), struct.pack("<q", 2**60)),
        blown_up(value, struct.pack("<q", 3), struct.pack("<q", 2**28)),
        value[:-64],
        value[: len(value) // 2],
        os.urandom(900_000),
        b"",
    ]


def publish_records(
    connection: Connection, name: str, schema: pa.Schema, values: list[bytes], **fields: Any
) -> DatasetManifest:
    """A dataset of records of three samples each, whatever is in them, with right headers."""
    topic = create_topic(connection, f"{name}-1", num_partitions=1)
    producer = confluent_producer(connection)
    for number, value in enumerate(values):
        header = record_header(LOAD_ID, 3 * number, value)
        producer.produce(f"{name}-1", value, partition=0, headers=[(RECORD_HEADER, header)])
    assert producer.flush(30) == 0
    producer.close()
    extents = PartitionExtents(0, [(0, len(values), 3)])
    told = {
        "num_samples": extents.num_samples,
        "num_records": len(values),
        "num_bytes": sum(map(len, values)),
    }
    manifest = make_manifest(
        pa.RecordBatch.from_pylist([], schema),
        [],
        **{"name": name, "topic": f"{name}-1", "topic_id": topic.topic_id, "partitions": (extents,)}
        | told
        | fields,
    )
    Catalog(connection).publish(manifest)
    return manifest


def test_hostile_samples_end_a_command_with_a_sentence(
    connection: Connection, run: Callable[..., Ended]
) -> None:
    schema, values = hostile_values()
    names = [f"wild-{number}" for number in range(len(values))]
    for name, value in zip(names, values, strict=True):
        publish_records(connection, name, schema, [value])
    assert read(run, connection, *names) == dict.fromkeys(names)
    for status, said in run_each(run, *(("datasets", "verify", name) for name in names)):
        assert (status, "3 corrupt" in said) == (1, True)
    publish_records(connection, "unlisted", schema, values, partitions=(), num_samples=0, num_records=0)
    assert run(CLI, "datasets", "verify", "unlisted").status == 1


CLAIMS: dict[str, dict[str, Any]] = {
    "records": {
        "partitions": (PartitionExtents(0, [(0, 2**60, 1)]),),
        "num_records": 2**60,
        "num_samples": 2**60,
    },
    "samples": {
        "partitions": (PartitionExtents(0, [(0, 8, 2**20)]),),
        "num_records": 8,
        "num_samples": 2**23,
    },
    "bytes": {"num_bytes": 2**60},
    "no-bytes": {"num_bytes": 0},
    "one-each": {"encoding": "record", "value_format": "json"},
    "features": {"features": {"texts": "image", "\x1b[2J": "x" * 100_000}},
}


def test_what_a_manifest_claims_of_its_topic_is_not_believed(
    connection: Connection, run: Callable[..., Ended]
) -> None:
    schema, values = hostile_values()
    for name, claims in CLAIMS.items():
        publish_records(connection, name, schema, values[:1] * 8, **claims)
    assert read(run, connection, *CLAIMS) == dict.fromkeys(CLAIMS)
    commands = [("datasets", command, name) for name in CLAIMS for command in ("show", "verify", "drop")]
    assert [status for status, _ in run_each(run, *commands)] == [0, 1, 0] * len(CLAIMS)


def varint(number: int) -> bytes:
    left, written = number << 1, bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])


def stored(delta: int, key: bytes, value_bytes: int) -> Iterator[bytes]:
    """A record of zeros as it lies in a batch, in pieces."""
    head = b"\0\0" + varint(delta) + varint(len(key)) + key + varint(value_bytes)
    yield varint(len(head) + value_bytes + 1) + head
    for at in range(0, value_bytes, 1 << 20):
        yield bytes(min(1 << 20, value_bytes - at))
    yield b"\0"  # no headers


CODECS = {"gzip": 1, "lz4": 3, "zstd": 4}


def packed_batch(codec: str, records: list[tuple[bytes, int]]) -> bytes:
    """Keys and sizes of records of zeros, as a batch that was packed with one of Kafka's codecs."""
    pieces = (piece for delta, (key, size) in enumerate(records) for piece in stored(delta, key, size))
    # Of now: after old ones, the next record begins a segment, and the broker's cleaner unpacks this one.
    now_ms = int(time.time() * 1000)
    numbers = (CODECS[codec], len(records) - 1, now_ms, now_ms, -1, -1, -1, len(records))
    after_crc = struct.pack(">hiqqqhii", *numbers) + packed(codec, pieces)
    body = struct.pack(">ibI", -1, 2, crc32c.crc32c(after_crc)) + after_crc
    return struct.pack(">qi", 0, len(body)) + body


def packed(codec: str, pieces: Iterator[bytes]) -> bytes:
    if codec == "lz4":
        return b"".join(lz4_frame(pieces))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for piece in pieces:
            stream.write(piece)
    return bytes(sink.getvalue().to_pybytes())


def lz4_frame(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of up to 4 MiB that don't depend on each other, as Arrow's do: brokers refuse those."""
    descriptor = b"\x60\x70"
    yield b"\x04\x22\x4d\x18" + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF])
    while block := b"".join(itertools.islice(pieces, 3)):
        small = pa.Codec("lz4_raw").compress(block, asbytes=True)
        yield struct.pack("<I", len(small)) + small
    yield bytes(4)


def append(connection: Connection, topic: str, batches: list[bytes]) -> None:
    """Write batches as they are, which no producer would make, to partition 0."""
    config = connection.kafka_python_config()
    host, port = connection.bootstrap_servers.split(":")
    with closing(BrokerConnection(host, int(port), config=config, timeout_s=60)) as broker:
        broker.open()
        for batch in batches:
            topics = ProduceRequest.TopicProduceData
            written = topics(name=topic, partition_data=[topics.PartitionProduceData(index=0, records=batch)])
            request = ProduceRequest(
                version=9, transactional_id=None, acks=-1, timeout_ms=60_000, topic_data=[written]
            )
            (answered,) = broker.request(request).responses
            assert [each.error_code for each in answered.partition_responses] == [0]


def bombs() -> list[bytes]:
    """Batches of at most 4 MiB that unpack to about a gigabyte each, and one of many records."""
    many = [(f"bomb-{number}@1/0".encode(), 1 << 20) for number in range(900)]
    one = [(b"bomb@1/0", 900 << 20)]
    crowd = [(b"crowd", 0)] * 100_000
    kinds = [("gzip", one), ("lz4", many), ("zstd", many), ("zstd", one), ("zstd", crowd)]
    return [packed_batch(codec, records) for codec, records in kinds]


def test_batches_that_unpack_to_gigabytes_fill_no_memory(
    connection: Connection, run: Callable[..., Ended], tmp_path: Path
) -> None:
    catalog = Catalog(connection)
    catalog.ensure_internal_topics()
    ensure_internal_topics(connection, timeout_s=60, topics=(BALANCE_TOPIC,))
    catalog.publish(
        write_dataset(connection, make_batch(60), topic="tulips-1", name="tulips", num_partitions=1)
    )
    catalog.publish(write_dataset(connection, make_batch(60), topic="asters-1", name="asters"))
    batches = bombs()
    assert max(map(len, batches)) < 5 << 20
    append(connection, DATASETS_TOPIC, batches)
    append(connection, "tulips-1", batches)
    for topic in (LOADS_TOPIC, BALANCE_TOPIC):  # both are read as the first is
        append(connection, topic, batches[-2:])

    listed = run(CLI, "datasets", "--json")
    assert {"asters", "tulips"} <= {each["name"] for each in json.loads(listed.out)["datasets"]}
    assert read(run, connection, "tulips") == {"tulips": 60}
    (status, said), (other, _) = run_each(
        run, ("datasets", "verify", "tulips"), ("datasets", "verify", "asters")
    )
    assert (status, "extra" in said, other) == (1, True, 0)
    assert run(CLI, "datasets", "drop", "--damaged", "--yes").status == 0
    assert run(CLI, "balance", "--forget").status == 0
    csv = tmp_path / "flowers.csv"
    csv.write_text("n\n" + "1\n" * 20)
    assert run(CLI, "ingest", "peonies", str(csv)).status == 0


@pytest.mark.parametrize(("num_batches", "key_bytes"), [(8, 1 << 20), (7, 20)])
def test_keys_without_end_fill_no_memory(
    connection: Connection, run: Callable[..., Ended], num_batches: int, key_bytes: int
) -> None:
    ensure_internal_topics(connection, timeout_s=60, topics=(DATASETS_TOPIC, BALANCE_TOPIC))
    num_keys = min(100_000, (100 << 20) // key_bytes)
    for number in range(num_batches):
        keys = [(b"%d-%d" % (number, each) + bytes(key_bytes - 20), 0) for each in range(num_keys)]
        for topic in (DATASETS_TOPIC, BALANCE_TOPIC):
            append(connection, topic, [packed_batch("zstd", keys)])
    try:
        for command in (("datasets",), ("datasets", "drop", "--damaged", "--yes"), ("balance", "--forget")):
            ended = run(CLI, *command)
            assert (ended.status, "somebody fills it" in ended.said) == (1, True)
    finally:
        with open_admin(connection) as admin:  # other tests use this cluster
            admin.delete_topics([DATASETS_TOPIC, BALANCE_TOPIC])


def test_a_key_that_fills_a_record_is_cleared(connection: Connection, run: Callable[..., Ended]) -> None:
    ensure_internal_topics(connection, timeout_s=60, topics=(DATASETS_TOPIC, LOADS_TOPIC))
    for topic in (DATASETS_TOPIC, LOADS_TOPIC):
        append(connection, topic, [packed_batch("zstd", [(b"long" + bytes(16 << 20), 0)])])
    assert run(CLI, "datasets", "drop", "--damaged", "--yes").status == 0
    assert json.loads(run(CLI, "datasets", "--json").out)["damaged"] == []
