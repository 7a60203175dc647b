"""What is said when brokers don't let a loader look after its transactions."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import ClusterAuthorizationFailedError, CoordinatorNotAvailableError, KafkaError

from evenload.kafka_connection import Connection
from evenload.kafka_plugin import transaction_markers
from evenload.kafka_plugin.errors import MarkerRefusedError, TransactionFailedError
from evenload.kafka_plugin.transaction_markers import TransactionMarkers


class Admin:
    """Answers with an error; what real brokers refuse is in tests/integration/test_permissions.py."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error
        self.is_closed = False

    def describe_transactions(self, transactional_ids: list[str]) -> Any:  # noqa: ARG002
        raise self._error

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "translated", "words"),
    [
        (
            ClusterAuthorizationFailedError(),
            MarkerRefusedError,
            r"ALTER, .* on the cluster.*the same command",
        ),
        (
            CoordinatorNotAvailableError("not now"),
            TransactionFailedError,
            r"not every .*not now",
        ),
    ],
)
def test_what_brokers_refuse_becomes_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError, translated: type[Exception], words: str
) -> None:
    admin = Admin(error)
    monkeypatch.setattr(transaction_markers, "open_admin", lambda *_, **__: admin)
    markers = TransactionMarkers(Connection(bootstrap_servers="nowhere:1"), "evenload.load.n")
    with pytest.raises(translated, match=words):
        markers.complete([TopicPartition("t", 0)], 0.1, is_committed=True)
    assert admin.is_closed
