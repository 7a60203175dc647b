"""Fixtures for all tests: real brokers, real data, unique names.

The embedded cluster starts once for a test session (about 5 s) and only when a test asks for it;
tests that kill or fill brokers make one of their own with `make_cluster`. `guarded_cluster` is one that
allows nobody anything, and `account` somebody who is allowed what a test says.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import hypothesis
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeAclsRequest

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_connection.kafka_python_internals import send_request
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.settings import free_ports
from evenload.telemetry_collector.collector import sample_once

# A shell has what it runs in the background ignore SIGINT, which all that tests start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray has its workers give way to all else, so that beside a busy machine a training would hardly get on.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- its name

# The same examples in every run: a newly found one is a matter for whoever looks for it, with another seed.
# How long one takes, or takes to be drawn, says more about the machine than about what is tested.
hypothesis.settings.register_profile(
    "evenload",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("evenload")

NUM_GUARDED_BROKERS = 3
ACCOUNTS = [f"account{number}" for number in range(100)]
PATIENCE_S = 120  # a busy machine may take long; whoever fails waits for nothing else
# In the temporary folder, for as long as the process lives or for the next one.
KEPT_BY_LIBRARIES = ("ray", "torchinductor_", "torchelastic_")
LONGEST = (
    "test_training_ray",
    "test_submit",
    "test_load_killed",
    "test_training_board",
    "test_hostile_topics",
)
DEFAULT_TEST_DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, so that no worker waits for one at the end; users of `cluster` come last.

    Its brokers take a tenth of a core for as long as they live, and workers get equal parts of the list: so
    most have none for most of the time.
    """
    sharing = {item.path for item in items if _is_sharing(item)}
    items.sort(key=lambda item: (item.path.stem not in LONGEST, item.path in sharing))


def _is_sharing(item: pytest.Item) -> bool:
    """Whether a test's cluster is that of the session, not of its module."""
    assert isinstance(item, pytest.Function)
    return "cluster" in item.fixturenames and not hasattr(item.module, "cluster")


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and what they start, have a temporary folder of their own; what is left there is a failure.

    Each worker of pytest-xdist looks after its own, so that none waits for another or is blamed for it.
    """
    kept = tmp_path_factory.getbasetemp()  # for whoever looks at a failure
    with (
        # A short name: Ray puts sockets deep into it, and their paths may have 107 characters.
        tempfile.TemporaryDirectory(prefix="evenload-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
        # As when a process ends: pytest-xdist kills a worker that takes more than 10 s for it.
        multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        processes = _processes_left(folder, str(kept))
        folders = [name for name in sorted(os.listdir(folder)) if not name.startswith(KEPT_BY_LIBRARIES)]
    assert (processes, folders) == ([], []), "tests have left processes or folders behind"


def _processes_left(*folders: str) -> list[str]:
    """What still runs of all that tests have started: those that end are waited for."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        found = {each.pid: each for each in psutil.Process().children(recursive=True)}
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if any(f"{folder}/" in argument for argument in each.cmdline() for folder in folders):
                    found[each.pid] = each
        for each in (psutil.Process(), *psutil.Process().parents()):
            found.pop(each.pid, None)
        left = []
        for each in found.values():
            with suppress(psutil.Error):
                command = " ".join(each.cmdline())
                # Ends with this process.
                is_of_python = "multiprocessing.forkserver" in command or "resource_tracker" in command
                if each.status() != psutil.STATUS_ZOMBIE and not is_of_python:
                    left.append(f"{each.pid}: {command[:300]}")
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers of 2 GiB each, shared by the session: use `topic_name`, and don't kill them."""
    # Followers that find nothing new ask twice a second, which is most of what brokers do while tests don't
    # use them. Asked less often, a new topic with several copies takes as much longer to become writable.
    seldom = {"replica.fetch.wait.max.ms": "2000"}
    with temporary_cluster(num_brokers=3, broker_properties=seldom) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def connection(cluster: LocalCluster) -> Connection:
    """How to reach `cluster`."""
    return cluster.connection


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait up to two minutes until something is so; what fails because a broker is dead is asked again."""

    def wait(happened: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with suppress(KafkaError):
                if happened():
                    return
            time.sleep(0.05)
        pytest.fail("it never happened")

    return wait


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Start a cluster for this test alone, as `temporary_cluster` takes its arguments."""
    with ExitStack() as clusters:

        def make(**kwargs: Any) -> LocalCluster:
            return clusters.enter_context(temporary_cluster(**kwargs))

        yield make


