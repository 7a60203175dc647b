"""The weights that an operator sets while producers run, put in force in one router.

What the weights leave away is as the router was configured; what the router refuses keeps what was in force,
and is said once.
"""

from __future__ import annotations

import logging

from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.weights import Weights

_log = logging.getLogger(__name__)


class WeightsInForce:
    """Keeps a router's weights as an operator wants them. For one thread.

    Args:
        router: What decides.
        config: What it was configured with.
    """

    def __init__(self, router: Router, config: RouterConfig) -> None:
        self._router = router
        self._config = config
        self._latest: Weights | None = None

    def follow(self, weights: Weights | None) -> None:
        """Put weights in force, if they are others than before; None: those of the configuration."""
        if weights == self._latest:
            return
        self._latest = weights
        wanted = weights or Weights()
        complaints = self._router.reload(
            goals=self._config.goals if wanted.goals is None else wanted.goals,
            score_functions=(
                self._config.score_functions if wanted.score_functions is None else wanted.score_functions
            ),
            brokers=wanted.brokers,
        )
        for complaint in complaints:
            _log.warning("weights are kept as they were: %s", complaint)
