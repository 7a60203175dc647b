"""Tells whoever queued a run how far it is, on a thread of its own; where nobody listens, nothing happens.

Only the newest report counts, so one that can't be sent is dropped: the next says more.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import requests

from evenload.kafka_connection.environment import governor_ca_path
from evenload.ray_trainer.training.events import AttemptStarted, Event, StepDone, WorkerIdentity

__all__ = ["Reporter", "reporter_of"]

_ANSWER_S: Final = 5.0

logger = logging.getLogger(__name__)


class Reporter:
    """Posts `StepDone` events. For one thread; ends with the process.

    Args:
        url: Where to.
        token: A bearer token; None: it asks for none.
        facts: What each report says beside: which job and stint it is of.
    """

    def __init__(self, url: str, token: str | None, facts: Mapping[str, Any]) -> None:
        self._url, self._facts = url, dict(facts)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._latest: StepDone | None = None
        self._gpus: list[dict[str, Any]] = []
        self._is_new = threading.Event()
        threading.Thread(target=self._send, name="reporter", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Send it on when its turn comes, unless a newer one has come by then."""
        if isinstance(event, AttemptStarted):
            self._gpus = _gpus_by_node(event.workers)
        if isinstance(event, StepDone):
            self._latest = event
            self._is_new.set()

    def _send(self) -> None:
        with requests.Session() as session:
            # Proxies and passwords (.netrc) that the environment names are for strangers' addresses.
            session.trust_env = False
            session.verify = governor_ca_path() or True
            while True:
                self._is_new.wait()
                self._is_new.clear()
                step = self._latest
                assert step is not None
                body = {
                    **self._facts,
                    "epoch": step.epoch,
                    "samples_consumed": step.samples_consumed,
                    "num_samples": step.num_samples,
                    **({"gpus": self._gpus} if self._gpus else {}),
                }
                try:
                    answer = session.post(
                        self._url,
                        json=body,
                        headers=self._headers,
                        timeout=_ANSWER_S,
                        allow_redirects=False,
                    )
                    answer.raise_for_status()
                except OSError as error:  # requests' errors are; so is a file of authorities that isn't there
                    logger.warning("a report of progress wasn't taken: %s", error)


def _gpus_by_node(workers: Sequence[WorkerIdentity]) -> list[dict[str, Any]]:
    """Which GPUs they may use; machines without any are left out."""
    found: dict[tuple[str, str], set[str]] = {}
    for worker in workers:
        if worker.gpus:
            found.setdefault((worker.host, worker.address), set()).update(worker.gpus)
    return [{"host": host, "address": address, "ids": sorted(ids)} for (host, address), ids in found.items()]


def reporter_of(variable: str | None) -> Reporter | None:
    """The one that a variable describes, as JSON with `url`, `token` and facts; None: nobody asks."""
    if not variable:
        return None
    facts = json.loads(variable)
    return Reporter(facts.pop("url"), facts.pop("token", None), facts)
