"""The benchmark of policies: what it reads, what it says, what it judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.govern.report import Row, document, draw, misses, table_of
from benchmarks.govern.workloads import LOADS, NUM_WORKLOADS, philly_workload, pollux_workload
from benchmarks.results import write_json, write_svg
from evenload.governor.deciding import decision
from evenload.governor.deciding.plugins import DEFAULT
from evenload.governor.deciding.policies.elastic import optimus
from evenload.governor.deciding.policies.rigid import las
from evenload.governor.governing import governor
from evenload.governor.simulating.metrics import Figures, figures_of
from evenload.governor.simulating.simulation import Costs, simulate

FIGURES = Figures(
    mean_s=1000.0,
    median_s=500.0,
    p99_s=9000.0,
    makespan_s=40_000.0,
    longest_wait_s=700.0,
    utilisation=0.9,
    resizes_per_job=2.0,
)
OTHERS = ("afs", "elastic_fifo", "las", "power_mean")


def rows(default_s: float) -> list[Row]:
    found = []
    for load in LOADS:
        found.append(Row(load, 1, DEFAULT, 800.0, replace(FIGURES, mean_s=default_s)))
        found += [Row(load, 1, name, 800.0, replace(FIGURES, mean_s=1400.0)) for name in OTHERS]
    return found


def test_a_workload_is_that_of_its_files(shared_test_data: Path) -> None:
    jobs = pollux_workload(shared_test_data / "traces", 1.0, 6)
    assert len(jobs) == 160
    assert [job.submitted_s for job in jobs] == sorted(job.submitted_s for job in jobs)
    assert (jobs[0].job_id, jobs[0].submitted_s, jobs[0].asked_size) == ("cifar10-0", 53.0, 6)
    for job in jobs:
        assert job.speed.sizes[0] == 1
        assert all(size <= 4 or size % 4 == 0 or size == job.asked_size for size in job.speed.sizes)
        assert job.asked_size < len(job.speed.samples_per_s)


def test_days_of_phillys_trace_are_as_drawn(shared_test_data: Path) -> None:
    days = [philly_workload(shared_test_data / "traces", number) for number in range(1, NUM_WORKLOADS + 1)]
    assert [len(jobs) for jobs in days] == [105, *[160] * 7]
    for jobs in days:
        assert jobs[0].submitted_s == 0
        assert [job.submitted_s for job in jobs] == sorted(job.submitted_s for job in jobs)
        assert jobs[-1].submitted_s < 8 * 3600
    assert days[0] == philly_workload(shared_test_data / "traces", 1)


def test_las_ends_as_in_the_simulator_of_polluxs_authors(shared_test_data: Path) -> None:
    """Theirs has 4,038 s for the mean of all eight workloads, with starts of 30 s."""
    means = []
    for number in range(1, 9):
        workload = pollux_workload(shared_test_data / "traces", 1.0, number)
        means.append(figures_of(simulate(workload, las, num_slots=64, costs=Costs(start_s=30.0)), 64).mean_s)
    assert sum(means) / 8 == pytest.approx(4038, rel=0.12)


def test_optimus_ends_as_in_the_simulator_of_polluxs_authors(
    shared_test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs has 5,682 s, deciding each 60 s, and neither of two stages that save this policy resizes."""
    monkeypatch.setattr(decision, "hold", lambda _, sizes, **__: dict(sizes))
    monkeypatch.setattr(
        decision,
        "round_down",
        lambda state, sizes, **_: {job.job_id: sizes[job.job_id] for job in state.jobs},
    )
    monkeypatch.setattr(governor, "REACTION_S", 60.0)
    means = []
    for number in range(1, 9):
        workload = pollux_workload(shared_test_data / "traces", 1.0, number)
        ended = simulate(workload, optimus, num_slots=64, costs=Costs(start_s=30.0))
        means.append(figures_of(ended, 64).mean_s)
    assert sum(means) / 8 == pytest.approx(5682, rel=0.12)


def test_goals_that_are_met_are_no_misses() -> None:
    assert misses(rows(900.0)) == []


def test_each_goal_that_is_missed_is_a_sentence() -> None:
    found = misses(
        [*rows(1330.0), Row(1.0, 2, DEFAULT, 800.0, replace(FIGURES, mean_s=1330.0, longest_wait_s=721.0))]
    )
    assert [sentence.partition(" is ")[2] for sentence in found[:3]] == [
        "1.663 times the bound, not at most 1.2",
        "1.663 times the bound, not at most 1.35",
        "1.663 times the bound, not at most 1.4",
    ]
    assert found[3] == "smartfill is 5.0% below las, not at least 25%"
    assert found[-1] == "a job waited 721 s for slots, not at most 720 s"


def test_a_result_can_be_written(tmp_path: Path) -> None:
    found = rows(900.0)
    write_json(tmp_path / "govern.json", document(found))
    told = json.loads((tmp_path / "govern.json").read_text())
    assert told["runs"][0]["mean_s"] == 900
    write_svg(tmp_path / "govern.svg", draw(found))
    assert table_of([row for row in found if row.load == 1.0]).row_count == 5
