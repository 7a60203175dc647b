"""What the runs came to: a table, the document, the picture, the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.queue.passes import Alone, Faults, Pass
from benchmarks.queue.workload import NUM_SLOTS
from benchmarks.results import machine
from evenload.governor.deciding.plugins import DEFAULT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVER_FIFO_MAX = 0.58
SIMULATED_WITHIN = 0.10  # of the mean
RUN_WITHIN, RUN_WITHIN_S = 0.20, 15.0  # of each run; whichever is more
RESIZES_MIN = 15  # of all passes
RESIZE_OVER_ALONE_S = 2.0
SWAP_MAX_S, BACK_MAX_S = 2.0, 10.0

Simulated = Mapping[str, Mapping[str, float]]  # completion by policy and run


def table_of(passes: Sequence[Pass], simulated: Simulated) -> Table:
    """A line a policy."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "mean s", "simulated s", "longest s", "resizes", "exact"):
        table.add_column(column, justify="left" if not column else "right")
    for each in passes:
        table.add_row(
            each.policy,
            f"{each.mean_s:.0f}",
            f"{mean(simulated[each.policy].values()):.0f}",
            f"{max(each.completion_s.values()):.0f}",
            str(each.num_resizes),
            "yes" if each.is_exact else "NO",
        )
    return table


def misses(
    passes: Sequence[Pass], simulated: Simulated, alone: Sequence[Alone], faults: Faults | None
) -> list[str]:
    """The goals that were missed, a sentence each."""
    found = []
    by_policy = {each.policy: each for each in passes}
    ratio = by_policy[DEFAULT].mean_s / by_policy["fifo"].mean_s
    if ratio > OVER_FIFO_MAX:
        found.append(f"the mean completion is {ratio:.2f} of fifo's, not {OVER_FIFO_MAX}")
    for each in passes:
        expected = simulated[each.policy]
        off = each.mean_s / mean(expected.values()) - 1
        if abs(off) > SIMULATED_WITHIN:
            found.append(f"under {each.policy}, the mean is {off:+.0%} off the simulated one")
        for run, real_s in each.completion_s.items():
            if abs(real_s - expected[run]) > max(RUN_WITHIN_S, RUN_WITHIN * expected[run]):
                found.append(f"under {each.policy}, {run} took {real_s:.0f} s, simulated {expected[run]:.0f}")
    every = [*passes, *([faults.done] if faults else [])]
    found += [f"under {each.policy}, a run isn't exact" for each in every if not each.is_exact]
    for each in every:
        if each.most_held > NUM_SLOTS:
            found.append(f"under {each.policy}, {each.most_held} slots were held")
    num_resizes = sum(each.num_resizes for each in every)
    if num_resizes < RESIZES_MIN:
        found.append(f"there were {num_resizes} resizes, not {RESIZES_MIN}")
    costs_s = [cost_s for each in passes for cost_s in each.resize_costs_s]
    most_s = median(each.start_s for each in alone) + median(each.stop_s for each in alone)
    if costs_s and median(costs_s) > most_s + RESIZE_OVER_ALONE_S:
        found.append(f"a resize took {median(costs_s):.1f} s, and a stop and a start alone {most_s:.1f}")
    if faults:
        found += [f"a swap took {swap_s:.1f} s" for swap_s in faults.swap_s if swap_s > SWAP_MAX_S]
        found += [f"a governor was back after {s:.1f} s" for s in faults.back_s if s > BACK_MAX_S]
    return found


def document(
    passes: Sequence[Pass], simulated: Simulated, alone: Sequence[Alone], faults: Faults | None
) -> dict[str, Any]:
    """The result."""
    return {
        "benchmark": "queue",
        "machine": machine("ray", "torch"),
        "alone": [each._asdict() for each in alone],
        "passes": [each._asdict() for each in passes],
        "simulated": {policy: dict(by_run) for policy, by_run in simulated.items()},
        "faults": None if faults is None else {**faults._asdict(), "done": faults.done._asdict()},
    }


def draw(passes: Sequence[Pass], simulated: Simulated) -> Figure:
    """Completion of each run under each policy."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(passes)
    runs = list(passes[0].completion_s)
    for number, each in enumerate(passes):
        at = [place + number * width for place in range(len(runs))]
        real = [each.completion_s[run] for run in runs]
        axes.bar(at, real, width, label=f"{each.policy}: mean {each.mean_s:.0f} s")
        axes.plot(at, [simulated[each.policy][run] for run in runs], "k_", markersize=9)
    axes.plot([], [], "k_", label="simulated")
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(runs))], runs)
    axes.set_ylabel("from submission to end, s")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
