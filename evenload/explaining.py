"""What the live page says of each broker's willingness: the router's opinion, with an operator's weights.

The collector measures and the router decides; this is where the two meet for somebody who looks on.
"""

from __future__ import annotations

from evenload.route_service.patience_in_thread import PatienceInThread
from evenload.route_service.weights_in_force import WeightsInForce
from evenload.router.router import Router
from evenload.telemetry_collector.service.page.overview import Explanation
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.weights import Weights

__all__ = ["Explainer"]


class Explainer:
    """Asks a router of its own, by default as producers are configured. For one thread at a time."""

    def __init__(self) -> None:
        self._router = Router(patience=PatienceInThread)
        self._weights = WeightsInForce(self._router, self._router.config)

    def __call__(self, snapshot: ClusterSnapshot, weights: Weights) -> Explanation:
        """How willing one is to send to each broker, and each function's part."""
        self._weights.follow(weights)
        told = self._router.explain(snapshot)
        return Explanation(willingness=told.by_broker, scores=told.scores, put_aside=told.put_aside)
