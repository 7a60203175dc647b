"""Jobs that are runs: what is wished for them, and what Ray is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenload.governor.governing.engine import Stint, StintId
from evenload.governor.governing.jobs import Wish
from evenload.governor.on_ray.ray_jobs import stint_of
from evenload.governor.on_ray.runs import left_by, plain_wish_of, submission_of, wish_of
from evenload.kafka_connection import Connection
from evenload.ray_trainer.training.on_ray.job_driver import JOB_VARIABLE, REPORT_VARIABLE
from evenload.ray_trainer.training.on_ray.submission import resolved
from evenload.ray_trainer.training.train_config import TrainConfig

CONNECTION = Connection(bootstrap_servers="kafka:9092")


def wish(storage: Path, **changed: Any) -> Wish:
    told = {"dataset": "cola@1", "run": "r", "storage": str(storage), "epochs": 3, "connection": CONNECTION}
    sizes = {name: changed.pop(name) for name in ("min_size", "max_size", "asked_size") if name in changed}
    config = resolved("text-classification", TrainConfig(**told | changed))
    return wish_of("text-classification", config, num_samples=700, device="cpu", **sizes)


def test_a_run_reads_its_dataset_as_often_as_it_has_epochs(tmp_path: Path) -> None:
    found = wish(tmp_path, max_size=4)
    assert (found.job_id, found.samples, found.asked_size, found.min_size) == ("r", 2100.0, 4, 1)


def test_runs_of_one_kind_differ_in_nothing_that_makes_them_slower(tmp_path: Path) -> None:
    kind = wish(tmp_path).kind
    assert kind == wish(tmp_path, run="other", epochs=7, seed=5).kind
    assert kind != wish(tmp_path, global_batch_size=128).kind
    assert kind != wish(tmp_path, options={"max_tokens": 16}).kind
    assert kind != wish(tmp_path, dataset="cola@2").kind


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"max_size": 300}, "at most 256 workers .*--global-batch-size 256.*, not 300"),
        ({"begin_anew": True}, "would begin anew at each change of size"),
        ({"device": "gpu"}, "computes on a gpu, and slots here are cpus"),
        ({"cpus_per_worker": 2}, "a slot is one CPU here, and run 'r' wants 2 for each worker"),
        ({"min_size": 3, "max_size": 2}, "asks for a number that it may have"),
    ],
)
def test_what_cant_be_resized_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wish(tmp_path, **changed)


def test_a_stint_is_sent_with_its_size_and_where_to_report(tmp_path: Path) -> None:
    stint = Stint(StintId("r", 2), 3, wish(tmp_path).entry)
    sent = submission_of(stint, CONNECTION, owner="j", report_to={"url": "http://a/v1/reports"})
    assert sent["submission_id"] == "evenload-r-2"
    assert stint_of(sent["metadata"], "j") == StintId("r", 2)
    assert stint_of(sent["metadata"], "another") is None
    variables = sent["runtime_env"]["env_vars"]
    job = json.loads(variables[JOB_VARIABLE])
    assert (job["recipe"], job["config"]["workers"]) == ("text-classification", 3)
    assert Connection.model_validate(job["connection"]) == CONNECTION
    told = {"url": "http://a/v1/reports", "job": "r", "stint": 2, "token": None}
    assert json.loads(variables[REPORT_VARIABLE]) == told
    assert left_by(variables) == (False, 0.0)


def test_a_secret_stands_in_no_job(tmp_path: Path) -> None:
    secret = Connection(
        bootstrap_servers="kafka:9092",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="very-secret",
    )
    found = wish(tmp_path, connection=secret)
    assert "very-secret" not in repr(found.entry)
    stint = Stint(StintId("r", 1), 1, found.entry)
    assert "very-secret" not in repr(submission_of(stint, secret, owner="j", report_to=None))


def test_a_plain_job_is_any_command_with_one_size() -> None:
    found = plain_wish_of("sweep", "python sweep.py", slots=2, is_kept=True)
    assert (found.samples, found.min_size, found.max_size, found.is_kept) == (None, 2, 2, True)
    sent = submission_of(Stint(StintId("sweep", 1), 2, found.entry), CONNECTION, owner="j", report_to=None)
    assert (sent["entrypoint"], sent["submission_id"]) == ("python sweep.py", "evenload-sweep-1")
    assert stint_of(sent["metadata"], "j") == StintId("sweep", 1)
    with pytest.raises(ValueError, match="can't name a job"):
        plain_wish_of("a/b", "true", slots=1)


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"evenload_job": "a"}, {"evenload_job": "a", "evenload_stint": "x"}, {"evenload_stint": "1"}],
)
def test_other_peoples_jobs_are_no_stints(metadata: dict[str, str] | None) -> None:
    assert stint_of(metadata and {"evenload_journal": "j", **metadata}, "j") is None
