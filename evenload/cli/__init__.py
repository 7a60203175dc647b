"""The `evenload` command: thin, stable, scriptable.

Every command does three things: turn options into values, call one function of a package, show what it
returned, as a table for people or (`--json`) as one JSON document on stdout. Progress goes to stderr.
Exit status: 0 done, 1 failed with one sentence, 2 wrong usage, 130 stopped by the user.

The modules here import light names only; what needs torch, Ray or a JVM is imported by the command
that runs it, so that `--help` answers at once (tests/unit/project/test_imports.py).
"""

from __future__ import annotations

import click

from evenload.cli import (
    balance,
    cluster,
    collector,
    data,
    demo,
    forecast,
    governor,
    jar,
    jobs,
    metrics,
    training,
)
from evenload.cli.edge import SentenceGroup


@click.group(
    cls=SentenceGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="evenload")
def main() -> None:
    """Datasets into Kafka in balance, and out of it through a training run, exactly once.

    \b
    evenload up                                    # three embedded brokers, or point at your own cluster
    evenload ingest cola train.tsv                 # load a dataset, balanced over brokers
    evenload train text-classification --dataset cola --workers 2
    evenload audit text-classification-cola        # was every sample used exactly once?
    """


_COMMANDS_BY_EXTRA = {
    "load": (data.ingest, data.datasets, forecast.forecast, balance.balance),
    "train": (training.train, training.submit, training.audit, demo.demo),
    "governor": (governor.governor, jobs.jobs),
    "collector": (collector.collector, cluster.status, metrics.metrics),
    "local": (cluster.up, cluster.down, jar.jar),
}
for extra, commands in _COMMANDS_BY_EXTRA.items():
    for command in commands:
        main.add_command(command)
        main.extra_by_command[command.name] = extra