@pytest.fixture(scope="session")
def throttle_settings() -> Callable[[Connection], dict[str, str]]:
    """Look up everything that is set about replication throttles, on any broker or topic."""

    def look_up(connection: Connection) -> dict[str, str]:
        with open_admin(connection) as admin:
            asked = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in admin.list_topics()]
            asked += [
                ConfigResource(ConfigResourceType.BROKER, str(broker_id))
                for broker_id in sample_once(connection).brokers
            ]
            found = admin.describe_configs(asked, config_filter="modified")
        return {
            f"{kind} {name} {setting}": entry["value"]
            for kind, resources in found.items()
            for name, settings in resources.items()
            for setting, entry in settings.items()
            if "throttled" in setting
        }

    return look_up


@pytest.fixture(scope="session")
def reassignments() -> Callable[[Connection], dict[Any, Any]]:
    """Look up which partitions are being moved."""

    def look_up(connection: Connection) -> dict[Any, Any]:
        with open_admin(connection) as admin:
            found: dict[Any, Any] = admin.list_partition_reassignments()
            return found

    return look_up


@pytest.fixture(scope="module")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers where only what was granted is allowed, with SASL listeners, plain and over TLS.

    `cluster.connection` is the administrator's: who comes without a name may do anything.
    """
    folder = tmp_path_factory.mktemp("guarded")
    _write_certificate(folder)
    ports = iter(free_ports(2 * NUM_GUARDED_BROKERS))
    with temporary_cluster(
        num_brokers=NUM_GUARDED_BROKERS,
        broker_properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
        properties_by_broker={
            broker_id: _guarded_listeners(folder, next(ports), next(ports))
            for broker_id in range(1, 1 + NUM_GUARDED_BROKERS)
        },
    ) as cluster:
        yield cluster


def _guarded_listeners(folder: Path, sasl_port: int, tls_port: int) -> dict[str, str]:
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{sasl_port},SASL_SSL://127.0.0.1:{tls_port}"
    users = " ".join(f'user_{name}="{name}"' for name in ACCOUNTS)
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
    }


def _write_certificate(folder: Path) -> None:
    """A key and a certificate that it has signed itself, for brokers; `ca.pem` is what clients trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "evenload tests")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "broker.pem").write_bytes(pem + certificate)
    (folder / "ca.pem").write_bytes(certificate)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and its certificate for 127.0.0.1, in one file; `ca.pem` beside it is what clients trust."""
    folder = tmp_path_factory.mktemp("certificate")
    _write_certificate(folder)
    return folder / "broker.pem"


@pytest.fixture(scope="module")
def unused_accounts() -> Iterator[str]:
    """Each name once: what one test grants is nothing to the others."""
    return iter(ACCOUNTS)


@pytest.fixture
def account(guarded_cluster: LocalCluster, unused_accounts: Iterator[str]) -> Callable[..., Connection]:
    """Make an account: `account("READ TOPIC some*", "DESCRIBE CLUSTER")`; TLS: `protocol="SASL_SSL"`."""

    def make(*grants: str, protocol: str = "SASL_PLAINTEXT") -> Connection:
        name = next(unused_accounts)
        _grant(guarded_cluster, name, grants)
        told = [guarded_cluster.told(broker_id) for broker_id in guarded_cluster.broker_ids]
        listeners = [each for properties in told for each in properties["listeners"].split(",")]
        addresses = [
            each.removeprefix(f"{protocol}://") for each in listeners if each.startswith(f"{protocol}:")
        ]
        is_tls = protocol == "SASL_SSL"
        return Connection.model_validate(
            {
                "bootstrap_servers": ",".join(addresses),
                "security_protocol": protocol,
                "sasl_mechanism": "PLAIN",
                "sasl_username": name,
                "sasl_password": name,
                "ssl_ca_path": Path(told[0]["ssl.keystore.location"]).with_name("ca.pem") if is_tls else None,
                "capacity_bytes_by_broker": guarded_cluster.connection.capacity_bytes_by_broker,
            }
        )

    return make


def _grant(cluster: LocalCluster, name: str, grants: tuple[str, ...]) -> None:
    """Grant, and wait until each broker knows."""
    acls = [_acl(name, grant) for grant in grants]
    with open_admin(cluster.connection) as admin:
        assert not admin.create_acls(acls)["failed"]
        request = DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=ACLResourcePatternType.ANY,
            principal_filter=f"User:{name}",
            host_filter=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
        )
        for broker_id in cluster.broker_ids:
            num_known = -1
            gives_up_at_s = time.monotonic() + PATIENCE_S
            while num_known < len(set(grants)):
                if time.monotonic() > gives_up_at_s:
                    pytest.fail(f"broker {broker_id} knows {num_known} of {grants}")
                found = send_request(admin, request, broker_id)
                num_known = sum(len(resource.acls) for resource in found.resources)


def _acl(name: str, grant: str) -> ACL:
    operation, kind, *resource = grant.split(" ")
    resource_name = resource[0] if resource else "kafka-cluster"
    pattern = ACLResourcePatternType.LITERAL
    if resource_name.endswith("*") and resource_name != "*":
        resource_name, pattern = resource_name.removesuffix("*"), ACLResourcePatternType.PREFIXED
    return ACL(
        f"User:{name}",
        "*",
        ACLOperation[operation],
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType[kind], resource_name, pattern),
    )


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test and no earlier session has."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"


class CollectorProcess:
    """`evenload collector` as a process of its own, for one cluster.

    Attributes:
        url: where it serves.
    """

    def __init__(self, connection: Connection, folder: Path, *options: str) -> None:
        self._connection_path = folder / f"connection-{uuid.uuid4().hex}.json"
        self._connection_path.write_text(connection.model_dump_json())
        self._log_path = folder / f"collector-{uuid.uuid4().hex}.log"
        self._options = options
        self.start(port=0)

    def start(self, port: int | None = None) -> None:
        """Start it; after the first time by default on the same port."""
        if port is None:
            port = urlsplit(self.url).port or 0
        with self._log_path.open("a") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("evenload")),
                    *("collector", "--json", "--interval", "0.3", "--port", str(port)),
                    *("--connection", str(self._connection_path), *self._options),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self._log_path.read_text()
            said += line
        self.url: str = json.loads(said)["collector_url"]

    def end(self, signal_number: int) -> int:
        """Send a signal, and wait; its exit status."""
        self.process.send_signal(signal_number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    @property
    def log(self) -> str:
        """What it has said on stderr."""
        return self._log_path.read_text()


@pytest.fixture
def start_collector(tmp_path: Path) -> Iterator[Callable[..., CollectorProcess]]:
    """Start collector services, each given a connection and options; none is left."""
    started: list[CollectorProcess] = []

    def start(connection: Connection, *options: str) -> CollectorProcess:
        started.append(CollectorProcess(connection, tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture(scope="session")
def shared_test_data() -> Path:
    """The folder with CoLA and CIFAR-10: `EVENLOAD_TEST_DATA`, or `../shared/data` beside the checkout."""
    path = Path(os.environ.get("EVENLOAD_TEST_DATA") or DEFAULT_TEST_DATA)
    if not path.is_dir():
        _go_without(f"test data isn't in {path}; set EVENLOAD_TEST_DATA to a folder with cola/ and cifar10/")
    return path


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium."""
    return _program("chromium", "google-chrome")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' promtool."""
    return _program("promtool")


def _program(*names: str) -> str:
    folders = os.pathsep.join([os.environ["PATH"], str(Path(sys.prefix) / "prometheus")])
    found = next((path for name in names if (path := shutil.which(name, path=folders))), None)
    if found is None:
        _go_without(f"{names[0]} isn't there; `make test-tools` gets it")
    return found


def _go_without(sentence: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
