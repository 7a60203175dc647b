"""Settings of confluent-kafka in any of its spellings; what can't be used is refused in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.producing.settings import connection_of, turn_s
from evenload.telemetry_collector.collector import Collector

WaitUntil = Callable[[Callable[[], bool]], None]

SASL = {"sasl.mechanism": "scram-sha-256", "sasl.username": "me", "sasl.password": "hush"}


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("kafka", "kafka:9092"),
        ("a:1, b ,SASL_SSL://c:3", "a:1,b:9092,c:3"),
        ("ssl://kafka/path", "kafka:9092"),
        ("[::1],[::1]:1", "[::1]:9092,[::1]:1"),
        ("a:1,", "a:1"),
    ],
)
def test_addresses_are_understood_as_librdkafka_does(given: str, understood: str) -> None:
    assert connection_of({"bootstrap.servers": given}).bootstrap_servers == understood


def test_protocols_and_mechanisms_may_be_in_small_letters() -> None:
    found = connection_of({"bootstrap.servers": "a:1", "security.protocol": "sasl_ssl", **SASL})
    assert (found.security_protocol, found.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-256")
    assert connection_of({"bootstrap.servers": "a:1", "security.protocol": "ssl"}).security_protocol == "SSL"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"security.protocol": "none"}, "security_protocol: Input should be"),
        ({"security.protocol": "sasl_ssl"}, "SASL_SSL needs sasl_mechanism, sasl_username, sasl_password"),
        ({"bootstrap.servers": "a:0"}, "bootstrap_servers: 'a:0' is not host:port"),
        (SASL, "sasl_mechanism, sasl_username, sasl_password would be ignored with PLAINTEXT"),
    ],
)
def test_a_bad_value_is_one_of_our_errors_and_tells_no_secret(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(PluginConfigError, match=rf"{reason}.*; pass connection= as well") as caught:
        connection_of({"bootstrap.servers": "a:1", **settings})
    assert "hush" not in str(caught.value)


OIDC = {
    "bootstrap.servers": "a:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.token.endpoint.url": "https://there/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hush",
    "sasl.oauthbearer.scope": "kafka",
}


def test_a_provider_of_tokens_is_understood_as_librdkafka_does() -> None:
    oauth = connection_of(OIDC).sasl_oauth
    assert oauth is not None
    assert oauth.client_secret is not None
    assert oauth.client_secret.get_secret_value() == "hush"
    assert (oauth.token_url, oauth.client_id, oauth.scope) == ("https://there/token", "me", "kafka")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sasl.oauthbearer.extensions": "a=b"}, r"sasl\.oauthbearer\.extensions can't be translated"),
        ({"sasl.oauthbearer.method": "default"}, r"sasl\.oauthbearer\.method, .* can't be translated"),
        ({"sasl.oauthbearer.client.id": None}, "sasl_oauth: token_url needs client_id"),
    ],
)
def test_what_is_said_of_tokens_in_another_way_has_a_way_out(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(PluginConfigError, match=rf"{reason}.*; pass connection= as well") as caught:
        connection_of({**OIDC, **more})
    assert "hush" not in str(caught.value)


def test_a_callback_for_tokens_has_a_way_out() -> None:
    settings = {word: value for word, value in OIDC.items() if "oauthbearer" not in word}
    with pytest.raises(PluginConfigError, match="needs sasl_oauth; pass connection= as well"):
        connection_of({**settings, "oauth_cb": print})


@pytest.mark.parametrize("value", [True, "true", "True", "1"])
def test_hiding_reports_is_refused(value: Any) -> None:
    with pytest.raises(PluginConfigError, match=r"delivery\.report\.only\.error"):
        BalancedProducer({"bootstrap.servers": "a:1", "delivery.report.only.error": value})


def test_not_hiding_them_is_no_error_and_a_logger_may_be_given() -> None:
    connection = connection_of({"bootstrap.servers": "127.0.0.1:1"})
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    logger = logging.Logger("mine")
    logger.addHandler(handler)
    settings = {"bootstrap.servers": "127.0.0.1:1", "delivery.report.only.error": "false"}
    with BalancedProducer(settings, collector=Collector(connection), logger=logger) as producer:
        for _ in range(100):
            producer.poll(0.02)
            if told:
                break
    assert "127.0.0.1:1" in told[0].getMessage()


def test_a_slow_producer_learns_too_how_much_less_is_stored_than_sent() -> None:
    settings: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "compression.type": "zstd"}
    with BalancedProducer(settings, collector=Collector(connection_of(settings))) as producer:
        for so_far in range(200_000, 1_200_000, 200_000):  # a statistics interval each
            assert producer._routes.stored_ratio is None
            producer._learn_ratio({"tx_bytes": so_far // 2, "txmsg_bytes": so_far})
        producer._learn_ratio({"tx_bytes": 600_000, "txmsg_bytes": 1_200_000})
        assert producer._routes.stored_ratio == 0.5


def test_a_record_of_a_batch_may_say_that_its_time_is_now(wait_until: WaitUntil) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": b"b", "timestamp": 0}, {"value": b"c"}]
    with BalancedProducer(
        settings,
        collector=Collector(connection_of(settings)),
        config=ProducerConfig(new_topic_timeout_s=0.01, first_snapshot_timeout_s=0.0),
    ) as producer:
        producer._opener.num_partitions = lambda _: 3  # type: ignore[method-assign]
        producer.produce("t", b"")
        wait_until(lambda: "t" in producer._topics)
        assert producer.produce_batch("t", messages) == 3
        producer.purge()


@pytest.mark.parametrize(
    ("settings", "expected_s"),
    [
        ({}, 0.010),
        ({"linger.ms": 50}, 0.100),
        ({"queue.buffering.max.ms": "0.5"}, 0.001),
        ({"linger.ms": 0}, 0.010),
        ({"linger.ms": 50, "sticky.partitioning.linger.ms": 20}, 0.020),
        ({"sticky.partitioning.linger.ms": 0}, 0.0),
    ],
)
def test_a_turn_lasts_as_long_as_the_clients_own_partitioner_stays(
    settings: dict[str, Any], expected_s: float
) -> None:
    assert turn_s(settings) == pytest.approx(expected_s)
