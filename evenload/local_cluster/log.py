"""Find the line of a server's log that says why it died. Pure.

A log holds many starts, each after a line that begins with START_MARK; only the last one counts.
An exception's cause says more than the sentence that wraps it, so: the last `Caused by`, else the
last line of an exception, else the last line that complains, else the last line.
"""

from __future__ import annotations

import re

START_MARK = "---- evenload runs"

_CAUSE = re.compile(r"^Caused by: ")
_EXCEPTION = re.compile(r"^(?:Exception in thread .*|[\w.$]+(?:Exception|Error)): ")
_COMPLAINT = re.compile(r"\b(?:ERROR|FATAL)\b|^Error[: ]")
_PREFIX = re.compile(r"^(?:Caused by: |Exception in thread \"[^\"]*\" |\S+ (?:ERROR|FATAL) )+")


def last_error_line(log: str) -> str:
    """The line that a person should read first, without its time stamp; never empty."""
    this_start = log[max(0, log.rfind(START_MARK)) :]
    lines = [line.strip() for line in this_start.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(START_MARK)]
    for pattern in (_CAUSE, _EXCEPTION, _COMPLAINT):
        found = [line for line in lines if pattern.search(line)]
        if found:
            return _PREFIX.sub("", found[-1])
    return lines[-1] if lines else "it said nothing"
