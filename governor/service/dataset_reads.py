"""What runs read from each broker, asked now and then: datasets' manifests, and who leads which partition.

A run of a dataset that its workers hold whole reads it once, and counts as reading nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.governor.errors import GovernorError
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.loop import Governing
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.errors import KafkaConnectionError
from evenload.ray_trainer.planning.rule import choose_rule

AGAIN_S: Final = 60.0  # leaders move
NEW_JOBS_S: Final = 5.0
AWAITED_S: Final = 30.0  # at a governor's start, by its first decision
_FIRST_S: Final = 0.1
_TIMEOUT_S: Final = 10.0

_log = logging.getLogger(__name__)


class ReadBudgets(NamedTuple):
    """Bytes/s that brokers can give to runs."""

    every: float | None  # of each that has none of its own; None: as much as is asked for
    by_broker: Mapping[int, float]

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return self.every is not None or bool(self.by_broker)

    def of(self, brokers: set[int]) -> dict[int, float]:
        """By broker, of those that have one."""
        own = {broker: self.by_broker.get(broker, self.every) for broker in brokers | {*self.by_broker}}
        return {broker: budget for broker, budget in own.items() if budget is not None}


def reads_of(
    manifest: DatasetManifest, leaders: Mapping[int, int], config: Mapping[str, Any]
) -> dict[int, float]:
    """Bytes of a sample that a run reads from each broker, in the mean.

    Args:
        manifest: Of its dataset.
        leaders: By partition.
        config: As the run was submitted.
    """
    rule = choose_rule(
        manifest, max_workers=int(config.get("max_workers") or 1), whole=config.get("hold_whole")
    )
    if rule.whole or not manifest.num_samples:
        return {}
    found: dict[int, float] = {}
    bytes_per_sample = manifest.num_bytes / manifest.num_samples
    for each in manifest.partitions:
        leader = leaders.get(each.partition, -1)
        if leader >= 0:
            share = each.num_samples / manifest.num_samples
            found[leader] = found.get(leader, 0.0) + share * bytes_per_sample
    return found


NO_BUDGETS: Final = ReadBudgets(None, {})


class DatasetReads:
    """Keeps a governor informed, on a thread of its own, until it is closed.

    Args:
        connection: The cluster whose datasets runs read.
        governing: Who is to know.
        budgets: Of its brokers.
    """

    def __init__(self, connection: Connection, governing: Governing, budgets: ReadBudgets) -> None:
        self._connection, self._governing, self._budgets = connection, governing, budgets
        self._manifests: dict[str, DatasetManifest] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._looked_s = -AGAIN_S
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dataset-reads", daemon=True)

    def start(self) -> None:
        """Asks from now on."""
        self._thread.start()

    def close(self) -> None:
        """Asks no more."""
        self._is_closing.set()

    def _run(self) -> None:
        wait_s = _FIRST_S
        while not self._is_closing.wait(wait_s):
            wait_s = NEW_JOBS_S
            try:
                self.look()
            except (KafkaConnectionError, GovernorError, TimeoutError) as error:
                # What was known before still holds, more or less.
                _log.warning("what runs read from brokers isn't known anew: %s", error)
            except Exception:  # noqa: BLE001 - nobody waits for this thread, and sizes don't hang on it
                _log.exception("what runs read from brokers can't be told")

    def look(self) -> None:
        """Asks for what is new, and for all leaders where that is long ago; tells the governor.

        Raises:
            KafkaConnectionError: The cluster can't be asked.
            GovernorError, TimeoutError: The governor has no time.
        """
        configs = self._governing.ask(_configs)
        wanted = {config["dataset"] for config in configs.values()}
        is_due = time.monotonic() - self._looked_s >= AGAIN_S
        if is_due or not wanted <= self._leaders.keys():
            self._ask_cluster(wanted, is_due=is_due)
        reads = {
            job_id: reads_of(self._manifests[dataset], self._leaders[dataset], config)
            for job_id, config in configs.items()
            if (dataset := config["dataset"]) in self._leaders and dataset in self._manifests
        }
        budgets = self._budgets.of({broker for each in reads.values() for broker in each})
        self._governing.tell_reads(reads, budgets)

    def _ask_cluster(self, wanted: set[str], *, is_due: bool) -> None:
        self._manifests = {name: each for name, each in self._manifests.items() if name in wanted}
        self._leaders = {name: each for name, each in self._leaders.items() if name in wanted}
        catalog = Catalog(self._connection)
        with TopicAdmin(self._connection, timeout_s=_TIMEOUT_S) as admin:
            for dataset in sorted(wanted if is_due else wanted - self._leaders.keys()):
                try:
                    if dataset not in self._manifests:
                        self._manifests[dataset] = catalog.get(dataset)
                    found = admin.describe(self._manifests[dataset].topic)
                except (CatalogError, ValueError) as error:  # it was dropped, say, or may not be seen
                    _log.warning("from which brokers runs read %s isn't known: %s", dataset, error)
                    self._leaders.setdefault(dataset, {})  # it is asked for again when all are
                else:
                    self._leaders[dataset] = dict(found.leaders) if found else {}
        if is_due:
            self._looked_s = time.monotonic()


def _configs(governor: Governor, _: float) -> dict[str, Mapping[str, Any]]:
    """What each run that hasn't ended was submitted with."""
    return {
        job_id: config
        for job_id, job in governor.jobs.items()
        if isinstance(config := job.wish.entry.get("config"), dict) and isinstance(config.get("dataset"), str)
    }
