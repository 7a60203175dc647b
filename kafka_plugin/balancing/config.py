"""What `evenload balance` may be told; sizes in bytes, times in seconds, parts from 0 to 1."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BalanceConfig"]


class BalanceConfig(BaseModel):
    """How replicas are moved."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    throttle_bytes_per_s: int = Field(
        default=50 << 20,
        ge=1 << 10,
        description="Most that a broker sends, and most that it takes, for moves. It has to be more than "
        "producers write to the partitions that move, or their new copies never catch up.",
    )
    spread_goal: float = Field(default=0.005, ge=0, le=1, description="A spread that is good enough.")
    utilisation_limit: float = Field(
        default=0.95, gt=0, le=1, description="No broker is filled above this by a move."
    )
    look_s: float = Field(
        default=10.0, gt=0, description="How often the cluster is measured while moves wait for their turn."
    )
    patience_s: float = Field(
        default=120.0,
        ge=0,
        description="How long to wait, with nothing under way, for room (brokers delete what has left after "
        "a minute) or for a broker that is away.",
    )
    poll_s: float = Field(default=0.5, gt=0, le=60, description="How often brokers are asked how far it is.")
    quiet_s: float = Field(
        default=10.0, gt=0, description="Without any progress for this long, it is said that it waits."
    )
    stall_timeout_s: float = Field(
        default=600.0, gt=0, description="Without any progress for this long, what is under way is cancelled."
    )
    timeout_s: float = Field(
        default=30.0, gt=0, description="How long brokers may take to answer before and between moves."
    )
    recent_s: float = Field(
        default=30.0,
        gt=0,
        description="Somebody on another machine who was heard of within this time is still balancing.",
    )

    @property
    def small_bytes(self) -> int:
        """What a broker moves at the throttle until the cluster is measured again."""
        return int(self.throttle_bytes_per_s * self.look_s)
