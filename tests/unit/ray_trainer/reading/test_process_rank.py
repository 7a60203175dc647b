"""Which rank a process has: every launcher's way of saying it, and what is half said or contradictory."""

from __future__ import annotations

import pytest

from evenload.ray_trainer.reading.errors import UnknownRankError
from evenload.ray_trainer.reading.process_rank import process_rank

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
SRUN = {**SLURM, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
LIGHTNING = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}


@pytest.mark.parametrize("environment", [TORCHRUN, OPEN_MPI, SLURM, SRUN])
def test_each_launcher_is_understood(environment: dict[str, str]) -> None:
    assert process_rank(environment) == (3, 8)


def test_lightnings_launcher_sets_no_rank_and_is_understood() -> None:
    assert process_rank(LIGHTNING) == (1, 2)
    assert process_rank({**LIGHTNING, "LOCAL_RANK": "0"}) == (0, 2)
    later_node = {"WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert process_rank(later_node) == (5, 8)


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert process_rank({}) == (0, 1)
    assert process_rank({"WORLD_SIZE": "1"}) == (0, 1)
    assert process_rank({"RANK": "", "WORLD_SIZE": ""}) == (0, 1)
    assert process_rank({"LOCAL_RANK": "0"}) == (0, 1)


def test_the_first_source_that_says_both_numbers_counts() -> None:
    ranks_of_mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    # mpirun within a batch script: Slurm speaks of the daemons that mpirun has started
    assert process_rank({**ranks_of_mpi, **BATCH_SCRIPT}) == (1, 2)
    # torchrun within srun: one task a node, and several ranks in it
    assert process_rank({**TORCHRUN, **SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}) == (3, 8)
    # Lightning starts two processes in a job of one task
    assert process_rank({**LIGHTNING, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == (1, 2)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but there is no RANK"),
        ({"RANK": "0"}, "RANK is 0, but there is no WORLD_SIZE"),
        ({"WORLD_SIZE": "4", **SRUN}, "WORLD_SIZE is 4, but SLURM_PROCID and SLURM_NTASKS say 3 of 8"),
        ({"WORLD_SIZE": "1", **OPEN_MPI}, "WORLD_SIZE is 1, but OMPI_COMM_WORLD_RANK .* say 3 of 8"),
        ({"RANK": "2", **SRUN}, "RANK is 2, but SLURM_PROCID and SLURM_NTASKS say 3 of 8"),
        (BATCH_SCRIPT, "start it with srun"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}, "NODE_RANK is 1"),
    ],
)
def test_what_is_half_said_or_contradictory_is_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(UnknownRankError, match=reason):
        process_rank(environment)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 .*RANK.* is not one of 4 ranks"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK is '-1'"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK is 'one'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "not one of 0 ranks"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        process_rank(environment)
