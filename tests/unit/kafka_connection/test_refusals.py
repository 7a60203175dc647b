"""What brokers refuse is said with the permission that is missing."""

from __future__ import annotations

import kafka.errors
import pytest
from confluent_kafka import KafkaError

from evenload.dataset_catalog.errors import CatalogRefusedError, CatalogUnavailableError, failure
from evenload.kafka_connection.refusals import missing_permission


@pytest.mark.parametrize(
    ("error", "code", "resource"),
    [
        (kafka.errors.TopicAuthorizationFailedError, KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic"),
        (kafka.errors.GroupAuthorizationFailedError, KafkaError.GROUP_AUTHORIZATION_FAILED, "consumer group"),
        (kafka.errors.ClusterAuthorizationFailedError, KafkaError.CLUSTER_AUTHORIZATION_FAILED, "cluster"),
        (
            kafka.errors.TransactionalIdAuthorizationFailedError,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactional id",
        ),
    ],
)
def test_both_clients_refusals_name_the_operation_and_what_it_is_on(
    error: type[kafka.errors.KafkaError], code: int, resource: str
) -> None:
    assert error.errno == code
    assert missing_permission(code, "ALTER") == f"it needs ALTER on the {resource}"


def test_who_may_write_nowhere_is_not_told_to_ask_for_the_cluster() -> None:
    code = kafka.errors.ClusterAuthorizationFailedError.errno
    assert "WRITE on a topic" in (missing_permission(code, "WRITE") or "")


def test_other_faults_name_no_permission() -> None:
    assert missing_permission(KafkaError.NOT_LEADER_FOR_PARTITION, "WRITE") is None
    assert missing_permission(None, "WRITE") is None


def test_a_refusal_is_nothing_that_passes() -> None:
    refused = failure("reading", "Topic authorization failed", code=29, operation="READ")
    assert isinstance(refused, CatalogRefusedError)
    assert not refused.retriable
    lost = failure("reading", "no answer", code=None, operation="READ")
    assert isinstance(lost, CatalogUnavailableError)
    assert lost.retriable
