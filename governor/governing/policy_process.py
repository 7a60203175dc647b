"""Anybody's policy in a process of its own, which can be ended when it doesn't answer.

A policy that loops for ever would hold up all jobs, and a thread can't be ended. What comes back is JSON, so
that whatever a policy's package does, nothing of it runs here. Those that come with evenload need no process.
"""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.connection import Connection as Pipe
from typing import Final

from evenload.governor.deciding.plugins import GuardedPolicy, check_known, is_built_in, load_policy
from evenload.governor.deciding.state import ClusterState, Policy, Sizes
from evenload.governor.errors import PolicyError

_START_S: Final = 60.0  # to import what the policy's package needs, on a busy machine
_ANSWER_S: Final = 5.0  # far longer than a policy may take; then it hangs


def governing_policy(name: str) -> GuardedPolicy:
    """The policy of a name, such that whatever it does, somebody decides.

    Raises:
        PolicyError: There is none of this name, or it can't be imported.
    """
    check_known(name)
    policy: Policy = load_policy(name) if is_built_in(name) else PolicyProcess(name)
    return GuardedPolicy(policy, name=name)


class PolicyProcess:
    """A policy as a function whose work another process does. For one thread.

    Raises:
        PolicyError: It can't be had.
    """

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_all, args=(name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        said = self._receive(_START_S)
        if said != "ready":
            self.close()
            raise PolicyError(name, (), f"can't be used: {said}")

    def __call__(self, state: ClusterState) -> Sizes:
        """What the policy wishes.

        Raises:
            RuntimeError: It says what it did instead, or nothing.
        """
        try:
            self._pipe.send(state)
        except OSError as error:
            raise RuntimeError("its process has ended") from error
        said = self._receive(_ANSWER_S)
        if not isinstance(said, dict):
            self.close()
            raise RuntimeError(str(said))
        return said

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, timeout_s: float) -> object:
        try:
            if not self._pipe.poll(timeout_s):
                return f"no answer for {timeout_s:.0f} s"
            return json.loads(self._pipe.recv_bytes())
        except (OSError, EOFError):
            return "its process has ended"


def _answer_all(name: str, pipe: Pipe) -> None:
    """Runs in the policy's process, until nobody asks any more."""
    try:
        policy = load_policy(name)
    except PolicyError as error:
        pipe.send_bytes(json.dumps(str(error)).encode())
        return
    pipe.send_bytes(json.dumps("ready").encode())
    while True:
        try:
            state = pipe.recv()
        except (OSError, EOFError):
            return
        try:
            answer = json.dumps(dict(policy(state)))
        except Exception as error:  # noqa: BLE001 - anybody's code
            answer = json.dumps(f"{type(error).__name__}: {str(error)[:200]}")
        pipe.send_bytes(answer.encode())
