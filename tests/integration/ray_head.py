"""A Ray cluster with a dashboard, until its standard input ends (not a test itself)."""

from __future__ import annotations

import json
import logging
import sys

import ray


def main() -> None:
    context = ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=True,
        dashboard_port=int(sys.argv[1]),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    print(json.dumps({"dashboard_url": context.dashboard_url}), flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
