"""The instruments for Prometheus: read from the cache when scraped, never kept twice.

registry = CollectorRegistry()
registry.register(PrometheusExport(collector))
generate_latest(registry)
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

from evenload.telemetry_collector.export.instruments import INSTRUMENTS, Instrument, Measured, Reading

__all__ = ["PrometheusExport"]

_Family = CounterMetricFamily | GaugeMetricFamily


class PrometheusExport(PrometheusCollector):
    """What prometheus-client calls a custom collector; register it with a registry.

    Args:
        measured: a collector. A scrape never waits for a broker, whatever state that is in.
        more: instruments beside those of every collector.
    """

    def __init__(self, measured: Measured, more: Iterable[Instrument] = ()) -> None:
        self._measured = measured
        self._instruments = (*INSTRUMENTS, *more)

    def collect(self) -> Iterable[_Family]:
        """All instruments, of one instant."""
        reading = Reading.of(self._measured)
        for instrument in self._instruments:
            family = _family(instrument)
            for point in instrument.read(reading):
                family.add_metric(point.labels, point.value)
            yield family

    def describe(self) -> Iterable[_Family]:
        """The names, so that registering reads nothing."""
        return [_family(instrument) for instrument in self._instruments]


def _family(instrument: Instrument) -> _Family:
    kind = CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily
    return kind(instrument.name, instrument.description, labels=instrument.labels)
