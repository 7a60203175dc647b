"""`python -m benchmarks [NAME]`: all of them, or one."""

from __future__ import annotations

import click

from benchmarks.balance.command import balance
from benchmarks.govern.command import govern
from benchmarks.imbalance.command import imbalance
from benchmarks.jvm.command import jvm
from benchmarks.queue.command import queue
from benchmarks.read import read
from benchmarks.scale.command import scale
from benchmarks.telemetry.command import telemetry
from benchmarks.training_time.command import training_time
from benchmarks.uneven import uneven
from benchmarks.write.command import write

BENCHMARKS: tuple[click.Command, ...] = (
    balance,
    read,
    uneven,
    write,
    scale,
    telemetry,
    imbalance,
    jvm,
    govern,
    queue,
    training_time,
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Is it true? Without a name, all benchmarks in turn; exit status 1 if one misses its goal."""
    if context.invoked_subcommand is not None:
        return
    missed = [benchmark.name for benchmark in BENCHMARKS if not _meets_its_goal(benchmark)]
    if missed:
        raise click.exceptions.Exit(1)


def _meets_its_goal(benchmark: click.Command) -> bool:
    try:
        return not benchmark.main([], f"python -m benchmarks {benchmark.name}", standalone_mode=False)
    except click.ClickException as error:  # it can't run here; the others may
        error.show()
        return False


for each in BENCHMARKS:
    main.add_command(each)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
