"""What a Prometheus exporter of a Kafka broker says, found by name in its text.

The exporter is usually the JMX exporter, and its configuration decides how a figure is spelled. The spellings
that people use (the JMX exporter's own examples for Kafka, which Strimzi follows; Kafka's own names in small
letters; no rules at all) are in the tables below. Case doesn't matter, nor does the `_total` that newer
exporters add to whatever is a counter. The first spelling that is there counts.

Only figures of the broker as a whole are read, never those by topic: a large cluster's exporter serves
megabytes of them. So text is filtered line by line as it comes, and only what is left (some dozen lines) is
parsed. More than that is refused: parsing holds up everything else that is measured.

Bytes received count what producers send and what the broker copies from other leaders; an exporter that
leaves out one of the two doesn't tell them. The latency is the
median of Produce requests over some minutes, or where an exporter has none, the mean since the broker
started. Kafka counts it in whole milliseconds, so below half of one it is 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["BrokerFigures", "FigureLines"]

_TOPIC_METRICS = "kafka_server_brokertopicmetrics"
_REQUEST_METRICS = "kafka_network_requestmetrics"
_MS = 1e-3
_LINE_MAX_BYTES = 64 << 10
_WANTED_MAX_BYTES = 256 << 10

_Spelling = tuple[str, Mapping[str, str]]
"""A sample's name without `_total`, and the labels that it has at least; both in small letters."""


def _received(name: str) -> tuple[_Spelling, ...]:
    return (
        (f"{_TOPIC_METRICS}_{name}", {}),
        (f"{_TOPIC_METRICS}_{name}persec_count", {}),
        (f"{_TOPIC_METRICS}_{name}persec", {}),
        (f"{_TOPIC_METRICS}_count", {"name": f"{name}persec"}),
    )


_PRODUCE = {"request": "produce"}
_FROM_PRODUCERS = _received("bytesin")
_FROM_REPLICAS = _received("replicationbytesin")
_NUM_REQUESTS: tuple[_Spelling, ...] = (
    (f"{_REQUEST_METRICS}_totaltimems_count", _PRODUCE),
    (f"{_REQUEST_METRICS}_count", {**_PRODUCE, "name": "totaltimems"}),
)
_LATENCY_MS: tuple[_Spelling, ...] = (
    (f"{_REQUEST_METRICS}_totaltimems", {**_PRODUCE, "quantile": "0.50"}),
    (f"{_REQUEST_METRICS}_totaltimems", {**_PRODUCE, "quantile": "0.5"}),
    (f"{_REQUEST_METRICS}_totaltimems_50thpercentile", _PRODUCE),
    (f"{_REQUEST_METRICS}_50thpercentile", {**_PRODUCE, "name": "totaltimems"}),
    (f"{_REQUEST_METRICS}_totaltimems_mean", _PRODUCE),
    (f"{_REQUEST_METRICS}_mean", {**_PRODUCE, "name": "totaltimems"}),
)

# A line with one of these figures, but not one by topic.
_WANTED = re.compile(
    rb"(?:kafka_server_brokertopicmetrics_(?:replication)?(?:bytesin|count)|"
    rb"kafka_network_requestmetrics_)(?!.*[{,]\s*topic=\"[^\"])",
    re.IGNORECASE,
)
_PRODUCE_LINE = re.compile(rb"request=\"produce\"", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """The figures that were found; None for those that weren't.

    Attributes:
        received_bytes: since the broker started, from producers and from other replicas.
        num_produce_requests: since the broker started.
        produce_latency_s: how long one takes over all.
    """

    received_bytes: float | None = None
    num_produce_requests: float | None = None
    produce_latency_s: float | None = None


class FigureLines:
    """The lines with figures of a broker, from a text that comes in pieces."""

    def __init__(self) -> None:
        self._wanted: list[bytes] = []
        self._wanted_bytes = 0
        self._rest = b""

    def add(self, piece: bytes) -> None:
        """Take the next piece of the text, wherever it was cut.

        Raises:
            ValueError: it can't be what is looked for.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > max(_LINE_MAX_BYTES, len(piece)):
            raise ValueError(f"a line of it is longer than {_LINE_MAX_BYTES} bytes")
        self._keep(lines)

    def figures(self) -> BrokerFigures:
        """What they say, once the text is complete.

        Raises:
            ValueError: they are not Prometheus' text.
        """
        self._keep([self._rest])
        self._rest = b""
        text = b"\n".join(self._wanted).decode("utf-8") + "\n"
        try:
            samples = [
                (_name(sample.name), {k.lower(): v.lower() for k, v in sample.labels.items()}, sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
        except (IndexError, KeyError) as error:  # the parser's own way to say so, now and then
            raise ValueError(f"a line of it can't be parsed: {error!r}") from error
        from_producers = _first(samples, _FROM_PRODUCERS)
        from_replicas = _first(samples, _FROM_REPLICAS)
        latency_ms = _first(samples, _LATENCY_MS)
        return BrokerFigures(
            received_bytes=None
            if from_producers is None or from_replicas is None
            else from_producers + from_replicas,
            num_produce_requests=_first(samples, _NUM_REQUESTS),
            produce_latency_s=None if latency_ms is None else latency_ms * _MS,
        )

    def _keep(self, lines: list[bytes]) -> None:
        for line in lines:
            found = _WANTED.match(line)
            if found and (b"requestmetrics" not in found[0].lower() or _PRODUCE_LINE.search(line)):
                self._wanted.append(line)
                self._wanted_bytes += len(line)
        if self._wanted_bytes > _WANTED_MAX_BYTES:
            raise ValueError(f"a broker's own figures take more than {_WANTED_MAX_BYTES} bytes of it")


def _name(name: str) -> str:
    return name.lower().removesuffix("_total")


def _first(
    samples: list[tuple[str, dict[str, str], float]], spellings: tuple[_Spelling, ...]
) -> float | None:
    """The value of the first spelling that is there with a value that can be."""
    for name, labels in spellings:
        for sample_name, sample_labels, value in samples:
            is_it = sample_name == name and labels.items() <= sample_labels.items()
            if is_it and 0 <= value < float("inf"):
                return value
    return None
