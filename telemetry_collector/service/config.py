"""What a collector service may be told: how much it keeps for others, and for how long."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from evenload.http_edge.browsers import HOST_NAME
from evenload.kafka_connection.secrets import BearerToken
from evenload.telemetry_collector.service.admission import Admission, Right

__all__ = ["ServiceConfig"]


class ServiceConfig(BaseModel):
    """The service's bounds; what comes above them is refused with a sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    operate_token: BearerToken | None = Field(
        default=None, description="Who knows it may change weights, and do all else; None: nobody may."
    )
    ingest_token: BearerToken | None = Field(
        default=None,
        description="Who knows it may announce bytes and report routes, and read; None: as for reading.",
    )
    read_token: BearerToken | None = Field(
        default=None, description="Who knows it may read what is measured; None: everybody may."
    )
    allowed_hosts: frozenset[Annotated[str, Field(pattern=f"^{HOST_NAME}$")]] = Field(
        default=frozenset(),
        description="By which names clients call the service, beside localhost and addresses.",
    )
    body_max_bytes: int = Field(default=1 << 20, ge=1 << 10, description="The largest request.")
    body_wait_s: float = Field(
        default=10.0, gt=0, description="How long a request's body may take to arrive."
    )
    topics_max: int = Field(
        default=2000, ge=1, description="How many topics are measured because somebody asks for them."
    )
    topic_lifetime_s: float = Field(
        default=600.0, gt=0, description="How long a topic is measured after somebody last asked for it."
    )
    unknown_topic_lifetime_s: float = Field(
        default=30.0, gt=0, description="Likewise a name that no broker knows, as a topic may be made soon."
    )
    intents_max: int = Field(default=200, ge=1, description="How many loads may have announced bytes.")
    reports_max: int = Field(
        default=5000, ge=1, description="How many routes are kept, one for each producer and topic."
    )
    report_lifetime_s: float = Field(
        default=60.0, gt=0, description="How long a route is shown when nothing more is heard."
    )
    clients_max: int = Field(default=10_000, ge=1, description="How many clients are told apart.")
    client_lifetime_s: float = Field(
        default=60.0, gt=0, description="How long a client counts after its last request."
    )
    encoded_max: int = Field(
        default=64, ge=1, description="How many sets of topics are kept encoded; others are encoded anew."
    )
    measure_wait_s: float = Field(
        default=2.5,
        gt=0,
        description="How long a request waits for a new measurement; then it gets what is there.",
    )
    measure_pause_s: float = Field(
        default=1.0,
        ge=0,
        description="From one measurement that somebody asked for to the next such, on average; after a "
        "quiet time, three come at once.",
    )
    weights_poll_s: float = Field(
        default=1.0, gt=0, le=60, description="How often the weights' file is looked at."
    )

    def admission(self) -> Admission:
        """Who may ask for what."""
        tokens = {
            Right.READ: self.read_token,
            Right.INGEST: self.ingest_token,
            Right.OPERATE: self.operate_token,
        }
        return Admission(
            {right: token for right, token in tokens.items() if token is not None},
            [host.lower() for host in self.allowed_hosts],
        )
