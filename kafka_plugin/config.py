"""What a loader and a producer may be told; the defaults are what was measured to be good, or is safe.

Sizes are in bytes, times in seconds, as their names say. A value out of range is refused with field, value
and range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Strategy = Literal["balanced", "default", "round-robin"]
Compression = Literal["none", "gzip", "lz4", "snappy", "zstd"]


class LoaderConfig(BaseModel):
    """How a dataset is written."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    transaction_bytes: int = Field(
        default=256 << 20, ge=1, description="Payload after which a transaction is committed."
    )
    transaction_s: float = Field(
        default=5.0, gt=0, le=15, description="Age at which a transaction is committed, whatever it holds."
    )
    transaction_timeout_s: float = Field(
        default=60.0,
        ge=1,
        le=900,
        description="After this long, brokers abort the transaction of a loader that died.",
    )
    recent_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="A loader that was heard of within this time counts as alive. One that is says so each "
        "`transaction_s`, and in a slow cluster within a few seconds more.",
    )
    stall_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Without any commit for this long, the load stops; it can be gone on with.",
    )
    in_flight_bytes: int = Field(
        default=64 << 20, ge=1 << 20, le=1 << 30, description="Most that is sent and not acknowledged yet."
    )
    read_ahead_bytes: int = Field(
        default=32 << 20, ge=1, description="Most that is encoded ahead of sending."
    )
    memory_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="How much of the source is held in memory; more is mapped from a file.",
    )
    scratch_folder: Path | None = Field(
        default=None, description="Where that file is; the system's temporary folder if None."
    )
    block_bytes: int | None = Field(
        default=None, ge=1, description="Payload of a packed record; None: by the size of the dataset."
    )
    max_record_bytes: int = Field(
        default=32 << 20, ge=1 << 10, le=90 << 20, description="Largest record that the topic will take."
    )
    compression: Compression = Field(default="none", description="What records are stored with.")
    retention_ms: int = Field(default=-1, ge=-1, description="How long the topic keeps them; -1: for ever.")
    topic_timeout_s: float = Field(
        default=30.0, gt=0, description="How long a new topic may take until all its leaders answer."
    )

    @model_validator(mode="after")
    def _times_fit_together(self) -> Self:
        if self.transaction_s >= self.transaction_timeout_s:
            raise ValueError(
                f"transaction_s is {self.transaction_s}, it must be below transaction_timeout_s "
                f"({self.transaction_timeout_s}), or brokers abort what is about to be committed"
            )
        if self.transaction_s >= self.recent_s:
            raise ValueError(
                f"transaction_s is {self.transaction_s}, it must be below recent_s ({self.recent_s}), or a "
                "loader that is alive counts as dead"
            )
        return self


class ProducerConfig(BaseModel):
    """How `BalancedProducer` chooses partitions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    spread_keys: bool = Field(
        default=False,
        description="Choose partitions of keyed records too; those of one key are then in several.",
    )
    batch_bytes: int = Field(
        default=4 << 20,
        gt=0,
        description="Bytes for which records stay on one partition, at most; less where a turn more or less "
        "would be seen in how full brokers are, or little is still to come. A `BalancedProducer` stays about "
        "as long as the client's own partitioner would: for twice `linger.ms`, by default 10 ms, or where "
        "batches get full, until one is, for twice that at most.",
    )
    refresh_s: float = Field(
        default=1.0, gt=0, le=60, description="How often shares are decided anew while records come."
    )
    report_s: float = Field(
        default=5.0, gt=0, le=60, description="How often a collector service is told how records are routed."
    )
    first_snapshot_timeout_s: float = Field(
        default=5.0,
        ge=0,
        le=60,
        description="How long the first record of a topic may wait until brokers have been measured.",
    )
    is_latency_measured: bool | None = Field(
        default=None,
        description="Whether the client's own statistics tell brokers' latencies to the collector, if it is "
        "not a shared one; None: where the score function `latency` has a weight.",
    )
    new_topic_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="How long to wait for all leaders of a topic before its first record, and, when its "
        "partitions have changed, for brokers to say how.",
    )
