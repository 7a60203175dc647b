"""One server of the embedded cluster: its folder, its pid file, its log, its process.

The one idea: a process is ours if its command line names our own properties file. That is how a
pid file left by a crash is told from one that counts: the pid may by now belong to anybody, and
what is not ours is never signalled. (A start time can't do it alone: clocks are set, and it says
nothing about whose process it is.) It is also how a server is found whose starter was killed before
it could write the pid file.

Processes are started with posix_spawn: no Python code runs between fork and exec, so it is safe
in a process with threads. A server is a session of its own, so Ctrl-C in the shell that started
it doesn't reach it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evenload.local_cluster.errors import LocalPartsMissingError
from evenload.local_cluster.java import KAFKA_SERVER, STORAGE_TOOL, JavaRuntime
from evenload.local_cluster.log import START_MARK, last_error_line
from evenload.local_cluster.properties import to_text

try:
    import psutil
except ModuleNotFoundError as error:
    raise LocalPartsMissingError("psutil") from error

_LOG_BYTES_MAX = 16 << 20
_TAIL_BYTES = 64 << 10
_KILL_TIMEOUT_S = 10.0
_NO_COMMAND_TIMEOUT_S = 2.0
_PAUSE_TIMEOUT_S = 10.0
_POLL_S = 0.01
_LAUNCHER = Path(__file__).with_name("launcher.py")

# Children that die with us die with the *thread* that started them: this one lives as long as the
# interpreter, whereas a test's or a caller's may end right after start().
_spawner = ThreadPoolExecutor(1, "local-cluster-spawner")


class RunningProcess:
    """A process that was ours when this object was made; never mistaken for a later one of the same pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; if it is our child, it is reaped."""
        self._has_ended = self._has_ended or self._look()  # asked no more: the pid may be another child's
        return self._has_ended

    def _look(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        try:  # not our child
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def command(self) -> list[str]:
        """Its command line; empty when it has ended."""
        # For a moment a process has none: posix_spawn returns while the kernel is still loading
        # the program, and one that is ending loses it before its ports. Both look dead and aren't.
        deadline_s = time.monotonic() + _NO_COMMAND_TIMEOUT_S
        while not self.has_ended and time.monotonic() < deadline_s:
            with contextlib.suppress(psutil.Error):
                if command := self._process.cmdline():
                    return command
            time.sleep(_POLL_S)
        return []

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.send_signal(number)

    def pause(self) -> None:
        """Send it SIGSTOP, and wait until it has stopped; nothing happens when it has ended.

        Its threads run on until the one that the kernel gave the signal to has its turn: long enough to
        answer a request where processors are busy.

        Raises:
            TimeoutError: it still runs after ten seconds.
        """
        self.signal(signal.SIGSTOP)
        with contextlib.suppress(psutil.NoSuchProcess):
            self._wait_until(
                lambda: self.has_ended or self._process.status() == psutil.STATUS_STOPPED, _PAUSE_TIMEOUT_S
            )

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, its ports and files are free.

        Raises:
            TimeoutError: it still runs after `timeout_s` seconds.
        """
        self._wait_until(lambda: self.has_ended, timeout_s)

    def _wait_until(self, happened: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not happened():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            time.sleep(_POLL_S)


class JavaServer:
    """A server in a folder of its own; any object of this class over the same folder knows its process.

    LocalCluster sees to it that one starts or ends at a time.
    """

    def __init__(self, name: str, folder: Path, *, dies_with_parent: bool) -> None:
        self.name = name
        self.folder = folder
        self.properties_path = folder / "server.properties"
        self.log_path = folder / "server.log"
        self._pid_path = folder / "pid"
        self._dies_with_parent = dies_with_parent
        self._started: RunningProcess | None = None

    @property
    def process(self) -> RunningProcess | None:
        """Our process; None when there is none, whatever the pid file says."""
        if self._started and not self._started.has_ended:
            return self._started
        try:
            process = RunningProcess(int(self._pid_path.read_text()))
        except (OSError, ValueError, psutil.Error):
            return None
        return process if str(self.properties_path) in process.command() else None

    def adopt(self) -> None:
        """Look for our process among all that run, when no pid file tells it; costs tens of milliseconds."""
        if self.process is not None or not self.properties_path.exists():
            return  # without the file, one that names it is of a cluster whose folder was removed
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if str(self.properties_path) in command and KAFKA_SERVER in command:
                    self._remember(RunningProcess(process.pid))
                    return

    def write_properties(self, properties: Mapping[str, str]) -> None:
        """Write what the next start is told."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.properties_path.write_text(to_text(properties))

    def start(self, runtime: JavaRuntime) -> None:
        """Start the server and remember it; doesn't wait for it to serve."""
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self._remember(self.run(runtime, KAFKA_SERVER, str(self.properties_path)))

    def format(self, runtime: JavaRuntime, cluster_id: str) -> RunningProcess:
        """Run Kafka's tool that formats those of the server's folders that aren't yet."""
        arguments = ("--cluster-id", cluster_id, "--config", str(self.properties_path))
        return self.run(runtime, STORAGE_TOOL, "format", "--ignore-formatted", *arguments)

    def run(self, runtime: JavaRuntime, main_class: str, *arguments: str) -> RunningProcess:
        """Run a Java program whose output goes to this server's log."""
        scratch = self.folder / "tmp"  # native parts of compression codecs are unpacked here
        scratch.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a") as log:
            log.write(f"{START_MARK} {main_class} {' '.join(arguments)}\n")
        command = runtime.command(scratch, main_class, *arguments)
        if self._dies_with_parent:
            command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *command]
        return RunningProcess(_spawner.submit(_spawn, command, self.log_path).result())

    def last_error(self) -> str:
        """The line that says best what went wrong since the last start."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return last_error_line(log.read().decode(errors="replace"))
        return last_error_line("")

    def forget(self) -> None:
        """Remove the pid file, unless it tells of a process that runs: then it is not ours to remove."""
        with contextlib.suppress(OSError, ValueError):
            if not psutil.pid_exists(int(self._pid_path.read_text())):
                self._pid_path.unlink()

    def _remember(self, process: RunningProcess) -> None:
        self._started = process
        unfinished = self._pid_path.with_suffix(".part")  # half a pid is another process's
        unfinished.write_text(f"{process.pid}\n")
        unfinished.replace(self._pid_path)


def end_servers(servers: Collection[JavaServer], *, grace_s: float) -> int:
    """End servers' processes and wait until they are gone: politely at first, then with SIGKILL.

    Args:
        grace_s: seconds they have to end by themselves, all together; 0: killed at once.

    Returns:
        How many ran.

    Raises:
        TimeoutError: the kernel doesn't end one (it hangs in a disk or network call).
    """
    for server in servers:
        server.adopt()
    # Held before any signal: a process that is about to end has no command line to be known by,
    # but still has its ports; taking it for gone would make the next start find them in use.
    running = {server: process for server in servers if (process := server.process)}
    if grace_s > 0:
        for process in running.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # a paused one could not obey
        deadline_s = time.monotonic() + grace_s
        for process in running.values():
            with contextlib.suppress(TimeoutError):
                process.wait(max(0.0, deadline_s - time.monotonic()))
    for process in running.values():
        if not process.has_ended:
            process.signal(signal.SIGKILL)
    for process in running.values():
        process.wait(_KILL_TIMEOUT_S)
    for server in servers:
        server.forget()
    return len(running)


def _spawn(command: Sequence[str], log_path: Path) -> int:
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), log_flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    )
