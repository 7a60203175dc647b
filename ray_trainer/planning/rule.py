"""How a run's epochs are ordered: the few numbers, chosen once and kept in the run.

Everything here follows from the manifest and from the largest number of workers that may ever come; never
from the workers or the memory at hand, or a run that is resumed on other machines would go on in another
order.

Read next: lanes.py, which turns a rule into an order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.planning.blocks import records_per_block

PLAN_VERSION: Final = 1  # changes whenever the same numbers would give another order

MAX_WORKERS: Final = 384
WHOLE_BYTES_MAX: Final = (
    128 << 20
)  # datasets up to this are held whole, every sample shuffled with every other
# Beyond these a rule is nobody's choice: tables of as many lanes would not fit into memory.
_LANES_MAX: Final = 1 << 16
_STORED_BLOCK_BYTES_MAX: Final = 1 << 40
OPEN_BYTES_MAX: Final = 512 << 20  # what a single rank may have open: one block a lane
# A manifest of a few bytes may claim more samples than any memory orders: 24 bytes each, when all are mixed
# with each other, and 40 in blocks that are open.
WHOLE_SAMPLES_MAX: Final = 1 << 24
OPEN_SAMPLES_MAX: Final = 1 << 23
_LANES: Final = 384  # 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128 and 192 divide it
_LANE_SAMPLES_MIN: Final = 16

_BLOCK_BYTES: Final = 256 << 10
_BLOCK_BYTES_MIN: Final = 16 << 10
_BLOCK_BYTES_MAX: Final = 4 << 20
_BLOCKS_WANTED: Final = 1000
_BLOCKS_MAX: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRule:
    """What the order of an epoch depends on, beside the manifest, the seed and the epoch.

    Attributes:
        num_lanes: equal parts of an epoch's order, at least 1. 1 for a dataset held whole (a full shuffle
            has no use for lanes) and for an unshuffled one (lanes would interleave it).
        block_bytes: about how large a block is, at least 1.
        whole: the dataset is held whole, and every sample is shuffled with every other.
        shuffle: False gives manifest order.
        plan_version: of the rules in the code.
    """

    num_lanes: int
    block_bytes: int
    whole: bool
    shuffle: bool
    plan_version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        kinds = [type(value) for value in self.to_dict().values()]
        # Not isinstance: True is an int, and would be written down as another rule than 1.
        if kinds != [int, int, bool, bool, int]:
            raise ValueError(f"numbers of a plan rule are whole numbers, its choices true or false: {self}")
        if self.num_lanes < 1 or self.block_bytes < 1:
            raise ValueError(f"num_lanes and block_bytes must be at least 1: {self}")
        if self.num_lanes > 1 and (self.whole or not self.shuffle):
            raise ValueError(f"a dataset held whole or not shuffled has one lane: {self}")
        if self.plan_version != PLAN_VERSION:
            raise ValueError(
                f"the rule is of plan version {self.plan_version}, this program knows {PLAN_VERSION}; "
                "resume with the version that started the run, or start a new run"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PlanRule:
        """The inverse of to_dict, of what was kept somewhere; whatever else `stored` holds is passed over.

        Raises:
            ValueError: a rule of another plan version, or one that makes no sense.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in stored]
        if missing:
            raise ValueError(f"a plan rule without {', '.join(missing)}")
        rule = cls(**{name: stored[name] for name in names})
        if rule.num_lanes > _LANES_MAX or rule.block_bytes > _STORED_BLOCK_BYTES_MAX:
            raise ValueError(
                f"a plan has at most {_LANES_MAX} lanes and blocks of {_STORED_BLOCK_BYTES_MAX} bytes: {rule}"
            )
        return rule


def choose_rule(
    manifest: DatasetManifest,
    *,
    max_workers: int = MAX_WORKERS,
    whole: bool | None = None,
    shuffle: bool = True,
) -> PlanRule:
    """The rule for a new run.

    Args:
        manifest: of the dataset.
        max_workers: the largest number of workers that may ever take part, at least 1.
        whole: hold the dataset whole; None: when it has at most 128 MiB and 16 million samples.
        shuffle: False gives manifest order.
    """
    if max_workers < 1:
        raise ValueError(f"max_workers is {max_workers}; it must be at least 1")
    if whole is None:
        whole = manifest.num_bytes <= WHOLE_BYTES_MAX and manifest.num_samples <= WHOLE_SAMPLES_MAX
    block_bytes = _block_bytes(manifest)
    one_lane = whole or not shuffle
    num_lanes = 1 if one_lane else _num_lanes(manifest, block_bytes, max_workers)
    return PlanRule(num_lanes=num_lanes, block_bytes=block_bytes, whole=whole, shuffle=shuffle)


