"""A run's last progress is committed though its group's coordinator is not ready at the first try."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kafka import TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
)
from kafka.structs import OffsetAndMetadata

from evenload.kafka_connection import Connection
from evenload.ray_trainer.training import group_progress
from evenload.ray_trainer.training.group_progress import GroupProgress


class _Coordinator:
    """An admin client before a coordinator that gives these answers, one after the other, and then none."""

    def __init__(self, *answers: KafkaError) -> None:
        self._answers = list(answers)
        self.committed: dict[int, int] = {}

    def alter_group_offsets(
        self, _: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaError | None]:
        if self._answers:
            answer = self._answers.pop(0)
            if isinstance(answer, CoordinatorNotAvailableError):  # nobody to ask: raised, not answered
                raise answer
            return dict.fromkeys(offsets, answer)
        self.committed = {key.partition: value.offset for key, value in offsets.items()}
        return dict.fromkeys(offsets, None)

    def close(self) -> None:
        pass


def committed_before(coordinator: _Coordinator, monkeypatch: pytest.MonkeyPatch) -> GroupProgress:
    monkeypatch.setattr(group_progress, "open_admin", lambda *_, **__: coordinator)
    progress = GroupProgress(Connection(bootstrap_servers="nowhere:1"), group="g", topic="t", deadline_s=60)
    progress.submit({0: 36})
    progress.close()
    return progress


def test_a_coordinator_that_is_not_ready_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = _Coordinator(CoordinatorNotAvailableError(), CoordinatorLoadInProgressError())
    progress = committed_before(coordinator, monkeypatch)
    assert coordinator.committed == {0: 36}
    assert (progress.num_commits, progress.num_failures) == (1, 0)


def test_a_refusal_is_counted_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = _Coordinator(GroupAuthorizationFailedError())
    progress = committed_before(coordinator, monkeypatch)
    assert coordinator.committed == {}
    assert (progress.num_commits, progress.num_failures) == (0, 1)
