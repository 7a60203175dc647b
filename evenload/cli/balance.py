"""`evenload balance`: level what brokers hold by moving replicas; dry unless told otherwise.

What plans moves loads numerical libraries, so it is imported by the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.edge import SizeType, StoppedError, cluster_options
from evenload.cli.output import Output, percent_text
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.errors import BalanceError
from evenload.sizes import bytes_text
from evenload.telemetry_collector.snapshot import ClusterSnapshot

if TYPE_CHECKING:
    from evenload.kafka_plugin.balancing.balance import BalanceOutcome, BalanceProgress

_SHOWN_MAX = 20
_TAKEN_BACK = (
    "What was under way is taken back, and throttles are off; what was complete stays. "
    "The same command goes on from there."
)
_LEFT_HALF = (
    "It was taking back what was running: replicas may still be moving, and throttles may still be on. "
    "`evenload balance --cancel` takes both back; the same command goes on from there."
)
_THROTTLE_BYTES_PER_S = BalanceConfig().throttle_bytes_per_s


@click.command()
@click.option("--execute", is_flag=True, help="Move replicas; without it, only show what would be moved.")
@click.option(
    "--throttle",
    type=SizeType(),
    metavar="BYTES/s",
    default=_THROTTLE_BYTES_PER_S,
    help="Most that a broker sends, and most that it takes, for moves.  "
    f"[default: {bytes_text(_THROTTLE_BYTES_PER_S)}/s]",
)
@click.option("--max-bytes", type=SizeType(), metavar="BYTES", help="Move no more than this.")
@click.option(
    "--drain", "drained", type=int, multiple=True, metavar="BROKER", help="Empty this broker first."
)
@click.option("--cancel", is_flag=True, help="Take back what is being moved, and take throttles off.")
@click.option(
    "--forget",
    is_flag=True,
    help="Clear a record that can't be understood, and list the throttles that are set.",
)
@cluster_options
def balance(
    *,
    execute: bool,
    throttle: int,
    max_bytes: int | None,
    drained: tuple[int, ...],
    cancel: bool,
    forget: bool,
    connection: Connection,
    output: Output,
) -> None:
    """Level what brokers hold, by moving as few bytes as it takes.

    Shows the moves, and moves nothing, unless --execute is given. Up to five moves of a broker are under way
    at the same time, throttled. Ctrl-C takes these back; whatever dies, the next `evenload balance --execute`
    goes on from there, and throttles that were left are taken off.
    """
    from evenload.kafka_plugin.balancing.balance import cancel_balance, preview_balance

    is_limited = bool(drained) or max_bytes is not None
    _check_usage(execute=execute, cancel=cancel, forget=forget, is_limited=is_limited)
    config = _config(throttle)
    if forget:
        _forget(connection, output, config)
        return
    if cancel:
        cancelled = cancel_balance(connection, config=config)
        output.document({"cancelled": [{"topic": at.topic, "partition": at.partition} for at in cancelled]})
        output.line(f"cancelled the moves of {len(cancelled)} partitions; throttles are off")
        return
    if execute:
        outcome = _execute(connection, output, max_bytes=max_bytes, drained=drained, config=config)
    else:
        outcome = preview_balance(connection, max_bytes=max_bytes, drained=drained, config=config)
    document = balance_document(outcome)
    output.document(document)
    _show(document, outcome, output)


def _check_usage(*, execute: bool, cancel: bool, forget: bool, is_limited: bool) -> None:
    if cancel and execute:
        raise click.UsageError("--cancel and --execute exclude each other")
    if cancel and is_limited:
        raise click.UsageError(
            "--cancel takes back all that is being moved; it takes no --drain or --max-bytes"
        )
    if forget and (cancel or execute or is_limited):
        raise click.UsageError("--forget goes with no --execute, --cancel, --drain or --max-bytes")


def _forget(connection: Connection, output: Output, config: BalanceConfig) -> None:
    from evenload.kafka_plugin.balancing.balance import forget_balance

    found = forget_balance(connection, config=config)
    output.document(
        {
            "forgotten": found.record,
            "throttles": [asdict(each) for each in found.throttles],
            "moving": [{"topic": at.topic, "partition": at.partition} for at in found.moving],
            "not_looked_at": {
                "brokers": [each for each in found.untold if isinstance(each, int)],
                "topics": [each for each in found.untold if isinstance(each, str)],
            },
        }
    )
    if found.record is None:
        output.line("there was no record of a balance, so nothing is forgotten")
    else:
        output.line(f"forgotten: a record that can't be understood ({found.record})")
    if found.moving:
        output.line(f"{len(found.moving)} partitions are being moved, by whomever; they are left alone")
    for sentence in _not_looked_at(found.untold):
        output.line(sentence)
    if not found.throttles:
        output.line("no throttle is set on any broker or topic that could be looked at")
        return
    output.table(
        ["set on", "setting", "value"],
        [
            [f"broker {each.of}" if isinstance(each.of, int) else f"topic {each.of}", each.name, each.value]
            for each in found.throttles
        ],
    )
    output.line(
        "nobody can tell who has set these. Those of no move that is still going on are taken off with "
        "Kafka's own tool: kafka-configs.sh --alter --entity-type brokers (or topics) --entity-name NAME "
        "--delete-config SETTING"
    )


def _not_looked_at(untold: Sequence[int | str]) -> Iterator[str]:
    brokers = [str(each) for each in untold if isinstance(each, int)]
    topics = [each for each in untold if isinstance(each, str)]
    if brokers:
        yield f"not looked at, as they don't answer: {len(brokers)} brokers ({', '.join(brokers)})"
    if topics:
        more = f" and {len(topics) - _SHOWN_MAX} more" if len(topics) > _SHOWN_MAX else ""
        yield (
            f"not looked at, which takes DESCRIBE_CONFIGS on them: {len(topics)} topics "
            f"({', '.join(topics[:_SHOWN_MAX])}{more})"
        )


def _config(throttle: int) -> BalanceConfig:
    try:
        return BalanceConfig(throttle_bytes_per_s=throttle)
    except ValueError as error:
        raise click.UsageError(f"--throttle is {throttle} bytes/s: it has to be at least 1KiB/s") from error


def _execute(connection: Connection, output: Output, **options: Any) -> BalanceOutcome:
    from evenload.kafka_plugin.balancing.balance import execute_balance

    with output.progress("moving replicas", "bytes") as bar:
        task = bar.add_task("moves", total=None, detail="")
        said: set[str] = set()

        def show_progress(at: BalanceProgress) -> None:
            detail = at.note or f"{bytes_text(at.moved_bytes)} of {bytes_text(at.planned_bytes)}"
            bar.update(task, completed=at.moved_bytes, total=at.planned_bytes or None, detail=detail)
            # Where there is no bar to see it in, it is said once, not again for each second more.
            kind = (at.note or "").partition(" for ")[0]
            if at.note and kind not in said:
                said.add(kind)
                output.note(at.note)

        try:
            return execute_balance(connection, progress=show_progress, **options)
        except KeyboardInterrupt as stop:
            raise StoppedError(_LEFT_HALF if _was_taking_back(stop) else _TAKEN_BACK) from stop


def _was_taking_back(stop: BaseException) -> bool:
    """Whether it was stopped while it took back what an error or an earlier Ctrl-C had ended."""
    before = stop.__context__
    while before is not None and not isinstance(before, KeyboardInterrupt | BalanceError):
        before = before.__context__
    return before is not None


def balance_document(outcome: BalanceOutcome) -> dict[str, Any]:
    """The outcome as the command line's JSON shows it."""
    plan = outcome.plan
    reached = _utilisation(outcome.after) if outcome.after is not None else {}
    return {
        "executed": outcome.after is not None,
        "moves": [
            {
                "topic": move.topic_partition.topic,
                "partition": move.topic_partition.partition,
                "size_bytes": move.size_bytes,
                "replicas_before": list(move.replica_ids_before),
                "replicas_after": list(move.replica_ids),
            }
            for move in plan.moves
        ],
        "planned_bytes": plan.moved_bytes,
        "least_bytes": plan.least_bytes,
        "moved_bytes": outcome.moved_bytes,
        "spread_before": plan.spread_before,
        "predicted_spread": plan.spread_after,
        "reached_spread": None if outcome.after is None else outcome.after.utilisation_spread,
        "brokers": [
            {
                "broker_id": broker_id,
                "utilisation_before": before,
                "utilisation_predicted": plan.after[broker_id],
                "utilisation_reached": reached.get(broker_id),
            }
            for broker_id, before in sorted(plan.before.items())
        ],
        "notes": list(outcome.notes),
    }


