"""Figures as PNG files: the headline, curves of NSS and PCC, and parameter counts."""

import itertools
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from madaac_utils.files import writing
from reproduce import stats
from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import AGENTS, COUNTED, total_parameters
from reproduce.stats import MIN_RUNS, Data

COLOURS = dict(zip(ALGORITHMS, ("#009E73", "#D55E00", "#0072B2", "#56B4E9", "#CC79A7", "#555555")))
LINES = {"decentralized": "-", "centralized": "--"}
BAND = f"mean over runs, with 95 % t intervals from {MIN_RUNS} runs on"
CAPTIONS = {
    "headline": f"NSS against episodes, and against the mean seconds that runs need for them, 50 demonstrations, "
    f"decentralized: {BAND}. Dashed: BC.",
    "imitation_small": f"NSS during imitation, small tasks: {BAND}.",
    "imitation_large": f"NSS during imitation, Rover Tower: {BAND}.",
    "retraining": f"NSS during retraining on the recovered rewards: {BAND}.",
    "pcc": f"Correlation of learned with true rewards during retraining: {BAND}.",
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


def add_legend(figure: Figure, kinds: tuple[str, ...]) -> None:
    """All algorithms that have a curve."""
    drawn = {line.get_color() for axis in figure.axes for line in axis.lines}
    handles = [
        Line2D([], [], color=colour, linestyle=LINES[kind], label=f"{ALGORITHMS[name].title}, {kind}")
        for name, colour in COLOURS.items()
        for kind in kinds
        if colour in drawn and name != "bc"
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def draw(axis, data: Data, stage: str, task: str, kinds: tuple[str, ...], n_demos: int, x: str, y: str) -> None:
    """The mean curve of each algorithm and kind of discriminator."""
    for name, kind in itertools.product(COLOURS, kinds):
        rows = data.get(stage, task, name, kind, n_demos) if ALGORITHMS[name].adversarial else []
        places, mean, half = stats.mean_curve([data.curves[row.run_id] for row in rows], x, y)
        if len(places):
            marker = "." if len(places) == 1 else ""
            axis.plot(places, mean, color=COLOURS[name], linestyle=LINES[kind], linewidth=1.2, marker=marker)
        if len(rows) >= MIN_RUNS:
            axis.fill_between(places, mean - half, mean + half, color=COLOURS[name], alpha=0.15, linewidth=0)
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center", color="0.5")
    if y == "nss":  # lines for random play and the expert, and limits that one bad curve cannot stretch
        for level in (0, 1):
            axis.axhline(level, color="0.4", linewidth=0.7, linestyle=":")
        low, high = axis.get_ylim()
        axis.set_ylim(min(max(low, -1.0), -0.05), max(min(high, 1.5), 1.05))


def measured_tasks(data: Data, stage: str, tasks) -> list[str]:
    """The tasks that have curves."""
    return [task for task in tasks if any(place[:2] == (stage, task) and place[3] != "none" for place in data.runs)]


def curves_figure(data: Data, stage: str, tasks: dict[str, str], y: str = "nss") -> Figure | None:
    """One row per task, one column per number of demonstrations."""
    tasks = {task: tasks[task] for task in measured_tasks(data, stage, tasks)}
    if not tasks:
        return None
    figure, axes = panels(len(tasks), len(DEMOS), (3.1, 1.95), sharex="row", sharey="row")
    for (row, task), (column, n_demos) in itertools.product(enumerate(tasks), enumerate(DEMOS)):
        axis = axes[row, column]
        draw(axis, data, stage, task, DISCRIMINATORS, n_demos, "episodes", y)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        if column == 0:
            title = tasks[task].replace(", ", "\n").replace("ve ", "ve\n")
            axis.set_ylabel(f"{title}\n{y.upper()}", fontsize=8)
        axes[0, column].set_title(f"{n_demos} demonstrations", fontsize=9)
        axes[-1, column].set_xlabel("episodes", fontsize=8)
    add_legend(figure, DISCRIMINATORS)
    return figure


def headline_figure(data: Data) -> Figure | None:
    tasks = measured_tasks(data, "imitate", HEADLINE_TASKS)
    if not tasks:
        return None
    figure, axes = panels(2, len(tasks), (3.0, 2.3), sharey="all")
    for (column, task), (row, unit) in itertools.product(enumerate(tasks), enumerate(("episodes", "seconds"))):
        axis = axes[row, column]
        draw(axis, data, "imitate", task, ("decentralized",), 50, unit, "nss")
        cloning = data.nss("imitate", task, "bc", "none", 50)
        axis.axhline(cloning.mean, color=COLOURS["bc"], linestyle="--", linewidth=1.2)
        if cloning.runs >= MIN_RUNS:
            low, high = cloning.mean - cloning.half, cloning.mean + cloning.half
            axis.axhspan(low, high, color=COLOURS["bc"], alpha=0.15, linewidth=0)
        if any(len(line.get_xdata()) > 2 for line in axis.lines):  # a curve, not only levels
            axis.set_xscale("log")
        axis.set_xlabel(unit, fontsize=8)
        axes[row, 0].set_ylabel("NSS", fontsize=8)
        axes[0, column].set_title(TASKS[task], fontsize=9)
    add_legend(figure, ("decentralized",))
    return figure


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