def target_block_bytes(dataset_bytes: int) -> int:
    """How large blocks should be in a dataset of this size.

    256 KiB; a thousandth of a smaller dataset, but at least 16 KiB, so that small ones spread over brokers
    too; more for huge datasets, so that there are about a million blocks, at most 4 MiB.
    """
    small = max(_BLOCK_BYTES_MIN, min(_BLOCK_BYTES, dataset_bytes // _BLOCKS_WANTED))
    return min(_BLOCK_BYTES_MAX, max(small, dataset_bytes // _BLOCKS_MAX))


def plan_facts(manifest_fingerprint: str, seed: int, rule: PlanRule) -> dict[str, Any]:
    """Everything that decides the order of every epoch of a run. The global batch size is no part of it."""
    return {"manifest_fingerprint": manifest_fingerprint, "seed": seed, **rule.to_dict()}


def plan_fingerprint(facts: dict[str, Any]) -> str:
    """32 hex digits over the facts: equal exactly when every epoch has the same order."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def earlier_rule(
    facts_then: Mapping[str, Any], facts_now: Mapping[str, Any], *, asked: Mapping[str, Any]
) -> PlanRule | None:
    """The rule of an earlier plan, to go on with, where the two plans differ only in what a program chooses.

    How many lanes there are and how large a block is, is chosen by constants that another version of the
    program may have changed, and by `max_workers`; what was read until now must not be read again for that.

    Args:
        facts_then: `plan_facts` as they were kept.
        facts_now: of the present plan, chosen for the same dataset.
        asked: what of a rule a person asked for, as {"whole": True}; it has to be the same then.

    Returns:
        None where something else differs, too (dataset, seed, part, what was asked for), or where the rule is
        of another plan version or makes no sense: whoever compares the plans says what differs.
    """
    chosen = {field.name for field in fields(PlanRule)} - asked.keys()
    names = (facts_then.keys() | facts_now.keys()) - chosen
    if any(facts_then.get(name) != facts_now.get(name) for name in names):
        return None
    try:
        return PlanRule.from_dict(facts_then)
    except ValueError:
        return None


def _block_bytes(manifest: DatasetManifest) -> int:
    if manifest.encoding == "record":
        return max(target_block_bytes(manifest.num_bytes), _batch_bytes(manifest))
    return max(1, -(-manifest.num_bytes // max(1, manifest.num_records)))


def _batch_bytes(manifest: DatasetManifest) -> int:
    """How large the batches are that a loader wrote single samples in, as far as the manifest shows it.

    A loader makes each batch an extent of its own (kafka_plugin's `begin_block`), though it touches the next.
    Extents that nothing shows to be batches, and that are no longer than a block or two, are treated like
    them: a cut would have the whole batch fetched on either side of it.
    """
    extents = manifest.extent_arrays()
    is_next = extents.first_offset[1:] == (extents.first_offset + extents.num_records)[:-1]
    is_next &= extents.partition[1:] == extents.partition[:-1]
    longest = int(extents.num_records.max(initial=0))
    extent_bytes = -(-longest * manifest.num_bytes // max(1, manifest.num_records))
    is_batch = bool(is_next.any()) or extent_bytes <= 2 * target_block_bytes(manifest.num_bytes)
    return extent_bytes if is_batch else 0


def _num_blocks(manifest: DatasetManifest, block_bytes: int) -> int:
    if manifest.encoding != "record":
        return manifest.num_records
    taken = records_per_block(block_bytes, num_records=manifest.num_records, num_bytes=manifest.num_bytes)
    return int((-(-manifest.extent_arrays().num_records // taken)).sum())


def _block_samples_max(manifest: DatasetManifest, block_bytes: int) -> int:
    extents = manifest.extent_arrays()
    if manifest.encoding != "record":
        return int(extents.samples_per_record.max(initial=1))
    taken = records_per_block(block_bytes, num_records=manifest.num_records, num_bytes=manifest.num_bytes)
    return min(taken, int(extents.num_records.max(initial=1)))


def _num_lanes(manifest: DatasetManifest, block_bytes: int, max_workers: int) -> int:
    """The most lanes that divide the multiple of 384 that serves these workers, that may all have a block
    open at once, and that have a block each, or, where blocks are fewer, samples enough to be shuffled.

    Few blocks alone are no reason for few lanes: many lanes take a step's samples from all over each block.
    But lanes of a sample or two, cut from the same few blocks in stored order, would be nearly the same at
    every epoch.
    """
    wanted = _LANES * -(-max_workers // _LANES)
    num_useful = max(_num_blocks(manifest, block_bytes), manifest.num_samples // _LANE_SAMPLES_MIN)
    limit = min(
        wanted,
        num_useful,
        OPEN_BYTES_MAX // block_bytes,
        OPEN_SAMPLES_MAX // _block_samples_max(manifest, block_bytes),
    )
    return max((lanes for lanes in range(1, limit + 1) if wanted % lanes == 0), default=1)
