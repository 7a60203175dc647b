"""What a collector may be told: how often to ask, how long to wait, how old an answer may be.

Two frequencies, because two kinds of figures differ in cost by orders of magnitude: a broker's totals and
the layout of a few topics are small and asked often (`interval_s`); the sizes and the layout of *all*
partitions (100,000 in a large cluster) are asked seldom (`full_interval_s`). Metrics of brokers, which take
an exporter a second or two to gather, have an interval of their own (`metrics_interval_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["CollectorConfig"]


class CollectorConfig(BaseModel):
    """The collector's settings; all times in seconds. Values out of range are refused with the range."""

    # Errors don't quote what they refuse: it may be an address with a password in it.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    interval_s: float = Field(
        default=5.0, ge=0.05, le=3600, description="From one measurement of a reachable broker to the next."
    )
    full_interval_s: float = Field(
        default=30.0, ge=0.05, le=86400, description="From one measurement of all partitions to the next."
    )
    jitter: float = Field(
        default=0.1,
        ge=0,
        le=0.5,
        description="Share of an interval by which it varies, so that producers spread out.",
    )
    deadline_s: float = Field(
        default=3.0,
        ge=0.05,
        le=60,
        description="How long one answer may take; later, it is missed. A broker that the cluster counts as "
        "alive is unreachable once it misses three in a row.",
    )
    full_deadline_s: float = Field(
        default=15.0, ge=0.05, le=600, description="How long the layout of all partitions may take."
    )
    straggler_wait_s: float = Field(
        default=0.25, ge=0, le=60, description="How long answers that are in wait for slower brokers'."
    )
    hedge_delay_s: float = Field(
        default=0.5,
        ge=0.01,
        le=60,
        description="How long one broker may take over a question that others can answer.",
    )
    backoff_initial_s: float = Field(
        default=0.5,
        ge=0.01,
        le=3600,
        description="From a first failure to the next try; doubles with each failure.",
    )
    backoff_max_s: float = Field(
        default=15.0, ge=0.01, le=3600, description="The longest wait between two tries."
    )
    age_max_s: float = Field(
        default=30.0,
        gt=0,
        le=86400,
        description="A snapshot older than this is stale: nobody should decide from it.",
    )
    forget_broker_after_s: float = Field(
        default=600.0,
        ge=0,
        description="How long a broker that nothing refers to any more is still reported.",
    )
    close_timeout_s: float = Field(
        default=10.0, gt=0, le=600, description="How long close() waits for the collector's thread to end."
    )

    metrics_url_by_broker: Mapping[int, str] = Field(
        default_factory=dict,
        description="Where a broker's own metrics are, as a Prometheus exporter serves them, by broker id.",
    )
    metrics_interval_s: float = Field(
        default=10.0,
        ge=0.05,
        le=3600,
        description="From one look at a broker's metrics to the next; they count for three of these.",
    )
    metrics_deadline_s: float = Field(
        default=8.0,
        ge=0.05,
        le=60,
        description="How long a broker's metrics may take; a large broker's exporter takes seconds.",
    )

    @field_validator("metrics_url_by_broker")
    @classmethod
    def _addresses_are_http_without_a_secret(cls, value: Mapping[int, str]) -> Mapping[int, str]:
        for broker_id, url in value.items():
            parts = urlsplit(url)
            if parts.username is not None:  # it would show in errors and logs, so it isn't quoted here either
                raise ValueError(
                    f"broker {broker_id}: an address with a user or password in it can't be used"
                )
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"broker {broker_id}: {url!r} is not http://HOST:PORT/PATH, nor https")
        return dict(value)

    @model_validator(mode="after")
    def _times_fit_together(self) -> Self:
        if self.full_interval_s < self.interval_s:
            raise ValueError(
                f"full_interval_s is {self.full_interval_s}, it can't be below interval_s ({self.interval_s})"
            )
        if self.full_deadline_s < self.deadline_s:
            raise ValueError(
                f"full_deadline_s is {self.full_deadline_s}, it can't be below deadline_s ({self.deadline_s})"
            )
        if self.backoff_max_s < self.backoff_initial_s:
            raise ValueError(
                f"backoff_max_s is {self.backoff_max_s}, it can't be below "
                f"backoff_initial_s ({self.backoff_initial_s})"
            )
        if self.age_max_s < self.interval_s + self.deadline_s:
            raise ValueError(
                f"age_max_s is {self.age_max_s}: a snapshot gets as old as interval_s + deadline_s "
                f"({self.interval_s + self.deadline_s}) when all is well, and would be stale by then"
            )
        return self
