"""The collector's settings refuse what can't work, and say why."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from evenload.telemetry_collector import CollectorConfig


def test_the_defaults_fit_together() -> None:
    config = CollectorConfig()
    assert config.interval_s + config.deadline_s < config.age_max_s


@pytest.mark.parametrize("field", ["interval_s", "deadline_s", "age_max_s", "backoff_max_s", "jitter"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_with_its_field(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        CollectorConfig(**{field: value})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"interval_s": 60.0, "age_max_s": 100.0}, "full_interval_s is 30.0"),
        ({"backoff_initial_s": 20.0}, "backoff_max_s is 15.0"),
        ({"deadline_s": 20.0}, "full_deadline_s is 15.0"),
        ({"age_max_s": 7.0}, "as old as interval_s \\+ deadline_s \\(8.0\\)"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_both_values(
    settings: dict[str, float], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        CollectorConfig(**settings)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="intervall_s"):
        CollectorConfig(intervall_s=1.0)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CollectorConfig().interval_s = 1.0