def _utilisation(snapshot: ClusterSnapshot) -> dict[int, float | None]:
    return {broker_id: broker.utilisation for broker_id, broker in snapshot.brokers.items()}


def _show(document: dict[str, Any], outcome: BalanceOutcome, output: Output) -> None:
    plan = outcome.plan
    if plan.moves:
        output.table(
            ["partition", "size", "from", "to"],
            [
                [
                    f"{move['topic']}-{move['partition']}",
                    bytes_text(move["size_bytes"]),
                    " ".join(map(str, move["replicas_before"])),
                    " ".join(map(str, move["replicas_after"])),
                ]
                for move in document["moves"][:_SHOWN_MAX]
            ],
        )
        if (more := len(plan.moves) - _SHOWN_MAX) > 0:
            output.line(f"and {more} more (--json lists all)")
        output.line()
    columns = ["broker", "before", "after"] + (["reached"] if document["executed"] else [])
    output.table(columns, [_broker_row(broker, document["executed"]) for broker in document["brokers"]])
    output.line(
        f"spread  {100 * plan.spread_before:.1f} points now, {100 * plan.spread_after:.1f} after "
        f"{bytes_text(plan.moved_bytes)} in {len(plan.moves)} moves; "
        f"no moves at all could do it with less than {bytes_text(plan.least_bytes)}"
    )
    if outcome.after is not None:
        output.line(
            f"reached {100 * outcome.after.utilisation_spread:.1f} points, "
            f"{bytes_text(outcome.moved_bytes)} moved"
        )
    elif plan.moves:
        output.line("nothing was moved; --execute moves it")
    for note in outcome.notes:
        output.line(f"note: {note}")


def _broker_row(broker: dict[str, Any], executed: bool) -> list[str]:
    cells = [
        str(broker["broker_id"]),
        percent_text(broker["utilisation_before"]),
        percent_text(broker["utilisation_predicted"]),
    ]
    return [*cells, percent_text(broker["utilisation_reached"])] if executed else cells
