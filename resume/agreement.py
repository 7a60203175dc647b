"""How ranks decide together without waiting: wishes of one step are decisions at the end of the next.

Each rank says what it wishes (a checkpoint is due; somebody pressed Ctrl-C; ...) as numbers that are added
up over all ranks while the next step computes. The sum is there long before that step ends; so every rank
acts on the same wishes at the same step, and a step is never longer for it.

Read next: peers.py.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from evenload.resume.peers import Peers, PendingSum

__all__ = ["Agreement", "Decision", "Wishes"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one rank wishes.

    Attributes:
        checkpoint: One is due.
        stop: The run is to stop, after a checkpoint.
        preempted: A machine will be taken away: a checkpoint at once.
        poll: Ask Ray about machines that will be taken away.
        report: Tell Ray of the last checkpoint.
        failed: A checkpoint has ended the run: raise what ended it.
        mean_loss: This rank's part of the mean loss of the step before; None (on all ranks) at the first.
    """

    checkpoint: bool = False
    stop: bool = False
    preempted: bool = False
    poll: bool = False
    report: bool = False
    failed: bool = False
    mean_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Decision(Wishes):
    """What all ranks do, because at least one wished it; and the loss, added up."""


class Agreement:
    """One exchange of wishes at a time. Training thread only."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pending: PendingSum | None = None
        self._has_loss = False

    @property
    def is_pending(self) -> bool:
        """Something was wished and not decided: a call that other ranks may never make."""
        return self._pending is not None

    def decide(self) -> Decision:
        """What was wished at the step before. Nothing at the first."""
        if self._pending is None:
            return Decision()
        *num_wishing, mean_loss = self._pending.wait()
        self._pending = None
        decision = Decision(*(number > 0 for number in num_wishing))
        return replace(decision, mean_loss=mean_loss) if self._has_loss else decision

    def wish(self, wishes: Wishes) -> None:
        """Tell the others; every rank at every step.

        A sum doesn't say which step it is of: the n-th call of a rank meets the n-th call of the others. A
        rank that left out a step, as it has nothing to wish, would from then on act a step later than its
        peers, and its books of a checkpoint would end with another step than theirs.
        """
        assert self._pending is None, "decide() comes before wish()"
        self._has_loss = wishes.mean_loss is not None
        self._pending = self._peers.start_sum([float(wish or 0.0) for wish in astuple(wishes)])
