"""What a Keep Away run's NSS is made of, for docs/results.md: a row for each run folder.

    python docs/keep_away_pairs.py runs/<run folder> ...

NSS, averaged over both agents, of the run's policies together, of its pusher beside the expert's reacher, and of its
reacher beside the expert's pusher; the first row is uniformly random pushing beside the expert's reacher. The run's
actions are drawn, the expert's the most probable ones.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import (
    EXPERTS,
    UserError,
    exit_on_user_error,
    load_policy,
    make_envs,
    mean_nss,
    play_episodes,
    random_actions,
    reference_scores,
)


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """run folders on keep_away"""
    episodes: int = 2000
    """episodes of each pair, the same starts for all"""
    seed: int = 777
    """seed of the starts"""


def pair(pusher: Callable, reacher: Callable) -> Callable:
    """obs [B, 2, widest] -> actions [B, 2]: the first agent acts as one, the second as the other."""
    return lambda obs: np.stack([pusher(obs)[:, 0], reacher(obs)[:, 1]], 1)


def main(args: Args) -> None:
    torch.set_num_threads(1)
    for folder in args.folders:
        if not (folder / "config.json").is_file() or not (folder / "policy.safetensors").is_file():
            raise UserError(f"{folder} is not the folder of a run that has ended")
    runs = [json.loads((folder / "config.json").read_text())["args"] for folder in args.folders]
    tasks = {run["env_id"] for run in runs}
    if tasks != {"keep_away"}:
        raise UserError(f"name runs on keep_away; these are on: {', '.join(sorted(tasks)) or 'none'}")
    (task,) = tasks
    references, envs = reference_scores(task), make_envs(task, 1)
    expert = load_policy(EXPERTS / task / "policy.safetensors", envs).greedy

    def nss(act: Callable) -> str:
        return f"{mean_nss(play_episodes(task, act, args.episodes, args.seed)[0].mean(0), references):.3f}"

    print("| run | together | its pusher, expert's reacher | its reacher, expert's pusher |\n|---|---:|---:|---:|")
    print(f"| random pushing | | {nss(pair(random_actions(envs.num_actions, args.seed), expert))} | |")
    for folder, run in zip(args.folders, runs):
        policy = load_policy(folder / "policy.safetensors", envs)
        acts = (policy.stochastic(1), pair(policy.stochastic(2), expert), pair(expert, policy.stochastic(3)))
        name = f"{run['n_demos']} demonstrations, {run['discriminator']}, `{folder}`"
        print(f"| {name} | " + " | ".join(nss(act) for act in acts) + " |", flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
