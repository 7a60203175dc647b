"""The demo's page: what happened, in four pictures and two tables; one HTML file that needs nothing else."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from evenload.demo.sharing import NUM_SLOTS, Sharing

BEFORE, DEFAULT, BALANCED, BEST = "#9aa5b1", "#d9822b", "#2b7de9", "#1b1f24"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One worker's death and what it cost: steps count from the run's first."""

    killed_pid: int
    killed_at_step: int
    resumed_from_step: int
    steps_done_again: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStory:
    """All that the page tells. Utilisations are by broker id, 0 to 1."""

    capacity_bytes: Mapping[int, int]
    before: Mapping[int, float]
    default: Mapping[int, float]
    balanced: Mapping[int, float]
    best: Mapping[int, float]
    images: NDArray[np.uint8]
    loss: Sequence[tuple[int, float]]
    recovery: Recovery
    accuracy: float
    samples_per_s: float
    epochs: Sequence[Mapping[str, int]]
    sharing: Sharing


def write_report(story: DemoStory, folder: Path) -> Path:
    """Write FOLDER/index.html and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    page.write_text(
        _PAGE.substitute(
            utilisation=_svg(_draw_utilisation(story)),
            spread_default=f"{_spread_points(story.default):.1f}",
            spread_balanced=f"{_spread_points(story.balanced):.1f}",
            spread_best=f"{_spread_points(story.best):.1f}",
            images=_svg(_draw_images(story.images)),
            loss=_svg(_draw_loss(story)),
            killed_pid=story.recovery.killed_pid,
            killed_at_step=story.recovery.killed_at_step,
            resumed_from_step=story.recovery.resumed_from_step,
            steps_done_again=story.recovery.steps_done_again,
            pause_s=f"{story.recovery.pause_s:.0f}",
            accuracy=f"{100 * story.accuracy:.1f}",
            samples_per_s=f"{story.samples_per_s:,.0f}",
            slots=_svg(_draw_slots(story.sharing)),
            shared="".join(_shared_row(run, story.sharing) for run in story.sharing.stints),
            audit="".join(_audit_row(epoch) for epoch in story.epochs),
        ),
        encoding="utf-8",
    )
    return page


def _spread_points(utilisation: Mapping[int, float]) -> float:
    return 100 * (max(utilisation.values()) - min(utilisation.values()))


def _audit_row(epoch: Mapping[str, int]) -> str:
    cells = (epoch["epoch"], f"{epoch['samples']:,}", epoch["missing"], epoch["repeated"])
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _shared_row(run: str, sharing: Sharing) -> str:
    cells = (run, sharing.stints[run], sharing.epochs[run], "yes")
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _draw_utilisation(story: DemoStory) -> Figure:
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    brokers = sorted(story.capacity_bytes)
    places = np.arange(len(brokers))
    bars = (("before", story.before, BEFORE), ("default partitioner", story.default, DEFAULT))
    for shift, (label, utilisation, colour) in enumerate((*bars, ("evenload", story.balanced, BALANCED))):
        heights = [100 * utilisation[broker] for broker in brokers]
        drawn = axes.bar(places + 0.27 * (shift - 1), heights, 0.25, label=label, color=colour)
        axes.bar_label(drawn, fmt="%.0f", fontsize=8)
    for place, broker in zip(places, brokers, strict=True):
        best = 100 * story.best[broker]
        label = "best possible" if place == 0 else ""
        axes.hlines(best, place - 0.42, place + 0.42, BEST, "dashed", linewidth=1, label=label)
    names = [f"broker {broker}\n{story.capacity_bytes[broker] / 2**20:.0f} MiB" for broker in brokers]
    axes.set_xticks(places, names)
    axes.set_ylabel("utilisation, %")
    axes.legend(frameon=False, ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_images(images: NDArray[np.uint8]) -> Figure:
    figure = Figure(figsize=(7.5, 0.8), layout="constrained")
    axes = figure.subplots()
    rows = np.array_split(images, 2)
    axes.imshow(np.vstack([np.hstack(list(row)) for row in rows]), cmap="gray_r")
    axes.set_axis_off()
    return figure


def _draw_loss(story: DemoStory) -> Figure:
    figure = Figure(figsize=(7.5, 3.0), layout="constrained")
    axes = figure.subplots()
    steps, losses = zip(*story.loss, strict=True)
    axes.plot(steps, losses, color=BALANCED, linewidth=1.2)
    recovery = story.recovery
    axes.axvline(recovery.killed_at_step, color="#c23030", linewidth=1, label="worker killed")
    axes.axvspan(
        recovery.resumed_from_step,
        recovery.killed_at_step,
        color="#c23030",
        alpha=0.12,
        label=f"steps done again: {recovery.steps_done_again}",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_slots(sharing: Sharing) -> Figure:
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    axes = figure.subplots()
    moments = sorted({at_s for sizes in sharing.sizes.values() for at_s, _ in sizes})
    held = {run: [_size_at(sizes, at_s) for at_s in moments] for run, sizes in sharing.sizes.items()}
    axes.stackplot(moments, list(held.values()), labels=list(held), colors=(BALANCED, DEFAULT), step="post")
    axes.axvline(sharing.swapped_s, color=BEST, linewidth=1, linestyle="dashed", label="policy swapped")
    axes.set_ylim(0, NUM_SLOTS)
    axes.set_yticks(range(NUM_SLOTS + 1))
    axes.set_xlabel("seconds")
    axes.set_ylabel("slots")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _size_at(sizes: Sequence[tuple[float, int]], at_s: float) -> int:
    return next((size for since_s, size in reversed(sizes) if since_s <= at_s), 0)


def _svg(figure: Figure) -> str:
    """A figure as inline SVG, without the XML prologue that HTML does not want."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]


