"""Curves of run folders, a line a run, a panel a task.

python docs/plot_runs.py runs/* --tag eval/greedy_return-mean --out docs/images/experts.png
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@dataclass
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders"""
    tag: str = "eval/greedy_return-mean"
    """what to draw"""
    out: Path = Path("curves.png")
    """the image to write"""
    label: tuple[str, ...] = (
        "alpha",
        "critic_weight_decay",
        "attention_regularization",
        "updates_per_period",
    )
    """arguments that tell the lines of a task apart; those that do not differ are left out"""


def read(run: Path, tag: str) -> tuple[list[int], list[float]]:
    events = EventAccumulator(str(run), {"scalars": 0})
    events.Reload()
    points = events.Scalars(tag) if tag in events.Tags()["scalars"] else []
    return [point.step for point in points], [point.value for point in points]


def main(args: Args) -> None:
    panels: dict[str, list[tuple[dict, Path]]] = {}
    for run in args.runs:
        if not (run / "config.json").is_file():
            sys.exit(f"error: {run} is not a run folder, it has no config.json")
        config = json.loads((run / "config.json").read_text())["args"]
        panels.setdefault(config["env_id"], []).append((config, run))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (task, runs) in zip(axes.flat, panels.items()):
        for config, _ in runs:  # older runs have one weight for attention's and policies' logits
            config.setdefault("attention_regularization", config.get("regularization"))
        labels = [name for name in args.label if len({str(config.get(name)) for config, _ in runs}) > 1]
        for config, run in runs:
            steps, values = read(run, args.tag)
            words = [f"{name} {config.get(name)}" for name in labels]
            axis.plot([step / 25_000 for step in steps], values, label=", ".join(words), linewidth=1)
        axis.set_title(task, fontsize=10)
        axis.set_xlabel("thousand episodes", fontsize=8)
        if labels:
            axis.legend(fontsize=5)
        axis.grid(alpha=0.3)
    figure.suptitle(args.tag, fontsize=9)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=80)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
