"""The instruments for OpenTelemetry: observable ones, read from the cache when a reader collects.

Who collects is passed in: `PeriodicExportingMetricReader(OTLPMetricExporter())` pushes over OTLP, an
`InMemoryMetricReader` is for tests. Nothing global is set, so an application's own provider is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource

from evenload.telemetry_collector.export.instruments import (
    ATTRIBUTE_BY_LABEL,
    INSTRUMENTS,
    Instrument,
    Measured,
    Reading,
)

__all__ = ["OtlpExport"]

_SERVICE_NAME = "evenload-collector"
_LAST_PUSH_S = 0.4


class OtlpExport:
    """Exports until it is closed. A context manager.

    Args:
        measured: a collector. Reading it never waits for a broker.
        reader: who collects, and how it is sent; belongs to this export from now on.
        more: instruments beside those of every collector.
    """

    def __init__(self, measured: Measured, reader: MetricReader, more: Iterable[Instrument] = ()) -> None:
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({"service.name": _SERVICE_NAME}),
            shutdown_on_exit=False,
        )
        self._is_closed = False
        meter = self._provider.get_meter("evenload.telemetry_collector")
        for instrument in (*INSTRUMENTS, *more):
            create = (
                meter.create_observable_counter
                if instrument.kind == "counter"
                else meter.create_observable_gauge
            )
            create(
                instrument.name,
                callbacks=[_callback(measured, instrument)],
                unit=instrument.unit,
                description=instrument.description,
            )

    def close(self) -> None:
        """Push once more, for a moment only, and end the reader. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            # A reader waits for its last push before it tells the exporter to give up, and an exporter tries
            # a dead endpoint again and again for ten seconds.
            self._provider.shutdown(timeout_millis=_LAST_PUSH_S * 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _callback(
    measured: Measured, instrument: Instrument
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    attributes = [ATTRIBUTE_BY_LABEL[label] for label in instrument.labels]

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for point in instrument.read(Reading.of(measured)):
            yield Observation(point.value, dict(zip(attributes, point.labels, strict=True)))

    return observe
