"""What a worker on Ray hands on to its loop, and hears from Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from ray.train.v2.api.preemption import PreemptionInfo

from evenload.kafka_connection import Connection, OAuth
from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer.training.on_ray.worker import _reachable
from evenload.ray_trainer.training.on_ray.worker_link import RayLink
from evenload.resume.storage import RunStorage


def test_what_a_worker_starts_finds_its_connection_secrets_included_and_nothing_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Connection(
        bootstrap_servers="broker:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="reader",
        sasl_password=SecretStr("secret"),
    )
    ask = (
        "from evenload.kafka_connection.environment import resolve_connection\n"
        "print(resolve_connection().sasl_password.get_secret_value())"
    )
    with _reachable(connection):
        assert resolve_connection() == connection
        told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert told.stdout == "secret\n"
    assert "EVENLOAD_CONNECTION" not in os.environ
    assert caplog.text == ""  # nobody else can read it


def test_a_worker_hands_on_where_tokens_come_from_and_the_secret_for_that() -> None:
    oauth = OAuth(token_url="https://there/token", client_id="me", client_secret=SecretStr("hush"))
    connection = Connection(
        bootstrap_servers="broker:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth=oauth,
    )
    with _reachable(connection):
        found = resolve_connection().sasl_oauth
    assert found == oauth
    assert found.client_secret is not None
    assert found.client_secret.get_secret_value() == "hush"


def test_only_a_machine_that_ray_has_not_named_before_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[PreemptionInfo | None] = []
    monkeypatch.setattr("ray.train.get_preemption_info", lambda: said[-1])
    link = RayLink(None, RunStorage(tmp_path, "toy"), rank=1, report_gap_s=1.0)
    heard = []
    for nodes in ({}, {"a": [0]}, {"a": [0]}, {"a": [0], "b": [1]}, {"a": [0], "b": [1]}, None, {"a": [0]}):
        said.append(None if nodes is None else PreemptionInfo(None, nodes))
        link.poll_preemption()
        link.flush_calls(30.0)
        heard.append(link.is_preempted)
        link.preemption_seen()
    link.close()

    assert heard == [False, True, False, True, False, False, True]
    assert link.num_failed_calls == 0
