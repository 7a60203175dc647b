"""The governor's HTTP: what is asked, checked at the edge, and answered once it is written down.

| route | |
| --- | --- |
| `POST /v1/jobs` | a run joins the queue: 201; the same again: 200; another of its name: 409 |
| `POST /v1/plain-jobs` | the same for any command, of which only its slots are known |
| `GET /v1/jobs`, `GET /v1/jobs/J`, `.../log` | all jobs; one; what it says |
| `PATCH /v1/jobs/J` | from how many workers to how many it may have |
| `DELETE /v1/jobs/J`, `POST /v1/jobs/J/hold`, `.../release` | cancel, hold, release |
| `POST /v1/reports` | a driver says how far it is; 409: another stint runs by now |
| `GET /v1/teams`, `PUT /v1/teams/T` | what teams have; their limits and guarantees |
| `GET /v1/policy`, `PUT /v1/policy` | what decides; another; `?preview=1`: what that would change |
| `GET /v1/decisions?since=S` | what was decided after S (seconds since 1970), and why; at most 1,000 |
| `GET /`, `GET /v1/overview` | the page, which needs no token; what it shows |
| `GET /metrics` | for Prometheus |
| `GET /healthz`, `GET /readyz` | the process lives; it governs, and its cluster answers |

Where there are tokens, a request shows one as `Authorization: Bearer TOKEN`; all need it but the
page and the last two.

Errors are `{"error": "a sentence"}`. Read next: wire.py, running.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.foreign_content import reason_of
from evenload.governor.deciding.plugins import known_policies
from evenload.governor.deciding.state import Team
from evenload.governor.errors import GovernorError, JobConflictError, JobUnknownError, PolicyError
from evenload.governor.governing.engine import StintId
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import DEFAULT_TEAM, Job, Wish
from evenload.governor.governing.loop import Governing
from evenload.governor.on_ray.gpu_state import WINDOW_S, GpuState
from evenload.governor.on_ray.reports import Reports
from evenload.governor.on_ray.runs import plain_wish_of, wish_of
from evenload.governor.service.instruments import GovernorInstruments
from evenload.governor.service.page.findings import GpuFacts
from evenload.governor.service.page.live_page import GovernorPage
from evenload.governor.service.tokens import TEAM, Caller, Right, Tokens, check, check_team
from evenload.governor.service.wire import (
    WEIGHT_BY_PRIORITY,
    AskedPolicy,
    AskedSizes,
    AskedTeam,
    Report,
    Submitted,
    SubmittedPlain,
    job_document,
    team_document,
    team_names,
)
from evenload.http_edge.bodies import Bodies
from evenload.http_edge.browsers import RefusedError, check_browser
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.errors import KafkaConnectionError
from evenload.ray_trainer.training.on_ray.submission import resolved
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.errors import RunError

BODY_BYTES_MAX = 256 << 10
BODY_WAIT_S = 10.0
LOG_CHARS_MAX = 64 << 10  # the end of a stint's log

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


class GovernorHttp:
    """The application's handlers.

    Args:
        governing: What is asked.
        reports: Where drivers' reports go.
        connection: The cluster whose datasets runs read.
        tokens: Who may ask for what.
        allowed_hosts: By which names clients call it, beside addresses and localhost, in lower case.
        log_of: What a stint has said; raises EngineUnreachableError.
        device: What workers compute on.
        gpus: How busy GPUs are; None: nobody says.
    """

    def __init__(
        self,
        governing: Governing,
        reports: Reports,
        connection: Connection,
        *,
        tokens: Tokens,
        allowed_hosts: Collection[str] = (),
        log_of: Callable[[StintId], str],
        device: Literal["cpu", "gpu"],
        gpus: GpuState | None = None,
    ) -> None:
        self._governing, self._reports = governing, reports
        self._connection, self._log_of, self._device = connection, log_of, device
        self._tokens, self._hosts = tokens, frozenset(allowed_hosts)
        self._registry = CollectorRegistry()
        self._gpus = gpus or GpuState()
        self._registry.register(GovernorInstruments(governing, self._gpu_facts))
        self._page = GovernorPage(governing, self._gpu_facts)
        self._bodies = Bodies(BODY_BYTES_MAX, BODY_WAIT_S)

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[self._answer_for_all])
        app.add_routes(
            [
                web.post("/v1/jobs", self._submit),
                web.post("/v1/plain-jobs", self._submit_plain),
                web.get("/v1/jobs", self._list),
                web.get("/v1/jobs/{job}", self._show),
                web.get("/v1/jobs/{job}/log", self._log),
                web.patch("/v1/jobs/{job}", self._resize),
                web.delete("/v1/jobs/{job}", self._changing(Governor.cancel)),
                web.post("/v1/jobs/{job}/hold", self._changing(Governor.hold)),
                web.post("/v1/jobs/{job}/release", self._changing(Governor.release)),
                web.post("/v1/reports", self._report),
                web.get("/v1/decisions", self._decisions),
                web.get("/v1/teams", self._teams),
                web.put("/v1/teams/{team}", self._set_team),
                web.get("/v1/policy", self._policy),
                web.put("/v1/policy", self._set_policy),
                web.get("/", self._get_page),
                web.get("/v1/overview", self._overview),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
                web.get("/readyz", self._readiness),
            ]
        )
        return app

    def _gpu_facts(self, governor: Governor, now_s: float) -> GpuFacts:
        # What was before a job had its GPUs isn't its own.
        busy = {
            job_id: self._gpus.busy(held)
            for job_id, job in governor.jobs.items()
            if job.size
            and now_s - job.size_since_s >= WINDOW_S
            and (held := self._reports.gpus(job.stint_id))
        }
        known = {job_id: part for job_id, part in busy.items() if part is not None}
        return GpuFacts(known, self._gpus.failing, dict(self._gpus.faults))

    @web.middleware
    async def _answer_for_all(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn what goes wrong into JSON."""
        try:
            check_browser(
                request.method,
                hosts=request.headers.getall("Host", []),
                origins=request.headers.getall("Origin", []),
                names=self._hosts,
            )
            return await handler(request)
        except RefusedError as refusal:
            answer = _refused(refusal.status, str(refusal))
            answer.headers.update(refusal.headers)
            return answer
        except web.HTTPException as error:
            return _refused(error.status, f"{request.method} {request.path}: {error.reason}")
        except JobUnknownError as error:
            return _refused(404, str(error))
        except JobConflictError as error:
            return _refused(409, str(error))
        except (GovernorError, TimeoutError) as error:
            return _refused(503, str(error) or "it isn't known yet whether that was done")
        except Exception:  # noqa: BLE001 - the edge: whoever asked gets an answer
            _log.exception("%s %s failed", request.method, request.path)
            return _refused(500, "this is a fault of the governor; its log says more")

    async def _ask(self, request: Callable[[Governor, float], T]) -> T:
        return await asyncio.to_thread(self._governing.ask, request)

    async def _body(self, request: web.Request, model: type[M]) -> M:
        body = await self._bodies.read(request)
        try:
            return model.model_validate_json(body)
        except (ValidationError, ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body isn't what is taken here: {reason_of(error)}") from error

    async def _submit(self, request: web.Request) -> web.Response:
        caller = self._allowed(request, Right.SUBMIT)
        submitted = await self._body(request, Submitted)
        team = _team_of(caller, submitted.team)
        return await self._queue(await asyncio.to_thread(self._wish, submitted, team))

    async def _submit_plain(self, request: web.Request) -> web.Response:
        caller = self._allowed(request, Right.SUBMIT_PLAIN)
        asked = await self._body(request, SubmittedPlain)
        try:
            wish = plain_wish_of(
                asked.name,
                asked.command,
                slots=asked.slots,
                is_kept=asked.is_kept,
                team=_team_of(caller, asked.team),
                weight=WEIGHT_BY_PRIORITY[asked.priority],
            )
        except ValueError as error:
            raise RefusedError(400, str(error)) from error
        return await self._queue(wish)

    async def _queue(self, wish: Wish) -> web.Response:
        def submit(governor: Governor, now_s: float) -> tuple[dict[str, Any], bool]:
            is_new = wish.job_id not in governor.jobs and wish.job_id not in governor.ended
            job = governor.submit(wish, now_s)
            return job_document(governor, job, now_s), is_new

        document, is_new = await self._ask(submit)
        return web.json_response(document, status=201 if is_new else 200)

    def _wish(self, submitted: Submitted, team: str) -> Wish:
        """What a submission comes to, with the dataset's version and size as they are now."""
        try:
            config = resolved(
                submitted.recipe, submitted.config.model_copy(update={"connection": self._connection})
            )
            manifest = Catalog(self._connection).get(self._pinned(config))
            config = config.model_copy(update={"dataset": f"{manifest.name}@{manifest.version}"})
            return wish_of(
                submitted.recipe,
                config,
                num_samples=manifest.num_samples,
                device=self._device,
                min_size=submitted.min_size,
                max_size=submitted.max_size,
                asked_size=submitted.asked_size,
                team=team,
                weight=WEIGHT_BY_PRIORITY[submitted.priority],
            )
        except KafkaConnectionError as error:
            raise RefusedError(503, str(error)) from error
        except CatalogError as error:
            raise RefusedError(503 if error.retriable else 400, str(error)) from error
        except (RunError, ValueError) as error:
            raise RefusedError(400, str(error)) from error

    def _pinned(self, config: TrainConfig) -> str:
        """The dataset, in the version that a job of this name has: submitted again, it's the same job."""

        def version(governor: Governor, _: float) -> str:
            try:
                known = governor.job(config.run or "").wish.entry.get("config", {}).get("dataset", "")
            except JobUnknownError:
                known = ""
            return known if known.startswith(f"{config.dataset}@") else config.dataset

        return self._governing.ask(version)

    def _allowed(self, request: web.Request, needed: Right) -> Caller:
        """Who asks, and may.

        Raises:
            RefusedError: They may not.
        """
        caller = self._tokens.caller(request.headers.getall("Authorization", []))
        check(caller, needed, f"{request.method} {request.path}")
        return caller

    async def _list(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)

        def all_of(governor: Governor, now_s: float) -> list[dict[str, Any]]:
            jobs = [*governor.jobs.values(), *governor.ended.values()]
            listed = sorted(jobs, key=lambda job: job.submitted_s)
            return [job_document(governor, job, now_s) for job in listed]

        return web.json_response({"jobs": await self._ask(all_of)})

    async def _show(self, request: web.Request) -> web.Response:
        caller, job_id = self._allowed(request, Right.READ), request.match_info["job"]

        def shown(governor: Governor, now_s: float) -> dict[str, Any]:
            job = governor.job(job_id)
            document = job_document(governor, job, now_s)
            # A command line or a storage's address may say more than another team is to know.
            is_own = caller.right is Right.OPERATE or caller.team == job.wish.team
            return document | ({"entry": dict(job.wish.entry)} if is_own else {})

        return web.json_response(await self._ask(shown))

    async def _log(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)
        job_id = request.match_info["job"]
        job = await self._ask(lambda governor, _: governor.job(job_id))
        said = await asyncio.to_thread(self._log_of, job.stint_id) if job.stint else ""
        return web.json_response({"job": job_id, "stint": job.stint, "log": said[-LOG_CHARS_MAX:]})

    async def _resize(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.SUBMIT)
        asked = await self._body(request, AskedSizes)

        def resize(governor: Governor, job_id: str, now_s: float) -> Job:
            return governor.resize(job_id, asked.min_size, asked.max_size, now_s)

        return await self._answer_of(request, resize)

    def _changing(self, change: Callable[[Governor, str, float], Job]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            return await self._answer_of(request, change)

        return handler

    async def _answer_of(
        self, request: web.Request, change: Callable[[Governor, str, float], Job]
    ) -> web.Response:
        caller, job_id = self._allowed(request, Right.SUBMIT), request.match_info["job"]

        def changed(governor: Governor, now_s: float) -> dict[str, Any]:
            check_team(caller, governor.job(job_id).wish.team, f"job {job_id!r}")
            return job_document(governor, change(governor, job_id, now_s), now_s)

        try:
            return web.json_response(await self._ask(changed))
        except ValueError as error:
            raise RefusedError(400, str(error)) from error

    async def _report(self, request: web.Request) -> web.Response:
        report = await self._body(request, Report)

        def newest(governor: Governor, _: float) -> StintId:
            job = governor.job(report.job)
            if report.samples_done > (job.wish.samples or 0.0):
                raise RefusedError(400, f"job {report.job!r} has fewer samples than that")
            return job.stint_id

        stint_id = StintId(report.job, report.stint)
        self._tokens.check_driver(request.headers.getall("Authorization", []), stint_id)
        if await self._ask(newest) != stint_id:
            return _refused(409, f"{stint_id.submission_id} isn't the stint that runs now")
        self._reports.hear(stint_id, report.samples_done, report.held)
        return web.Response(status=204)

    async def _decisions(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)
        try:
            since_s = float(request.query.get("since", "0"))
        except ValueError as error:
            raise RefusedError(400, "`since` is in seconds since 1970") from error

        def newer(governor: Governor, _: float) -> list[dict[str, Any]]:
            return [asdict(decision) for decision in governor.decisions if decision.at_s > since_s]

        return web.json_response({"decisions": await self._ask(newer)})

    async def _teams(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)

        def all_of(governor: Governor, _: float) -> dict[str, Any]:
            return {name: team_document(governor, name) for name in team_names(governor)}

        return web.json_response({"teams": await self._ask(all_of)})

    async def _set_team(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.OPERATE)
        asked, name = await self._body(request, AskedTeam), request.match_info["team"]
        if not re.fullmatch(TEAM, name):
            raise RefusedError(400, f"{name[:100]!r} can't name a team")
        try:
            team = Team(limit=asked.limit, guarantee=asked.guarantee)
        except ValueError as error:
            raise RefusedError(400, str(error)) from error

        def set_it(governor: Governor, now_s: float) -> dict[str, Any]:
            governor.set_team(name, team, now_s)
            return team_document(governor, name)

        return web.json_response(await self._ask(set_it))

    async def _policy(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)
        return web.json_response(self._policy_document())

    async def _set_policy(self, request: web.Request) -> web.Response:
        is_preview = request.query.get("preview", "0") != "0"
        self._allowed(request, Right.READ if is_preview else Right.OPERATE)
        asked = await self._body(request, AskedPolicy)
        try:
            if is_preview:
                changes, fault = await asyncio.to_thread(self._governing.preview, asked.policy)
                return web.json_response({"policy": asked.policy, "changes": changes, "fault": fault})
            await asyncio.to_thread(self._governing.set_policy, asked.policy)
        except PolicyError as error:
            raise RefusedError(400, str(error)) from error
        return web.json_response(self._policy_document())

    def _policy_document(self) -> dict[str, Any]:
        name = self._governing.policy[0] if self._governing.policy else None
        return {"policy": name, "fault": self._governing.put_aside, "known": list(known_policies())}

    async def _get_page(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page.sent.html, headers=self._page.sent.headers)

    async def _overview(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)
        body = await self._page.overview()
        answer = web.Response(
            body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
        )
        answer.enable_compression()
        return answer

    async def _metrics(self, request: web.Request) -> web.Response:
        self._allowed(request, Right.READ)
        text = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.Response:
        if self._governing.has_ended.is_set():
            return _refused(503, "the governor has ended")
        if self._governing.unready:
            return _refused(503, self._governing.unready)
        return web.Response(text="ok\n")


def _team_of(caller: Caller, asked: str | None) -> str:
    """Whose a job is to be.

    Raises:
        RefusedError: Another team's than the token's.
    """
    team = asked or caller.team or DEFAULT_TEAM
    check_team(caller, team, "what is submitted")
    return team


def _refused(status: int, sentence: str) -> web.Response:
    return web.Response(
        text=json.dumps({"error": sentence}) + "\n", status=status, content_type="application/json"
    )
