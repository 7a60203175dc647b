"""Become another program that dies with its parent. Run as a script, never imported.

`python -I -S launcher.py PARENT_PID PROGRAM ARGUMENT...` asks the kernel (Linux) for
SIGKILL at the parent's end, then turns into PROGRAM. A launcher, as the alternative, Python code
between fork and exec in a process with threads, can deadlock. The kernel means the parent's *thread*:
process.py starts launchers from one that lives as long as the interpreter.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9

if __name__ == "__main__":
    parent_pid = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the kernel knew
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
