"""Which of how many processes this one is, asked of whoever started it.

Sources in the order in which they are believed; the first that says both numbers counts:

    torch.distributed   its default group, where it is initialised: gradients are averaged over that
    RANK, WORLD_SIZE    torchrun, Ray, most launchers
    Open MPI            OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE (mpirun; also within a Slurm job)
    Slurm               SLURM_PROCID, SLURM_NTASKS (srun)
    Lightning           LOCAL_RANK and NODE_RANK beside WORLD_SIZE: its launcher sets no RANK
    nothing of these    a process alone: 0 of 1

A wrong answer loses samples without an error, so what is half said is refused, and so is a source that
contradicts WORLD_SIZE, when no other agrees with it.

Read next: reader.py, which asks as an iteration begins: a reader is often made before there is a group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from evenload.ray_trainer.reading.errors import UnknownRankError


class ProcessRank(NamedTuple):
    """One of `world_size` processes: 0 <= rank < world_size."""

    rank: int
    world_size: int


def process_rank(environment: Mapping[str, str] | None = None) -> ProcessRank:
    """This process's rank and world size.

    Args:
        environment: None: the process's own.

    Raises:
        UnknownRankError: the environment says only a part of it, or contradicts itself.
        ValueError: what it says are no numbers, or no rank.
    """
    group = group_rank()
    return group if group is not None else _rank_in(os.environ if environment is None else environment)


def group_rank() -> ProcessRank | None:
    """By torch.distributed's default group; None while there is none."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return ProcessRank(distributed.get_rank(), distributed.get_world_size())
    return None


def _rank_in(environment: Mapping[str, str]) -> ProcessRank:
    rank, world_size = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
    if rank is not None and world_size is not None:
        return _checked(rank, world_size, "RANK", "WORLD_SIZE")
    contradictions = []
    for found, said in _other_sources(environment, world_size):
        if world_size in (None, found.world_size) and rank in (None, found.rank):
            return found
        contradictions.append(said)
    set_here = " and ".join(
        f"{name} is {value}"
        for name, value in (("RANK", rank), ("WORLD_SIZE", world_size))
        if value is not None
    )
    if contradictions:
        raise UnknownRankError(f"{set_here}, but {' and '.join(contradictions)}")
    if rank is not None or world_size not in (None, 1):
        raise UnknownRankError(f"{set_here}, but there is no {'RANK' if rank is None else 'WORLD_SIZE'}")
    return ProcessRank(0, 1)


def _other_sources(
    environment: Mapping[str, str], world_size: int | None
) -> Iterator[tuple[ProcessRank, str]]:
    """What each says, and the same in words; in the order in which they are believed."""
    for rank_name, size_name in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        rank, size = (_number(environment, name) for name in (rank_name, size_name))
        if rank is None or size is None:
            continue
        if rank_name == "SLURM_PROCID" and size > 1 and _is_batch_script(environment):
            raise UnknownRankError(
                f"SLURM_NTASKS is {size}, but the batch script itself runs this process, as the only one; "
                "start it with srun"
            )
        yield _checked(rank, size, rank_name, size_name), f"{rank_name} and {size_name} say {rank} of {size}"
    local_rank = _number(environment, "LOCAL_RANK")
    if local_rank is not None and world_size is not None:
        rank = _node_start(environment) + local_rank
        yield _checked(rank, world_size, "LOCAL_RANK", "WORLD_SIZE"), "LOCAL_RANK"


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    """Slurm gives a batch script the number of tasks too, and number 0; only what srun starts has a step."""
    is_job = "SLURM_JOB_ID" in environment
    return is_job and not {"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys()


def _node_start(environment: Mapping[str, str]) -> int:
    """Rank of a node's first process."""
    node_rank = _number(environment, "NODE_RANK") or 0
    per_node = _number(environment, "LOCAL_WORLD_SIZE")
    if node_rank and per_node is None:
        raise UnknownRankError(
            f"NODE_RANK is {node_rank}, but nothing says how many processes the nodes before it run"
        )
    return node_rank * (per_node or 0)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} is {text!r} in the environment, which is no whole number from 0 on")
    return int(text)


def _checked(rank: int, world_size: int, rank_name: str, size_name: str) -> ProcessRank:
    if not rank < world_size:
        raise ValueError(f"rank {rank} (by {rank_name}) is not one of {world_size} ranks (by {size_name})")
    return ProcessRank(rank, world_size)
