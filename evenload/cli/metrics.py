"""`evenload metrics`: what Kafka's own clients are asked to push about themselves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from evenload.cli.edge import cluster_options
from evenload.cli.output import Output
from evenload.kafka_connection.connection import Connection

if TYPE_CHECKING:
    from evenload.telemetry_collector.subscription import Subscription


@click.group()
def metrics() -> None:
    """What Kafka's clients push about themselves, by way of brokers, to a collector service.

    From Kafka 3.7 on, brokers ask clients for metrics and hand them to a plugin (KIP-714); evenload's hands
    them on to a collector service, which makes figures about brokers of them: how long each takes over
    producers' requests, as they feel it. It takes the plugin in every broker (docs/telemetry.md), then
    `evenload metrics subscribe`, then a restart of the Java clients that met a broker without plugin.
    """


@metrics.command()
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(1, 600),
    default=10.0,
    show_default=True,
    help="Seconds from one push of a client to its next.",
)
@click.option(
    "--by-topic",
    is_flag=True,
    help="Ask for what each producer writes by topic, too, so that the page can tell which don't follow "
    "shares. Not where a producer writes some thousands of topics: brokers take pushes of 1 MiB "
    "(telemetry.max.bytes), and a client whose push is larger doesn't push again until it is restarted.",
)
@cluster_options
def subscribe(*, interval_s: float, by_topic: bool, connection: Connection, output: Output) -> None:
    """Ask Java's clients to push what is used, and librdkafka's to push the few figures that they have.

    Clients of Java and of librdkafka are asked, new ones at once, others within five minutes.
    Subscriptions of others stay as they are.
    """
    from evenload.telemetry_collector.subscription import subscribe

    ours = subscribe(connection, interval_s=interval_s, by_topic=by_topic)
    output.document({"subscriptions": [asdict(each) for each in ours]})
    for each in ours:
        _show(each, output)


@metrics.command()
@cluster_options
def show(*, connection: Connection, output: Output) -> None:
    """Show what clients are asked for, by evenload and by others."""
    from evenload.telemetry_collector.subscription import subscriptions

    found = subscriptions(connection)
    output.document({"subscriptions": [asdict(each) for each in found]})
    if not found:
        output.line("nobody asks clients for metrics; `evenload metrics subscribe` does")
        return
    for each in found:
        _show(each, output)
        if each.may_silence:
            output.note(
                f"'{each.name}' asks for metrics of which a client has one for each topic: one whose push "
                "is larger than a broker takes (telemetry.max.bytes) doesn't push again until it is restarted"
            )


def _show(subscription: Subscription, output: Output) -> None:
    clients = f"clients with {' and '.join(subscription.match)}" if subscription.match else "all clients"
    output.line(
        f"'{subscription.name}' asks {clients}, every {subscription.interval_s:g} s, for what begins with"
    )
    for prefix in subscription.metrics:
        output.line(f"  {prefix}")


@metrics.command()
@cluster_options
def unsubscribe(*, connection: Connection, output: Output) -> None:
    """Ask clients for nothing any more; what others ask for stays."""
    from evenload.telemetry_collector.subscription import unsubscribe

    was_subscribed = unsubscribe(connection)
    output.document({"unsubscribed": was_subscribed})
    output.line("clients are asked no more" if was_subscribed else "clients weren't asked")
