"""A commit whose outcome nobody heard of is found out before anything is written after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pytest
import stamina

from evenload.dataset_catalog.catalog import LOADS_TOPIC, Catalog
from evenload.dataset_catalog.manifest import Extent
from evenload.dataset_catalog.progress import LoadProgress, LoadState, ProgressKey, fold_progress
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import TransactionFailedError
from evenload.kafka_plugin.loading import load_writer
from evenload.kafka_plugin.loading.load_writer import LoadIdentity, LoadWriter
from evenload.kafka_plugin.loading.record_stream import RecordLayout
from evenload.kafka_plugin.sources.source import open_source
from evenload.kafka_plugin.transactional_writer import TransactionalWriter


class Brokers:
    """Keeps what is committed; stands in for the writer and the catalog of one load.

    Args:
        deaf_to_commit: Which commit, counted from 1, happens without an answer.
    """

    def __init__(self, deaf_to_commit: int) -> None:
        self.progress: dict[int, LoadProgress] = {}
        self.age_s = 0.0
        self._deaf_to_commit = deaf_to_commit
        self._num_commits = 0
        self._num_records = 0
        self._open: list[tuple[bytes, bytes | None]] = []
        self._sent: list[int] = []
        self._is_id_taken = True

    # -- as TransactionalWriter ---------------------------------------------------------------------------

    def open(self, topic: str | None, timeout_s: float) -> None:  # noqa: ARG002
        self._is_id_taken = True

    def end_forgotten(self, topic: str, state: LoadState | None, timeout_s: float) -> None:  # noqa: ARG002
        assert self._is_id_taken, "open() comes first"

    def begin(self) -> None:
        assert self._is_id_taken, "open() comes first"
        self._open, self._sent = [], []

    def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,  # noqa: ARG002
        num_samples: int,
        key: bytes | None = None,
        header: bytes | None = None,  # noqa: ARG002
    ) -> None:
        if topic == LOADS_TOPIC:
            self._open.append((cast(bytes, key), value))
        else:
            self._sent.append(num_samples)

    def settle(self) -> Mapping[int, tuple[Extent, ...]]:
        extents = tuple(Extent(self._num_records + at, 1, size) for at, size in enumerate(self._sent))
        self._num_records += len(self._sent)
        return {0: extents} if extents else {}

    def commit(self, *, num_bytes: int) -> None:  # noqa: ARG002
        for key, value in self._open:
            sequence = ProgressKey.from_bytes(key).sequence
            self.progress.pop(sequence, None)
            if value is not None:
                self.progress[sequence] = LoadProgress.from_record(key, value)
        self._num_commits += 1
        if self._num_commits == self._deaf_to_commit:
            raise TransactionFailedError("no answer")

    def abort(self, timeout_s: float) -> None:  # noqa: ARG002
        if self._num_commits == self._deaf_to_commit:
            raise TransactionFailedError("the commit may have happened")
        self._is_id_taken = False

    # -- as Catalog ---------------------------------------------------------------------------------------

    def load_state(self, name: str, version: int, *, wait_s: float) -> LoadState | None:  # noqa: ARG002
        return fold_progress(self.progress.values())

    def versions(self, name: str) -> list[int]:  # noqa: ARG002
        return []


@pytest.fixture
def make_writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    writers: list[LoadWriter] = []

    def make(brokers: Brokers) -> LoadWriter:
        def newest(*_: Any, **__: Any) -> LoadProgress | None:
            return next(reversed(brokers.progress.values()), None)

        monkeypatch.setattr(load_writer, "newest_sign_of_life", newest)
        layout = RecordLayout(
            encoding="packed",
            value_format="arrow",
            samples_per_record=5,
            block_bytes=1000,
            seed=None,
            load_id="0" * 16,
            max_record_bytes=1 << 20,
        )
        writer = LoadWriter(
            Connection(bootstrap_servers="nowhere:1"),
            cast(Catalog, brokers),
            cast(TransactionalWriter, brokers),
            identity=LoadIdentity(
                name="n",
                version=1,
                load_id="0" * 16,
                topic="t",
                topic_id="i",
                source_fingerprint="f",
                facts={},
            ),
            source=open_source({"n": np.arange(20)}),
            layout=layout,
            routing=None,
            config=LoaderConfig(transaction_bytes=1),
            progress=None,
        )
        writers.append(writer)
        return writer

    with stamina.set_testing(True, attempts=5):  # tries again without waiting
        yield make
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("deaf_to_commit", range(1, 6))  # the begin, and four records of five samples
def test_a_commit_without_an_answer_is_not_done_twice(make_writer: Any, deaf_to_commit: int) -> None:
    brokers = Brokers(deaf_to_commit)
    writer = make_writer(brokers)
    writer.say_hello()
    writer.write_all()
    state = brokers.load_state("n", 1, wait_s=0)
    assert state is not None
    assert (state.last.is_complete, state.last.num_samples, writer.totals.num_samples) == (True, 20, 20)


def test_a_load_that_turns_out_to_have_samples_is_not_forgotten(make_writer: Any) -> None:
    brokers = Brokers(deaf_to_commit=2)
    writer = make_writer(brokers)
    writer.say_hello()
    with pytest.raises(TransactionFailedError):  # and there the user gave up
        writer._attempt(writer._send_groups)
    assert writer.totals.num_samples == 0
    assert not writer.forget()
    assert sum(len(told.extents.get(0, ())) for told in brokers.progress.values()) == 1


def test_a_load_without_samples_is_forgotten(make_writer: Any) -> None:
    brokers = Brokers(deaf_to_commit=1)
    writer = make_writer(brokers)
    writer.say_hello()
    assert writer.forget()
    assert brokers.progress == {}


def test_a_load_whose_first_samples_could_not_be_written_is_forgotten(make_writer: Any) -> None:
    brokers = Brokers(deaf_to_commit=0)
    writer = make_writer(brokers)
    writer.say_hello()
    brokers.settle = _refuse  # type: ignore[method-assign]
    with pytest.raises(TransactionFailedError):
        writer._attempt(writer._send_groups)
    writer.abort()
    assert writer.forget()
    assert brokers.progress == {}


def _refuse() -> Mapping[int, tuple[Extent, ...]]:
    raise TransactionFailedError("a record was not stored")
