"""The page of one governor: itself, and the overview that it asks for each two seconds.

An overview is made when somebody looks, once a second however many do. The last hour's slots are remembered
as they change, whether anybody looks or not.

Read next: overview.py, which makes it; page.html, which shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Final

from evenload.governor.deciding.plugins import known_policies
from evenload.governor.errors import GovernorError
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.loop import Governing
from evenload.governor.service.page.findings import GpuFacts, Troubles
from evenload.governor.service.page.overview import (
    Overview,
    PolicyOverview,
    make_overview,
    without_governor,
)
from evenload.governor.service.page.slot_history import SlotHistory
from evenload.http_edge.kept_answer import KeptAnswer
from evenload.http_edge.sealed_page import Page, sealed

_KEPT_S: Final = 1.0
_SLOW: Final = "the governor is slow to answer"
_GOVERNOR_PATIENCE_S: Final = 3.0  # then it is said what keeps it
_PATIENCE_S: Final = 4.0  # the page's is 5


def load_page() -> Page:
    """Read the page from the package."""
    return sealed(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


class GovernorPage:
    """The page of one governor. Belongs to one asyncio loop.

    Args:
        governing: Whom it shows.
        gpu_facts: What is known of its jobs' GPUs.

    Attributes:
        sent: What a browser gets.
    """

    def __init__(self, governing: Governing, gpu_facts: Callable[[Governor, float], GpuFacts]) -> None:
        self.sent = load_page()
        self._governing, self._gpu_facts = governing, gpu_facts
        self._history = SlotHistory()
        self._last: Overview | None = None
        self._kept = KeptAnswer(partial(asyncio.to_thread, self._make), kept_s=_KEPT_S)
        governing.watch(self._remember)

    async def overview(self) -> bytes:
        """What the page shows, as JSON; up to a second old.

        Raises:
            TimeoutError: It takes longer than whoever looks has patience.
        """
        return await self._kept.get(_PATIENCE_S)

    def _remember(self, governor: Governor, now_s: float) -> None:
        held = {job_id: job.size for job_id, job in governor.jobs.items() if job.size}
        self._history.add(now_s, governor.num_slots, held)

    def _make(self) -> bytes:
        governing = self._governing
        policy = PolicyOverview(
            name=governing.policy[0] if governing.policy else None,
            fault=governing.put_aside,
            known=known_policies(),
        )
        try:
            overview = governing.ask(partial(self._shown, policy), timeout_s=_GOVERNOR_PATIENCE_S)
        except (GovernorError, TimeoutError) as error:
            troubles = self._troubles(governing.unready or str(error) or _SLOW, GpuFacts())
            overview = without_governor(policy, troubles, self._last)
        else:
            self._last = overview
        return overview.model_dump_json().encode()

    def _shown(self, policy: PolicyOverview, governor: Governor, now_s: float) -> Overview:
        return make_overview(
            governor,
            now_s,
            history=self._history,
            policy=policy,
            troubles=self._troubles(self._governing.unready, self._gpu_facts(governor, now_s)),
        )

    def _troubles(self, unready: str | None, gpus: GpuFacts) -> Troubles:
        return Troubles(unready, self._governing.put_aside, len(self._governing.damaged), gpus)
