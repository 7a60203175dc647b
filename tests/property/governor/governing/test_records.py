"""What is written down is read as it was, and what anybody else writes there does no harm."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.policies.smartfill import smartfill
from evenload.governor.deciding.state import Team
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Job, Wish
from evenload.governor.governing.kinds import Kind
from evenload.governor.governing.records import Records, decoded, encoded
from evenload.governor.simulating.simulation import Costs, SimulatedEngine, Submission
from evenload.governor.testing import MemoryJournal, make_curve

KEYS = [b"job:a", b"kind:k", b"team:t", b"cluster", b"x", b"\xff"]
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    10**9,
    10**400,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x" * 5000,
]
HOSTILE += ["running", [], {}, [1, 2], {"a": 1}, [[[[[[]]]]]] * 50]


def records_of(seed: int) -> Records:
    """Of a cluster some time after three jobs came."""
    chance = random.Random(seed)
    engine = SimulatedEngine(4, Costs(stop_s=chance.choice([0.0, 5.0]), failed_starts=0.3, seed=seed))
    governor, journal = Governor(smartfill, wait_max_s=60.0), MemoryJournal()
    for number in range(3):
        job = Submission(
            job_id=f"job-{number}",
            submitted_s=0.0,
            asked_size=chance.randint(1, 4),
            samples=chance.uniform(100, 5000),
            speed=make_curve(lambda size: 10.0 * size, 4),
            kind="k",
        )
        engine.add(job)
        governor.submit(job.wish, 0.0)
    now_s, until_s = 0.0, chance.uniform(0, 500)
    while now_s < until_s:
        engine.advance(now_s)
        run_cycle(governor, journal, engine, now_s)
        now_s = max(now_s, min(engine.next_event_s, governor.due_s))
        if chance.random() < 0.05:
            governor.hold("job-1", now_s)
        if not governor.jobs:
            break
    return journal.read()


@given(seed=st.integers(0, 2**32))
def test_what_was_written_is_read_as_it_was(seed: int) -> None:
    records = records_of(seed)
    assert decoded(dict(encoded(records))) == (records, [])


@given(seed=st.integers(0, 2**32), key=st.sampled_from(KEYS))
def test_whatever_stands_there_hides_only_itself(seed: int, key: bytes) -> None:
    chance = random.Random(seed)
    good = Job(
        wish=Wish(job_id="a", kind="k", samples=5.0, asked_size=2, max_size=4, entry={"x": [1]}),
        submitted_s=1.0,
        wanted_since_s=1.0,
        since_s=1.0,
    )
    kind = Kind().with_speed(2, good.stint_id, 10.0).with_resize(3.0)
    jobs = {"a": good, "b": _named(good, "b")}
    stored = dict(encoded(Records(jobs, {"k": kind}, "c", teams={"t": Team(limit=4, guarantee=2)})))
    document = json.loads(stored.get(key, b"{}"))
    for _ in range(chance.randint(1, 3)):
        document = _spoiled(document, chance)
    stored[key] = chance.choice([json.dumps(document).encode(), chance.randbytes(50), b"[" * 100_000])
    records, errors = decoded(stored)
    assert records.jobs["b"] == _named(good, "b")
    assert len(errors) + len(list(encoded(records))) == len(stored)
    # What is taken for a record can be decided about.
    governor = Governor(smartfill, records=records)
    for job in governor.state(100.0).jobs:
        assert job.speed.best_size >= 1


def _named(job: Job, job_id: str) -> Job:
    wish = Wish(**{name: getattr(job.wish, name) for name in Wish.__dataclass_fields__} | {"job_id": job_id})
    return Job(wish=wish, submitted_s=1.0, wanted_since_s=1.0, since_s=1.0)


def _spoiled(document: Any, chance: random.Random) -> Any:
    """With one value somewhere in it replaced, taken away or added."""
    if not isinstance(document, dict | list) or not document or chance.random() < 0.1:
        return copy.deepcopy(chance.choice(HOSTILE))
    spoiled = copy.deepcopy(document)
    place = chance.choice(list(spoiled) if isinstance(spoiled, dict) else range(len(spoiled)))
    if isinstance(spoiled, dict) and chance.random() < 0.2:
        del spoiled[place]
    elif isinstance(spoiled, dict) and chance.random() < 0.1:
        spoiled["more"] = 1
    else:
        spoiled[place] = _spoiled(spoiled[place], chance)
    return spoiled
