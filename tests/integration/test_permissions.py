"""What an account needs for each role, on brokers that refuse; docs/permissions.md is the table of it.

Each role works with exactly what is listed here, and without any one of it says which is missing.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from kafka import TopicPartition
from kafka.errors import ClusterAuthorizationFailedError
from pydantic import SecretStr

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogRefusedError
from evenload.dataset_catalog.logs.internal_topics import ensure_internal_topics, write_plain
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.dataset_catalog.verify import verify
from evenload.governor.errors import JournalError
from evenload.governor.governing.journal import KafkaJournal
from evenload.governor.governing.records import Records
from evenload.kafka_connection import BrokersUnreachableError, Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.balancing.balance import execute_balance, forget_balance, preview_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BALANCE_TOPIC
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import BalanceError, MarkerRefusedError, TopicError, WriteNotAllowedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.kafka_plugin.transaction_markers import ALL_PARTITIONS, _open_transactions, _write_marker
from evenload.local_cluster import LocalCluster
from evenload.ray_trainer.errors import FetchRefusedError
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.route_service.sharing import Sharing
from evenload.telemetry_collector import NoFreshSnapshotError
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.weights import Weights

Account = Callable[..., Connection]
NUM_SAMPLES = 200
LISTED = "leader.replication.throttled.replicas"

COLLECTOR = ("DESCRIBE CLUSTER", "DESCRIBE TOPIC *")
READER = ("READ TOPIC evenload.datasets", "READ TOPIC shared*")
LOADER = (
    "READ TOPIC evenload.*",
    "WRITE TOPIC evenload.*",
    "CREATE TOPIC evenload.*",
    "CREATE TOPIC load*",
    "WRITE TOPIC load*",
    "READ TOPIC load*",
    "WRITE TRANSACTIONAL_ID evenload.load.load*",
    "DESCRIBE_CONFIGS CLUSTER",
    "DESCRIBE CLUSTER",
    "DELETE TOPIC load*",
)
BALANCE = (
    "ALTER CLUSTER",
    "ALTER_CONFIGS CLUSTER",
    "DESCRIBE TOPIC skewed*",
    "ALTER_CONFIGS TOPIC skewed*",
    "CREATE TOPIC evenload.balance",
    "READ TOPIC evenload.balance",
    "WRITE TOPIC evenload.balance",
    "WRITE TRANSACTIONAL_ID evenload.balance",
)
BALANCE_REFUSALS = (  # the first while there is no such topic yet
    ("CREATE TOPIC evenload.balance", (), "It takes CREATE on the topic"),
    ("ALTER CLUSTER", (), "asking for reassignments.* It takes DESCRIBE on the cluster"),
    ("ALTER CLUSTER", ("DESCRIBE CLUSTER",), "reassigning partitions.* It takes ALTER on the cluster"),
    ("ALTER_CONFIGS CLUSTER", (), "It takes DESCRIBE_CONFIGS on the cluster"),
    ("ALTER_CONFIGS CLUSTER", ("DESCRIBE_CONFIGS CLUSTER",), "It takes ALTER_CONFIGS on the cluster"),
    ("ALTER_CONFIGS TOPIC skewed*", (), "'skewed'.* It takes DESCRIBE_CONFIGS on the topic"),
    (
        "ALTER_CONFIGS TOPIC skewed*",
        ("DESCRIBE_CONFIGS TOPIC skewed*",),
        "'skewed'.* It takes ALTER_CONFIGS on the topic",
    ),
    ("READ TOPIC evenload.balance", (), "'evenload.balance': it is not allowed. It takes READ on the topic"),
    (
        "WRITE TOPIC evenload.balance",
        (),
        "'evenload.balance': it is not allowed. It takes WRITE on the topic",
    ),
    (
        "WRITE TRANSACTIONAL_ID evenload.balance",
        (),
        "'evenload.balance': .* It takes .* on the transactional",
    ),
)
GOVERNOR = (
    "READ TOPIC evenload-governor.*",
    "WRITE TOPIC evenload-governor.*",
    "CREATE TOPIC evenload-governor.*",
    "WRITE TRANSACTIONAL_ID evenload-governor",
)
GOVERNOR_REFUSALS = (
    ("CREATE TOPIC evenload-governor.*", "CREATE on the topic"),
    ("READ TOPIC evenload-governor.*", "READ on the topic"),
    ("WRITE TOPIC evenload-governor.*", "WRITE on the topic"),
    ("WRITE TRANSACTIONAL_ID evenload-governor", "transactional id"),
)
SHARING = tuple(f"{operation} TOPIC evenload-service.told" for operation in ("CREATE", "READ", "WRITE"))
FORGET = (
    "DESCRIBE CLUSTER",
    "DESCRIBE_CONFIGS CLUSTER",
    "READ TOPIC evenload.balance",
    "WRITE TOPIC evenload.balance",
    "WRITE TRANSACTIONAL_ID evenload.balance",
    "DESCRIBE TOPIC *",
    "DESCRIBE_CONFIGS TOPIC *",
)
FORGET_REFUSALS = (
    ("DESCRIBE CLUSTER", "It takes DESCRIBE on the cluster"),
    ("DESCRIBE_CONFIGS CLUSTER", "It takes DESCRIBE_CONFIGS on the cluster"),
    ("READ TOPIC evenload.balance", "It takes READ on the topic"),
    ("WRITE TOPIC evenload.balance", "It takes WRITE on the topic"),
    ("WRITE TRANSACTIONAL_ID evenload.balance", "'evenload.balance': .* It takes .* on the transactional"),
)
CONFIG = LoaderConfig(stall_timeout_s=20, transaction_timeout_s=10, transaction_s=1, topic_timeout_s=10)


def without(grants: tuple[str, ...], *missing: str) -> tuple[str, ...]:
    assert set(missing) <= set(grants)
    return tuple(grant for grant in grants if grant not in missing)


def samples() -> dict[str, Any]:
    return {"n": np.arange(NUM_SAMPLES), "x": np.zeros((NUM_SAMPLES, 50), np.uint8)}


@pytest.fixture(scope="module")
def shared(guarded_cluster: LocalCluster) -> str:
    """A dataset that the administrator has loaded."""
    load_dataset(samples(), "shared", connection=guarded_cluster.connection)
    return "shared"


@pytest.fixture
def name() -> str:
    return f"load-{uuid.uuid4().hex[:8]}"


def read(connection: Connection, dataset: str) -> int:
    with closing(
        DatasetReader(dataset, global_batch_size=64, hold_whole=False, connection=connection)
    ) as reader:
        return sum(batch.num_samples for batch in reader)


# -- who somebody is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_all_clients_say_who_they_are_also_over_tls(account: Account, name: str, protocol: str) -> None:
    connection = account(*LOADER, "READ TOPIC evenload.datasets", protocol=protocol)
    manifest = load_dataset(samples(), name, connection=connection, config=CONFIG)
    assert verify(connection, manifest).is_clean
    assert read(connection, name) == NUM_SAMPLES
    assert all(broker.used_bytes for broker in sample_once(connection).brokers.values())


def test_a_wrong_password_is_called_that(account: Account) -> None:
    connection = account().model_copy(update={"sasl_password": SecretStr("wrong")})
    with pytest.raises(BrokersUnreachableError, match="of this user name and password or security protocol"):
        open_admin(connection, timeout_s=6)


# -- measuring -----------------------------------------------------------------------------------------------


def test_a_collector_needs_describe_on_the_cluster_and_sees_the_topics_that_it_may(
    account: Account, shared: str
) -> None:
    dataset_topics = [topic for topic in sample_once(account(*COLLECTOR)).topics if topic.startswith(shared)]
    assert dataset_topics
    blind = sample_once(account(*without(COLLECTOR, "DESCRIBE TOPIC *")))
    assert all(broker.used_bytes for broker in blind.brokers.values())
    assert not blind.topics
    with pytest.raises(NoFreshSnapshotError, match="it needs DESCRIBE on the cluster"):
        sample_once(account(*without(COLLECTOR, "DESCRIBE CLUSTER")), timeout_s=6)


def test_a_collector_says_which_topic_it_may_not_describe(account: Account, shared: str) -> None:
    (topic,) = (topic for topic in sample_once(account(*COLLECTOR)).topics if topic.startswith(shared))
    with pytest.raises(NoFreshSnapshotError, match=rf"'{topic}' may not be .* needs DESCRIBE on the topic"):
        sample_once(account("DESCRIBE CLUSTER"), topics=[topic], timeout_s=6)


# -- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        ("READ TOPIC evenload.*", CatalogRefusedError, "it needs READ on the topic"),
        ("WRITE TOPIC evenload.*", WriteNotAllowedError, r"evenload\.loads.*it needs WRITE on the topic"),
        ("CREATE TOPIC load*", TopicError, "can't be made: it needs CREATE on the topic"),
        ("WRITE TOPIC load*", WriteNotAllowedError, "it needs WRITE on the topic"),
        ("READ TOPIC load*", MarkerRefusedError, "it needs READ on the topic"),
        (
            "WRITE TRANSACTIONAL_ID evenload.load.load*",
            MarkerRefusedError,
            "it needs WRITE on the transactional id",
        ),
        ("DESCRIBE_CONFIGS CLUSTER", TopicError, "it needs DESCRIBE_CONFIGS on the cluster"),
    ],
)
def test_a_loader_says_which_permission_is_missing(
    account: Account, shared: str, name: str, missing: str, error: type[Exception], words: str
) -> None:
    assert shared  # so that the topics of the catalog exist
    with pytest.raises(error, match=words):
        load_dataset(samples(), name, connection=account(*without(LOADER, missing)), config=CONFIG)


def test_a_marker_takes_alter_on_the_cluster(
    account: Account, guarded_cluster: LocalCluster, name: str
) -> None:
    create_topic(
        guarded_cluster.connection,
        name,
        num_partitions=1,
        replication=None,
        assignments=[(1,)],
        configs={},
        timeout_s=60,
    )
    dead = confluent_producer(guarded_cluster.connection, transactional_id=name)
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(name, b"?", partition=0)
    assert dead.flush(60) == 0
    with open_admin(account("READ TOPIC load*")) as admin:
        (found,) = _open_transactions(admin, [TopicPartition(name, ALL_PARTITIONS)])
        with pytest.raises(ClusterAuthorizationFailedError):
            _write_marker(admin, found, is_committed=False)
    with open_admin(account("ALTER CLUSTER")) as admin:
        _write_marker(admin, found, is_committed=False)


def test_a_producer_needs_write_and_spreads_evenly_without_describe_on_the_cluster(
    account: Account,
    guarded_cluster: LocalCluster,
    name: str,
    wait_until: Callable[[Callable[[], bool]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(
        guarded_cluster.connection,
        name,
        num_partitions=3,
        replication=None,
        assignments=[(1,), (2,), (3,)],
        configs={},
        timeout_s=60,
    )
    reports: list[object] = []

    def produce_one(*grants: str, until: Callable[[BalancedProducer], bool]) -> None:
        connection = account(*grants)
        with BalancedProducer({**connection.confluent_config()}, connection=connection) as producer:
            producer.produce(name, b"x", on_delivery=lambda error, _: reports.append(error))
            assert producer.flush(60) == 0
            wait_until(lambda: until(producer))

    produce_one("WRITE TOPIC load*", "DESCRIBE CLUSTER", until=lambda producer: producer.num_fallbacks == 0)
    assert "go evenly" not in caplog.text
    produce_one("WRITE TOPIC load*", until=lambda producer: producer.num_fallbacks > 0)
    assert re.search(
        f"topic {name} go evenly to its partitions: .* needs DESCRIBE on the cluster", caplog.text
    )
    assert reports == [None, None]


# -- reading -------------------------------------------------------------------------------------------------


def test_a_reader_needs_read_on_two_topics_and_nothing_else(account: Account, shared: str) -> None:
    connection = account(*READER)
    assert read(connection, shared) == NUM_SAMPLES
    assert verify(connection, Catalog(connection).get(shared)).is_clean


@pytest.mark.parametrize(
    ("grants", "error", "words"),
    [
        (
            READER[1:],
            CatalogRefusedError,
            "evenload.datasets' is not allowed: it needs DESCRIBE on the topic",
        ),
        (
            (*READER[1:], "DESCRIBE TOPIC evenload.datasets"),
            CatalogRefusedError,
            "evenload.datasets' is not allowed: it needs READ on the topic",
        ),
        (READER[:1], CatalogRefusedError, "shared.*is not allowed: it needs DESCRIBE on the topic"),
        ((*READER[:1], "DESCRIBE TOPIC shared*"), FetchRefusedError, "it needs READ on the topic"),
    ],
)
def test_a_reader_says_which_permission_is_missing(
    account: Account, shared: str, grants: tuple[str, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(account(*grants), shared)


def test_dropping_a_dataset_takes_delete_on_its_topic(
    account: Account, guarded_cluster: LocalCluster, name: str
) -> None:
    load_dataset(samples(), name, connection=guarded_cluster.connection)
    catalog = ("READ TOPIC evenload.*", "WRITE TOPIC evenload.*")
    with pytest.raises(CatalogRefusedError, match="it needs DELETE on the topic"):
        Catalog(account(*catalog, "DESCRIBE TOPIC load*")).drop(name)
    Catalog(account(*catalog, "DELETE TOPIC load*")).drop(name)


# -- governing -----------------------------------------------------------------------------------------------


def test_a_governor_needs_its_journal_and_says_which_permission_is_missing(
    account: Account, shared: str
) -> None:
    def govern(*missing: str) -> None:
        journal = KafkaJournal(account(*without(GOVERNOR, *missing)), take_over=True, timeout_s=10)
        try:
            journal.open()
            journal.write(Records({}, {}, "cluster"))
        finally:
            journal.close()

    # The first while there are no such topics yet.
    for missing, words in GOVERNOR_REFUSALS:
        with pytest.raises(JournalError, match=words):
            govern(missing)
        if "CREATE" in missing:
            govern()
    govern("CREATE TOPIC evenload-governor.*")
    assert Catalog(account("READ TOPIC evenload.datasets")).get(shared).num_samples == NUM_SAMPLES


class Unhearing:
    """A service that goes by nothing it hears."""

    def hear_weights(self, weights: Weights) -> None: ...

    def hear_intent(self, intent: Intent, lifetime_s: float) -> None: ...

    def hear_withdrawn(self, load: str) -> None: ...


def test_services_that_share_need_their_topic_and_say_which_permission_is_missing(account: Account) -> None:
    async def share(*missing: str) -> None:
        with Sharing(account(*without(SHARING, *missing)), Unhearing()) as sharing:
            await sharing.weigh(Weights())

    for missing in SHARING:
        operation = missing.split(" ")[0]
        with pytest.raises(OSError, match=f"{operation} on (the|a) topic"):
            asyncio.run(share(missing))
        if operation == "CREATE":
            asyncio.run(share())
    asyncio.run(share(SHARING[0]))


def test_whoever_asks_for_leaders_needs_describe_on_the_topic(account: Account, shared: str) -> None:
    topic = Catalog(account(*READER)).get(shared).topic
    with TopicAdmin(account("DESCRIBE TOPIC shared*"), timeout_s=10) as admin:
        found = admin.describe(topic)
    assert found
    assert set(found.leaders) == set(found.partitions)
    with (
        TopicAdmin(account(), timeout_s=10) as admin,
        pytest.raises(CatalogRefusedError, match="it needs DESCRIBE on the topic"),
    ):
        admin.describe(topic)


# -- moving --------------------------------------------------------------------------------------------------


def test_balance_needs_alter_and_says_which_permission_is_missing(
    account: Account,
    guarded_cluster: LocalCluster,
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    administrator = guarded_cluster.connection
    create_topic(
        administrator,
        "skewed",
        num_partitions=3,
        replication=None,
        assignments=[(1,)] * 3,
        configs={},
        timeout_s=60,
    )
    producer = confluent_producer(administrator)
    for number in range(60):
        producer.produce("skewed", bytes(100_000), partition=number % 3)
    assert producer.flush(60) == 0
    config = BalanceConfig(poll_s=0.05, timeout_s=60)

    def allowed(*grants: str) -> Connection:
        """Somebody to whom the topic is a fifth of what a broker may hold."""
        capacity = dict.fromkeys(guarded_cluster.broker_ids, 30_000_000)
        return account(*grants).model_copy(update={"capacity_bytes_by_broker": capacity})

    for missing, instead, words in BALANCE_REFUSALS:
        with pytest.raises(BalanceError, match=words):
            execute_balance(allowed(*without(BALANCE, missing), *instead), config=config)
    unseen = execute_balance(allowed(*without(BALANCE, "DESCRIBE TOPIC skewed*")), config=config)
    assert not unseen.plan.moves
    shown = preview_balance(
        allowed("DESCRIBE CLUSTER", "DESCRIBE TOPIC skewed*", "READ TOPIC evenload.balance"), config=config
    )
    assert len(shown.plan.moves) == 2
    outcome = execute_balance(allowed(*BALANCE), config=config)
    assert len(outcome.plan.moves) == 2
    assert outcome.moved_bytes > 3_000_000
    assert throttle_settings(administrator) == {}
    assert reassignments(administrator) == {}


def test_forgetting_needs_no_right_to_move_and_names_the_topics_that_it_could_not_look_at(
    account: Account, guarded_cluster: LocalCluster
) -> None:
    administrator = guarded_cluster.connection
    for topic in ("seen", "unseen", "undescribed"):
        create_topic(
            administrator,
            topic,
            num_partitions=1,
            replication=None,
            assignments=[(1,)],
            configs={LISTED: "*"},
            timeout_s=60,
        )
    ensure_internal_topics(administrator, timeout_s=60, topics=(BALANCE_TOPIC,))

    def leave() -> None:
        write_plain(administrator, BALANCE_TOPIC, [(b"balance", b"no record")], timeout_s=60)

    config = BalanceConfig(poll_s=0.05, timeout_s=60)
    leave()
    for missing, words in FORGET_REFUSALS:
        with pytest.raises(BalanceError, match=words):
            forget_balance(account(*without(FORGET, missing)), config=config)
    some = ("DESCRIBE TOPIC seen", "DESCRIBE_CONFIGS TOPIC seen", "DESCRIBE TOPIC unseen")
    fewer = without(FORGET, "DESCRIBE TOPIC *", "DESCRIBE_CONFIGS TOPIC *")
    found = forget_balance(account(*fewer, *some), config=config)
    assert found.record is not None, "whoever was refused has kept it"
    assert found.untold == (BALANCE_TOPIC, "unseen")
    assert [(each.of, each.name, each.value) for each in found.throttles] == [("seen", LISTED, "*")]

    leave()
    found = forget_balance(account(*FORGET), config=config)
    assert found.record is not None
    assert found.untold == ()
    assert {each.of for each in found.throttles} >= {"seen", "unseen", "undescribed"}
