"""Which process wrote something down, said so that no other fits, and whether that one still runs.

A host's name and a process id don't do: in containers the id is 1 again and again, several containers may
share a host's name, and an id is given anew when its process has ended. So an identity names the kernel's
boot, the namespace that counts process ids, the id, and when the process started. Only who shares boot and
namespace can tell whether it runs; for everybody else, and where there is no /proc, it is unknown.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["is_running", "this_process"]

_PROC = Path("/proc")
_IDENTITY = re.compile(r"(?P<where>[0-9a-f-]{36} [0-9]{1,20}) (?P<pid>[0-9]{1,10}) (?P<started>[0-9]{1,20})")
_ENDED = ("Z", "X")  # a zombie has ended, though its parent hasn't asked for its exit status yet


def this_process() -> str:
    """This process's identity, `BOOT NAMESPACE PID START`; empty where the system doesn't tell."""
    try:
        where = _where()
        # With a /proc of another namespace (`unshare` without `--mount-proc`) "self" has another id there.
        if int((_PROC / "self/stat").read_text().split(" ", 1)[0]) != os.getpid():
            return ""
        _, started = _state_and_start(os.getpid())
    except (OSError, ValueError):
        return ""
    return f"{where} {os.getpid()} {started}"


def is_running(identity: str) -> bool | None:
    """Whether the process of this identity runs; None where that can't be told from here.

    Args:
        identity: What `this_process` returned there. Anything else is a process of which nothing is known.
    """
    found = _IDENTITY.fullmatch(identity)
    if found is None or not (mine := this_process()):
        return None
    if found["where"] != mine.rsplit(" ", 2)[0]:
        return None
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's; when it started may be told all the same
    try:
        state, started = _state_and_start(pid)
    except OSError:
        return None  # /proc may hide other users' processes (`hidepid`)
    return started == found["started"] and state not in _ENDED


def _where() -> str:
    boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot_id} {(_PROC / 'self/ns/pid').stat().st_ino}"


def _state_and_start(pid: int) -> tuple[str, str]:
    # The name, in parentheses, may hold spaces and parentheses; after it come state (field 3) and the rest.
    fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]
