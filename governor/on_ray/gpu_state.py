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
from urllib.parse import urlsplit

import requests

from evenload.governor.on_ray.gpu_pages import Gpu, GpuReading, readings_in

READ_S: Final = 15.0
_FAILED_AGAIN_S: Final = 60.0
WINDOW_S: Final = 600.0  # of which a mean is told
_ANSWER_S: Final = 5.0
_PAGE_BYTES_MAX: Final = 16 << 20
_LINE_BYTES_MAX: Final = 16 << 10  # parsing one takes longer the longer it is, and more than in proportion
_GPUS_MAX: Final = 20_000
_MEASURED_MIN: Final = 0.8  # of the window has to be known,
_OLD_S: Final = 4 * READ_S  # and its end

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
        faults: Why a page can't be read, by its URL without a password.
    """

    def __init__(self, urls: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._urls, self._clock = tuple(urls), clock
        self._busy: dict[str, dict[Gpu, deque[tuple[float, float]]]] = {}  # by node: when, how much
        self._xids: dict[Gpu, tuple[float, int]] = {}  # when it was said last, which
        self._again_s: dict[str, float] = {}
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
                    self._xids[gpu] = now_s, xid
                if busy is not None:
                    self._busy.setdefault(gpu.node, {}).setdefault(gpu, deque()).append((now_s, busy))
            for node, by_gpu in list(self._busy.items()):
                for gpu, points in list(by_gpu.items()):
                    while points and points[0][0] < now_s - WINDOW_S:
                        points.popleft()
                    if not points:  # it has gone
                        del by_gpu[gpu]
                if not by_gpu:
                    del self._busy[node]
            while sum(map(len, self._busy.values())) > _GPUS_MAX:
                del self._busy[next(iter(self._busy))]
            said = [(gpu, each) for gpu, each in self._xids.items() if each[0] >= now_s - WINDOW_S]
            self._xids = dict(said[-_GPUS_MAX:])

    def busy(self, held: Collection[NodeGpus]) -> float | None:
        """How busy these GPUs were in the last ten minutes, in the mean, 0 to 1; None: it isn't known."""
        now_s = self._clock()
        means = []
        with self._lock:
            for node in held:
                by_gpu = {gpu: each for name in node.names for gpu, each in self._busy.get(name, {}).items()}
                for gpu, points in by_gpu.items():
                    if gpu.number in node.gpus or gpu.uuid in node.gpus:
                        if points[0][0] > now_s - WINDOW_S * _MEASURED_MIN or points[-1][0] < now_s - _OLD_S:
                            return None
                        means.append(sum(busy for _, busy in points) / len(points))
        return sum(means) / len(means) if means else None

    @property
    def failing(self) -> dict[Gpu, int]:
        """The driver's last error of each GPU that has had one."""
        with self._lock:
            return {gpu: xid for gpu, (_, xid) in self._xids.items() if xid}

    def _run(self) -> None:
        with requests.Session() as session:
            # Proxies and passwords (.netrc) that the environment names are for strangers' addresses.
            session.trust_env = False
            while not self._is_closing.is_set():
                for url in self._urls:
                    # A round isn't to take longer for many that don't answer.
                    if self._again_s.get(url, 0.0) <= time.monotonic():
                        self._read(session, url)
                self._is_closing.wait(READ_S)

    def _received(self, answer: requests.Response) -> bytes:
        """All of it, unless it is too large or too slow."""
        page, by_s = bytearray(), time.monotonic() + _ANSWER_S
        for piece in answer.iter_content(1 << 16):
            page += piece
            if len(page) > _PAGE_BYTES_MAX:
                raise ValueError(f"it has more than {_PAGE_BYTES_MAX:,} bytes")
            if time.monotonic() > by_s:
                raise ValueError(f"it takes longer than {_ANSWER_S:g} s")
        if max(map(len, page.splitlines()), default=0) > _LINE_BYTES_MAX:
            raise ValueError(f"it has a line of more than {_LINE_BYTES_MAX:,} bytes")
        return bytes(page)

    def _read(self, session: requests.Session, url: str) -> None:
        try:
            with session.get(url, timeout=_ANSWER_S, stream=True, allow_redirects=False) as answer:
                answer.raise_for_status()
                page = self._received(answer)
            self.add(readings_in(page.decode(errors="replace")))
        except Exception as error:  # noqa: BLE001 - foreign: urllib3 raises errors of its own in mid-answer
            if self.faults.get(_public(url)) is None:
                _log.warning("metrics of GPUs at %s can't be read: %s", _public(url), error)
            self._again_s[url] = time.monotonic() + _FAILED_AGAIN_S
            self.faults[_public(url)] = (str(error) or type(error).__name__)[:200]
        else:
            self.faults.pop(_public(url), None)


def _public(url: str) -> str:
    """It without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
