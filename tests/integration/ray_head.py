"""A Ray cluster with a dashboard, until its standard input ends (not a test itself)."""

from __future__ import annotations

import json
import logging
import socket
import sys
from functools import partial

import ray
import stamina
from ray._private import parameter


def main() -> None:
    # Any free port for its agent, which takes jobs, as another cluster may have the usual one. `ray.init`
    # has no option for it.
    parameter.RayParams = partial(  # type: ignore[assignment,misc]
        parameter.RayParams, dashboard_agent_listen_port=0
    )
    # Ray gives its servers 30 s to start, which a machine with other work to do may need more than.
    for attempt in stamina.retry_context(on=Exception, attempts=4, timeout=None):
        with attempt:
            ray.shutdown()
            context = ray.init(
                address="local",
                num_cpus=4,
                include_dashboard=True,
                dashboard_port=_free_port(),  # the last attempt's may be taken for a while
                log_to_driver=False,
                logging_level=logging.ERROR,
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
    main()
