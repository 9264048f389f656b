"""How many updates of which size MA-DAAC should make per 100 environment steps.

    python studies/madaac_settings.py --runs runs/settings --workers 2    # trains what is missing, prints the table

Each setting is run on four tasks with 50 demonstrations. The table has NSS over the last 500 training episodes at
several numbers of episodes, the NSS of the final evaluation, and the seconds of the whole run.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
EPISODES = {
    "keep_away": 6000,
    "cooperative_communication": 10_000,
    "cooperative_navigation": 6000,
    "rover_tower_8": 6000,
}
POINTS = (400, 800, 1200, 1600, 2000, 3000, 4000, 6000, 10_000)
# updates per 100 steps, batch size, discriminator step size
SETTINGS = {
    "8x125": (8, 125, 0.0005),  # the default
    "1x1000": (1, 1000, 0.0005),  # the paper's table
    "4x250": (4, 250, 0.0005),
    "2x500, 0.002": (2, 500, 0.002),
    "4x250, 0.001": (4, 250, 0.001),
    "4x125, 0.001": (4, 125, 0.001),  # half as many replayed transitions
    "4x125, 0.002": (4, 125, 0.002),
    "8x250": (8, 250, 0.0005),  # twice as many
}


@dataclass
class Args:
    runs: str
    """where run folders go; runs that are there and have ended are not repeated"""
    settings: tuple[str, ...] = tuple(SETTINGS)
    """which settings"""
    tasks: tuple[str, ...] = tuple(EPISODES)
    """which tasks"""
    seeds: tuple[int, ...] = (1, 2)
    """which seeds"""
    workers: int = 1
    """how many runs side by side, one thread each"""


def find(args: Args, task: str, name: str, seed: int) -> Path | None:
    """The folder of a run that has ended."""
    folders = Path(args.runs).glob(f"{task}__{name}__{seed}__*")
    return next((folder for folder in folders if (folder / "summary.json").is_file()), None)


def train(args: Args, task: str, setting: str, seed: int) -> None:
    name = setting.replace(", ", "_")
    if find(args, task, name, seed):
        return
    updates, batch, step_size = SETTINGS[setting]
    words = f"madaac_discrete.py --env-id {task} --n-demos 50 --seed {seed} --exp-name {name} --runs {args.runs}"
    words += f" --updates-per-period {updates} --batch-size {batch} --disc-lr {step_size} --log-every 5000"
    words += f" --total-timesteps {25 * EPISODES[task]}"
    subprocess.run([sys.executable, *words.split()], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    print(f"done: {task}, {setting}, seed {seed}", file=sys.stderr, flush=True)


def row(folder: Path) -> list[str]:
    events = EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    nss = {round(point.step / 25): point.value for point in events.Scalars("charts/nss")}
    summary = json.loads((folder / "summary.json").read_text())
    cells = [f"{nss[point]:.2f}" if point in nss else "" for point in POINTS]
    return [*cells, f"{summary['stochastic']['nss']:.3f}", str(summary["seconds"])]


def main(args: Args) -> None:
    jobs = [(task, setting, seed) for seed in args.seeds for setting in args.settings for task in args.tasks]
    args.runs = str(Path(args.runs).resolve())
    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(lambda job: train(args, *job), jobs))
    for task in args.tasks:
        print(f"\n| `{task}` | seed | {' | '.join(f'{point:,}' for point in POINTS)} | final | seconds |")
        print("|---|" + "---:|" * (len(POINTS) + 3))
        for setting in args.settings:
            for seed in args.seeds:
                folder = find(args, task, setting.replace(", ", "_"), seed)
                print(f"| {setting} | {seed} | {' | '.join(row(folder))} |")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
