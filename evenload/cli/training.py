"""`evenload train`, `submit` and `audit`: run a recipe here or as a Ray job, and check what it used.

The flags of a recipe are the fields of its options model and of TrainConfig: one list, kept where it is used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from evenload.cli.edge import StoppedError, cluster_options
from evenload.cli.output import Output
from evenload.home import evenload_home
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.recipes import RECIPES, Recipe
from evenload.ray_trainer.training.events import LOADING
from evenload.ray_trainer.training.train_config import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])

# Fields that the command line gives in another way, or that only a program has a use for.
NOT_FLAGS = {"connection", "options", "health_check_interval_s"}


@click.group()
def train() -> None:
    """Train a model on a dataset with a recipe; killed at any moment, the same command goes on.

    Ctrl-C stops after a checkpoint (exit status 130); twice, at once.
    """


@click.group()
def submit() -> None:
    """The same as `train`, as a job on a running Ray cluster; follows its logs, exits as it exits."""


@click.command()
@click.argument("run")
@click.option("--storage", metavar="DIR", help="Folder or URI of the runs.  [default: EVENLOAD_HOME/runs]")
@cluster_options
def audit(*, run: str, storage: str | None, connection: Connection, output: Output) -> None:
    """Was every sample used exactly once per epoch? Exit status 1 if not, or not yet."""
    from evenload.ray_trainer.training.audit import audit as audit_run

    report = audit_run(run, storage or evenload_home() / "runs", connection)
    output.document(report.to_dict())
    output.table(
        ["epoch", "samples", "missing", "repeated", ""],
        [
            [
                str(epoch.epoch),
                f"{epoch.samples:,}",
                f"{epoch.missing:,}",
                f"{epoch.repeated:,}",
                "unfinished" if not epoch.is_over else "complete" if epoch.is_complete else "incomplete",
            ]
            for epoch in report.epochs
        ],
    )
    for note in report.notes:
        output.line(note)
    if not report.exactly_once:
        raise click.ClickException(f"run {run!r} has not used every sample exactly once per epoch")
    output.line("every sample exactly once per epoch")


def _add_recipe(recipe: Recipe) -> None:
    @train.command(recipe.name, help=recipe_help(recipe))
    @recipe_flags(recipe)
    @cluster_options
    def run_here(*, connection: Connection, output: Output, **flags: Any) -> None:
        config = config_of(recipe, flags, connection)
        output.note(str(LOADING))
        from evenload.ray_trainer.training.on_ray.trainer import train as run_recipe

        _show_result(run_recipe(recipe.name, config, on_event=lambda event: output.note(str(event))), output)

    @submit.command(
        recipe.name, help=recipe_help(recipe) + "\n\nEVENLOAD_HOME must mean the same folder there."
    )
    @click.option(
        "--address",
        metavar="URL",
        help="Of the Ray cluster's dashboard.  [default: RAY_API_SERVER_ADDRESS or http://127.0.0.1:8265]",
    )
    @recipe_flags(recipe)
    @cluster_options
    def run_as_job(*, address: str | None, connection: Connection, output: Output, **flags: Any) -> None:
        from evenload.ray_trainer.training.on_ray.submit import submit as submit_job

        submitted = submit_job(
            recipe.name, config_of(recipe, flags, connection), address=address, tell=output.note
        )
        output.document(submitted.to_dict())
        output.line(f"job {submitted.job_id}: {submitted.status}")
        for note in (submitted.result or {}).get("notes", []):
            output.line(note)
        if submitted.exit_code:
            raise click.exceptions.Exit(submitted.exit_code)


def recipe_help(recipe: Recipe) -> str:
    """What it does, in a sentence."""
    return f"{recipe.summary[0].upper()}{recipe.summary[1:]}."


def _show_result(result: Any, output: Output) -> None:
    output.document(result.to_dict())
    if result.is_stopped:
        raise StoppedError(f"run {result.run!r} goes on from step {result.steps} with the same command")
    losses = ", ".join(_number(loss) for loss in result.loss)
    output.line(f"{result.epochs} epochs, {result.steps:,} steps, {result.samples_per_s:,.0f} samples/s")
    output.line(f"loss by epoch: {losses}")
    for name, value in result.metrics.items():
        output.line(f"{name.replace('_', ' ')}: {_number(value)}")
    output.line(f"model: {result.model_path}")
    for note in result.notes:
        output.line(note)


def _number(value: float | None) -> str:
    return "not a number" if value is None or not math.isfinite(value) else f"{value:.4f}"


def config_of(recipe: Recipe, flags: Mapping[str, Any], connection: Connection | None) -> TrainConfig:
    """The flags that were given, as a configuration; what was not given keeps the models' defaults."""
    given = {name: value for name, value in flags.items() if value is not None}
    options = {name: given.pop(name) for name in list(given) if name not in TrainConfig.model_fields}
    try:
        recipe.options(
            **options, **{name: given[name] for name in given if name in recipe.options.model_fields}
        )
        return TrainConfig(**given, connection=connection, options=options)
    except ValidationError as error:
        first = error.errors()[0]
        flag = _flag_name(str(first["loc"][0])) if first["loc"] else "options"
        raise click.UsageError(f"{flag} is {first['input']!r}: {first['msg']}") from error


def recipe_flags(recipe: Recipe, *, without: Collection[str] = NOT_FLAGS) -> Callable[[F], F]:
    """Options for all that a recipe can be told, but for some fields."""
    fields = dict(TrainConfig.model_fields) | dict(recipe.options.model_fields)

    def decorate(command: F) -> F:
        options = [_flag(name, field) for name, field in fields.items() if name not in without]
        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)

    return decorate


def _flag(name: str, field: FieldInfo) -> Callable[[F], F]:
    """A click option for a field: its type, its sentence; None when not given, so that defaults stay in one
    place."""
    kind = next(_types_of(field.annotation))
    shown = (field.description or "").strip()
    shown = shown[:1].upper() + shown[1:].rstrip(".") + "."
    if field.default is not None and not field.is_required() and kind is not bool:
        shown += f"  [default: {field.default}]"
    if kind is bool:
        flag = _flag_name(name)
        spelled = flag if field.default is False else f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(spelled, name, is_flag=True, default=None, help=shown)
    choices = get_args(kind) if get_origin(kind) is Literal else None
    return click.option(
        _flag_name(name),
        name,
        type=click.Choice(choices) if choices else kind,
        required=field.is_required(),
        metavar=None if choices else _METAVARS.get(name, {int: "N", float: "X"}.get(kind, "NAME")),
        help=shown,
    )


_METAVARS = {
    "storage": "DIR",
    "model": "NAME_OR_PATH",
    "ray_address": "ADDRESS",
    "checkpoint_interval_s": "SECONDS",
    "storage_patience_s": "SECONDS",
}


def _flag_name(field_name: str) -> str:
    return "--" + field_name.removesuffix("_s").replace("_", "-")


def _types_of(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        yield from (kind for kind in get_args(annotation) if kind is not NoneType)
    else:
        yield annotation


for _recipe in RECIPES.values():
    _add_recipe(_recipe)
