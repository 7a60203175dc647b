"""Runs that share a real Ray cluster, on real Kafka, through deaths of their governor."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from evenload.governor.errors import GovernorRefusedError
from evenload.governor.on_ray.local_ray import local_ray
from evenload.governor.service.client import GovernorClient
from evenload.governor.service.own_process import own_governor
from evenload.kafka_connection import Connection
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.on_ray.submit import connect

KILLED = Path(__file__).with_name("governor_killed.py")
ELASTIC = ("--policy", "elastic_fifo")
NUM_SAMPLES = 700
ENDLESS = 10_000  # epochs: however quick the machine is, it trains until it is stopped


def submission(run: str, dataset: str, storage: Path, *, epochs: int, **more: Any) -> dict[str, Any]:
    config = {
        "dataset": dataset,
        "run": run,
        "storage": str(storage),
        "epochs": epochs,
        "global_batch_size": 32,
        "checkpoint_interval_s": 0.5,
        "options": {"max_tokens": 16, "vocabulary_size": 200, "warmup_share": 0.0},
    }
    return {"recipe": "text-classification", "config": config, **more}


def wait_for(look: Callable[[], Any]) -> Any:
    """What it looks for, as soon as it is there."""
    while not (found := look()):
        time.sleep(0.2)
    return found


def is_finished(client: GovernorClient, job: str) -> bool:
    return bool(client.job(job)["state"] == "finished")


def stop_and_audit(client: GovernorClient, run: str, storage: Path, connection: Connection) -> None:
    """Stop it after two more epochs: each sample once in all that are over, and none twice in the other.

    Its books tell how far it is: a driver that outlived its governor doesn't know where the next one listens.
    """
    num_epochs = len(audit(run, storage, connection).epochs)
    wait_for(lambda: len(audit(run, storage, connection).epochs) > num_epochs + 2)
    client.hold(run)
    wait_for(lambda: client.job(run)["state"] == "held")
    client.cancel(run)
    *over, under_way = audit(run, storage, connection).epochs
    assert all(epoch.is_exact for epoch in over)
    assert not under_way.repeated
    assert not under_way.unaccounted


@pytest.mark.timeout(1800)
def test_runs_share_a_cluster_and_lose_nothing_when_their_governor_is_killed(
    tmp_path: Path, connection: Connection, ray_head: str, sentences: str
) -> None:
    storage = tmp_path / "runs"
    first = submission("first", sentences, storage, epochs=ENDLESS, max_size=4)
    with own_governor(connection, ray_head, *ELASTIC) as (client, process, _):
        job = client.submit(first)
        assert (job["state"], job["samples"]) == ("waiting", ENDLESS * NUM_SAMPLES)
        assert client.submit(first)["submitted_s"] == job["submitted_s"]
        with pytest.raises(GovernorRefusedError, match=r"there is a job 'first' that differs: samples"):
            client.submit(submission("first", sentences, storage, epochs=ENDLESS + 1, max_size=4))
        wait_for(lambda: client.job("first")["state"] == "running")
        process.send_signal(signal.SIGKILL)
        process.wait()

    with own_governor(connection, ray_head, *ELASTIC) as (client, *_):
        followed = client.job("first")
        assert (followed["state"], followed["stint"]) == ("running", 1)
        client.submit(submission("second", sentences, storage, epochs=3, max_size=2))
        wait_for(partial(is_finished, client, "second"))
        assert audit("second", storage, connection).exactly_once
        stop_and_audit(client, "first", storage, connection)


@pytest.mark.timeout(1800)
def test_one_that_is_killed_before_an_order_is_sent_starts_nothing_twice(
    tmp_path: Path, connection: Connection, ray_head: str, sentences: str
) -> None:
    with own_governor(connection, ray_head, *ELASTIC, program=(str(KILLED),)) as (client, process, _):
        client.submit(submission("once", sentences, tmp_path, epochs=2, max_size=2))
        assert process.wait(300) == -signal.SIGKILL
    with own_governor(connection, ray_head, *ELASTIC) as (client, *_):
        assert client.job("once")["stint"] == 1
        wait_for(lambda: client.job("once")["state"] == "finished")
    submitted = [job.submission_id for job in connect(ray_head).list_jobs()]
    assert [each for each in submitted if each and each.startswith("evenload-once-")] == ["evenload-once-1"]
    assert audit("once", tmp_path, connection).exactly_once


@pytest.mark.timeout(1800)
def test_a_run_goes_on_when_its_ray_cluster_is_started_anew(
    tmp_path: Path, connection: Connection, sentences: str
) -> None:
    with ExitStack() as first:
        url = first.enter_context(local_ray(4))
        with own_governor(connection, url, *ELASTIC) as (client, *_):
            client.submit(submission("outlives", sentences, tmp_path, epochs=ENDLESS, max_size=2))
            wait_for(lambda: client.job("outlives")["samples_done"] > NUM_SAMPLES)
            first.close()
            with local_ray(4, dashboard_port=urlsplit(url).port or 0) as again:
                assert again == url
                wait_for(lambda: client.job("outlives")["stint"] > 1)
                stop_and_audit(client, "outlives", tmp_path, connection)


@pytest.mark.timeout(1800)
def test_a_plain_job_waits_for_its_slots_and_what_it_says_can_be_read(
    connection: Connection, ray_head: str
) -> None:
    with own_governor(connection, ray_head, *ELASTIC) as (client, *_):
        client.submit_plain({"name": "hello", "command": "echo hello from the cluster", "slots": 4})
        wait_for(lambda: client.job("hello")["state"] == "finished")
        assert "hello from the cluster" in client.log("hello")
        client.submit_plain({"name": "too-large", "command": "true", "slots": 5})
        assert "it needs 5" in wait_for(lambda: client.job("too-large")["reason"])
        client.cancel("too-large")
        client.submit_plain({"name": "wrong", "command": "exit 3", "slots": 1})
        wait_for(lambda: client.job("wrong")["state"] == "failed")


@pytest.mark.timeout(1800)
def test_a_run_that_is_held_stops_after_a_checkpoint_and_goes_on_when_released(
    tmp_path: Path, connection: Connection, ray_head: str, sentences: str
) -> None:
    with own_governor(connection, ray_head, *ELASTIC) as (client, *_):
        client.submit(submission("held", sentences, tmp_path, epochs=300, max_size=2))
        wait_for(lambda: client.job("held")["state"] == "running")
        client.hold("held")
        wait_for(lambda: client.job("held")["state"] == "held")
        stopped = client.job("held")
        assert 0 < stopped["samples_done"] < stopped["samples"]
        client.release("held")
        wait_for(lambda: client.job("held")["stint"] == 2)
        client.cancel("held")
        wait_for(lambda: client.job("held")["state"] == "cancelled")


def test_what_cant_be_a_run_is_refused_with_a_sentence(
    tmp_path: Path, connection: Connection, ray_head: str, sentences: str
) -> None:
    with own_governor(connection, ray_head, *ELASTIC) as (client, *_):
        for change, why in (
            ({"dataset": "nowhere"}, "no dataset is named 'nowhere'"),
            ({"run": "../x"}, "can't name a run"),
            ({"epochs": 0}, "config.epochs: Input should be greater than or equal to 1"),
        ):
            body = submission("bad", sentences, tmp_path, epochs=1)
            body["config"].update(change)
            with pytest.raises(GovernorRefusedError, match=why) as caught:
                client.submit(body)
            assert caught.value.status == 400
        with pytest.raises(GovernorRefusedError, match="there is no job 'bad'"):
            client.job("bad")
