"""A thread that brings snapshots: what is the same whoever measures, oneself or a service.

The idea: whoever produces reads a cache; what fills it runs an asyncio loop in a thread of its own. What goes
wrong in that loop is never lost: should it fail as a whole, `snapshot` raises that and the cache grows stale.

Read next: collector.py, which measures, and service/client.py, which asks a service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from evenload.kafka_connection import Connection
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import (
    ClusterChangedError,
    CollectorClosedError,
    NoFreshSnapshotError,
)
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.statistics import CollectorStatistics

__all__ = ["SnapshotThread"]

_log = logging.getLogger(__name__)


class SnapshotThread(ABC):
    """Fills `cache` until it is closed. All methods may be called from any thread.

    Args:
        connection: how the cluster is reached.
        config: how often to ask and how long to wait.
        thread_name: as debuggers show it.
        clock: monotonic seconds, of which ages are made.
    """

    def __init__(
        self,
        connection: Connection,
        config: CollectorConfig | None,
        *,
        thread_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._config = config or CollectorConfig()
        self._clock = clock
        self.cache = SnapshotCache(self._config.age_max_s, monotonic_clock=clock)
        self._thread_name = thread_name
        self._news = threading.Condition()  # guards what follows
        self._assembled: Assembled | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._is_closed = False
        self._failure: BaseException | None = None

    @abstractmethod
    def refresh(self) -> None:
        """Ask for everything anew, without waiting for it. Does nothing while the thread doesn't run."""

    @property
    @abstractmethod
    def statistics(self) -> CollectorStatistics:
        """What was counted so far, and which questions have no answer at the moment."""

    @abstractmethod
    async def _run(self) -> None:
        """Bring snapshots to `_publish` until stopped; first says to `_begin` how that is done."""

    def start(self) -> Self:
        """Start measuring; returns at once. Does nothing when it runs already.

        Raises:
            CollectorClosedError: it has been closed.
        """
        with self._news:
            if self._is_closed:
                raise CollectorClosedError("it has been closed; make another one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_loop, name=self._thread_name, daemon=True)
                self._thread.start()
        return self

    def close(self) -> None:
        """End the measuring; afterwards no thread, task or connection of it is left. May be called twice.

        The cache keeps the last snapshot, which grows stale.
        """
        with self._news:
            self._is_closed = True
            thread, stop = self._thread, self._stop
            self._news.notify_all()
        if thread is None:
            return
        if stop is not None:
            self._in_loop(stop)
        thread.join(self._config.close_timeout_s)
        if thread.is_alive():
            _log.warning("the collector's thread didn't end within %g s", self._config.close_timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:
        """A snapshot of which nothing is older than asked for; measures anew when there is none.

        Args:
            max_age_s: the oldest that is accepted, in seconds; 0: measured after this call; None: the
                configuration's `age_max_s`.
            timeout_s: how long to wait for it, in seconds.

        Raises:
            NoFreshSnapshotError: nobody has answered in time, with what each question failed of; at once when
                nobody will.
            CollectorClosedError: the collector hasn't been started, has been closed, or has failed.
            ClusterChangedError: it is for many, and another cluster answers by now.
        """
        if max_age_s is None:
            max_age_s = self._config.age_max_s
        needed_at_s = self._clock() - max_age_s
        with self._news:
            self.check_runs()
            if (assembled := self._newer_than(needed_at_s)) is not None:
                return assembled.snapshot
        self.refresh()
        began_at_s = time.monotonic()
        with self._news:
            while (assembled := self._newer_than(needed_at_s)) is None:
                self.check_runs()
                left_s = began_at_s + timeout_s - time.monotonic()
                if self._waits_in_vain() or not self._news.wait(left_s):
                    raise NoFreshSnapshotError(
                        self._connection.bootstrap_servers,
                        round(min(timeout_s, time.monotonic() - began_at_s), 1),
                        self.statistics.failures,
                    )
            return assembled.snapshot

    def _waits_in_vain(self) -> bool:
        """Whether nothing new is to be expected, so that nobody should wait for it. Called with the lock."""
        return False

    def _newer_than(self, needed_at_s: float) -> Assembled | None:
        assembled = self._assembled
        if assembled is None or min(assembled.measured_at_s, assembled.layout_at_s) < needed_at_s:
            return None
        return assembled

    def check_runs(self) -> None:
        """Nothing, while it measures.

        Raises:
            CollectorClosedError: it hasn't been started, has been closed, or has failed.
            ClusterChangedError: it is for many, and another cluster answers by now.
        """
        with self._news:
            if isinstance(self._failure, ClusterChangedError):
                raise self._failure
            if self._failure is not None:
                raise CollectorClosedError(
                    f"it failed ({self._failure!r}); make another one"
                ) from self._failure
            if self._is_closed:
                raise CollectorClosedError("it has been closed; make another one")
            if self._thread is None:
                raise CollectorClosedError("it hasn't been started; call start()")

    def _in_loop(self, act: Callable[[], None]) -> None:
        with self._news:
            loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has just ended: there is nothing to act on
            loop.call_soon_threadsafe(act)

    def _publish(self, assembled: Assembled) -> None:
        self.cache.put(assembled.snapshot, self._clock() - assembled.measured_at_s)
        with self._news:
            self._assembled = assembled
            self._news.notify_all()

    def _follow(self, known_id: str, found_id: str) -> None:
        """Nothing that is known holds any more: it was of another cluster than the one that answers now."""
        _log.warning(
            "the brokers at %s belong to cluster %r now, not to %r; shares are even until it is measured",
            self._connection.bootstrap_servers,
            found_id,
            known_id,
        )
        with self._news:
            self.cache.forget()
            self._assembled = None

    # In the thread.

    def _begin(self, stop: Callable[[], None]) -> bool:
        """From now on `stop` ends `_run`. False when it shall not even begin."""
        with self._news:
            if not self._is_closed:
                self._stop, self._loop = stop, asyncio.get_running_loop()
            return not self._is_closed

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - kept for whoever asks for a snapshot
            if not isinstance(
                error, ClusterChangedError
            ):  # which is no fault, and ends a service in a sentence
                _log.exception("the collector failed; its snapshots will grow stale")
            with self._news:
                self._failure = error
        finally:
            with self._news:
                self._loop = self._stop = None
                self._news.notify_all()
