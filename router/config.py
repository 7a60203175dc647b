"""How a router decides, in one frozen model."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LOAD_GOALS", "RouterConfig", "evens_reading", "for_load"]

LOAD_GOALS: Mapping[str, float] = {"dataset_spread": 1.0}
"""What a load of a dataset levels by where nobody says otherwise: who trains on it waits for the broker that
has most of it. `benchmarks training_time` has what else would cost."""


class RouterConfig(BaseModel):
    """What even means, how sure one has to be to change one's mind, and how long one stays on a partition."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    goals: Mapping[str, float] = Field(
        default={"disk_usage": 1.0},
        description="Weights of the goals by their entry-point names; 0 leaves one out. A load of a dataset "
        "takes `LOAD_GOALS` instead where they aren't given.",
    )
    score_functions: Mapping[str, float] = Field(
        default={"reachability": 1.0},
        description="Exponents of the scores by the score functions' entry-point names.",
    )
    dead_band: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Keep the shares while new ones would change no broker's utilisation by more.",
    )
    batch_bytes: int = Field(
        default=4 << 20,
        ge=1,
        description="About how many bytes go to one partition before the next one's turn, at most; producers "
        "and loads set their own, and stay for less where a service says so.",
    )
    utilisation_limit: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="A broker that is fuller gets nothing while another can take the data.",
    )
    snapshot_age_max_s: float = Field(
        default=30.0,
        gt=0,
        description="An older snapshot is stale: shares are even until there is a newer one.",
    )
    safe_streams: bool = Field(
        default=True,
        description="Where nobody says how much is to come: shares stay even while disks nearly are, and no "
        "leader gets more than twice its even share; see router/safe_shares.py.",
    )
    horizon_fraction: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="What is still to come where nobody says: part of the capacity of the topic's brokers.",
    )
    horizon_fraction_min: float = Field(
        default=0.001,
        gt=0,
        le=1,
        description="Level at least this part of a broker's capacity ahead, "
        "or the last bytes of a load would all go to one broker.",
    )
    function_time_max_s: float = Field(
        default=0.25,
        gt=0,
        le=10,
        description="A goal or score function from elsewhere that takes longer over a decision is put aside; "
        "after twice as long it isn't waited for.",
    )
    put_aside_s: float = Field(
        default=60.0,
        ge=0,
        description="How long one that raised, answered nonsense or took long is not asked again.",
    )


def evens_reading(goals: Mapping[str, float]) -> bool:
    """Whether what each broker leads of a topic is among the goals."""
    return goals.get("dataset_spread", 0.0) > 0.0


def for_load(config: RouterConfig | None) -> RouterConfig:
    """What a load of a dataset is configured with: `config`, and `LOAD_GOALS` unless it names goals."""
    config = config or RouterConfig()
    return config if "goals" in config.model_fields_set else config.model_copy(update={"goals": LOAD_GOALS})
