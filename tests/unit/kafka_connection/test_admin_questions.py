from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    NotControllerError,
    UnknownBrokerIdError,
    UnknownTopicIdError,
)

from evenload.kafka_connection.admin_questions import ask_again, may_pass, reason_of


class Question:
    """Fails with these errors, one after the other, and is answered then."""

    def __init__(self, *errors: KafkaError) -> None:
        self._left = list(errors)
        self.num_asked = 0

    def __call__(self) -> str:
        self.num_asked += 1
        if self._left:
            raise self._left.pop(0)
        return "answer"


def _ask(
    question: Question, *, timeout_s: float = 30.0, is_passing: Callable[[KafkaError], bool] = may_pass
) -> str:
    return ask_again(SimpleNamespace(), question, timeout_s=timeout_s, is_passing=is_passing)


@pytest.mark.parametrize("error", [NotControllerError(), UnknownBrokerIdError(-1)])
def test_a_question_is_put_again_while_what_is_wrong_may_pass(error: KafkaError) -> None:
    question = Question(error, error)

    assert _ask(question) == "answer"
    assert question.num_asked == 3


def test_a_refusal_is_not_asked_again() -> None:
    question = Question(ClusterAuthorizationFailedError())

    with pytest.raises(ClusterAuthorizationFailedError):
        _ask(question)
    assert question.num_asked == 1


def test_without_time_a_question_is_put_once() -> None:
    question = Question(NotControllerError())

    with pytest.raises(NotControllerError):
        _ask(question, timeout_s=0)
    assert question.num_asked == 1


def test_whoever_asks_says_which_errors_are_no_answer_yet() -> None:
    question = Question(UnknownTopicIdError())

    with pytest.raises(UnknownTopicIdError):
        _ask(question, is_passing=lambda _: False)
    assert question.num_asked == 1


def test_a_controller_that_failed_is_looked_for_anew() -> None:
    admin = SimpleNamespace(_controller_id=1)

    ask_again(admin, Question(NotControllerError()), timeout_s=30.0)

    assert admin._controller_id is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotControllerError(), "NotController"),
        (NotControllerError("Request failed with response 'Response(error_message='moved')'"), "moved"),
        (UnknownBrokerIdError(-1), "has no leader"),
    ],
)
def test_a_brokers_own_words_are_told(error: KafkaError, reason: str) -> None:
    assert reason in reason_of(error)
    assert "Response" not in reason_of(error)
