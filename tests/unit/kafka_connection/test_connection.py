from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from evenload.kafka_connection import Connection

SASL_SSL = Connection(
    bootstrap_servers="kafka-1:9093, kafka-2:9093",
    security_protocol="SASL_SSL",
    ssl_ca_path=Path("/etc/ca.pem"),
    ssl_certificate_path=Path("/etc/me.pem"),
    ssl_key_path=Path("/etc/me.key"),
    ssl_key_password="key secret",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="loader",
    sasl_password="sasl secret",
)


def test_librdkafka_is_told_everything_in_its_words() -> None:
    assert SASL_SSL.confluent_config() == {
        "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/me.pem",
        "ssl.key.location": "/etc/me.key",
        "ssl.key.password": "key secret",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "loader",
        "sasl.password": "sasl secret",
    }


def test_kafka_python_is_told_everything_in_its_words() -> None:
    assert SASL_SSL.kafka_python_config() == {
        "bootstrap_servers": "kafka-1:9093,kafka-2:9093",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": "/etc/ca.pem",
        "ssl_certfile": "/etc/me.pem",
        "ssl_keyfile": "/etc/me.key",
        "ssl_password": "key secret",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "loader",
        "sasl_plain_password": "sasl secret",
    }


def test_what_is_not_set_is_not_said() -> None:
    connection = Connection(bootstrap_servers="localhost:9092")

    assert connection.confluent_config() == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "PLAINTEXT",
    }
    assert connection.kafka_python_config() == {
        "bootstrap_servers": "localhost:9092",
        "security_protocol": "PLAINTEXT",
    }


def test_secrets_do_not_show() -> None:
    assert "secret" not in repr(SASL_SSL)
    assert "secret" not in str(SASL_SSL)
    assert "secret" not in SASL_SSL.model_dump_json()


def test_a_connection_survives_pickling_secrets_included() -> None:
    copy = pickle.loads(pickle.dumps(SASL_SSL))

    assert copy == SASL_SSL
    assert copy.confluent_config() == SASL_SSL.confluent_config()


@pytest.mark.parametrize(
    "address", ["", "kafka", "kafka:", ":9092", "kafka:0", "kafka:65536", "kafka:x", "a:1,,b:2"]
)
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="is not host:port"):
        Connection(bootstrap_servers=address)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"security_protocol": "SASL_SSL", "sasl_username": "me"},
            "SASL_SSL needs sasl_mechanism, sasl_password",
        ),
        ({"sasl_username": "me"}, "sasl_username would be ignored with PLAINTEXT"),
        ({"ssl_ca_path": "/ca.pem"}, "ssl_ca_path would be ignored with PLAINTEXT"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "me",
                "sasl_password": "x",
                "ssl_ca_path": "/ca.pem",
            },
            "ssl_ca_path would be ignored with SASL_PLAINTEXT",
        ),
        (
            {"security_protocol": "SSL", "ssl_key_path": "/key.pem"},
            "ssl_certificate_path and ssl_key_path go together",
        ),
        ({"capacity_bytes_by_broker": {1: 0}}, "broker 1 has a capacity of 0 bytes"),
        ({"collector_url": "ftp://host:1"}, "'ftp://host:1' is not http://host:port"),
        ({"collector_url": "http://host:99999"}, "is not http://host:port"),
        ({"collector_url": "http://a:1,,http://b:2"}, "'' is not http://host:port"),
        ({"collector_url": "http://host:1", "weights_path": "/w"}, "weights_path /w would be ignored"),
        (
            {"collector_url": "http://host:1", "without_collector": "sample"},
            "without_collector 'sample' can't be used with collector_url: all producers of the service at "
            "http://host:1 would ask every broker",
        ),
        ({"bootstrap_server": "typo"}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Connection.model_validate({"bootstrap_servers": "kafka:9092", **fields})


@pytest.mark.parametrize(
    "url", ["http://me:hush@host:1", "http://:hush@host:1", "ftp://me:hush@host:1", "me:hush@host:1"]
)
def test_a_password_in_a_collectors_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ValidationError, match="without a user in it; see collector_token") as error:
        Connection(bootstrap_servers="kafka:9092", collector_url=url)
    assert "hush" not in str(error.value)


def test_without_an_answer_of_a_collector_shares_are_even_unless_no_service_is_named() -> None:
    assert Connection(bootstrap_servers="a:1", collector_url="http://host:1").without_collector == "even"
    Connection(bootstrap_servers="a:1", without_collector="sample")  # what is done there anyway
