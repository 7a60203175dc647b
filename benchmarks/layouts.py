"""The situations in which `benchmarks balance` loads data: what brokers hold already, where replicas are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One situation.

    Attributes:
        name: What is special about it.
        capacity_mib: By broker in order of ids, in MiB.
        held_mib: What each holds before the load, in MiB, by broker id.
        assignment: The replicas of each partition of the topic, preferred leader first.
        intrusion_mib: What another writer puts on brokers half-way through the load, in MiB, by broker id.
    """

    name: str
    capacity_mib: Sequence[int]
    assignment: Sequence[tuple[int, ...]]
    held_mib: Mapping[int, int] = field(default_factory=dict)
    intrusion_mib: Mapping[int, int] = field(default_factory=dict)

    @property
    def capacity_bytes(self) -> dict[int, int]:
        """By broker id, in bytes."""
        return {broker: mib * MIB for broker, mib in enumerate(self.capacity_mib, start=1)}

    @property
    def replication(self) -> int:
        """Copies of each partition."""
        return len(self.assignment[0])

    def load_bytes(self, fraction: float) -> int:
        """A payload, counted once, that takes this part of the free capacity with all its copies.

        Args:
            fraction: Of what is free before the load; from 0 to 1.
        """
        free_mib = sum(self.capacity_mib) - sum(self.held_mib.values())
        return int(fraction * free_mib * MIB / self.replication)


def _even(partitions: int, brokers: int = 3, replication: int = 1) -> list[tuple[int, ...]]:
    """Leaders in turn, followers on the brokers after, as Kafka places a new topic."""
    return [tuple((first + copy) % brokers + 1 for copy in range(replication)) for first in range(partitions)]


LAYOUTS = (
    Layout(name="all alike", capacity_mib=(128, 128, 128), assignment=_even(6)),
    Layout(name="capacities 2:2:1", capacity_mib=(160, 160, 80), assignment=_even(6)),
    Layout(name="one broker at 70 %", capacity_mib=(160, 160, 160), assignment=_even(6), held_mib={1: 112}),
    Layout(
        name="old skew 70/20/10",
        capacity_mib=(160, 160, 160),
        assignment=_even(6),
        held_mib={1: 112, 2: 32, 3: 16},
    ),
    Layout(
        name="leaders 4-1-1", capacity_mib=(128, 128, 128), assignment=[(1,), (1,), (1,), (1,), (2,), (3,)]
    ),
    Layout(name="all leaders on one broker, R = 1", capacity_mib=(256, 64, 64), assignment=[(1,)] * 6),
    Layout(
        name="all leaders on one broker, R = 2",
        capacity_mib=(256, 128, 128),
        assignment=[(1, 2), (1, 2), (1, 3), (1, 3), (1, 3), (1, 3)],
        held_mib={2: 40},
    ),
    Layout(
        name="coupled replica sets in a chain, R = 2",
        capacity_mib=(128, 128, 128, 64),
        assignment=[(1, 2), (2, 3), (3, 4), (2, 1), (3, 2), (4, 3)],
        held_mib={2: 38},
    ),
    Layout(
        name="capacities 2:2:1 and one at 50 %, R = 2",
        capacity_mib=(192, 192, 96),
        assignment=_even(6, replication=2),
        held_mib={2: 96},
    ),
    Layout(
        name="a load that changes half-way",
        capacity_mib=(160, 160, 160),
        assignment=_even(6),
        intrusion_mib={2: 24},
    ),
    Layout(
        name="a load that changes half-way, R = 2",
        capacity_mib=(160, 160, 160, 160),
        assignment=_even(8, brokers=4, replication=2),
        held_mib={2: 24},
        intrusion_mib={3: 24},
    ),
    Layout(
        name="as many replicas as brokers",
        capacity_mib=(128, 128, 64),
        assignment=_even(6, replication=3),
        held_mib={1: 32},
    ),
)
