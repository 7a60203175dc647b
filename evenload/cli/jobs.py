"""`evenload jobs`: many runs on one cluster."""

from __future__ import annotations

import functools
import json
import shlex
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evenload.cli.edge import json_option
from evenload.cli.governor import DEFAULT_PORT
from evenload.cli.output import Output
from evenload.cli.replay import replay
from evenload.cli.training import NOT_FLAGS, config_of, recipe_flags, recipe_help
from evenload.governor.errors import GovernorError
from evenload.kafka_connection.environment import governor_ca_path, governor_token
from evenload.ray_trainer.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from evenload.governor.service.client import GovernorClient

F = TypeVar("F", bound=Callable[..., Any])

_FOLLOW_S = 2.0
_TEAM_HELP = "Whose it is.  [default: the token's team]"
_PRIORITIES = ("urgent", "normal", "low")
_PRIORITY_HELP = "16, 4 or 1 to weigh it by."


@click.group()
def jobs() -> None:
    """Many runs on one cluster: who has how many slots, and when."""


def _governor_option(command: F) -> F:
    """Give a command `--governor`, and hand it a client as `governor`."""

    @click.option(
        "--governor",
        "url",
        metavar="URL",
        default=f"http://127.0.0.1:{DEFAULT_PORT}",
        show_default=True,
        envvar="EVENLOAD_GOVERNOR_URL",
        show_envvar=True,
        help="Where `evenload governor` serves. A token for it: EVENLOAD_GOVERNOR_TOKEN, or ..._TOKEN_FILE; "
        "authorities to trust with https: EVENLOAD_GOVERNOR_CA, a file.",
    )
    @functools.wraps(command)
    def with_governor(*args: Any, url: str, **kwargs: Any) -> Any:
        from evenload.governor.service.client import GovernorClient

        return command(
            *args, governor=GovernorClient(url, governor_token(), ca_path=governor_ca_path()), **kwargs
        )

    return with_governor  # type: ignore[return-value]  # functools.wraps keeps the signature but not its type


@jobs.group()
def submit() -> None:
    """Have a run join the queue; the same command again changes nothing."""


class WorkersType(click.ParamType[tuple[int, int | None]]):
    """From how many workers to how many: 1:4; 2: for 2 or more; 4 for exactly so many."""

    name = "workers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What was written, as two numbers; the second None where there is no end."""
        least, colon, most = str(value).partition(":")
        if not least.isdecimal() or (most and not most.isdecimal()):
            self.fail(f"{value!r} isn't MIN:MAX, as 1:4", param, ctx)
        return int(least), int(most) if most else None if colon else int(least)


def _add_recipe(recipe: Recipe) -> None:
    @submit.command(recipe.name, help=recipe_help(recipe))
    @click.option(
        "--workers",
        type=WorkersType(),
        default="1:",
        show_default=True,
        metavar="MIN:MAX",
        help="How many it may have; no MAX: as many as it can ever use.",
    )
    @click.option(
        "--asked", type=click.IntRange(1), help="How many where nothing resizes.  [default: the most]"
    )
    @click.option(
        "--priority",
        type=click.Choice(_PRIORITIES),
        default="normal",
        show_default=True,
        help=_PRIORITY_HELP,
    )
    @click.option("--team", metavar="NAME", help=_TEAM_HELP)
    @click.option("--wait", is_flag=True, help="Until it has ended; exit status 1 unless it has finished.")
    @recipe_flags(recipe, without={*NOT_FLAGS, "workers", "ray_address", "begin_anew"})
    @_governor_option
    @json_option
    def submit_recipe(
        *,
        workers: tuple[int, int | None],
        asked: int | None,
        priority: str,
        team: str | None,
        wait: bool,
        governor: GovernorClient,
        output: Output,
        **flags: Any,
    ) -> None:
        config = config_of(recipe, flags, None)
        job = governor.submit(
            {
                "recipe": recipe.name,
                "config": config.model_dump(mode="json", exclude={"connection"}, exclude_unset=True),
                "min_size": workers[0],
                "max_size": workers[1],
                "asked_size": asked,
                "priority": priority,
                "team": team,
            }
        )
        if wait:
            job = _followed(job, governor, output)
        _tell(job, output)
        if wait and job["state"] != "finished":
            raise click.exceptions.Exit(1)


