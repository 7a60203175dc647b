"""How `evenload forecast` shows what the router has worked out."""

from __future__ import annotations

import re

import pytest

from evenload.cli import main
from evenload.kafka_plugin.loading import forecast
from evenload.router.config import RouterConfig
from evenload.router.forecasting.load import LoadForecast, forecast_into
from evenload.telemetry_collector.testing import make_snapshot


def test_only_what_chance_decides_is_shown_with_a_range_also_beyond_what_brokers_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = make_snapshot([0, 0], capacity_bytes=1 << 20, topics={"clicks": [[1], [2]]})

    def told(*_: object, size_bytes: int, **__: object) -> LoadForecast:
        return forecast_into(
            snapshot,
            "clicks",
            is_new=False,
            size_bytes=size_bytes,
            stored_bytes=size_bytes,
            over_s=None,
            num_keys=None,
            weight_by_broker={},
            config=RouterConfig(),
        )

    monkeypatch.setattr(forecast, "forecast_load", told)
    with pytest.raises(SystemExit) as ended:
        main(["forecast", "clicks", "--size", "8MiB", "--bootstrap-servers", "a:1"])
    assert ended.value.code == 0
    table = (re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines())
    rows = {name: levels for name, *levels in table}
    assert rows["best possible"] == rows["balanced"] == ["400.0 %", "400.0 %", "0.0"]
    assert all("\N{PLUS-MINUS SIGN}" in level for level in rows["default"][:2])
