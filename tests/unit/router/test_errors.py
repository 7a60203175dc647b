from __future__ import annotations

import pickle

import pytest

from evenload.router.errors import NotEnoughBrokersError, PluginError, RouterError, WeightError


@pytest.mark.parametrize(
    "error",
    [
        PluginError("evenload.goals", "x", ("disk_usage",), "is not known"),
        WeightError("evenload.goals", "x", -1, "has to be at least 0"),
        NotEnoughBrokersError(3, (1, 2)),
    ],
)
def test_errors_survive_pickling_with_their_facts(error: RouterError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
