"""A dataset in Kafka as what a PyTorch loop iterates over: every sample exactly once an epoch.

The reader joins the parts: the plan says which samples a step has, a source gets them (step_source.py), a
stream decodes them ahead of the loop (step_stream.py), and here they are handed out and counted. Counting is
all that there is to state: an epoch, and how many samples of it were handed out over all ranks. A batch
counts from the moment it is handed out; what is read ahead never does, so an iteration may be left at any
point and taken up again, by this reader or, with its state, by any number of others.

Invariants, checked in tests/integration/ray_trainer/test_reader.py and
tests/fault/ray_trainer/test_reader_faults.py:
1. Over all ranks, an epoch has each sample once, however often it is interrupted and resumed.
2. The state is the same on every rank, and covers exactly the batches handed out.
3. When an iteration ends or is left, no thread and no socket of it remains.

Read next: batch.py (what is handed out), step_stream.py, planning/plan.py.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import asdict
from typing import Any, Final, TypeAlias

import torch
from torch.utils.data import IterableDataset

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection, resolve_connection
from evenload.ray_trainer.errors import TooManyWorkersError
from evenload.ray_trainer.fetching.fetch import ExactRangeFetcher, FetchConfig
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.cursor import Cursor
from evenload.ray_trainer.planning.plan import EpochPlan, plan_facts, plan_fingerprint
from evenload.ray_trainer.planning.ranks import check_rank
from evenload.ray_trainer.planning.rule import MAX_WORKERS, PlanRule, choose_rule, earlier_rule
from evenload.ray_trainer.planning.steps import check_rest_of_epoch, check_world_size, num_steps
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.errors import UnknownRankError
from evenload.ray_trainer.reading.loader_workers import LoaderWorkers
from evenload.ray_trainer.reading.process_rank import ProcessRank, process_rank
from evenload.ray_trainer.reading.sample_split import SampleSplit, SplitTable
from evenload.ray_trainer.reading.step_source import (
    FetchedBlocks,
    HeldWhole,
    StepSource,
    build_whole,
    numbered_schema,
)
from evenload.ray_trainer.reading.step_stream import DecodedStep, StepStream, group_steps
from evenload.ray_trainer.reading.whole_copy import WholeCopy

PREFETCH_BYTES: Final = 256 << 20
# A rank's samples that are planned and waited for together: at most so many, in a 16th of prefetch_bytes.
_GROUP_SAMPLES_MAX: Final = 4096
_GROUP_FRACTION: Final = 16

Transform: TypeAlias = Callable[[Batch], Batch | Mapping[str, Any]]


class DatasetReader(IterableDataset[Batch]):
    """One rank's part of a dataset, step by step, epoch by epoch.

    Iterating gives the rest of the present epoch; iterating again, the next epoch. Works in a plain loop, in
    a DataLoader or StatefulDataLoader with batch_size=None and at most one worker process, as what a Hugging
    Face Trainer's get_train_dataloader returns (with ignore_data_skip=True), and in Lightning, also with
    strategy="ddp". For one thread at a time, and one iteration at a time: a new one ends the one before.

    A worker process reads with a copy of the reader: keep it (persistent_workers=True), and read each epoch
    to its end, or what it has read ahead is lost. Only a StatefulDataLoader knows the state of what it has
    handed out, and asking this reader for it is refused.

    Args:
        dataset: `NAME` (its newest version), `NAME@VERSION`, or a manifest.
        global_batch_size: samples of a step over all ranks, at least 1. The last two steps of an epoch share
            what is left.
        seed: of the order of samples, 0 to 2**64 - 1.
        shuffle: False gives the order in which samples lie in Kafka.
        columns: names of the columns to decode; None: all.
        transform: gets each decoded Batch and returns it, or a mapping of columns. It runs in the loop's
            thread, so it may use PyTorch's random numbers; for choices that should depend on the sample
            alone, take Batch.sample_seeds.
        split: (fraction, seed): only the samples that a draw selects, always the same ones. (0.9, 7) and
            (-0.1, 7) are the two parts of a dataset.
        rank, world_size: both or neither. None: those of this process, looked up as an iteration begins (see
            process_rank.py for where).
        max_workers: the largest world size that may ever read with this state, at least 1; part of the plan.
        connection: how to reach Kafka; None: see evenload.kafka_connection.resolve_connection.
        prefetch_bytes: most bytes of blocks fetched before a step needs them, at least 1.
        hold_whole: keep the dataset in memory as a whole (one copy per machine), and shuffle every sample
            with every other; None: when it has at most 128 MiB. Part of the plan.
        fetch_config: timeouts and retries.

    Raises:
        CatalogError: no such dataset, or its topic no longer holds what the manifest lists.
        TooManyWorkersError: some rank would get no sample in some step.
        ValueError: an argument out of range, an unknown column, a part without samples.
    """

    def __init__(
        self,
        dataset: str | DatasetManifest,
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        split: tuple[float, int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        max_workers: int = MAX_WORKERS,
        connection: Connection | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        hold_whole: bool | None = None,
        fetch_config: FetchConfig | None = None,
    ) -> None:
        super().__init__()
        if prefetch_bytes < 1:
            raise ValueError(f"prefetch_bytes is {prefetch_bytes}; it must be at least 1")
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank {rank} and world_size {world_size}: give both, or neither")
        self._given_rank = (
            ProcessRank(rank, world_size) if rank is not None and world_size is not None else None
        )
        if self._given_rank is not None:
            check_rank(*self._given_rank)
        self._workers = LoaderWorkers()
        self.connection = connection or resolve_connection()
        self.dataset = _checked_manifest(dataset, self.connection)
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._asked = {"shuffle": shuffle} | ({"whole": hold_whole} if hold_whole is not None else {})
        self._num_wire_bytes = 0
        self._columns = columns
        self._transform = transform
        self._prefetch_bytes = prefetch_bytes
        self._fetch_config = fetch_config
        self._split = SampleSplit(*split) if split is not None else None
        self._take_rule(choose_rule(self.dataset, max_workers=max_workers, whole=hold_whole, shuffle=shuffle))
        BatchDecoder(self.dataset, names=columns).close()  # refuses unknown columns now, not in a thread
        self._epoch = 0
        self._samples_consumed = 0
        self._epoch_batch_size = global_batch_size
        self._check_world_size_early()
        self._iteration: weakref.ref[Generator[Batch]] | None = None

    @property
    def rank(self) -> int:
        """This process's rank, as an iteration that began now would take it.

        Raises:
            UnknownRankError: it can't be told (yet).
        """
        return self._resolved_rank().rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each step; see `rank`."""
        return self._resolved_rank().world_size

    @property
    def epoch(self) -> int:
        """The epoch whose samples come next, or are coming."""
        return self._epoch

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._opened.table.num_samples

    @property
    def num_wire_bytes(self) -> int:
        """Bytes received from brokers so far."""
        fetching = self._opened.fetcher
        return self._num_wire_bytes + (fetching.num_wire_bytes if fetching is not None else 0)

    @property
    def cursor(self) -> Cursor:
        """Where the run stands; the same on every rank.

        Raises:
            LoaderWorkersError: a DataLoader's worker process reads, with a copy of this reader.
        """
        self._workers.check_known()
        return Cursor(self._epoch, self._samples_consumed, self.plan_fingerprint)

    @property
    def plan(self) -> EpochPlan:
        """The order of the present epoch."""
        return self._opened.plan(self.seed, self._epoch)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return num_steps(self.num_samples, self.global_batch_size)

    def steps_left(self) -> int:
        """Steps of the present epoch that were not handed out yet."""
        return num_steps(self.num_samples - self._samples_consumed, self._epoch_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the present epoch; after its end, the next one.

        Raises (then or while iterating):
            LoaderWorkersError: a DataLoader's worker processes would repeat samples.
            UnknownRankError: which part of the data is this process's can't be told.
            TooManyWorkersError: some rank would get no sample in some step.
            ReadError: samples can't be had; iterating again goes on after the last batch handed out.
        """
        # Unshuffled, all epochs are alike, but not what is left of one.
        is_between_epochs = self._samples_consumed in (0, self.num_samples)
        self._workers.check_may_read(would_repeat=self._asked["shuffle"] or not is_between_epochs)
        self._end_iteration()
        if self._samples_consumed >= self.num_samples:
            self._begin_epoch(self._epoch + 1)
        place = self._resolved_rank()
        self._check_world_size(place.world_size)
        self._workers.begun()
        iteration = self._batches(place)
        self._iteration = weakref.ref(iteration)
        return iteration

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as JSON can hold it; the same on every rank.

        Raises:
            LoaderWorkersError: a DataLoader's worker process reads, with a copy of this reader.
        """
        return {
            "cursor": self.cursor.to_dict(),
            "global_batch_size": self._epoch_batch_size,
            "plan": dict(self._facts),
        }

    def adopt_plan(self, facts: Mapping[str, Any]) -> None:
        """Read in the order of an earlier plan that differs from this reader's in its rule alone.

        The rule (number of lanes, size of blocks, whether the dataset is held whole) is chosen by the
        program, and another version of it, or another `max_workers`, may choose otherwise. Nothing happens
        where the dataset, the seed, the part or what was asked for (`shuffle`, `hold_whole`) differ, or where
        the rule makes no sense.

        Args:
            facts: as in state_dict()["plan"].
        """
        if facts == self._facts:
            return
        rule = earlier_rule(facts, self._facts, asked=self._asked)
        if rule is not None:
            self._end_iteration()
            self._opened.close()
            self._take_rule(rule)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader stood, with any world size and in its order (see adopt_plan).

        Another global batch size than that reader's is taken up with the next epoch, with a warning.

        Raises:
            CursorMismatchError: that reader had another dataset version, seed or split, or was asked for
                another order.
            ValueError: that is no state.
            TooManyWorkersError: the rest of the epoch has a step with fewer samples than there are ranks (it
                is raised as the iteration begins where the world size isn't known before).
        """
        cursor = Cursor.from_dict(state["cursor"])
        facts = state.get("plan")
        if isinstance(facts, Mapping) and plan_fingerprint(dict(facts)) == cursor.plan_fingerprint:
            self.adopt_plan(facts)
        cursor.check(self.plan_fingerprint, facts_then=state.get("plan"), facts_now=self._facts)
        batch_size = int(state["global_batch_size"])
        self._end_iteration()
        self._workers.forget()
        if cursor.samples_consumed >= self.num_samples:
            self._begin_epoch(cursor.epoch + 1)
            return
        if cursor.samples_consumed == 0:
            batch_size = self.global_batch_size
        before = self._epoch, self._samples_consumed, self._epoch_batch_size
        self._epoch, self._samples_consumed, self._epoch_batch_size = (
            cursor.epoch,
            cursor.samples_consumed,
            batch_size,
        )
        try:
            self._check_world_size_early()
        except TooManyWorkersError:
            self._epoch, self._samples_consumed, self._epoch_batch_size = before
            raise
        if batch_size != self.global_batch_size:
            warnings.warn(
                f"epoch {cursor.epoch} was begun with a global batch of {batch_size} samples and goes on "
                f"with it; {self.global_batch_size} is taken up with epoch {cursor.epoch + 1}",
                stacklevel=2,
            )

    def close(self) -> None:
        """End the iteration and let go of the copy of the dataset; iterating again opens both anew."""
        self._end_iteration()
        self._opened.close()

    def _take_rule(self, rule: PlanRule) -> None:
        self.rule = rule
        self._opened = _Opened(self.dataset, rule, self._split)
        self._facts = plan_facts(self.dataset.fingerprint, self.seed, rule)
        if self._split is not None:
            self._facts["split"] = list(asdict(self._split).values())
        self.plan_fingerprint = plan_fingerprint(self._facts)

    def _resolved_rank(self) -> ProcessRank:
        return self._given_rank or self._workers.starters_rank() or process_rank()

    def _check_world_size_early(self) -> None:
        """Refuse too many workers before anything is read, where it is known already how many there are."""
        try:
            place = self._resolved_rank()
        except UnknownRankError:
            return
        self._check_world_size(place.world_size)

    def _check_world_size(self, world_size: int) -> None:
        check_world_size(world_size, num_samples=self.num_samples, global_batch_size=self.global_batch_size)
        check_rest_of_epoch(
            world_size,
            num_left=self.num_samples - self._samples_consumed,
            global_batch_size=self._epoch_batch_size,
        )

    def _end_iteration(self) -> None:
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            iteration.close()
        self._iteration = None

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._samples_consumed = 0
        self._epoch_batch_size = self.global_batch_size

    def _batches(self, place: ProcessRank) -> Generator[Batch]:
        """The rest of the epoch. Leaving it in the middle closes it, as the generator is closed then."""
        with ExitStack() as open_things:
            for decoded in open_things.enter_context(self._stream(place, open_things)):
                batch = self._batch(decoded, place.world_size)
                # From here on the batch counts as handed out.
                self._samples_consumed = decoded.step.stop
                yield batch
        self._begin_epoch(self._epoch + 1)

    def _batch(self, decoded: DecodedStep, world_size: int) -> Batch:
        batch = Batch(
            decoded.columns,
            index=torch.from_numpy(decoded.index),
            number=torch.from_numpy(decoded.number),
            seed=self.seed,
            global_num_samples=decoded.step.num_samples,
            cursor=Cursor(self._epoch, decoded.step.stop, self.plan_fingerprint),
            world_size=world_size,
        )
        if self._transform is None:
            return batch
        made = self._transform(batch)
        if isinstance(made, Batch):
            return made
        if isinstance(made, Mapping):
            return batch.with_columns(made)
        raise TypeError(
            f"transform has to return the batch or a mapping of columns, not a {type(made).__name__}"
        )

    def _stream(self, place: ProcessRank, open_things: ExitStack) -> StepStream:
        plan = self.plan
        decoder = BatchDecoder(self.dataset, names=self._columns, has_transform=self._transform is not None)
        sample_bytes = max(1, self.dataset.num_bytes // self.dataset.num_samples)
        group_bytes = self._prefetch_bytes // _GROUP_FRACTION
        groups = group_steps(
            plan.steps(self._epoch_batch_size, start=self._samples_consumed),
            num_lanes=plan.layout.num_lanes,
            world_size=place.world_size,
            num_samples_max=min(_GROUP_SAMPLES_MAX, group_bytes // sample_bytes) * place.world_size,
        )
        return StepStream(
            groups,
            view=plan.rank_view(rank=place.rank, world_size=place.world_size),
            source=self._source(plan, place, decoder, open_things),
            decoder=decoder,
        )

    def _source(
        self, plan: EpochPlan, place: ProcessRank, decoder: BatchDecoder, open_things: ExitStack
    ) -> StepSource:
        split_table = self._opened.split_table
        if self.rule.whole:
            return HeldWhole(self._opened.whole_copy(self._build_whole), split=split_table, decoder=decoder)
        return FetchedBlocks(
            self.dataset,
            plan,
            split=split_table,
            start=self._samples_consumed,
            global_batch_size=self._epoch_batch_size,
            rank=place.rank,
            world_size=place.world_size,
            decoder=decoder,
            fetcher=self._open_fetcher(open_things),
            prefetch_bytes=self._prefetch_bytes,
        )

    def _build_whole(self) -> Iterator[Any]:
        with ExitStack() as open_things:
            yield from build_whole(self.dataset, self._opened.full_table, self._open_fetcher(open_things))

    def _open_fetcher(self, open_things: ExitStack) -> ExactRangeFetcher:
        fetcher = ExactRangeFetcher.of_manifest(self.connection, self.dataset, config=self._fetch_config)
        self._opened.fetcher = fetcher
        open_things.callback(self._end_fetcher, fetcher)
        return fetcher

    def _end_fetcher(self, fetcher: ExactRangeFetcher) -> None:
        fetcher.close()
        self._opened.fetcher = None
        self._num_wire_bytes += fetcher.num_wire_bytes

    def __getstate__(self) -> dict[str, Any]:
        """For another process (a DataLoader's worker), or a copy: everything but what is open."""
        return {**self.__dict__, "_iteration": None, "_workers": copy(self._workers)}


class _Opened:
    """What follows from the manifest and is made when first needed: tables, a plan, the copy. Not pickled."""

    def __init__(self, manifest: DatasetManifest, rule: PlanRule, split: SampleSplit | None) -> None:
        self._manifest = manifest
        self._rule = rule
        self._split = split
        self.full_table = BlockTable.from_manifest(manifest, block_bytes=rule.block_bytes)
        self.split_table = SplitTable(self.full_table, split) if split is not None else None
        self.fetcher: ExactRangeFetcher | None = None  # of the present iteration
        self._plan: EpochPlan | None = None
        self._copy: WholeCopy | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Opened, (self._manifest, self._rule, self._split)

    @property
    def table(self) -> BlockTable:
        """What is planned with: all blocks, or the split's."""
        return self.full_table if self.split_table is None else self.split_table.table

    def plan(self, seed: int, epoch: int) -> EpochPlan:
        if self._plan is None or (self._plan.seed, self._plan.epoch) != (seed, epoch):
            self._plan = EpochPlan(self.table, seed=seed, epoch=epoch, rule=self._rule)
        return self._plan

    def whole_copy(self, build: Callable[[], Iterator[Any]]) -> WholeCopy:
        if self._copy is None:
            self._copy = WholeCopy.open(
                # Not the fingerprint alone: copies that an older version has made have no numbers.
                f"{self._manifest.fingerprint}-numbered",
                numbered_schema(self._manifest),
                build,
                size_bytes=self._manifest.num_bytes,
            )
        return self._copy

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()
        self._copy = None


def _checked_manifest(dataset: str | DatasetManifest, connection: Connection) -> DatasetManifest:
    catalog = Catalog(connection)
    manifest = catalog.get(dataset) if isinstance(dataset, str) else dataset
    if not manifest.num_samples:
        raise ValueError(f"dataset {manifest.id} has no samples")
    catalog.check(manifest)
    return manifest
