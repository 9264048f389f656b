"""Figures as PNG files: curves of NSS, the headline, PCC, interquartile means and parameter counts."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from reproduce import grid, stats, writing
from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, STAGES, TASKS
from reproduce.parameters import AGENTS, COUNTED, total_parameters
from reproduce.stats import MIN_RUNS, Data

COLOURS = dict(zip(ALGORITHMS, ("#009E73", "#D55E00", "#0072B2", "#56B4E9", "#CC79A7", "#555555")))
LINES = {"decentralized": "-", "centralized": "--"}
BAND = f"mean over runs, with 95 % t intervals from {MIN_RUNS} runs on"
CAPTIONS = {
    "headline": f"NSS against episodes and seconds, 50 demonstrations, decentralized: {BAND}. Dashed: BC.",
    "imitation_small": f"NSS during imitation, small tasks: {BAND}.",
    "imitation_large": f"NSS during imitation, Rover Tower: {BAND}.",
    "retraining": f"NSS during retraining on the recovered rewards: {BAND}.",
    "pcc": f"Correlation of learned with true rewards during retraining: {BAND}.",
    "interquartile_mean": "Interquartile mean of the final NSS, decentralized, with bootstrap intervals.",
    "parameters": "Trainable parameters in Rover Tower, decentralized.",
}


def panels(rows: int, columns: int, size: tuple[float, float], **share) -> tuple[Figure, np.ndarray]:
    """Without pyplot, so that neither a display nor a user's settings matter."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **share)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def add_legend(figure: Figure, algorithms: list[str], kinds: tuple[str, ...]) -> None:
    handles = [
        Line2D([], [], color=COLOURS[name], linestyle=LINES[kind], label=f"{ALGORITHMS[name].title}, {kind}")
        for name in algorithms
        for kind in kinds
        if ALGORITHMS[name].adversarial
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def draw(axis, data: Data, place: tuple, x: str, y: str) -> bool:
    """The mean curve of the runs of a place; whether there is one."""
    rows, colour = data.get(*place), COLOURS[place[2]]
    places, mean, half = stats.mean_curve([data.curves[row.run_id] for row in rows], x, y)
    axis.plot(places, mean, color=colour, linestyle=LINES.get(place[3]), linewidth=1.2, marker="." * (len(places) == 1))
    if len(rows) >= MIN_RUNS:
        axis.fill_between(places, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    return len(places) > 0


def frame_nss(axis) -> None:
    """Lines for random play and the expert, and limits that one bad curve cannot stretch."""
    for level in (0, 1):
        axis.axhline(level, color="0.4", linewidth=0.7, linestyle=":")
    low, high = axis.get_ylim()
    axis.set_ylim(min(max(low, -1.0), -0.05), max(min(high, 1.5), 1.05))


def curves_figure(data: Data, stage: str, tasks: dict[str, str], y: str = "nss") -> Figure | None:
    """One row per task, one column per number of demonstrations."""
    algorithms = [name for name in data.algorithms(stage) if ALGORITHMS[name].adversarial]
    figure, axes = panels(len(tasks), len(DEMOS), (3.1, 1.95), sharex="row", sharey="row")
    drawn = False
    for row, (task, title) in zip(axes, tasks.items()):
        for axis, n_demos in zip(row, DEMOS):
            places = [(stage, task, name, kind, n_demos) for name in algorithms for kind in DISCRIMINATORS]
            measured = any([draw(axis, data, place, "episodes", y) for place in places])
            drawn |= measured
            if not measured:
                axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center", color="0.5")
                axis.set_xlim(0, grid.PAPER_EPISODES[task])
            if y == "nss":
                frame_nss(axis)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        row[0].set_ylabel(title.replace(", ", "\n").replace("ve ", "ve\n") + f"\n{y.upper()}", fontsize=8)
    for axis, n_demos in zip(axes[0], DEMOS):
        axis.set_title(f"{n_demos} demonstrations", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("episodes", fontsize=8)
    add_legend(figure, algorithms, DISCRIMINATORS)
    return figure if drawn else None


def headline_figure(data: Data) -> Figure | None:
    algorithms = [name for name in data.algorithms("imitate") if ALGORITHMS[name].adversarial]
    figure, axes = panels(2, len(HEADLINE_TASKS), (3.0, 2.3), sharey="all")
    drawn = False
    for column, task in enumerate(HEADLINE_TASKS):
        for axis, unit in zip(axes[:, column], ("episodes", "seconds")):
            places = [("imitate", task, name, "decentralized", 50) for name in algorithms]
            drawn |= any([draw(axis, data, place, unit, "nss") for place in places])
            if rows := data.get("imitate", task, "bc", "none", 50):
                nss = stats.over_runs([row.nss for row in rows])
                axis.axhline(nss.mean, color=COLOURS["bc"], linestyle="--", linewidth=1.2)
                if nss.runs >= MIN_RUNS:
                    low, high = nss.mean - nss.half, nss.mean + nss.half
                    axis.axhspan(low, high, color=COLOURS["bc"], alpha=0.15, linewidth=0)
            axis.set_xscale("log")
            axis.set_xlabel(unit, fontsize=8)
        axes[0, column].set_title(TASKS[task], fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("NSS", fontsize=8)
    frame_nss(axes[0, 0])
    add_legend(figure, algorithms, ("decentralized",))
    return figure if drawn else None


def iqm_figure(data: Data) -> Figure | None:
    figure, axes = panels(1, 2, (4.4, 3.0), sharex="row", sharey="row")
    drawn, algorithms = False, list(ALGORITHMS)
    for axis, (stage, title) in zip(axes[0], STAGES.items()):
        for y, demos in enumerate((*((n,) for n in DEMOS), DEMOS)):
            for name, scores in stats.aggregate(data, stage, demos).items():
                if scores.size < 4:
                    continue
                height = y + 0.13 * (algorithms.index(name) - 2.5)
                axis.plot(stats.interquartile_mean(scores), height, color=COLOURS[name], marker="o", markersize=5)
                if len(scores) >= MIN_RUNS:
                    ends = stats.bootstrap_interval(scores)
                    axis.plot(ends, [height] * 2, color=COLOURS[name], linewidth=5, alpha=0.35)
                drawn = True
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("interquartile mean of final NSS", fontsize=8)
    axes[0, 0].set_yticks(range(len(DEMOS) + 1), [*map(str, DEMOS), "all"])
    axes[0, 0].set_ylim(len(DEMOS) + 0.5, -0.5)
    axes[0, 0].set_ylabel("demonstrations", fontsize=8)
    add_legend(figure, data.algorithms("imitate"), ("decentralized",))
    return figure if drawn else None


def parameters_figure() -> Figure:
    figure, axes = panels(1, 1, (5.5, 3.5))
    for name in COUNTED:
        millions = [count / 1e6 for count in total_parameters(name).values()]
        axes[0, 0].plot(AGENTS, millions, color=COLOURS[name], marker="o", markersize=4, label=ALGORITHMS[name].title)
    axes[0, 0].set(xlabel="agents in Rover Tower", ylabel="trainable parameters, millions", ylim=(0, None))
    axes[0, 0].set_xticks(AGENTS)
    axes[0, 0].legend(frameon=False, fontsize=9)
    return figure


def all_figures(data: Data) -> dict[str, Figure | None]:
    """By name; None for a figure without data."""
    return {
        "headline": headline_figure(data),
        "imitation_small": curves_figure(data, "imitate", SMALL_TASKS),
        "imitation_large": curves_figure(data, "imitate", LARGE_TASKS),
        "retraining": curves_figure(data, "retrain", TASKS),
        "pcc": curves_figure(data, "retrain", TASKS, "pcc"),
        "interquartile_mean": iqm_figure(data),
        "parameters": parameters_figure(),
    }


def write_png(path: Path, figure: Figure) -> None:
    """With 256 colours, a third of the size, and without metadata."""
    figure.set_dpi(110)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    with writing(path) as temporary:
        image.save(temporary, format="png", optimize=True)
