"""Memory to receive blocks in, used again and again.

Fresh memory costs a page fault for every 4 KiB, which adds up to a good part of the time that it takes to
receive into it, and the C library gives blocks of this size back to the system as soon as they are freed.
So buffers are kept and lent again. (Cutting them from large slabs that the system backs with huge pages was
slower: on a machine whose memory is full of cached files it first has to make room for each.)

Nobody has to give a buffer back: what is lent is a view, and when the last memoryview, NumPy or Arrow array
that points into it is gone, a weak reference says so. An array that is kept by mistake thus keeps its
buffer from being lent again, instead of seeing its bytes change.

Any thread may call; nothing has to be closed.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import defaultdict, deque
from functools import partial

import numpy as np
import numpy.typing as npt

_Memory = npt.NDArray[np.uint8]


class BufferPool:
    """Lends memory; remembers up to `idle_bytes_max` of what came back."""

    def __init__(self, idle_bytes_max: int = 64 << 20) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._lock = threading.Lock()
        self._idle: defaultdict[int, list[_Memory]] = defaultdict(list)  # by size
        self._idle_bytes = 0
        # A view can die anywhere, also in a garbage collection that begins while the lock is held, so
        # what comes back is put down here without the lock, and sorted in when memory is next asked for.
        self._returned: deque[_Memory] = deque()
        self._lent: dict[int, weakref.ref[_Memory]] = {}
        self._tickets = itertools.count()

    def allocate(self, size_bytes: int) -> memoryview:
        """Writable memory of that many bytes; its contents are arbitrary."""
        capacity = rounded_up(size_bytes)
        with self._lock:
            self._sort_in_returned()
            memory = self._take(capacity)
        view = memory[:size_bytes]
        ticket = next(self._tickets)
        self._lent[ticket] = weakref.ref(view, partial(self._give_back, memory, ticket))
        return memoryview(view)  # type: ignore[arg-type]

    def _give_back(self, memory: _Memory, ticket: int, _: weakref.ref[_Memory]) -> None:
        del self._lent[ticket]
        self._returned.append(memory)

    def _sort_in_returned(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            if self._idle_bytes + memory.nbytes <= self._idle_bytes_max:
                self._idle[memory.nbytes].append(memory)
                self._idle_bytes += memory.nbytes

    def _take(self, capacity: int) -> _Memory:
        if self._idle[capacity]:
            self._idle_bytes -= capacity
            return self._idle[capacity].pop()
        return np.empty(capacity, dtype=np.uint8)


def rounded_up(size_bytes: int) -> int:
    """The next of the sizes in which memory is lent: 16 for each power of two, so at most 1/16 is wasted."""
    step = 1 << max(6, size_bytes.bit_length() - 5)
    return -(-size_bytes // step) * step
