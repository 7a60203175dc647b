"""How busy GPUs are that a stint has, and which fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evenload.governor.on_ray.gpu_pages import Gpu, GpuReading
from evenload.governor.on_ray.gpu_state import READ_S, WINDOW_S, GpuState, NodeGpus

PAGES = Path(__file__).parent / "pages"
FIRST, SECOND = Gpu("node", "0", "GPU-a"), Gpu("node", "1", "GPU-b")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> GpuState:
    return GpuState(clock=clock)


def watch(state: GpuState, clock: Clock, for_s: float, *readings: GpuReading) -> None:
    for _ in range(int(for_s / READ_S)):
        state.add(readings)
        clock.now_s += READ_S


def held(*gpus: str, node: str = "node") -> list[NodeGpus]:
    return [NodeGpus(frozenset({node, "10.0.0.1"}), frozenset(gpus))]


def test_the_mean_of_ten_minutes_is_told_of_those_that_are_held(state: GpuState, clock: Clock) -> None:
    watch(state, clock, WINDOW_S, GpuReading(FIRST, busy=0.2), GpuReading(SECOND, busy=0.6))
    assert state.busy(held("0")) == pytest.approx(0.2)
    assert state.busy(held("GPU-b")) == pytest.approx(0.6)
    assert state.busy(held("0", "1")) == pytest.approx(0.4)
    watch(state, clock, WINDOW_S / 2, GpuReading(FIRST, busy=1.0), GpuReading(SECOND, busy=0.6))
    assert state.busy(held("0")) == pytest.approx(0.6, abs=0.05)


def test_what_isnt_known_for_long_enough_isnt_told(state: GpuState, clock: Clock) -> None:
    watch(state, clock, WINDOW_S / 2, GpuReading(FIRST, busy=0.0))
    assert state.busy(held("0")) is None
    watch(state, clock, WINDOW_S / 2, GpuReading(FIRST, busy=0.0))
    assert state.busy(held("0")) == 0.0
    assert state.busy(held("1")) is None
    assert state.busy(held("0", node="another")) is None
    assert state.busy([]) is None


def test_what_isnt_said_any_more_isnt_told(state: GpuState, clock: Clock) -> None:
    watch(state, clock, WINDOW_S, GpuReading(FIRST, busy=0.0))
    clock.now_s += 100
    assert state.busy(held("0")) is None


def test_a_machine_is_known_by_its_address_too(state: GpuState, clock: Clock) -> None:
    watch(state, clock, WINDOW_S, GpuReading(Gpu("10.0.0.1", "0"), busy=0.5))
    assert state.busy(held("0")) == pytest.approx(0.5)


def test_errors_are_told_until_they_or_the_machine_have_gone(state: GpuState, clock: Clock) -> None:
    watch(state, clock, 60, GpuReading(FIRST, busy=0.5), GpuReading(FIRST, xid=79), GpuReading(SECOND, xid=0))
    assert state.failing == {FIRST: 79}
    state.add([GpuReading(FIRST, xid=0)])
    assert state.failing == {}
    state.add([GpuReading(FIRST, xid=48)])
    clock.now_s += 2 * WINDOW_S
    state.add([])
    assert state.failing == {}


class _Exporter(BaseHTTPRequestHandler):
    page = (PAGES / "dcgm-exporter.txt").read_bytes()

    def do_GET(self) -> None:
        page = {
            "/nonsense": b"\xff nonsense{",
            "/digits": b'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a"} 1' + b"0" * 400 + b"\n",
            "/long": b'up{a="' + b"\\" * 100_000 + b'"} 1\n',
        }.get(self.path, self.page)
        self.send_response(404 if self.path == "/absent" else 200)
        self.send_header("Content-Length", str(len(page) + (1000 if self.path == "/cut" else 0)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def exporter() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_pages_are_read_and_those_that_cant_be_are_said(exporter: str) -> None:
    bad = [f"{exporter}/{page}" for page in ("absent", "nonsense", "long", "cut")]
    state = GpuState([*bad, f"{exporter}/digits", f"{exporter}/metrics"])
    state.start()
    while not state.failing:
        pass
    state.close()
    assert {gpu.number: xid for gpu, xid in state.failing.items()} == {"1": 79}
    assert state.faults.keys() - {f"{exporter}/digits"} == set(bad)  # nobody can be so busy
    assert "404" in state.faults[f"{exporter}/absent"]
