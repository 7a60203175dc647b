"""Traces of jobs that anybody writes, and what is wrong with some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.governor.errors import TraceError
from evenload.governor.simulating.traces import read_speeds, read_trace

SPEEDS = {"a": {1: 10.0, 2: 15.0, 4: 20.0}}


Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_a_job_has_as_much_to_do_as_it_did_on_the_slots_that_it_asked_for(write: Write) -> None:
    path = write("name,submitted,slots,duration_s,kind\nlate,60,2,100,a\nearly,0,1,30,a\n")
    early, late = read_trace(path, 8, SPEEDS).jobs
    assert (early.job_id, early.samples, early.asked_size) == ("early", 300.0, 1)
    assert (late.job_id, late.samples, late.submitted_s) == ("late", 1500.0, 60.0)
    assert early.speed.samples_per_s == (0.0, 10.0, 15.0, 17.5, 20.0)


def test_columns_that_may_be_left_out_bound_a_jobs_sizes(write: Write) -> None:
    path = write("submitted,slots,duration_s,kind,min_slots,max_slots\n0,2,100,a,2,3\n")
    (job,) = read_trace(path, 8, SPEEDS).jobs
    assert (job.job_id, job.min_size, job.speed.sizes) == ("job-1", 2, (2, 3))


def test_nobody_can_have_more_than_there_is(write: Write) -> None:
    (job,) = read_trace(write("submitted,slots,duration_s,kind\n0,1,100,a\n"), 2, SPEEDS).jobs
    assert job.speed.sizes == (1, 2)


def test_of_a_kind_that_nobody_measured_speeds_are_guessed_and_counted(write: Write) -> None:
    trace = read_trace(write("submitted,slots,duration_s\n0,2,100\n"), 64, SPEEDS)
    assert trace.num_guessed == 1
    assert trace.jobs[0].speed.sizes == (1, 2, 3, 4)
    assert trace.jobs[0].samples == pytest.approx(100.0 * trace.jobs[0].speed.samples_per_s[2])


def test_dates_are_understood_as_well_as_seconds(write: Write) -> None:
    path = write(
        "submitted,slots,duration_s\n2017-10-03 00:28:18,1,5\n2017-10-03T00:27:18+00:00,1,5\n"
        "2017-10-03T00:28:18+00:00,1,5\n"
    )
    times = {job.job_id: job.submitted_s for job in read_trace(path, 8, {}).jobs}
    assert times["job-3"] - times["job-2"] == 60.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no column submitted and no column slots and no column duration_s"),
        ("submitted,slots,duration_s\n", "has no jobs"),
        ("submitted,slots\n0,1\n", "has no column duration_s; its first line names submitted, slots, dur"),
        ("submitted,slots,duration_s\n0,1\n", "line 2 has not as many values as the first line has names"),
        ("submitted,slots,duration_s\n0,1,5,6\n", "line 2 has not as many values"),
        ("submitted,slots,duration_s\nsoon,1,5\n", "line 2: submitted is 'soon', must be seconds or a date"),
        ("submitted,slots,duration_s\nnan,1,5\n", "line 2: submitted is 'nan'"),
        ("submitted,slots,duration_s\n0,1.5,5\n", "line 2: slots is '1.5', must be a whole number from 1"),
        ("submitted,slots,duration_s\n0,1e9,5\n", "line 2: slots is '1e9'"),
        ("submitted,slots,duration_s\n0,1,inf\n", "line 2: duration_s is 'inf', must be a number above 0"),
        ("submitted,slots,duration_s\n0,9,5\n", "line 2: 'job-1' asks for 9 slots, and there are to be 8"),
        ("submitted,slots,duration_s,max_slots\n0,4,5,2\n", "asks for 4 slots, but can have 1 to 2"),
        ("submitted,slots,duration_s,kind\n0,5,5,a\n", "speeds of kind 'a' are known up to 4"),
        ("name,submitted,slots,duration_s\nx,0,1,5\nx,0,1,5\n", "line 3: there are two jobs named 'x'"),
        ('submitted,slots,duration_s\n0,1,"5', "after line 1: unexpected end of data"),
        ("submitted,slots,duration_s\n0,1," + "5" * 200_000, "after line 1: field larger than field limit"),
    ],
)
def test_what_cant_be_understood_is_named_with_its_line(write: Write, text: str, why: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(text), 8, SPEEDS)
    assert why in str(caught.value)


def test_speeds_are_read_by_kind_and_size(write: Write) -> None:
    path = write("kind,slots,samples_per_s\na,1,10\nb,1,7\na,4,20\n")
    assert read_speeds(path) == {"a": {1: 10.0, 4: 20.0}, "b": {1: 7.0}}
