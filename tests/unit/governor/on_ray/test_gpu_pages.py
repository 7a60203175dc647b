"""What is read of exporters' pages: names, labels and units as dcgm-exporter 4 and Ray 2 write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.on_ray.gpu_pages import GPUS_MAX, Gpu, GpuReading, readings_in

PAGES = Path(__file__).parent / "pages"
FIRST = Gpu("gpu-node-7", "0", "GPU-5a1c0000-0000-4000-8000-000000000000")
SECOND = Gpu("gpu-node-7", "1", "GPU-5a1c0000-0000-4000-8000-000000000001")


def test_dcgm_exporter_says_how_busy_gpus_are_and_which_fail() -> None:
    assert readings_in((PAGES / "dcgm-exporter.txt").read_text()) == [
        GpuReading(FIRST, busy=0.97),
        GpuReading(SECOND, busy=0.03),
        GpuReading(FIRST, xid=0),
        GpuReading(SECOND, xid=79),
    ]


def test_ray_says_how_busy_gpus_are() -> None:
    assert readings_in((PAGES / "ray.txt").read_text()) == [
        GpuReading(Gpu("10.0.3.7", "0"), busy=0.88),
        GpuReading(Gpu("10.0.3.7", "1"), busy=0.0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a"} NaN',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a"} -1',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a"} 101',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50',
        'DCGM_FI_DEV_GPU_UTIL{Hostname="a"} 50',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a",GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"} 50',
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="{"a" * 300}"}} 50',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="a"} +Inf',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="a"} 1e9',
        'ray_node_gpus_utilization{GpuIndex="0"} 5',
        "up 1",
        "",
    ],
)
def test_what_says_nothing_is_left_out(line: str) -> None:
    assert readings_in(line + "\n") == []


def test_a_page_of_very_many_is_cut() -> None:
    lines = (f'ray_node_gpus_utilization{{ip="a",GpuIndex="{number}"}} 5' for number in range(2 * GPUS_MAX))
    assert len(readings_in("\n".join(lines) + "\n")) == GPUS_MAX


@given(st.text(max_size=200))
def test_anything_else_is_read_or_refused(page: str) -> None:
    try:
        readings = readings_in(page)
    except ValueError:
        return
    assert readings == []
