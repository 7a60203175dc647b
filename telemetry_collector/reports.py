"""What producers tell a collector: what they will still write, and how they route.

Values that travel as JSON. Both expire by themselves, as whoever told them may die without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["JAVA_PRODUCER", "Intent", "RouteReport"]

JAVA_PRODUCER = "java/"
"""How the names of those begin that report by the Java partitioner."""

# As in wire.py: a gauge could not show a sum of numbers without bound.
_COUNT_MAX = (1 << 80) - 1
_Bytes = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
_Partition = Annotated[int, Field(ge=0, lt=1 << 31)]
_Part = Annotated[float, Field(ge=0, le=1)]


class Intent(BaseModel):
    """What one load will still write, so that others count it. Told anew as bytes are written."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    load: str = Field(
        min_length=1,
        max_length=300,
        description="Who says it: the same for the whole load. Who knows it may end it, so it "
        "holds something that nobody guesses.",
    )
    topic: str = Field(min_length=1, max_length=249, description="Where the bytes go.")
    bytes_by_broker: Mapping[int, _Bytes] = Field(
        description="Stored bytes to come, all copies, by broker id."
    )
    lifetime_s: float = Field(
        default=60.0, gt=0, le=3600, description="How long it counts when nothing more is heard."
    )


class RouteReport(BaseModel):
    """How one producer routes one topic at the moment, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    producer: str = Field(min_length=1, max_length=300, description="Who says it: host, process, client.")
    topic: str = Field(min_length=1, max_length=249, description="What it writes.")
    shares: Mapping[int, _Part] = Field(description="Part of the bytes by partition.")
    reason: str | None = Field(
        default=None, description="Why the shares are only even (a fallback), or None."
    )
    notes: tuple[str, ...] = Field(default=(), description="What routing can't level, and what would help.")
    put_aside: Mapping[str, str] = Field(
        default_factory=dict, description="Goals and score functions without a say, and what they did."
    )
    willingness: Mapping[int, _Part] = Field(default_factory=dict, description="By broker id.")
    scores: Mapping[str, Mapping[int, _Part]] = Field(
        default_factory=dict, description="By score function, what each broker got."
    )
    sent_bytes: _Bytes = Field(default=0, description="Payload sent so far.")
    sent_bytes_by_partition: Mapping[_Partition, _Bytes] = Field(
        default_factory=dict, description="The same by partition, where a service decides the route."
    )
    remaining_bytes: _Bytes | None = Field(default=None, description="Payload to come; None: nobody knows.")
    num_fallbacks: int = Field(default=0, ge=0, le=_COUNT_MAX, description="How often shares were only even.")
