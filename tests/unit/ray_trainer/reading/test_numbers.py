"""Which samples a batch really has, by the headers of its records, whichever way they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest, Encoding
from evenload.dataset_catalog.testing import (
    PlacedRecord,
    StoredRecord,
    make_batch,
    make_manifest,
    make_records,
)
from evenload.ray_trainer.errors import CorruptRecordError
from evenload.ray_trainer.fetching.testing import MemoryFetcher
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.plan import EpochPlan, PlanRule
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.sample_split import SampleSplit, SplitTable
from evenload.ray_trainer.reading.step_source import FetchedBlocks, HeldWhole, StepSource, build_whole
from evenload.ray_trainer.reading.step_stream import StepStream, group_steps
from evenload.ray_trainer.reading.whole_copy import WholeCopy
from evenload.ray_trainer.training.audit import EpochAudit, audit_run
from evenload.ray_trainer.training.books.ledger import StepEntry, write_entries
from evenload.ray_trainer.training.books.placement import Placement
from evenload.ray_trainer.training.run_record import FinishedRecord, RunRecord, write_finished
from evenload.resume.attempts import AttemptStart, write_start
from evenload.resume.storage import RunStorage

NUM_SAMPLES, BATCH = 60, 7
SPLIT = SampleSplit(0.8, 3)


class Topic:
    """A dataset of one partition whose records don't lie where the load has put them.

    Args:
        found: for each place, which record is found there instead; None: the right one.
    """

    def __init__(self, encoding: Encoding, found: Sequence[int] | None, *, split: SampleSplit | None) -> None:
        batch = make_batch(NUM_SAMPLES)
        self.records = make_records(batch, encoding=encoding, samples_per_record=5)
        placed = [PlacedRecord(0, 3 + at, record) for at, record in enumerate(self.records)]
        self.manifest: DatasetManifest = make_manifest(batch, placed, encoding=encoding)
        self.placed = placed
        if found is not None:
            self.placed = [PlacedRecord(0, 3 + at, self.records[k]) for at, k in enumerate(found)]
        self.rule = PlanRule(num_lanes=3, block_bytes=2000, whole=False, shuffle=True)
        self.table = BlockTable.from_manifest(self.manifest, block_bytes=self.rule.block_bytes)
        self.split = SplitTable(self.table, split) if split is not None else None

    def read(self, *, whole: bool) -> list[StepEntry]:
        """An epoch as a rank alone books it."""
        plan = EpochPlan(self.split.table if self.split else self.table, seed=1, epoch=0, rule=self.rule)
        decoder = BatchDecoder(self.manifest)
        source = self._source(plan, decoder, whole=whole)
        groups = group_steps(plan.steps(BATCH), num_lanes=3, world_size=1, num_samples_max=20)
        view = plan.rank_view(rank=0, world_size=1)
        with StepStream(groups, view=view, source=source, decoder=decoder) as stream:
            return [
                StepEntry(at, 0, d.step.start, d.step.stop, BATCH, 1.0, d.index, d.number)
                for at, d in enumerate(stream, 1)
            ]

    def _source(self, plan: EpochPlan, decoder: BatchDecoder, *, whole: bool) -> StepSource:
        fetcher = MemoryFetcher.of_records(self.placed)
        if whole:
            copy = WholeCopy(list(build_whole(self.manifest, self.table, fetcher)), None)
            fetcher.close()
            return HeldWhole(copy, split=self.split, decoder=decoder)
        return FetchedBlocks(
            self.manifest,
            plan,
            split=self.split,
            start=0,
            global_batch_size=BATCH,
            rank=0,
            world_size=1,
            decoder=decoder,
            fetcher=fetcher,
            prefetch_bytes=1 << 20,
        )

    def audit(
        self, storage: RunStorage, entries: list[StepEntry]
    ) -> tuple[EpochAudit, tuple[str, ...], bool]:
        start = AttemptStart(run_id="r", attempt=1, resumed_from=None, world_size=1, started_at_s=1.0)
        write_start(storage, start)
        write_entries(storage, entries, attempt=1, rank=0, world_size=1)
        write_finished(storage, FinishedRecord(epochs=1, attempt=1, step=len(entries), result={}))
        record = RunRecord(
            run_id="r",
            dataset="flowers@1",
            dataset_fingerprint="f",
            num_samples=NUM_SAMPLES,
            plan_fingerprint="p",
            plan_facts={},
            created_at_s=1.0,
        )
        expected = None
        if self.split is not None:
            expected = np.zeros(NUM_SAMPLES, dtype=np.bool_)
            expected[self.split.all_index()] = True
        report = audit_run(
            storage,
            record,
            num_samples=NUM_SAMPLES,
            expected=expected,
            placement=Placement(self.manifest.extent_arrays()),
        )
        return report.epochs[0], report.notes, report.exactly_once


ways = pytest.mark.parametrize("whole", [False, True], ids=["blocks", "whole copy"])
encodings = pytest.mark.parametrize("encoding", ["packed", "record"])
parts = pytest.mark.parametrize("split", [None, SPLIT], ids=["all", "a part"])


def places(encoding: str) -> list[int]:
    return list(range(12 if encoding == "packed" else NUM_SAMPLES))


@ways
@encodings
@parts
def test_records_in_their_places_are_an_exact_epoch(
    storage: RunStorage, encoding: Encoding, whole: bool, split: SampleSplit | None
) -> None:
    topic = Topic(encoding, None, split=split)

    entries = topic.read(whole=whole)

    assert all(np.array_equal(entry.index, entry.number) for entry in entries)  # as one partition lies
    epoch, notes, is_exact = topic.audit(storage, entries)
    assert (epoch.missing, epoch.repeated, notes, is_exact) == (0, 0, (), True)


@ways
@encodings
def test_a_record_in_the_place_of_another_is_repeated_and_the_other_is_missing(
    storage: RunStorage, encoding: Encoding, whole: bool
) -> None:
    found = places(encoding)
    # Of the same load, so neither the load's id nor the hash of its content is wrong; and it is no larger.
    found[4] = 7
    topic = Topic(encoding, found, split=None)

    epoch, notes, is_exact = topic.audit(storage, topic.read(whole=whole))

    num_samples = topic.records[7].num_samples
    assert (epoch.missing, epoch.repeated, is_exact) == (num_samples, num_samples, False)
    assert (epoch.is_over, epoch.is_complete) == (True, False)
    assert any("not where the load put them" in note for note in notes)


@ways
@encodings
@parts
def test_two_records_that_have_changed_places_are_named(
    storage: RunStorage, encoding: Encoding, whole: bool, split: SampleSplit | None
) -> None:
    found = places(encoding)
    found[4], found[7] = 7, 4
    topic = Topic(encoding, found, split=split)

    _, notes, is_exact = topic.audit(storage, topic.read(whole=whole))

    assert not is_exact
    assert any("of partition 0" in note and "not where the load put them" in note for note in notes)


@ways
@encodings
def test_a_header_that_names_samples_beyond_the_dataset_is_refused(encoding: Encoding, whole: bool) -> None:
    topic = Topic(encoding, None, split=None)
    for first_sample in (NUM_SAMPLES, 2**64 - 1):
        record = topic.records[4]
        wrong = StoredRecord(first_sample, record.num_samples, record.value, record.header)
        topic.placed[4] = PlacedRecord(0, 7, wrong)
        with pytest.raises(CorruptRecordError, match=f"of a dataset of {NUM_SAMPLES}"):
            topic.read(whole=whole)


@pytest.fixture
def storage(tmp_path_factory: pytest.TempPathFactory) -> RunStorage:
    return RunStorage(tmp_path_factory.mktemp("run"), "run")
