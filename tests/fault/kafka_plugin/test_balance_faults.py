"""Whatever dies while replicas are moved: data stay whole, throttles come off, and it can be gone on with."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_plugin.balancing.balance import (
    BalanceProgress,
    cancel_balance,
    execute_balance,
    preview_balance,
)
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BalanceLog
from evenload.kafka_plugin.errors import BalanceInProgressError, BalanceInterruptedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector.collector import sample_once

MIB = 1 << 20
SLOW = "1MiB/s"
SLOWLY = BalanceConfig(throttle_bytes_per_s=2 * MIB, poll_s=0.05, quiet_s=1)
FASTER_THAN_THE_LINK = BalanceConfig(throttle_bytes_per_s=8 * MIB, poll_s=0.05)
FAST = BalanceConfig(throttle_bytes_per_s=200 * MIB, poll_s=0.05)
CAPACITY_BYTES = [300 * MIB] * 3
LOADING = "in <module>\n    from evenload.__main__ import main"


@pytest.fixture(scope="module")
def stage(without_bursts: dict[str, str]) -> Iterator[tuple[LocalCluster, DatasetManifest]]:
    """Three brokers that throttle without bursts, and a dataset on them."""
    with temporary_cluster(capacity_bytes=CAPACITY_BYTES, broker_properties=without_bursts) as cluster:
        samples = {"x": np.random.default_rng(1).integers(0, 255, (3000, 3000), np.uint8)}
        manifest = load_dataset(samples, "held", connection=cluster.connection, partitions=9)
        yield cluster, manifest


numbers = itertools.count()


@pytest.fixture
def skewed(
    stage: tuple[LocalCluster, DatasetManifest],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> Iterator[LocalCluster]:
    """The brokers, one 10 points fuller than the others; afterwards, the dataset is looked at."""
    cluster, manifest = stage
    number = next(numbers)
    connection = cluster.connection
    create_topic(
        connection,
        f"skew-{number}",
        num_partitions=10,
        replication=None,
        assignments=[(1 + number % 3,)] * 10,
        configs={},
        timeout_s=60,
    )
    producer = confluent_producer(connection)
    for count in range(300):
        producer.produce(f"skew-{number}", np.random.default_rng(count).bytes(100_000), partition=count % 10)
    assert producer.flush(60) == 0
    yield cluster
    assert throttle_settings(connection) == {}
    assert reassignments(connection) == {}
    assert BalanceLog(connection, timeout_s=60).read() is None
    assert verify(connection, manifest).is_clean


def spread(connection: Connection) -> float:
    return sample_once(connection).utilisation_spread


class Command:
    """`evenload balance` as a process of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("evenload")), "balance", *arguments],
            env={**os.environ, "EVENLOAD_HOME": str(cluster.home)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        stdout, stderr = self.process.communicate(timeout=300)
        return self.process.returncode, stdout, stderr


@pytest.fixture
def at_work(
    skewed: LocalCluster,
    tmp_path: Path,
    wait_until: Callable[[Callable[[], bool]], None],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> Iterator[Command]:
    """A balance in the middle of its moves."""
    command = Command(skewed, tmp_path, "--execute", "--throttle", SLOW)
    try:
        wait_until(lambda: command.process.poll() is not None or bool(reassignments(skewed.connection)))
        assert command.process.poll() is None, command.end()
        assert throttle_settings(skewed.connection)
        yield command
    finally:
        command.process.kill()
        command.end()


def test_after_kill_9_the_next_start_goes_on_and_takes_throttles_off(
    skewed: LocalCluster, at_work: Command, throttle_settings: Callable[[Connection], dict[str, str]]
) -> None:
    connection = skewed.connection
    at_work.process.kill()
    at_work.end()
    assert throttle_settings(connection)
    shown = preview_balance(connection, config=FAST)
    assert any("still going on, throttled" in note for note in shown.notes)
    assert throttle_settings(connection)
    outcome = execute_balance(connection, config=FAST)
    told = "\n".join(outcome.notes)
    # The second where the brokers were done before it began.
    assert "had begun are complete" in told or "they are off now" in told
    assert spread(connection) < 0.01


@pytest.mark.torture
def test_after_kill_9_a_dry_run_takes_throttles_off_when_nothing_moves_any_more(
    skewed: LocalCluster,
    at_work: Command,
    wait_until: Callable[[Callable[[], bool]], None],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    connection = skewed.connection
    at_work.process.kill()
    at_work.end()
    wait_until(lambda: not reassignments(connection))
    assert throttle_settings(connection)
    shown = preview_balance(connection, config=FAST)
    assert any("they are off now" in note for note in shown.notes)


def test_ctrl_c_takes_the_running_step_back(
    skewed: LocalCluster,
    at_work: Command,
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    connection = skewed.connection
    at_work.process.send_signal(signal.SIGINT)
    code, _, stderr = at_work.end()
    assert (code, "throttles are off" in stderr) == (130, True), stderr
    assert reassignments(connection) == {}
    assert throttle_settings(connection) == {}
    execute_balance(connection, config=FAST)
    assert spread(connection) < 0.01


def test_cancel_from_elsewhere_ends_a_balance(
    skewed: LocalCluster,
    at_work: Command,
    tmp_path: Path,
    throttle_settings: Callable[[Connection], dict[str, str]],
) -> None:
    with pytest.raises(BalanceInProgressError, match=f"by process {at_work.process.pid}"):
        execute_balance(skewed.connection)
    assert cancel_balance(skewed.connection)
    code, _, stderr = at_work.end()
    assert (code, "Somebody else has cancelled" in stderr) == (1, True), stderr
    assert throttle_settings(skewed.connection) == {}
    code, stdout, stderr = Command(skewed, tmp_path, "--cancel").end()
    assert (code, "throttles are off" in stdout) == (0, True), stderr


def test_of_two_starts_in_the_same_second_exactly_one_goes_on(skewed: LocalCluster, tmp_path: Path) -> None:
    both = [Command(skewed, tmp_path, "--execute", "--throttle", SLOW) for _ in range(2)]
    ended = sorted(command.end() for command in both)
    assert [code for code, _, _ in ended] == [0, 1], ended
    _, _, sentence = ended[1]
    assert "are being moved already" in sentence or "taken over" in sentence
    assert spread(skewed.connection) < 0.01


class Trouble:
    """What comes over two balances, by seed: at moments of their lives that nobody has chosen."""

    KINDS = ("kill", "stop", "interrupt", "cancel", "start")

    def __init__(self, cluster: LocalCluster, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._start = partial(Command, cluster, folder)
        self._commands = [self._start("--execute", "--throttle", SLOW) for _ in range(2)]

    def strike(self) -> str:
        """Waits for a moment, and does something."""
        victim = self._rng.choice(self._commands).process
        with suppress(subprocess.TimeoutExpired):
            victim.wait(self._rng.uniform(0.5, 12))
        kind = self._rng.choice(self.KINDS)
        match kind:
            case "kill":
                victim.kill()
            case "stop":
                victim.send_signal(signal.SIGSTOP)
            case "interrupt":
                victim.send_signal(signal.SIGINT)
            case "cancel":
                self._commands.append(self._start("--cancel"))
            case "start":
                self._commands.append(self._start("--execute", "--throttle", SLOW))
        return kind

    def end(self) -> list[tuple[int, str, str]]:
        """Who was stopped goes on, late; all come to their end."""
        for command in self._commands:
            command.process.send_signal(signal.SIGCONT)
        return [command.end() for command in self._commands]

    def kill(self) -> None:
        """Whatever was found, nobody is left."""
        for command in self._commands:
            command.process.kill()
            command.process.communicate()


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(2, 9))]
)
def test_whatever_comes_over_two_balances_the_next_finds_all_and_leaves_nothing(
    skewed: LocalCluster, tmp_path: Path, seed: int
) -> None:
    trouble = Trouble(skewed, tmp_path, seed)
    try:
        struck = [trouble.strike() for _ in range(4)]
        for code, stdout, stderr in trouble.end():
            if LOADING in stderr and stderr.endswith("KeyboardInterrupt\n"):
                continue  # Python ends so when it is interrupted before there is a command to hear it
            assert "Traceback" not in stderr, (struck, stderr)
            assert code in (0, 1, 130, -signal.SIGKILL, -signal.SIGINT), (struck, code, stdout, stderr)
    finally:
        trouble.kill()
    execute_balance(skewed.connection, config=FAST)
    assert spread(skewed.connection) < 0.01


@pytest.mark.parametrize("trouble", ["killed", pytest.param("paused", marks=pytest.mark.torture)])
def test_a_broker_that_goes_away_during_moves_is_waited_for(skewed: LocalCluster, trouble: str) -> None:
    connection = skewed.connection
    said: list[str] = []
    threads: list[threading.Thread] = []

    def restart() -> None:
        # Not before it was noticed.
        noticed.wait(60)
        skewed.restart_broker(gone) if trouble == "killed" else skewed.resume_broker(gone)

    noticed = threading.Event()
    plan = preview_balance(connection, config=SLOWLY).plan
    gone = plan.moves[0].added_ids[0]

    def watch(progress: Any) -> None:
        if progress.note is not None:
            said.append(progress.note)
            noticed.set()
        if progress.planned_bytes and not threads:
            skewed.kill_broker(gone) if trouble == "killed" else skewed.pause_broker(gone)
            threads.append(threading.Thread(target=restart))
            threads[0].start()

    outcome = execute_balance(connection, config=SLOWLY, progress=watch)
    threads[0].join()
    skewed.wait_until_ready()
    assert any(f"broker {gone} doesn't answer" in note for note in said), said
    assert outcome.moved_bytes == outcome.plan.moved_bytes
    assert spread(connection) < 0.01


@pytest.mark.torture
def test_moves_off_a_broker_that_a_slow_link_has_hit_come_to_their_end(
    slow_link: Callable[..., AbstractContextManager[None]],
    make_cluster: Callable[..., LocalCluster],
    without_bursts: dict[str, str],
    gather: Callable[[Connection, DatasetManifest, int], None],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    cluster = make_cluster(capacity_bytes=CAPACITY_BYTES, broker_properties=without_bursts)
    connection = cluster.connection
    samples = {"x": np.random.default_rng(1).integers(0, 255, (3000, 10_000), np.uint8)}
    manifest = load_dataset(samples, "moved", connection=connection, partitions=9, replication=1)
    gather(connection, manifest, 2)
    slowed: list[tuple[float, int]] = []
    with ExitStack() as stack:

        def slow_down(progress: BalanceProgress) -> None:
            if progress.planned_bytes and not slowed:
                stack.enter_context(slow_link(cluster, 2, MIB))
                slowed.append((time.monotonic(), progress.planned_bytes - progress.moved_bytes))

        outcome = execute_balance(connection, config=FASTER_THAN_THE_LINK, progress=slow_down)
    ((since_s, left_bytes),) = slowed
    assert left_bytes > 10 * MIB
    # What the link was too slow for took long: a rate of less than 2 MiB/s.
    assert time.monotonic() > since_s + left_bytes / (2 * MIB)
    assert outcome.moved_bytes == outcome.plan.moved_bytes
    assert spread(connection) < 0.01
    assert (throttle_settings(connection), reassignments(connection)) == ({}, {})
    assert BalanceLog(connection, timeout_s=60).read() is None
    assert verify(connection, manifest).is_clean


@pytest.mark.torture
def test_what_makes_no_progress_is_taken_back(
    skewed: LocalCluster, reassignments: Callable[[Connection], dict[Any, Any]]
) -> None:
    connection = skewed.connection
    gone = preview_balance(connection).plan.moves[0].added_ids[0]
    killed: list[int] = []

    def kill(progress: Any) -> None:
        if progress.planned_bytes and not killed:
            killed.append(gone)
            skewed.kill_broker(gone)

    impatient = SLOWLY.model_copy(update={"stall_timeout_s": 6.0})
    with pytest.raises(BalanceInterruptedError, match="nothing has moved for"):
        execute_balance(connection, config=impatient, progress=kill)
    assert reassignments(connection) == {}
    skewed.restart_broker(gone)
    skewed.wait_until_ready()
    # Its own rate could not be taken off while it was down; the next start does.
    assert any("they are off now" in note for note in preview_balance(connection).notes)
    assert cancel_balance(connection) == []
    execute_balance(connection, config=FAST)
    assert spread(connection) < 0.01
