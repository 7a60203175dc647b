"""Every error carries its facts through pickling, and its message is a sentence with them."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from evenload.kafka_plugin import errors

VALUES: dict[str, Any] = {
    "str": "some",
    "int": 7,
    "float": 1.5,
    "int | None": 3,
    "list[str]": ["a", "b"],
    "list[int]": [1, 2],
}
CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.KafkaPluginError) and cls.__init__ is not Exception.__init__
]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling_with_its_facts(cls: type[errors.KafkaPluginError]) -> None:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        error = cls("a sentence")
    else:
        error = cls(**{parameter.name: VALUES[parameter.annotation] for parameter in parameters})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert "\n" not in str(error)
