"""The routes that a connection asks for: a service's, or those that are decided in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evenload.extras import naming_extra
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.routing.followed_routes import FollowedRoutes
from evenload.kafka_plugin.routing.routes import Routes
from evenload.kafka_plugin.routing.topic_route import PartitionCounter
from evenload.router.config import RouterConfig

if TYPE_CHECKING:
    from evenload.telemetry_collector.opening import AnyCollector
    from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource


def open_routes(
    connection: Connection,
    config: ProducerConfig,
    *,
    router_config: RouterConfig | None,
    collector: AnyCollector | None,
    statistics: ClientStatisticsSource | None = None,
    queued_s: float = 0.0,
    count_partitions: PartitionCounter,
    ask_cluster_id: Callable[[], str | None],
) -> Routes:
    """Routes for one producer, which whoever opens them closes.

    Args:
        connection: The cluster, and the services that decide for it, if there are some.
        config: How partitions are chosen.
        router_config: What to level by; only where it is decided here.
        collector: One that runs already, to decide by here; None: a service decides, or one of our own.
        statistics: What our client experiences; for a collector of our own.
        queued_s: As `OwnBytes` takes it.
        count_partitions: As `TopicRoute` takes it.
        ask_cluster_id: As `FollowedRoutes` takes it.

    Raises:
        PluginConfigError: `router_config` is given, and a service decides.
        ModuleNotFoundError: It has to be decided here, and the extra `measure` isn't installed.
    """
    if connection.collector_url is not None and collector is None:
        if router_config is not None:
            raise PluginConfigError(
                "router_config would be ignored: the collector service at "
                f"{connection.collector_url} decides for all producers, by the weights that are set there. "
                "Leave it out, or pass collector= to decide in this process."
            )
        return FollowedRoutes(
            connection,
            config,
            queued_s=queued_s,
            count_partitions=count_partitions,
            ask_cluster_id=ask_cluster_id,
        )
    with naming_extra("measure", "Deciding without a collector service (collector_url)"):
        from evenload.kafka_plugin.routing.decided_routes import DecidedRoutes
    return DecidedRoutes(
        connection,
        config,
        router_config or RouterConfig(),
        collector,
        statistics=statistics,
        queued_s=queued_s,
        count_partitions=count_partitions,
    )
