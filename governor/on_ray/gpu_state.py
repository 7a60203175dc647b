"""How busy GPUs are and which of them fail, from exporters' pages that are read every few seconds.

For what is said to people, not for sizes: a GPU that waits for others' gradients looks busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import requests

from evenload.governor.on_ray.gpu_pages import Gpu, GpuReading, readings_in

READ_S: Final = 15.0
WINDOW_S: Final = 600.0  # of which a mean is told
_ANSWER_S: Final = 5.0
_PAGE_BYTES_MAX: Final = 16 << 20
_GPUS_MAX: Final = 20_000
_MEASURED_MIN: Final = 0.8  # of the window has to be known

_log = logging.getLogger(__name__)


class NodeGpus(NamedTuple):
    """GPUs of one machine that a stint has."""

    names: frozenset[str]  # of the machine: its host name, its address
    gpus: frozenset[str]  # numbers or UUIDs


class GpuState:
    """What was read lately. For any thread; `start` has it read on a thread of its own.

    Args:
        urls: Of the pages.
        clock: Monotonic seconds.

    Attributes:
        faults: Why a page can't be read, by its URL.
    """

    def __init__(self, urls: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._urls, self._clock = tuple(urls), clock
        self._busy: dict[Gpu, deque[tuple[float, float]]] = {}
        self._xids: dict[Gpu, int] = {}
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self.faults: dict[str, str] = {}

    def start(self) -> None:
        """Reads all pages from now on."""
        threading.Thread(target=self._run, name="gpu-state", daemon=True).start()

    def close(self) -> None:
        """Reads no more."""
        self._is_closing.set()

    def add(self, readings: Iterable[GpuReading]) -> None:
        """What was read now."""
        now_s = self._clock()
        with self._lock:
            for gpu, busy, xid in readings:
                if xid is not None:
                    self._xids[gpu] = xid
                if busy is not None:
                    self._busy.setdefault(gpu, deque()).append((now_s, busy))
            for gpu, points in list(self._busy.items()):
                while points and points[0][0] < now_s - WINDOW_S:
                    points.popleft()
                if not points:  # a machine that has gone
                    del self._busy[gpu]
                    self._xids.pop(gpu, None)
            while len(self._busy) > _GPUS_MAX:
                del self._busy[next(iter(self._busy))]

    def busy(self, held: Collection[NodeGpus]) -> float | None:
        """How busy these GPUs were in the last ten minutes, in the mean, 0 to 1; None: it isn't known."""
        now_s = self._clock()
        means = []
        with self._lock:
            for node in held:
                for gpu, points in self._busy.items():
                    if gpu.node in node.names and (gpu.number in node.gpus or gpu.uuid in node.gpus):
                        if points[0][0] > now_s - WINDOW_S * _MEASURED_MIN:
                            return None
                        means.append(sum(busy for _, busy in points) / len(points))
        return sum(means) / len(means) if means else None

    @property
    def failing(self) -> dict[Gpu, int]:
        """The driver's last error of each GPU that has had one."""
        with self._lock:
            return {gpu: xid for gpu, xid in self._xids.items() if xid}

    def _run(self) -> None:
        with requests.Session() as session:
            # Proxies and passwords (.netrc) that the environment names are for strangers' addresses.
            session.trust_env = False
            while not self._is_closing.is_set():
                for url in self._urls:
                    self._read(session, url)
                self._is_closing.wait(READ_S)

    def _read(self, session: requests.Session, url: str) -> None:
        try:
            with session.get(url, timeout=_ANSWER_S, stream=True, allow_redirects=False) as answer:
                answer.raise_for_status()
                page = answer.raw.read(_PAGE_BYTES_MAX + 1, decode_content=True)
            if len(page) > _PAGE_BYTES_MAX:
                raise ValueError(f"it has more than {_PAGE_BYTES_MAX:,} bytes")
            self.add(readings_in(page.decode(errors="replace")))
        except (requests.RequestException, OSError, ValueError, LookupError) as error:
            if self.faults.get(url) is None:
                _log.warning("metrics of GPUs at %s can't be read: %s", url, error)
            self.faults[url] = str(error)[:200]
        else:
            self.faults.pop(url, None)