_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>evenload: what the demo did</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 46rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .25rem 1rem .25rem 0; text-align: right; }
th { border-bottom: 1px solid #9aa5b1; font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1rem 0; }
.figures div { line-height: 1.2; } .figures b { display: block; font-size: 1.6rem; }
</style>
<h1>What the demo did</h1>
<p>Three real Kafka brokers, one fuller and one smaller than the others; about 48,000 pictures of handwritten
digits loaded into them; two Ray workers trained on them, one of which was killed on the way.</p>
<div class="figures">
<div><b>$spread_balanced points</b>between the fullest and the emptiest broker<br>(best possible $spread_best,
default partitioner $spread_default)</div>
<div><b>$accuracy %</b>of held-out digits recognised</div>
<div><b>$samples_per_s</b>samples a second</div>
</div>
<h2>How full the brokers are</h2>
$utilisation
<p>Here evenload was to level disks (<code>--goal disk_usage</code>). By default it gives each broker the same
part of a dataset while disks have room, as whoever trains on it waits for the broker that has most.</p>
<h2>What was trained on</h2>
$images
<h2>The loss, and the worker that was killed</h2>
$loss
<p>The worker with process id $killed_pid was killed after step $killed_at_step. Training went on $pause_s
seconds later from the checkpoint of step $resumed_from_step. Steps done again, on the same samples:
$steps_done_again.</p>
<h2>Was every sample used exactly once?</h2>
<table><tr><th>epoch</th><th>samples</th><th>missing</th><th>repeated</th></tr>$audit</table>
<p>Counted from what each worker wrote down of the samples that reached its training loop, not from the
plan.</p>
<h2>Two runs on four slots</h2>
$slots
<p>Under the first policy each run has the one worker that it asked for. The second deals out what is free:
the first run is stopped after a checkpoint and goes on with more workers.</p>
<table><tr><th>run</th><th>starts</th><th>epochs</th><th>every sample once an epoch</th></tr>$shared</table>
</html>
""")
