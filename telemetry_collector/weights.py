"""What an operator may change while producers run: how much each goal, score function and broker counts.

A value, as read from a file or from the collector's `/v1/weights`, and swapped as one reference. Whether a
name is known is the router's business: it refuses what it can't use, keeps what was in force, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Weights"]

_Weight = Annotated[float, Field(ge=0)]
_BrokerId = Annotated[int, Field(ge=0, lt=2**31)]


class Weights(BaseModel):
    """Weights by name and by broker; what is left away stays as each producer was configured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    goals: Mapping[str, _Weight] | None = Field(
        default=None, description="By the goals' names, in place of all that were in force; 0 leaves one out."
    )
    score_functions: Mapping[str, _Weight] | None = Field(
        default=None, description="Exponents by the score functions' names, likewise."
    )
    brokers: Mapping[_BrokerId, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="Willingness by broker id, 0 to 1, times what its scores say; 0 drains a broker: "
        "nothing new goes there while another can take it.",
    )

    @property
    def drained(self) -> frozenset[int]:
        """The brokers on which nothing new should be put."""
        return frozenset(broker_id for broker_id, weight in self.brokers.items() if not weight)
