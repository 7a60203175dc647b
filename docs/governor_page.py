"""Make docs/governor-page-*.png: the governor's page of a made-up afternoon, drawn by the real page.

    python docs/governor_page.py            # needs Chromium: apt-get install chromium
    python docs/governor_page.py FOLDER     # every width and colour scheme, to look at

Three teams share 16 slots. Runs and their speeds are made up, and time is virtual; the governor that decides,
what the page shows of it, and the page are the product's.
"""

from __future__ import annotations

import random

from page_pictures import make_pictures

from evenload.governor.deciding.curves import interpolated
from evenload.governor.deciding.plugins import known_policies, load_policy
from evenload.governor.deciding.state import Team
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Wish
from evenload.governor.service.page.findings import Troubles
from evenload.governor.service.page.live_page import load_page
from evenload.governor.service.page.overview import Overview, PolicyOverview, make_overview
from evenload.governor.service.page.slot_history import SlotHistory
from evenload.governor.simulating.simulation import Costs, SimulatedEngine, Submission
from evenload.governor.testing import MemoryJournal

NUM_SLOTS = 16
POLICY = "smartfill"
SPEEDS = {  # samples/s by workers
    "image-classification-3fa1": {1: 410.0, 2: 790.0, 4: 1450.0, 8: 2350.0},
    "text-classification-9b07": {1: 620.0, 2: 960.0, 4: 1300.0, 8: 1420.0},
}
# minute, name, team, weight, kind, fewest, most, samples
ARRIVALS = [
    (0, "resnet-base", "vision", 4.0, "image-classification-3fa1", 1, 8, 4_200_000),
    (2, "cola-sweep-1", "language", 4.0, "text-classification-9b07", 1, 4, 600_000),
    (3, "cola-sweep-2", "language", 4.0, "text-classification-9b07", 1, 4, 600_000),
    (9, "resnet-augmented", "vision", 4.0, "image-classification-3fa1", 1, 8, 1_900_000),
    (15, "cola-final", "language", 16.0, "text-classification-9b07", 2, 8, 1_300_000),
    (20, "segmentation", "vision", 4.0, "image-classification-3fa1", 2, 8, 2_600_000),
    (27, "nightly-export", "data", 1.0, "", 2, 2, 0),
    (30, "resnet-wide", "vision", 1.0, "image-classification-3fa1", 8, 8, 3_000_000),
]


class Afternoon:
    """Forty minutes of a governor."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine(NUM_SLOTS, Costs(start_s=14.0, stop_s=3.0))
        self.journal = MemoryJournal()
        self.governor = Governor(load_policy(POLICY), policy_name=POLICY, wait_max_s=600.0)
        self.history = SlotHistory()
        self.now_s = 0.0
        self._coming = list(reversed(ARRIVALS))
        self._chance = random.Random(7)
        for name, team in (("vision", Team(limit=12)), ("language", Team(guarantee=4))):
            self.governor.set_team(name, team, 0.0)

    def pass_by(self, minutes: float) -> None:
        """Lets time go by."""
        end_s = self.now_s + 60 * minutes
        while self.now_s < end_s:
            while self._coming and 60 * self._coming[-1][0] <= self.now_s:
                self._submit(*self._coming.pop()[1:])
            self.engine.advance(self.now_s)
            run_cycle(self.governor, self.journal, self.engine, self.now_s)
            held = {job_id: job.size for job_id, job in self.governor.jobs.items() if job.size}
            self.history.add(self.now_s, self.governor.num_slots, held)
            self.now_s += 0.5

    def _submit(
        self, name: str, team: str, weight: float, kind: str, least: int, most: int, samples: int
    ) -> None:
        true = SPEEDS.get(kind, {1: 1.0, most: 1.0})
        factor = self._chance.uniform(0.97, 1.03)
        speed = interpolated({size: factor * per_s for size, per_s in true.items()})
        job = Submission(
            job_id=name,
            submitted_s=self.now_s,
            asked_size=most,
            samples=samples or 5e3,
            speed=speed,
            is_plain=not samples,
        )
        self.engine.add(job)
        wish = Wish(
            job_id=name,
            kind=kind or "plain",
            samples=float(samples) or None,
            asked_size=most,
            min_size=least,
            max_size=most,
            team=team,
            weight=weight,
        )
        self.governor.submit(wish, self.now_s)

    def overview(self) -> Overview:
        """What `/v1/overview` would say now."""
        return make_overview(
            self.governor,
            self.now_s,
            history=self.history,
            policy=PolicyOverview(name=POLICY, fault=None, known=known_policies()),
            troubles=Troubles(),
        )


def main() -> None:
    """Make the pictures."""
    afternoon = Afternoon()
    afternoon.pass_by(36)
    overview = afternoon.overview().model_dump_json()
    make_pictures("governor-page", load_page(), overview, ready="#jobs tbody tr")


if __name__ == "__main__":
    main()
