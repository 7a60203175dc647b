"""`python -m benchmarks jvm`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.java.programs import JavaPrograms, following, java_windows
from benchmarks.jvm.beside_pushes import latencies_beside_pushes
from benchmarks.paired_ratio import Ratio, paired_ratio
from benchmarks.results import keep, machine, results_option, tell_misses
from benchmarks.service_process import ServiceProcess
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import temporary_cluster
from evenload.local_cluster.jars import KAFKA_VERSIONS
from evenload.telemetry_collector.pushed.client_figures import figures_of
from evenload.telemetry_collector.service.fake_pushes import java_push, librdkafka_push, request_of
from evenload.telemetry_collector.service.otlp import pushes_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_PARTITIONS = (12, 3000)
NUM_ROUNDS = 60
OLDER_CLIENT = KAFKA_VERSIONS[-2]  # for which each answer is kept until the next question
PUSHES_PER_S, NUM_PUSHES = 100, 2000
WIDE = dict.fromkeys(range(1, 56), 1.5)  # brokers whose figures are about 10 KB
NARROW_BROKERS = 3
NUM_DECODINGS = 20_000
IDLE_S, NUM_IDLE_PAIRS = 20.0, 3
NUM_BESIDE_PAIRS = 48

CHOICE_MAX_NS, CHOICE_MAX_RATIO, THREADS_MAX_NS = 25.0, 2.2, 150.0
ENDING_MAX_NS = {12: 1000.0, 3000: 5000.0}
SELDOM_FREE_US = 1.0
PUSH_MEDIAN_MAX_US, PUSH_P99_MAX_US = 5.0, 50.0
DECODING_MAX_US = 60.0
IDLE_MAX_CORES = 0.001
BESIDE_MAX_RATIO = 1.25


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="A tenth of it: whether it works at all. Writes no result unless --results is given.",
)
@results_option
def jvm(quick: bool, folder: Path | None) -> None:
    """What evenload's jar costs producers and brokers; exit status 1 where that is more than it may."""
    console = Console(highlight=False)
    shrink = 10 if quick else 1
    with TemporaryDirectory(prefix="evenload-java-") as name, console.status("compiling") as status:
        programs = JavaPrograms(Path(name))
        choices = []
        for version in (KAFKA_VERSIONS[-1], OLDER_CLIENT):
            for num_partitions in NUM_PARTITIONS:
                status.update(f"choices among {num_partitions} partitions, client {version}")
                told = programs.run(
                    "Choices", str(num_partitions), str(max(6, NUM_ROUNDS // shrink)), kafka_version=version
                )
                choices.append(_choice(version, num_partitions, told))
        status.update("pushes")
        pushes = _pushes(programs, Path(name), NUM_PUSHES // shrink)
    with console.status("producing beside pushes"):
        pushed = request_of(java_push("a", WIDE, sent_bytes_by_broker=WIDE))
        beside = latencies_beside_pushes(pushed, PUSHES_PER_S, max(2, NUM_BESIDE_PAIRS // shrink))
    with console.status("idle producers"):
        idle = _idle(IDLE_S / shrink, max(1, NUM_IDLE_PAIRS // shrink))
    result = {
        "benchmark": "jvm",
        "machine": machine("opentelemetry-proto", "protobuf"),
        "choices": choices,
        "pushes": pushes,
        "p99_ms_beside_pushes": beside,
        "decoding": _decoding(NUM_DECODINGS // shrink),
        "idle": idle,
    }
    for table in tables(result):
        console.print(table)
    keep(result, lambda: draw(result), folder, is_whole=not quick)
    tell_misses(console, misses(result), is_judged=not quick)


def _choice(version: str, num_partitions: int, told: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians over rounds, and of the single calls one in a hundred, in ten thousand, and the longest."""
    return {
        "client": version,
        "num_partitions": num_partitions,
        **{
            name: round(median(values), 1) for name, values in told.items() if not name.startswith("longest_")
        },
        **{name: list(values) for name, values in told.items() if name.startswith("longest_")},
    }


def _pushes(programs: JavaPrograms, folder: Path, num_pushes: int) -> dict[str, Any]:
    path = folder / "push"
    path.write_bytes(request_of(java_push("a", WIDE, sent_bytes_by_broker=WIDE)))
    told = programs.run("Pushes", str(path), str(PUSHES_PER_S), str(num_pushes))
    return {
        "push_bytes": told["push_bytes"],
        "median_us": told["median_ns"] / 1000,
        "p99_us": told["p99_ns"] / 1000,
        "longest_us": told["longest_ns"] / 1000,
        "request_thread_bytes": told["request_bytes"],
        "thread_behind_bytes": told["behind_bytes"],
    }


def _decoding(num_times: int) -> list[dict[str, Any]]:
    """What the service takes to read a push: time, and what Python holds meanwhile (not protobuf)."""
    narrow = dict.fromkeys(range(1, NARROW_BROKERS + 1), 1.5)
    rows = []
    for client, told in (
        ("java", java_push("a", narrow, sent_bytes_by_broker=narrow, queue_time_ms=1.0)),
        ("librdkafka", librdkafka_push("a", narrow)),
    ):
        body = request_of(told)

        def read(body: bytes = body) -> None:
            for push in pushes_in(body):
                assert push is not None
                figures_of(push.points, brokers=narrow, topics=())

        rows.append(
            {
                "client": client,
                "push_bytes": len(body),
                "median_us": round(_median_us(read, num_times), 1),
                "held_bytes": _held_bytes(read),
            }
        )
    return rows


def _median_us(act: Callable[[], None], num_times: int) -> float:
    spent = []
    for _ in range(num_times):
        begun_s = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begun_s)
    return median(spent) * 1e6


def _held_bytes(act: Callable[[], None]) -> int:
    act()
    tracemalloc.start()
    act()
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


def _idle(seconds: float, num_pairs: int) -> dict[str, list[float]]:
    """Parts of a core that a JVM takes whose producer has nothing to write, by partitioner."""
    with (
        temporary_cluster(num_brokers=1) as cluster,
        ServiceProcess(cluster.connection) as service,
    ):
        create_topic(
            cluster.connection,
            "idle",
            num_partitions=1,
            replication=1,
            assignments=None,
            configs={},
            timeout_s=60,
        )
        servers = {"bootstrap.servers": cluster.bootstrap_servers}
        settings = {"built_in": servers, "ours": {**servers, **following(service.url)}}
        cores: dict[str, list[float]] = {name: [] for name in settings}
        with java_windows(settings) as windows:
            for pair in range(-1, num_pairs):  # first unmeasured, as Java compiles
                for name in sorted(cores, reverse=pair % 2 == 0):
                    told = windows.idle_cores(name, "idle", 1, seconds=seconds)
                    if pair >= 0:
                        cores[name].append(told)
    return cores


def misses(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed."""
    told = []
    for row in result["choices"]:
        where = f"among {row['num_partitions']} partitions, with client {row['client']}"
        if row["ours_ns"] > max(CHOICE_MAX_NS, CHOICE_MAX_RATIO * row["built_in_ns"]):
            told.append(f"a choice {where} takes {row['ours_ns']} ns, the built-in's {row['built_in_ns']}")
        if row["ending_ours_ns"] > ENDING_MAX_NS[row["num_partitions"]]:
            told.append(f"the end of a turn {where} takes {row['ending_ours_ns']} ns")
        if row["threads_ours_ns"] > THREADS_MAX_NS:
            told.append(f"with four threads, a choice {where} takes {row['threads_ours_ns']} ns")
        # Of the longest alone, chance decides: whoever is interrupted by something else.
        seldom, theirs = row["longest_ours_ns"][1] / 1000, row["longest_built_in_ns"][1] / 1000
        if seldom > max(theirs, SELDOM_FREE_US):
            told.append(f"one call in 10,000 {where} takes over {seldom:.1f} µs, the built-in's {theirs:.1f}")
    pushes = result["pushes"]
    if pushes["median_us"] > PUSH_MEDIAN_MAX_US or pushes["p99_us"] > PUSH_P99_MAX_US:
        told.append(
            f"a push holds up a request thread for {pushes['median_us']:.1f} µs, one in a hundred for "
            f"{pushes['p99_us']:.0f}"
        )
    beside = _ratio_beside(result)
    if beside.low > 1 or beside.high > BESIDE_MAX_RATIO:
        told.append(
            f"beside pushes, one in a hundred records takes {beside.median:.2f} times as long "
            f"({beside.low:.2f} to {beside.high:.2f})"
        )
    for row in result["decoding"]:
        if row["median_us"] > DECODING_MAX_US:
            told.append(f"the service takes {row['median_us']} µs over a push of {row['client']}'s")
    more = median(result["idle"]["ours"]) - median(result["idle"]["built_in"])
    if more > IDLE_MAX_CORES:
        told.append(f"a producer with nothing to write takes {more:.2%} of a core more")
    return told


def _ratio_beside(result: Mapping[str, Any]) -> Ratio:
    told = result["p99_ms_beside_pushes"]
    return paired_ratio(told["with"], told["without"])


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """Choices; pushes and idling."""
    choices = Table(
        "client",
        "partitions",
        "a choice: built-in, ours",
        "at a turn's end",
        "four threads",
        "the longest",
        box=None,
    )
    for row in result["choices"]:
        pairs = [
            f"{row[f'{k}built_in_ns']:.0f}, {row[f'{k}ours_ns']:.0f} ns" for k in ("", "ending_", "threads_")
        ]
        longest = [row[f"longest_{who}_ns"][-1] / 1000 for who in ("built_in", "ours")]
        choices.add_row(
            row["client"], str(row["num_partitions"]), *pairs, "{:.0f}, {:.0f} µs".format(*longest)
        )
    pushes = Table("what", "", box=None)
    told = result["pushes"]
    pushes.add_row(
        f"a push of {told['push_bytes']:,} bytes, request thread",
        f"{told['median_us']:.1f} µs, one in a hundred {told['p99_us']:.0f} µs; "
        f"{told['request_thread_bytes']:,} bytes allocated",
    )
    pushes.add_row("the thread behind it", f"{told['thread_behind_bytes']:,} bytes allocated")
    beside = _ratio_beside(result)
    felt = [f"{median(result['p99_ms_beside_pushes'][kind]):.1f}" for kind in ("without", "with")]
    pushes.add_row(
        f"p99 of a producer, without and with {PUSHES_PER_S} pushes a second",
        f"{', '.join(felt)} ms; {beside.median:.2f} times ({beside.low:.2f} to {beside.high:.2f})",
    )
    for row in result["decoding"]:
        pushes.add_row(
            f"read by the service ({row['client']}'s, {row['push_bytes']:,} bytes)",
            f"{row['median_us']:.0f} µs, {row['held_bytes']:,} bytes of Python held",
        )
    pushes.add_row(
        "an idle producer: built-in, ours",
        "{:.2%}, {:.2%} of a core".format(*(median(result["idle"][who]) for who in ("built_in", "ours"))),
    )
    return choices, pushes


def draw(result: Mapping[str, Any]) -> Figure:
    """What a choice takes, by client and number of partitions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    kinds = {"": "a choice", "ending_": "at a turn's end", "threads_": "four threads"}
    for axes, (kind, title) in zip(figure.subplots(1, len(kinds)), kinds.items(), strict=True):
        names = [f"{row['client']}, {row['num_partitions']}" for row in result["choices"]]
        for shift, who, colour in ((-0.2, "built_in", "#9aa5b1"), (0.2, "ours", "#2b7de9")):
            axes.barh(
                [place + shift for place in range(len(names))],
                [row[f"{kind}{who}_ns"] for row in result["choices"]],
                height=0.38,
                color=colour,
                label=who.replace("_", "-") if not kind else None,
            )
        axes.set_yticks(range(len(names)), names if not kind else [""] * len(names))
        axes.invert_yaxis()
        axes.set_xlabel(f"{title}, ns")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize="small")
    return figure