for _recipe in RECIPES.values():
    _add_recipe(_recipe)


def _followed(job: dict[str, Any], governor: GovernorClient, output: Output) -> dict[str, Any]:
    """The job once it has ended; what becomes of it meanwhile is told."""
    told = ""
    while job["ended_s"] is None:
        done, slots = job["samples_done"] / job["samples"], job["size"]
        line = f"{job['state']}, {slots} slots, {done:.0%} done"
        if line != told:
            output.note(f"{line}{'; ' if job['reason'] else ''}{job['reason']}")
            told = line
        time.sleep(_FOLLOW_S)
        try:
            job = governor.job(job["job"])
        except GovernorError as error:
            if not error.retriable:
                raise
            output.note(str(error))  # it is started again, and the job trains on meanwhile
    return job


@jobs.command("submit-ray")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", required=True, help="Of the job.")
@click.option(
    "--slots", type=click.IntRange(1), required=True, help="That it takes, by what it starts itself."
)
@click.option(
    "--stop",
    type=click.Choice(("signal", "never")),
    default="signal",
    show_default=True,
    help="Interrupt it when others are in turn, and start it again later; or leave it alone once it runs.",
)
@click.option(
    "--priority", type=click.Choice(_PRIORITIES), default="normal", show_default=True, help=_PRIORITY_HELP
)
@click.option("--team", metavar="NAME", help=_TEAM_HELP)
@_governor_option
@json_option
def submit_ray(
    *,
    command: tuple[str, ...],
    name: str,
    slots: int,
    stop: str,
    priority: str,
    team: str | None,
    governor: GovernorClient,
    output: Output,
) -> None:
    """Have any COMMAND (after `--`) join the queue, to be run as a Ray job when its slots are free.

    Nothing is known of it but the slots that it takes: it has them all, or waits. It isn't started again when
    it fails.
    """
    job = governor.submit_plain(
        {
            "name": name,
            "command": shlex.join(command),
            "slots": slots,
            "is_kept": stop == "never",
            "priority": priority,
            "team": team,
        }
    )
    _tell(job, output)


@jobs.command("list")
@_governor_option
@json_option
def list_jobs(*, governor: GovernorClient, output: Output) -> None:
    """All jobs: how far each is, how many slots it has, and why not more."""
    found = governor.jobs()
    output.document({"jobs": found})
    output.table(["job", "state", "slots", "done", "reason"], [_job_row(job) for job in found])
    if not found:
        output.line("no jobs; `evenload jobs submit` has one join the queue")


def _job_row(job: Mapping[str, Any]) -> list[str]:
    moving = f"{job['size']} -> {job['wanted']}" if job["wanted"] != job["size"] else str(job["size"])
    done = "" if job["samples"] is None else f"{job['samples_done'] / job['samples']:.0%}"
    return [job["job"], job["state"], moving, done, job["reason"]]


@jobs.command()
@click.argument("job")
@_governor_option
@json_option
def show(*, job: str, governor: GovernorClient, output: Output) -> None:
    """All that is known of JOB."""
    found = governor.job(job)
    output.document(found)
    for name, value in found.items():
        output.line(f"{name}: {json.dumps(value)}")


@jobs.command()
@click.argument("job")
@click.argument("sizes", type=WorkersType(), metavar="MIN:MAX")
@_governor_option
@json_option
def resize(*, job: str, sizes: tuple[int, int | None], governor: GovernorClient, output: Output) -> None:
    """Have JOB have from MIN to MAX workers from now on; it trains on meanwhile."""
    _tell(governor.resize(job, *sizes), output)


