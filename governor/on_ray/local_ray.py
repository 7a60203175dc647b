"""A Ray cluster on this machine with a dashboard that takes jobs, for the demo, benchmarks and tests.

It lives in a process of its own, which ends with whoever wanted it: its standard input ends then.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

_ATTEMPTS: Final = 4
# Sockets' paths have at most 107 letters, and Ray needs 66 of them.
_FOLDERS: Final = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
_END_S: Final = 60.0  # for all of it to end by itself


@contextmanager
def local_ray(num_cpus: int, *, dashboard_port: int = 0) -> Iterator[str]:
    """The address of its dashboard, while it lives.

    Args:
        num_cpus: That it has, whatever the machine has.
        dashboard_port: Of the dashboard; 0: any that is free.

    Raises:
        RuntimeError: It ended before it could be asked.
    """
    # Ray ends its dashboard before that can delete its folder with a socket.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="er-", dir=_FOLDERS) as folder,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(num_cpus), str(dashboard_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_prestart_worker_first_driver": "0",  # idle workers, which it would start for each job
                "TMPDIR": folder,
                "RAY_TMPDIR": folder,
            },
        ) as head,
    ):
        assert head.stdin is not None
        assert head.stdout is not None
        told = head.stdout.readline()
        if not told:
            raise RuntimeError("the Ray cluster ended before it could be asked")
        try:
            yield json.loads(told)["dashboard_url"]
        finally:
            head.stdin.close()
            try:
                head.wait(_END_S)
            except subprocess.TimeoutExpired:
                head.kill()  # its servers end with it


def _main(num_cpus: int, dashboard_port: int) -> None:
    import ray
    import stamina
    from ray._private import parameter
    from ray._private.utils import write_ray_address

    # Any free port for its agent, which takes jobs, as another cluster may have the usual one. `ray.init`
    # has no option for it.
    parameter.RayParams = partial(  # type: ignore[assignment,misc]
        parameter.RayParams, dashboard_agent_listen_port=0
    )
    # Ray gives its servers 30 s to start, which a machine with other work to do may need more than.
    for attempt in stamina.retry_context(on=Exception, attempts=_ATTEMPTS, timeout=None):
        with attempt:
            ray.shutdown()
            context: Any = ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=True,
                dashboard_port=dashboard_port or _free_port(),  # the last attempt's may be taken for a while
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    # Where a job's driver looks for its cluster. `ray start` says it there and `ray.init` doesn't; then the
    # driver would search the machine for clusters, and could find another one.
    write_ray_address(
        context.address_info["gcs_address"], str(Path(context.address_info["session_dir"]).parent)
    )
    print(json.dumps({"dashboard_url": f"http://{context.dashboard_url}"}), flush=True)
    sys.stdin.read()
    ray.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
