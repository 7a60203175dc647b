"""A topic's route as the service answers it: JSON, a few hundred bytes, the same for all who ask.

    {"schema_version":1,"cluster_id":"mmtN...","topic":"clicks","version":120,"shares":[0.041,0.083,...],
     "expires_s":30.0,"turn_max_bytes":4194304,"poll_s":1.0,"report_bytes":2097152,"reason":null,"notes":[]}

Shares stand by partition, and are divided by their sum by whoever reads them; none at all, with a `reason`,
mean to go evenly. How old the measurement is that was decided on changes with each request, so it is no
part of this but of the answer's header `Evenload-Age`.

A reader ignores fields that it doesn't know; another `schema_version` is refused.

Invariants, checked in tests/property/route_service/test_route_answer.py:
1. What was encoded is decoded, with shares to six digits.
2. Whatever is decoded, there is an answer or a `ServiceUnusableError`.

Pure. Read next: deciding.py, which makes them.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evenload.telemetry_collector.errors import ServiceUnusableError

__all__ = ["AGE_HEADER", "SCHEMA_VERSION", "RouteAnswer", "decode_route", "encode_route"]

SCHEMA_VERSION: Final = 1
AGE_HEADER = "Evenload-Age"
_EXPIRES_MAX_S = 300.0
_REASON_MAX_CHARS = 300
_DIGITS = 6

_Share = Annotated[float, Field(ge=0)]
_Bytes = Annotated[int, Field(ge=1, lt=1 << 63)]


class RouteAnswer(BaseModel):
    """What one should follow in writing a topic, and for how long."""

    # Strict: nothing is turned into something else, so what comes out is what was said.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    cluster_id: str = Field(description="Kafka's id of the cluster that was measured.")
    topic: str = Field(description="The topic's name.")
    version: int = Field(ge=1, description="No two answers of a service have the same.")
    shares: tuple[_Share, ...] = Field(description="By partition; none: go evenly.")
    expires_s: float = Field(
        gt=0, le=_EXPIRES_MAX_S, description="So long after the measurement the shares end."
    )
    turn_max_bytes: _Bytes = Field(description="The most to send to a partition before the next one's turn.")
    poll_s: float = Field(gt=0, le=60, description="How often to ask while the topic is written.")
    report_bytes: _Bytes = Field(description="After so many bytes, the service wants to hear of them.")
    reason: str | None = Field(default=None, description="Why shares are only even, or None.")
    notes: tuple[str, ...] = Field(default=(), description="What routing can't level, and what would help.")

    @model_validator(mode="after")
    def _has_shares_or_a_reason(self) -> RouteAnswer:
        if not self.shares and self.reason is None:
            raise ValueError("there are neither shares nor a reason for having none")
        if self.shares and not 0 < sum(self.shares) < float("inf"):
            raise ValueError("shares have to be finite, and not all 0")
        return self


def encode_route(answer: RouteAnswer) -> bytes:
    """As it travels."""
    document = answer.model_dump()
    document["shares"] = [float(f"{share:.{_DIGITS}g}") for share in answer.shares]
    return json.dumps(document, separators=(",", ":")).encode()


def decode_route(body: bytes, topic: str) -> RouteAnswer:
    """What an answer about a topic says.

    Raises:
        ServiceUnusableError: it isn't one, or of another topic or schema version.
    """
    try:
        answer = RouteAnswer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        reason = f"its route can't be read: {where + ': ' if where else ''}{first['msg']}"
        raise ServiceUnusableError(reason[:_REASON_MAX_CHARS]) from error
    if answer.topic != topic:
        raise ServiceUnusableError(f"it was asked about topic {topic!r}, and answered about another")
    return answer
