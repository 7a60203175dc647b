"""What a governor says over HTTP, and whom it refuses; submitting is tried with a real catalog."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from evenload.governor.errors import TokenFileError
from evenload.governor.governing.engine import StintId
from evenload.governor.governing.jobs import Wish
from evenload.governor.governing.loop import Governing
from evenload.governor.governing.policy_process import governing_policy
from evenload.governor.on_ray.gpu_pages import Gpu, GpuReading
from evenload.governor.on_ray.gpu_state import GpuState
from evenload.governor.on_ray.reports import Progress, Reports
from evenload.governor.service.http import GovernorHttp
from evenload.governor.service.tokens import Tokens
from evenload.governor.testing import MemoryJournal, StillEngine
from evenload.kafka_connection import Connection

WISH = Wish(job_id="a", kind="k", samples=100.0, asked_size=2, max_size=2)
OTHER = Wish(job_id="b", kind="k", samples=100.0, asked_size=4, max_size=4, min_size=3)

MEASURING = "how fast it is at this size is being measured"
Answer = tuple[int, Any]


class Site:
    """A governor without brokers or a cluster, and its application."""

    def __init__(self) -> None:
        self.tokens = Tokens(None)
        self.engine = StillEngine(4)
        self.passed_s = 0.0  # more than has
        self.governing = Governing(
            MemoryJournal(),
            self.engine,
            governing_policy,
            "fifo",
            look_s=0.03,
            clock=lambda: time.monotonic() + self.passed_s,
        )
        self.governing.start()
        self.reports = Reports(lambda: 0.0)
        self.gpus_now_s = 0.0
        self.gpus = GpuState(clock=lambda: self.gpus_now_s)
        self.governing.ask(lambda governor, now_s: governor.submit(WISH, now_s))
        self.governing.ask(lambda governor, now_s: governor.submit(OTHER, now_s))

    def app(self) -> web.Application:
        connection = Connection(bootstrap_servers="127.0.0.1:9")
        http = GovernorHttp(
            self.governing,
            self.reports,
            connection,
            tokens=self.tokens,
            log_of=str,
            device="cpu",
            gpus=self.gpus,
        )
        return http.app()

    def ask(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        return asyncio.run(self._ask(method, path, body, headers or {}))

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        async with TestServer(self.app()) as server, ClientSession() as session:
            data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
            async with session.request(method, server.make_url(path), data=data, headers=headers) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if text.startswith("{") else text


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.governing.close()


def wait_for(look: Callable[[], bool]) -> None:
    while not look():
        pass


def test_jobs_are_listed_by_submission_with_why_they_wait(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["state"] == "running")
    status, listed = site.ask("GET", "/v1/jobs")
    assert status == 200
    first, second = listed["jobs"]
    assert (first["job"], first["state"], first["size"], first["reason"]) == ("a", "running", 2, MEASURING)
    assert (second["job"], second["state"]) == ("b", "waiting")
    assert second["reason"] == "waits: 2 slots free, needs 3"


def test_what_was_decided_is_told_from_a_time_on(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["state"] == "running")
    (decision,) = site.ask("GET", "/v1/decisions")[1]["decisions"]
    assert (decision["policy"], decision["num_slots"]) == ("fifo", 4)
    assert decision["sizes"] == {"a": 2}
    assert decision["changed"] == {"a": 0}
    assert site.ask("GET", f"/v1/decisions?since={decision['at_s']}")[1] == {"decisions": []}
    assert site.ask("GET", "/v1/decisions?since=x")[0] == 400


def test_a_job_is_held_released_and_cancelled(site: Site) -> None:
    assert site.ask("POST", "/v1/jobs/b/hold")[1]["state"] == "held"
    assert site.ask("POST", "/v1/jobs/b/release")[1]["state"] == "waiting"
    assert site.ask("DELETE", "/v1/jobs/b")[1]["state"] == "cancelled"
    assert site.ask("GET", "/v1/jobs/b")[1]["ended_s"] > 0


def test_a_job_has_as_many_workers_as_somebody_says_it_may_have(site: Site) -> None:
    resized = site.ask("PATCH", "/v1/jobs/b", {"min_size": 1, "max_size": 2})[1]
    assert (resized["min_size"], resized["max_size"], resized["asked_size"]) == (1, 2, 2)
    wait_for(lambda: site.ask("GET", "/v1/jobs/b")[1]["state"] == "running")
    assert site.ask("GET", "/v1/jobs/b")[1]["size"] == 2
    status, refused = site.ask("PATCH", "/v1/jobs/b", {"min_size": 3, "max_size": 2})
    assert (status, refused["error"]) == (400, "b can have from 1 to 10000 workers, not 3 to 2")


def test_what_a_stint_says_is_shown(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["stint"] == 1)
    assert site.ask("GET", "/v1/jobs/a/log")[1]["log"] == "StintId(job_id='a', number=1)"
    assert site.ask("GET", "/v1/jobs/b/log")[1] == {"job": "b", "stint": 0, "log": ""}


def test_a_driver_is_heard_unless_another_stint_runs_by_now(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["stint"] == 1)
    report = {"job": "a", "stint": 1, "epoch": 1, "samples_consumed": 20, "num_samples": 50}
    assert site.ask("POST", "/v1/reports", report) == (204, "")
    job = site.governing.ask(lambda governor, _: governor.jobs["a"])
    assert site.reports.progress(job.stint_id) == Progress(70.0, None)
    status, refused = site.ask("POST", "/v1/reports", {**report, "stint": 2})
    assert (status, refused["error"]) == (409, "evenload-a-2 isn't the stint that runs now")


def test_how_busy_the_gpus_of_a_stint_are_is_told_by_team(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["stint"] == 1)
    report = {"job": "a", "stint": 1, "epoch": 0, "samples_consumed": 0, "num_samples": 50}
    held = [{"host": "node", "address": "10.0.0.1", "ids": ["0"]}]
    assert site.ask("POST", "/v1/reports", {**report, "gpus": held})[0] == 204
    for at_s in range(0, 601, 60):
        site.gpus_now_s = float(at_s)
        site.gpus.add([GpuReading(Gpu("node", "0"), busy=0.25), GpuReading(Gpu("node", "1"), xid=79)])
    assert "evenload_governor_team_gpu_busy_ratio{" not in site.ask("GET", "/metrics")[1]  # it has just begun
    site.passed_s = 700.0
    _, told = site.ask("GET", "/metrics")
    assert 'evenload_governor_team_gpu_busy_ratio{team="default"} 0.25' in told
    assert 'evenload_governor_gpu_xid{gpu="1",node="node"} 79.0' in told
    overview = site.ask("GET", "/v1/overview")[1]
    assert overview["jobs"][0]["busy"] == 0.25
    assert "node had errors of hardware (GPU 1 XID 79)" in overview["findings"][0]["text"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("GET", "/v1/jobs/none", None, 404, "there is no job 'none'"),
        ("GET", "/v2", None, 404, "GET /v2: Not Found"),
        ("PUT", "/v1/jobs", None, 405, "PUT /v1/jobs: Method Not Allowed"),
        ("POST", "/v1/reports", b"{", 400, "the body isn't what is taken here"),
        ("POST", "/v1/reports", b"[" * 100_000, 400, "the body isn't what is taken here"),
        ("POST", "/v1/reports", {"job": "none", "stint": 1}, 400, "epoch: Field required"),
        ("POST", "/v1/jobs", b"x" * 300_000, 413, "larger than 262144 bytes"),
        ("POST", "/v1/jobs", {"recipe": "no", "config": {"dataset": "d"}}, 400, "no"),
        ("POST", "/v1/jobs", {"recipe": "no", "config": {"dataset": "d", "x": 1}}, 400, "config.x: Extra"),
    ],
)
def test_what_cant_be_done_is_said_in_a_sentence(
    site: Site, method: str, path: str, body: Any, status: int, why: str
) -> None:
    answered, document = site.ask(method, path, body)
    assert answered == status
    assert why in document["error"]


def test_a_page_of_somebody_elses_changes_nothing(site: Site) -> None:
    status, refused = site.ask("POST", "/v1/jobs/b/hold", headers={"Origin": "http://evil.example"})
    assert (status, refused["error"]) == (403, "a page of 'http://evil.example' changes nothing here")
    status, refused = site.ask("GET", "/v1/jobs", headers={"Host": "evil.example"})
    assert status == 421


def test_a_team_has_no_more_than_its_limit_from_when_that_is_set(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["state"] == "running")
    assert site.ask("GET", "/v1/teams")[1]["teams"]["default"] == {
        "limit": None,
        "guarantee": 0,
        "slots": 2,
        "jobs": 2,
        "waiting": 1,
    }
    assert site.ask("PUT", "/v1/teams/default", {"limit": 1, "guarantee": 1})[0] == 200
    wait_for(lambda: site.ask("GET", "/v1/teams")[1]["teams"]["default"]["slots"] < 2)
    status, refused = site.ask("PUT", "/v1/teams/x", {"limit": 1, "guarantee": 2})
    assert (status, refused["error"]) == (400, "a team is guaranteed from 0 slots to its limit (1), not 2")
    assert site.ask("PUT", "/v1/teams/-", {"limit": 1})[0] == 400


def test_prometheus_is_told_what_there_is_and_what_is_wrong(site: Site) -> None:
    wait_for(lambda: site.ask("GET", "/v1/jobs/a")[1]["state"] == "running")
    _, told = site.ask("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
    assert values["evenload_governor_slots"] == "4.0"
    assert values["evenload_governor_slots_held"] == "2.0"
    assert values['evenload_governor_jobs{state="running"}'] == "1.0"
    assert values['evenload_governor_jobs{state="waiting"}'] == "1.0"
    assert values['evenload_governor_team_slots_held{team="default"}'] == "2.0"
    assert values["evenload_governor_stints_total"] == "1.0"
    assert values["evenload_governor_ready"] == "1.0"
    assert values["evenload_governor_policy_put_aside"] == "0.0"
    assert 0 < float(values["evenload_governor_longest_wait_seconds"]) < 600
    site.governing.close()
    assert "evenload_governor_slots " not in site.ask("GET", "/metrics")[1]


def test_the_policy_is_swapped_or_only_tried(site: Site) -> None:
    assert site.ask("GET", "/v1/policy")[1]["policy"] == "fifo"
    status, tried = site.ask("PUT", "/v1/policy?preview=1", {"policy": "equi"})
    assert (status, tried["policy"]) == (200, "equi")
    assert site.ask("GET", "/v1/policy")[1]["policy"] == "fifo"
    status, swapped = site.ask("PUT", "/v1/policy", {"policy": "equi"})
    assert (status, swapped["policy"], swapped["fault"]) == (200, "equi", None)
    status, refused = site.ask("PUT", "/v1/policy", {"policy": "magic"})
    assert (status, refused["error"][:31]) == (400, "policy 'magic' is not known. Th")


def test_with_tokens_each_may_do_what_its_line_says(site: Site, tmp_path: Path) -> None:
    lines = {"r": "read", "s": "submit vision", "p": "submit-plain default", "o": "operate"}
    content = [f"{hashlib.sha256(token.encode()).hexdigest()} {line}" for token, line in lines.items()]
    (tmp_path / "tokens").write_text("\n".join(["# who", *content, ""]))
    site.tokens = Tokens(tmp_path / "tokens")

    def status(method: str, path: str, token: str | None, body: Any = None) -> int:
        return site.ask(
            method, path, body, headers={} if token is None else {"Authorization": f"Bearer {token}"}
        )[0]

    def statuses(method: str, path: str, body: Any = None) -> list[int]:
        return [status(method, path, token, body) for token in (None, "x", *lines)]

    plain = {"name": "n", "command": "true", "slots": 1}
    assert statuses("GET", "/healthz") == [200] * 6
    assert statuses("GET", "/v1/jobs") == [401, 401, 200, 200, 200, 200]
    assert statuses("PUT", "/v1/policy?preview=1", {"policy": "equi"}) == [401, 401, 200, 200, 200, 200]
    assert statuses("PUT", "/v1/policy", {"policy": "equi"}) == [401, 401, 403, 403, 403, 200]
    # The job is of the team `default`.
    assert statuses("POST", "/v1/jobs/b/hold") == [401, 401, 403, 403, 200, 200]
    assert statuses("POST", "/v1/plain-jobs", plain) == [401, 401, 403, 403, 201, 200]
    assert status("POST", "/v1/plain-jobs", "p", {**plain, "name": "m", "team": "vision"}) == 403
    assert status("POST", "/v1/plain-jobs", "o", {**plain, "name": "m", "team": "vision"}) == 201


def test_a_drivers_token_opens_its_own_reports_and_nothing_else(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{'0' * 64} operate\n")
    site.tokens = Tokens(tmp_path / "tokens")
    wait_for(lambda: site.governing.ask(lambda governor, _: governor.jobs["a"].stint) == 1)
    of_a, of_b = (site.tokens.of_stint(StintId(job, 1)) for job in "ab")
    assert of_a == Tokens(tmp_path / "tokens").of_stint(StintId("a", 1))
    report = {"job": "a", "stint": 1, "epoch": 0, "samples_consumed": 20, "num_samples": 50}
    answers = [
        site.ask("POST", "/v1/reports", report, headers={"Authorization": f"Bearer {token}"})[0]
        for token in (of_a, of_b, "0" * 64, "")
    ]
    assert answers == [204, 401, 401, 401]
    assert site.ask("GET", "/v1/jobs", headers={"Authorization": f"Bearer {of_a}"})[0] == 401


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "has no tokens"),
        ("secret read", "line 1 doesn't begin with the SHA-256 of a token"),
        (f"{'0' * 64} write", "line 1 names no right; there are read, submit, submit-plain, operate"),
        (f"{'0' * 64}", "line 1 names no right"),
        (f"\n{'0' * 64} submit", "line 2 needs the name of one team after 'submit'"),
        (f"{'0' * 64} submit a b", "line 1 needs the name of one team"),
        (f"{'0' * 64} read vision", "line 1 needs nothing after 'read'"),
        (f"{'0' * 64} read\n{'0' * 64} operate", "line 2 has a token that stands in a line before"),
    ],
)
def test_a_file_of_tokens_that_says_something_else_is_refused(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(TokenFileError) as caught:
        Tokens(tmp_path / "tokens")
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_it_is_ready_while_it_governs_and_its_cluster_answers(site: Site) -> None:
    assert site.ask("GET", "/readyz") == (200, "ok\n")
    site.engine.unreachable = "no answer from 10.0.0.1"
    wait_for(lambda: site.ask("GET", "/readyz")[0] == 503)
    assert site.ask("GET", "/readyz") == (503, {"error": "no answer from 10.0.0.1"})
    site.governing.close()
    assert site.ask("GET", "/readyz") == (503, {"error": "the governor has ended"})
    assert site.ask("GET", "/healthz") == (200, "ok\n")
    assert site.ask("GET", "/v1/jobs")[0] == 503
