"""Learning curves of run folders: one panel per task, one line per algorithm, a band over its seeds.

    python plot.py runs/*
    python plot.py runs/cooperative_navigation__* --tag discriminator/accuracy_expert --x seconds --out accuracy.png

A line is the mean over the runs that differ only in their seeds, as far as the shortest of them goes, and its band
reaches from the lowest to the highest of them. Runs that play no episodes to learn are horizontal lines.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[str, ...]]
    """run folders"""
    tag: str = "charts/nss"
    """what to draw: a TensorBoard tag; an unknown one lists those that there are"""
    x: Literal["episodes", "seconds"] = "episodes"
    """the horizontal axis"""
    out: str = "plot.png"
    """the image to write: .png, .pdf or .svg"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from madaac_utils.files import UserError, exit_on_user_error, read_config, writing

# Arguments that make no difference to what is learned, or that runs of one line may differ in
NOT_IN_LABELS = {"seed", "run", "runs", "resume", "resume_changed", "exp_name", "env_id", "total_timesteps"}
NOT_IN_LABELS |= {"torch_threads", "cuda", "track", "capture_video", "save_every", "log_every", "eval_episodes"}


def read_curves(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and values of every tag that a run has logged."""
    events = EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    curves = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        curves[tag] = np.array([point.step for point in points]), np.array([point.value for point in points])
    return curves


def label_runs(runs: dict[Path, dict]) -> dict[Path, str]:
    """The experiment's name, and the arguments in which runs of that experiment on the same task differ."""
    labels = {}
    for folder, arguments in runs.items():
        same = [other for other in runs.values() if all(other[key] == arguments[key] for key in ("env_id", "exp_name"))]
        names = [name for name in arguments if name not in NOT_IN_LABELS]
        differ = [name for name in names if len({str(other.get(name)) for other in same}) > 1]
        source = Path(arguments.get("run") or "").name.split("__")  # of a run of retrain.py
        words = [arguments["exp_name"] + (f" of {source[1]}" if len(source) > 1 else "")]
        labels[folder] = ", ".join(words + [f"{name} {arguments[name]}" for name in differ])
    return labels


def draw_line(axis: plt.Axes, label: str, curves: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the mean and the range of curves (x, y)."""
    label += f" ({len(curves)} seeds)" if len(curves) > 1 else ""
    color = f"C{len(axis.get_legend_handles_labels()[1])}"
    if all(x[-1] == 0 for x, _ in curves):  # no episodes
        values = [y[-1] for _, y in curves]
        axis.axhline(np.mean(values), label=label, color=color, linestyle="--")
        axis.axhspan(min(values), max(values), color=color, alpha=0.2, linewidth=0)
        return
    grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 500)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])  # [runs, 500]
    axis.plot(grid, values.mean(0), label=label, color=color)
    axis.fill_between(grid, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)


def main(args: Args) -> None:
    if Path(args.out).suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--out must end in .png, .pdf or .svg, got {args.out}")
    folders = [Path(name) for name in args.runs if (Path(name) / "config.json").is_file()]
    left_out = [name for name in args.runs if Path(name) not in folders]
    if not folders:
        what = f"{left_out[0]} is not a run folder" if left_out else "no run folder is named"
        raise UserError(f"{what}; name at least one, for example runs/keep_away__*")
    if left_out:
        print(f"left out, no run folders: {', '.join(left_out)}", file=sys.stderr)
    runs = {folder: {"exp_name": ""} | read_config(folder)["args"] for folder in folders}
    curves = {folder: read_curves(folder) for folder in folders}
    drawn = {folder: tags for folder, tags in curves.items() if {args.tag, f"charts/{args.x}"} <= tags.keys()}
    if not drawn:
        tags = sorted(set().union(*curves.values()))
        raise UserError(f"no run has logged {args.tag}; the tags are: {', '.join(tags) or 'none yet'}")
    for folder in runs.keys() - drawn.keys():
        print(f"note: {folder} has not logged {args.tag} and is left out", file=sys.stderr)

    panels: dict[str, dict[str, list]] = {}  # task -> label -> curves of seeds
    for folder, label in label_runs({folder: runs[folder] for folder in drawn}).items():
        steps, values = drawn[folder][args.tag]
        x = np.interp(steps, *drawn[folder][f"charts/{args.x}"])
        panels.setdefault(runs[folder]["env_id"], {}).setdefault(label, []).append((x, values))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.5 * columns, 4 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (task, lines) in zip(axes.flat, sorted(panels.items())):
        for label, of_seeds in sorted(lines.items()):
            draw_line(axis, label, of_seeds)
        axis.set(title=task, xlabel=args.x, ylabel="NSS" if args.tag == "charts/nss" else args.tag)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    with writing(Path(args.out)) as temporary:
        figure.savefig(temporary, dpi=120)
    print(f"written: {args.out}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
