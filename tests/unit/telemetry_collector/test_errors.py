"""The collector's errors carry facts, say what to do, and survive a trip to another process."""

from __future__ import annotations

import pickle
from types import MappingProxyType

import pytest

from evenload.telemetry_collector import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    ClusterChangedError,
    CollectorClosedError,
    CollectorError,
    NoFreshSnapshotError,
    ServiceUnusableError,
)

ERRORS = [
    # The reasons as a collector keeps them.
    NoFreshSnapshotError("b:9092", 10.0, MappingProxyType({"log_dirs of broker 2": "no answer within 3 s"})),
    CollectorClosedError("it has been closed"),
    BrokerUnreachableError(2, "no answer within 3 s"),
    AccessRefusedError(2, "log dirs may not be described", "it needs DESCRIBE on the cluster"),
    BadAnswerError("bootstrap-0", "KafkaStorageError"),
    ServiceUnusableError("connection refused"),
    ClusterChangedError("b:9092", "old", "new"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_pickles_with_its_facts(error: CollectorError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_no_fresh_snapshot_says_where_how_long_and_why() -> None:
    assert str(ERRORS[0]) == (
        "no fresh measurement of the cluster at b:9092 within 10 s "
        "(log_dirs of broker 2: no answer within 3 s); check that its brokers run and can be reached"
    )


def test_a_refusal_names_the_permission() -> None:
    assert str(ERRORS[3]).endswith("it needs DESCRIBE on the cluster")


def test_only_what_may_go_away_by_itself_is_retriable() -> None:
    assert {type(error) for error in ERRORS if error.retriable} == {
        NoFreshSnapshotError,
        BrokerUnreachableError,
        ServiceUnusableError,
    }
