"""What exporters say of GPUs: NVIDIA's dcgm-exporter, and Ray's own metrics. Pure.

A page is foreign: what can't be understood of it is left out.

Names and units: `DCGM_FI_DEV_GPU_UTIL` (percent) and `DCGM_FI_DEV_XID_ERRORS` (the last error; 0: none) of
dcgm-exporter's default counters; `ray_node_gpus_utilization` (percent) of Ray's "System metrics".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

GPUS_MAX: Final = 4096  # of one page
NAME_MAX: Final = 253
_XID_MAX: Final = 10_000


class Gpu(NamedTuple):
    """Which one: on a machine by its name or address, there by its number or UUID."""

    node: str
    number: str
    uuid: str = ""


class GpuReading(NamedTuple):
    """What a page says of a GPU."""

    gpu: Gpu
    busy: float | None = None  # of the last moments, 0 to 1
    xid: int | None = None  # the driver's last error; None: no news, 0: none


def readings_in(page: str) -> list[GpuReading]:
    """All that a page says of GPUs, one entry a GPU and fact.

    Raises:
        ValueError: It is no such page.
    """
    try:
        return _found_in(page)
    except OverflowError as error:  # a number of hundreds of digits
        raise ValueError(str(error)) from error


def _found_in(page: str) -> list[GpuReading]:
    found: list[GpuReading] = []
    for family in text_string_to_metric_families(page):
        if family.name in _READERS:
            for sample in family.samples:
                found += _READERS[family.name](sample.labels, sample.value)
                if len(found) >= GPUS_MAX:
                    return found
    return found


def _dcgm(labels: Mapping[str, str]) -> Gpu | None:
    if labels.get("GPU_I_ID"):
        return None  # a part of one (MIG), of which utilisation isn't known
    return _gpu(labels.get("Hostname"), labels.get("gpu"), labels.get("UUID", ""))


def _gpu(node: str | None, number: str | None, uuid: str = "") -> Gpu | None:
    if not node or not number or max(map(len, (node, number, uuid))) > NAME_MAX:
        return None
    return Gpu(node, number, uuid)


def _busy(gpu: Gpu | None, percent: float) -> Iterator[GpuReading]:
    if gpu and math.isfinite(percent) and 0 <= percent <= 100:
        yield GpuReading(gpu, busy=percent / 100)


def _dcgm_busy(labels: Mapping[str, str], value: float) -> Iterator[GpuReading]:
    yield from _busy(_dcgm(labels), value)


def _dcgm_xid(labels: Mapping[str, str], value: float) -> Iterator[GpuReading]:
    gpu = _gpu(labels.get("Hostname"), labels.get("gpu"), labels.get("UUID", ""))
    if gpu and math.isfinite(value) and 0 <= value <= _XID_MAX:
        yield GpuReading(gpu, xid=int(value))


def _ray_busy(labels: Mapping[str, str], value: float) -> Iterator[GpuReading]:
    yield from _busy(_gpu(labels.get("ip"), labels.get("GpuIndex")), value)


_READERS: Final = {
    "DCGM_FI_DEV_GPU_UTIL": _dcgm_busy,
    "DCGM_FI_DEV_XID_ERRORS": _dcgm_xid,
    "ray_node_gpus_utilization": _ray_busy,
}