@jobs.command()
@click.argument("job")
@_governor_option
@json_option
def log(*, job: str, governor: GovernorClient, output: Output) -> None:
    """What the newest stint of JOB has said, the end of it."""
    said = governor.log(job)
    output.document({"job": job, "log": said})
    output.line(said.rstrip())


@jobs.command()
@click.argument("job")
@_governor_option
@json_option
def cancel(*, job: str, governor: GovernorClient, output: Output) -> None:
    """End JOB; what it has trained so far stays."""
    _tell(governor.cancel(job), output)


@jobs.command()
@click.argument("job")
@_governor_option
@json_option
def hold(*, job: str, governor: GovernorClient, output: Output) -> None:
    """Stop JOB after a checkpoint, until it is released."""
    _tell(governor.hold(job), output)


@jobs.command()
@click.argument("job")
@_governor_option
@json_option
def release(*, job: str, governor: GovernorClient, output: Output) -> None:
    """Let JOB run again, be it held or failed."""
    _tell(governor.release(job), output)


@jobs.group()
def teams() -> None:
    """What teams may have at most, and what they get when their jobs wait."""


@teams.command("list")
@_governor_option
@json_option
def list_teams(*, governor: GovernorClient, output: Output) -> None:
    """Teams of which something is set, or that have jobs."""
    found = governor.teams()
    output.document({"teams": found})
    rows = [
        [
            name,
            str(team["slots"]),
            f"{team['jobs']} ({team['waiting']} wait)",
            "all" if team["limit"] is None else str(team["limit"]),
            str(team["guarantee"]),
        ]
        for name, team in found.items()
    ]
    output.table(["team", "slots", "jobs", "limit", "guarantee"], rows)


@teams.command("set")
@click.argument("name")
@click.option("--limit", type=click.IntRange(0), help="Slots for all its jobs together.  [default: all]")
@click.option(
    "--guarantee",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Slots that it gets when its jobs wait, though others have them.",
)
@_governor_option
@json_option
def set_team(
    *, name: str, limit: int | None, guarantee: int, governor: GovernorClient, output: Output
) -> None:
    """Have the team NAME have these from now on. What it had lent comes back by shrinking others' jobs."""
    output.document(governor.set_team(name, limit=limit, guarantee=guarantee))
    output.line(f"team {name}: {'all' if limit is None else limit} slots at most, {guarantee} guaranteed")


@jobs.group()
def policy() -> None:
    """Which policy decides who has how many slots."""


@policy.command("show")
@_governor_option
@json_option
def show_policy(*, governor: GovernorClient, output: Output) -> None:
    """The policy that decides now, and all that can."""
    found = governor.policy()
    output.document(found)
    for name in found["known"]:
        output.line(f"{name}  <- decides" if name == found["policy"] else name)
    if found["fault"]:
        output.line(f"note: {found['fault']}")


@policy.command("set")
@click.argument("name")
@click.option("--preview", is_flag=True, help="Only say what it would change.")
@_governor_option
@json_option
def set_policy(*, name: str, preview: bool, governor: GovernorClient, output: Output) -> None:
    """Have the policy NAME decide from now on. Runs go on; it changes sizes as it sees fit."""
    done = governor.set_policy(name, is_preview=preview)
    output.document(done)
    if not preview:
        output.line(f"policy {done['policy']} decides")
    elif done["changes"]:
        rows = [[job, str(old), str(new)] for job, (old, new) in done["changes"].items()]
        output.table(["job", "slots", "would have"], rows)
    else:
        output.line("it would change nothing now")
    if preview and done["fault"]:
        output.line(f"note: {done['fault']}")


def _tell(job: Mapping[str, Any], output: Output) -> None:
    output.document(job)
    reason = f" ({job['reason']})" if job["reason"] else ""
    output.line(f"job {job['job']}: {job['state']}{reason}")


jobs.add_command(replay)
