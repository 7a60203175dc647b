"""What bounds the fetching: sizes, waits and retries, each in one place."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FetchConfig(BaseModel):
    """Limits of one fetcher. Frozen; may be shared between threads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    connect_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=300,
        description="How long to wait for a connection, and for an answer while it is made.",
    )
    request_timeout_s: float = Field(
        default=30.0, gt=0, le=300, description="A broker that sends nothing for so long is lost."
    )
    broker_wait_s: float = Field(
        default=0.5,
        ge=0,
        le=30,
        description="How long a broker may wait for an offset that can't be read yet.",
    )
    retry_timeout_s: float = Field(
        default=120.0, ge=0, le=86400, description="How long a range may fail, from its last progress on."
    )
    num_in_flight_max: int = Field(
        default=8, ge=1, le=1000, description="Requests sent to a broker and not yet answered."
    )
    client_rack: str | None = Field(
        default=None,
        description="The rack or zone where the reading process is, as brokers' `broker.rack` names it. "
        "Where brokers have a `replica.selector.class`, partitions are read from a replica there. None: what "
        "EVENLOAD_CLIENT_RACK says on the machine that reads; empty: always from leaders.",
    )
