"""A real Kafka cluster on this machine, from pip-installed parts: one controller, N brokers.

Each server is a process with a folder of its own below `HOME/cluster`. The folder is the truth:
what runs is found through its pid files, what the cluster is through cluster.json, so any number
of LocalCluster objects, in any process, can stand for the same cluster.

Invariants (tests/integration/test_local_cluster.py, tests/fault/test_cluster_faults.py):
1. `start` on a running cluster changes nothing; after any crash it brings the same data back.
2. `stop` leaves no process; a process that isn't ours is never signalled.
3. A start that fails leaves no process that it started.

Read next: process.py (one server), properties.py (what it is told).
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evenload.kafka_connection import Connection
from evenload.kafka_connection.environment import CLUSTER_FOLDER
from evenload.local_cluster.errors import (
    BrokerDiedError,
    LocalClusterError,
    NoLocalClusterError,
    UnknownBrokerError,
    WrongBrokerCountError,
    WrongKafkaVersionError,
)
from evenload.local_cluster.jars import KAFKA_VERSION, is_usable
from evenload.local_cluster.java import JavaRuntime
from evenload.local_cluster.probe import wait_until_serving
from evenload.local_cluster.process import JavaServer, RunningProcess, end_servers
from evenload.local_cluster.properties import CONTROLLER_ID
from evenload.local_cluster.settings import ClusterSettings, release_ports
from evenload.local_cluster.start import java_runtime, start_servers

DEFAULT_NUM_BROKERS = 3
DEFAULT_CAPACITY_BYTES = 2 << 30
READY_TIMEOUT_S = 60.0
_TEMPORARY_PREFIX = "evenload-cluster-"
_OWNER_FILE = "owner.lock"
_ABANDONED_AGE_S = 10.0
_GRACE_S = 10.0  # for a server to end by itself


class LocalCluster:
    """An embedded cluster; a context manager that starts it and stops it.

    Its processes outlive this object and the interpreter, until `stop` (temporary_cluster's don't).
    Methods may be called from any thread; start, stop and restart_broker exclude each other.

    Args:
        home: the folder to live in (data is below `home/cluster`), made if it isn't there.
        num_brokers: how many, with ids 1 to N; None: as many as the cluster in `home` has, 3 for a new one.
        capacity_bytes: what each broker may hold, by broker in order of ids, above 0; None: as they were,
            2 GiB each for a new cluster. Known to whoever uses `connection`; Kafka doesn't enforce it.
        kafka_version: which Apache Kafka, "3.3.0" or later; None: that of the cluster in `home`, 4.3.1 for a
            new one.
        broker_properties: more lines of server.properties, for the brokers and the controller; kept.
        properties_by_broker: lines for one broker, by its id (`broker.rack`, `log.dirs`); kept. In both,
            `listeners` and what says how they are reached and secured come to the cluster's own.
        extra_jars: jars with plugins that these name, for all servers; kept.
        progress: is told in a sentence about work that takes seconds.
    """

    def __init__(
        self,
        home: Path,
        *,
        num_brokers: int | None = None,
        capacity_bytes: Sequence[int] | None = None,
        kafka_version: str | None = None,
        broker_properties: Mapping[str, str] | None = None,
        properties_by_broker: Mapping[int, Mapping[str, str]] | None = None,
        extra_jars: Sequence[Path] | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        if num_brokers is not None and not 1 <= num_brokers < CONTROLLER_ID:
            raise ValueError(f"num_brokers is {num_brokers}, must be from 1 to {CONTROLLER_ID - 1}")
        if capacity_bytes is not None:
            num_brokers = num_brokers or max(1, len(capacity_bytes))
            if len(capacity_bytes) != num_brokers or any(c <= 0 for c in capacity_bytes):
                raise ValueError(
                    f"capacity_bytes {list(capacity_bytes)}: {num_brokers} numbers above 0 expected"
                )
        if kafka_version is not None and not is_usable(kafka_version):
            raise ValueError(
                f"kafka_version is {kafka_version!r}, must be like {KAFKA_VERSION}, from 3.3.0 on"
            )
        # One cluster, one spelling: a server is known by the path in its command line.
        self.home = home.resolve()
        self.folder = self.home / CLUSTER_FOLDER
        self._num_brokers_asked = num_brokers
        self._capacity_bytes = capacity_bytes
        self._kafka_version_asked = kafka_version
        self._broker_properties = broker_properties
        self._properties_by_broker = properties_by_broker
        self._extra_jars = extra_jars
        self._progress = progress
        self._is_temporary = False
        self._kept_settings: ClusterSettings | None = None

    @classmethod
    def load(cls, home: Path) -> LocalCluster:
        """The cluster that was started in `home` before, running or not.

        Raises:
            NoLocalClusterError: none ever was.
        """
        cluster = cls(home)
        cluster._settings()
        return cluster

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """How to reach it, capacities included; the same for ever once it was started."""
        settings = self._settings()
        return Connection(
            bootstrap_servers=settings.bootstrap_servers,
            capacity_bytes_by_broker=settings.capacity_bytes_by_broker,
        )

    @property
    def kafka_version(self) -> str:
        """Which Apache Kafka it is."""
        return self._settings().kafka_version

    @property
    def broker_properties(self) -> Mapping[str, str]:
        """The lines of server.properties that were given on top for all servers."""
        return self._settings().broker_properties

    @property
    def bootstrap_servers(self) -> str:
        """All brokers' addresses, as host:port,host:port."""
        return self._settings().bootstrap_servers

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """1 to N."""
        return tuple(self._settings().port_by_broker)

    @property
    def pids(self) -> dict[str, int]:
        """What runs now: pid by server name (`controller`, `broker-1`, ...); empty when stopped."""
        settings = ClusterSettings.read(self.folder)
        if settings is None:
            return {}
        processes = {server.name: server.process for server in self._servers(settings)}
        return {name: process.pid for name, process in processes.items() if process is not None}

    @property
    def is_running(self) -> bool:
        """Whether every server of the cluster runs."""
        settings = ClusterSettings.read(self.folder)
        return settings is not None and len(self.pids) == 1 + len(settings.port_by_broker)

    def broker_pid(self, broker_id: int) -> int:
        """The pid of a running broker."""
        return self._running_broker(broker_id).pid

    def log_path(self, broker_id: int) -> Path:
        """The file with a broker's own log."""
        return self._broker(broker_id).log_path

    def data_path(self, broker_id: int) -> Path:
        """The log dir of a broker that has one: a folder for each topic-partition it holds."""
        return Path(self.told(broker_id)["log.dirs"])

    def told(self, broker_id: int) -> dict[str, str]:
        """The server.properties of a broker: what Kafka is told, and what was given on top."""
        broker = self._broker(broker_id)
        return self._settings().properties_of(broker.name, broker.folder)

    # -- all of it ----------------------------------------------------------------------------------

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start what doesn't run, and wait until every broker serves.

        Args:
            timeout_s: how long servers may take, in seconds; fetching Kafka the first time isn't counted.

        Raises:
            WrongBrokerCountError, WrongKafkaVersionError: the cluster in `home` is another one.
            PortInUseError, BrokerDiedError, BrokerTimeoutError: a server can't start; nothing is left running
                that was not before.
            JarsUnavailableError, LocalPartsMissingError: there is no Kafka to start.
        """
        with self._lock():
            settings = self._make_or_update_settings()
            self._bring_up(self._servers(settings), settings, timeout_s)
        return self

    def stop(self) -> bool:
        """End all servers properly, those that don't within 10 s with SIGKILL; data stays.

        Returns:
            Whether any ran.
        """
        return self._end_all(grace_s=_GRACE_S)

    def kill(self) -> None:
        """End all servers with SIGKILL, as a loss of power would; data stays."""
        self._end_all(grace_s=0)

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every broker serves and knows all others.

        Raises:
            BrokerDiedError, BrokerTimeoutError: one doesn't.
        """
        settings = self._settings()
        self._wait_until_serving(self._servers(settings), settings, timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- one broker ---------------------------------------------------------------------------------

    def kill_broker(self, broker_id: int) -> None:
        """End a broker with SIGKILL, as a crash would, and wait until it is gone."""
        end_servers([self._broker(broker_id)], grace_s=0)

    def pause_broker(self, broker_id: int) -> None:
        """Stop a broker in its tracks (SIGSTOP): connections stay open, nothing answers.

        Raises:
            TimeoutError: it still runs after ten seconds.
        """
        self._running_broker(broker_id).pause()

    def resume_broker(self, broker_id: int) -> None:
        """Let a paused broker go on."""
        self._running_broker(broker_id).signal(signal.SIGCONT)

    def restart_broker(self, broker_id: int) -> None:
        """Start a dead broker, or end a running one properly and start it; wait until it serves.

        Raises:
            PortInUseError, BrokerDiedError, BrokerTimeoutError: it can't start.
        """
        broker = self._broker(broker_id)
        settings = self._settings()
        controller = self._server("controller")
        with self._lock():
            end_servers([broker], grace_s=_GRACE_S)
            start_servers([broker], settings, self._runtime(settings))
            self._wait_until_serving([controller, broker], settings, READY_TIMEOUT_S)

    # -- how ----------------------------------------------------------------------------------------

    def _settings(self) -> ClusterSettings:
        settings = self._kept_settings or ClusterSettings.read(self.folder)
        if settings is None:
            raise NoLocalClusterError(self.folder)
        return settings

    def _make_or_update_settings(self) -> ClusterSettings:
        kept = ClusterSettings.read(self.folder)
        asked = self._num_brokers_asked
        if kept is not None and asked is not None and asked != len(kept.port_by_broker):
            raise WrongBrokerCountError(self.folder, len(kept.port_by_broker), asked)
        version = self._kafka_version_asked
        if kept is not None and version is not None and version != kept.kafka_version:
            raise WrongKafkaVersionError(self.folder, kept.kafka_version, version)
        settings = kept or ClusterSettings.make(
            dict.fromkeys(range(1, 1 + (asked or DEFAULT_NUM_BROKERS)), DEFAULT_CAPACITY_BYTES),
            kafka_version=version or KAFKA_VERSION,
        )
        changes: dict[str, Any] = {}
        if self._capacity_bytes is not None:
            changes["capacity_bytes_by_broker"] = dict(enumerate(self._capacity_bytes, start=1))
        if self._broker_properties is not None:
            changes["broker_properties"] = dict(self._broker_properties)
        if self._properties_by_broker is not None:
            changes["properties_by_broker"] = {b: dict(p) for b, p in self._properties_by_broker.items()}
        if self._extra_jars is not None:
            changes["extra_jars"] = tuple(jar.resolve() for jar in self._extra_jars)
        settings = settings.model_copy(update=changes)
        if settings != kept:
            settings.write(self.folder)
        self._kept_settings = settings
        return settings

    def _servers(self, settings: ClusterSettings) -> list[JavaServer]:
        return [self._server(name) for name in settings.server_names]

    def _server(self, name: str) -> JavaServer:
        return JavaServer(name, self.folder / name, dies_with_parent=self._is_temporary)

    def _broker(self, broker_id: int) -> JavaServer:
        if broker_id not in self._settings().port_by_broker:
            raise UnknownBrokerError(broker_id, f"the cluster has brokers {list(self.broker_ids)}")
        return self._server(f"broker-{broker_id}")

    def _runtime(self, settings: ClusterSettings) -> JavaRuntime:
        runtime = java_runtime(self._progress, kafka_version=settings.kafka_version)
        for jar in settings.extra_jars:
            if not jar.is_file():  # or brokers would die for want of a class
                raise LocalClusterError(
                    f"{jar}, which the cluster's servers load, isn't there any more; "
                    "`evenload up` brings it back"
                )
        # At the end, as an archive of classes holds for whatever begins with its class path.
        return replace(runtime, classpath=(*runtime.classpath, *settings.extra_jars))

    def _bring_up(self, servers: Sequence[JavaServer], settings: ClusterSettings, timeout_s: float) -> None:
        started: list[JavaServer] = []
        try:
            while True:
                missing = [server for server in servers if server not in started and server.process is None]
                if missing:
                    started += missing
                    start_servers(missing, settings, self._runtime(settings))
                try:
                    self._wait_until_serving(servers, settings, timeout_s)
                    return
                except BrokerDiedError as error:
                    # One that ran when we looked may have been dying already, of a SIGKILL that a busy
                    # machine had not got round to (`kill -9 ...; evenload up`): it is started as well.
                    if any(server.name == error.server for server in started):
                        raise
        except BaseException:
            end_servers(started, grace_s=0)
            raise

    def _wait_until_serving(
        self, servers: Sequence[JavaServer], settings: ClusterSettings, timeout_s: float
    ) -> None:
        controller, *brokers = servers
        wait_until_serving(
            {broker: settings.port_of(broker.name) for broker in brokers},
            settings.cluster_id,
            controller=controller,
            min_num_known=len(brokers),
            timeout_s=timeout_s,
        )

    def _end_all(self, *, grace_s: float) -> bool:
        settings = ClusterSettings.read(self.folder)
        if settings is None:
            return False
        with self._lock():
            controller, *brokers = self._servers(settings)
            # Brokers first: they say goodbye to the controller.
            num_ended = end_servers(brokers, grace_s=grace_s) + end_servers([controller], grace_s=grace_s)
        return num_ended > 0

    def _running_broker(self, broker_id: int) -> RunningProcess:
        process = self._broker(broker_id).process
        if process is None:
            raise UnknownBrokerError(broker_id, "does not run")
        return process

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One start or stop at a time, over all processes that have this cluster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def temporary_cluster(**kwargs: Any) -> Iterator[LocalCluster]:
    """A started cluster in a folder of its own; nothing of it is left afterwards.

    Its servers end with this process, even when that is killed (on Linux); the folder of a killed one
    is removed by the next temporary cluster.

    Args:
        kwargs: as LocalCluster takes them, but `home`.
    """
    _remove_abandoned_folders()
    home = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX))
    cluster = LocalCluster(home, **kwargs)
    cluster._is_temporary = True
    with (home / _OWNER_FILE).open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)  # let go of by the kernel, however this process ends
        try:
            yield cluster.start()
        finally:
            cluster.kill()
            if settings := ClusterSettings.read(cluster.folder):
                release_ports([settings.controller_port, *settings.port_by_broker.values()])
            shutil.rmtree(home, ignore_errors=True)


def _remove_abandoned_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY_PREFIX}*"):
        with suppress(OSError), (folder / _OWNER_FILE).open("r+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A file that is this young may belong to a process that is just about to lock it.
            if time.time() - (folder / _OWNER_FILE).stat().st_mtime > _ABANDONED_AGE_S:
                shutil.rmtree(folder, ignore_errors=True)
