"""Figures: the headline, curves of NSS and PCC, and parameter counts."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from reproduce.grid import ALGORITHMS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import AGENTS, COUNTED, total_parameters
from reproduce.stats import MIN_RUNS, Data, mean_curve, over_runs

COLOURS = dict(zip(ALGORITHMS, ("#009E73", "#D55E00", "#0072B2", "#56B4E9", "#555555")))
BANDS = f"Means over runs, with 95 % t intervals from {MIN_RUNS} runs on; thin lines: fewer runs."
LINES = {"decentralized": "-", "centralized": "--", "shared": ":"}


def panels(rows: int, columns: int, size: tuple[float, float], **share) -> tuple[Figure, np.ndarray]:
    """Without pyplot, so that no display is needed."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **share)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def thousands(value: float, _) -> str:
    return f"{value / 1000:g}k" if value else "0"


def add_legend(figure: Figure) -> None:
    """All labels, once."""
    lines = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        lines |= dict(zip(labels, handles))
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def draw(
    axis, data: Data, stage: str, task: str, kinds: tuple[str, ...], n_demos: int, x: str, y: str, names=COLOURS
) -> None:
    """The mean curve of each algorithm and kind of discriminator."""
    for name, kind in itertools.product(names, kinds):
        rows = data.get(stage, task, name, kind, n_demos) if ALGORITHMS[name].adversarial else []
        places, value = mean_curve([data.curves[row.run_id] for row in rows], x, y)
        if value.runs:
            label = f"{ALGORITHMS[name].title}, {kind}" if len(kinds) > 1 else ALGORITHMS[name].title
            width = 1.3 if value.runs >= MIN_RUNS else 0.6
            axis.plot(places, value.mean, LINES[kind], color=COLOURS[name], linewidth=width, label=label)
        if value.runs >= MIN_RUNS:
            ends = value.mean - value.half, value.mean + value.half
            axis.fill_between(places, *ends, color=COLOURS[name], alpha=0.15, linewidth=0)
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


def curves_figure(data: Data, stage: str, tasks, y: str = "nss") -> Figure | None:
    """One row per task, one column per number of demonstrations, as far as they have curves."""
    tasks = measured_tasks(data, stage, tasks)
    if not tasks:
        return None
    demos = sorted({place[-1] for place in data.runs if place[0] == stage and place[1] in tasks and place[3] != "none"})
    figure, axes = panels(len(tasks), len(demos), (3.1 if len(demos) > 1 else 5.0, 1.95), sharex="row", sharey="row")
    figure.suptitle(BANDS, fontsize=8)
    for (row, task), (column, n_demos) in itertools.product(enumerate(tasks), enumerate(demos)):
        axis = axes[row, column]
        draw(axis, data, stage, task, DISCRIMINATORS, n_demos, "episodes", y)
        if stage == "imitate" and axis.get_legend_handles_labels()[0]:  # algorithms differ in speed by factors
            axis.set_xscale("log")
        axis.xaxis.set_major_formatter(thousands)
        title = TASKS[task].replace(", ", "\n").replace("ve ", "ve\n")
        axes[row, 0].set_ylabel(f"{title}\n{y.upper()}", fontsize=8)
        axes[0, column].set_title(f"{n_demos} demonstrations", fontsize=9)
        axes[-1, column].set_xlabel("episodes", fontsize=8)
    add_legend(figure)
    return figure


def headline_figure(data: Data) -> Figure | None:
    """One column per task; a row of seconds only if some are known."""
    tasks = measured_tasks(data, "imitate", HEADLINE_TASKS)
    if not tasks:
        return None
    timed = any(np.isfinite(curve["seconds"]).any() for curve in data.curves.values())
    units = ("episodes", "seconds") if timed else ("episodes",)
    figure, axes = panels(len(units), len(tasks), (3.0, 2.5), sharey="all")
    figure.suptitle(f"50 demonstrations, decentralized discriminators. {BANDS}", fontsize=8)
    for (column, task), (row, unit) in itertools.product(enumerate(tasks), enumerate(units)):
        axis = axes[row, column]
        draw(axis, data, "imitate", task, ("decentralized",), 50, unit, "nss", names=("magail", "mairl", "madaac"))
        axis.set_xscale("log" if axis.get_legend_handles_labels()[0] else "linear")
        cloning = over_runs(row.nss for row in data.get("imitate", task, "bc", "none", 50))
        if cloning.runs:
            axis.axhline(cloning.mean, color=COLOURS["bc"], linestyle="--", linewidth=1.2, label="BC")
        if cloning.runs >= MIN_RUNS:
            low, high = cloning.mean - cloning.half, cloning.mean + cloning.half
            axis.axhspan(low, high, color=COLOURS["bc"], alpha=0.15, linewidth=0)
        if unit == "episodes":
            axis.xaxis.set_major_formatter(thousands)
        axis.set_xlabel(unit, fontsize=8)
        axes[row, 0].set_ylabel("NSS", fontsize=8)
        axes[0, column].set_title(TASKS[task], fontsize=9)
    add_legend(figure)
    return figure


def parameters_figure() -> Figure:
    figure, ((axis,),) = panels(1, 1, (5.5, 3.5))
    for name in COUNTED:
        millions = [count / 1e6 for count in total_parameters(name).values()]
        axis.plot(AGENTS, millions, "o-", color=COLOURS[name], markersize=4, label=ALGORITHMS[name].title)
    axis.set(xlabel="agents in Rover Tower", ylabel="trainable parameters, millions", ylim=(0, None), xticks=AGENTS)
    axis.legend(frameon=False, fontsize=9)
    return figure


def all_figures(data: Data) -> list[tuple[str, str, Figure | None]]:
    """Name, title and figure; None without data."""
    return [
        ("headline", "Imitation of 50 demonstrations, decentralized discriminators", headline_figure(data)),
        ("imitation_small", "NSS during imitation, small tasks", curves_figure(data, "imitate", SMALL_TASKS)),
        ("imitation_large", "NSS during imitation, Rover Tower", curves_figure(data, "imitate", LARGE_TASKS)),
        ("retraining", "NSS during retraining on recovered rewards", curves_figure(data, "retrain", TASKS)),
        ("pcc", "Correlation of learned with true rewards", curves_figure(data, "retrain", TASKS, "pcc")),
        ("parameters", "Trainable parameters in Rover Tower, decentralized", parameters_figure()),
    ]
