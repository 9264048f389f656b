"""How much of what a run loses is lost on starts that it was not shown: a row for each run folder.

    python docs/seen_layouts.py runs/<run folder> ...

Plays a run's policies from the very starts of the demonstrations that it learned from, and from starts of the same
recording that were not stored (the last 300 of 500), and sets its scores against the expert's on the same starts. NSS
is averaged over agents, with random play's score from the expert's card. For runs on shipped demonstrations.
"""

import json
import sys
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
    load_card,
    load_demos,
    load_policy,
    mean_and_interval,
    play_episodes,
)
from train_expert_maac import RECORDING_SEED

EPISODES, STORED = 500, 200  # how many were recorded of an expert, and how many of them are its demonstrations


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """run folders of madaac_discrete.py, mairl_mack.py or magail_mack.py"""
    greedy: bool = False
    """most probable actions instead of drawn ones"""


def nss(played: np.ndarray, shown: np.ndarray, random: np.ndarray) -> str:
    """With a 95 % interval over starts; learner's and expert's scores [episodes, agents] from the same ones."""
    per_episode = 1 + ((played - shown) / (shown.mean(0) - random)).mean(1)  # the mean is the NSS
    (mean,), (half_width,) = mean_and_interval(per_episode[:, None])
    return f"{mean:.3f} ± {half_width:.3f}"


def row(folder: Path, greedy: bool) -> str:
    if not all((folder / name).is_file() for name in ("config.json", "summary.json", "policy.safetensors")):
        raise UserError(f"{folder} is not the folder of a run that has ended")
    run = json.loads((folder / "config.json").read_text())["args"]
    if "n_demos" not in run or run["demos"]:
        raise UserError(f"{folder} did not learn from shipped demonstrations")
    env_id, n_demos = run["env_id"], run["n_demos"]
    expert = load_policy(EXPERTS / env_id / "policy.safetensors")
    policy = load_policy(folder / "policy.safetensors")
    act = policy.greedy if greedy else policy.stochastic(run["seed"])
    shown = play_episodes(env_id, expert.greedy, EPISODES, RECORDING_SEED)[0]
    played, recorded = play_episodes(env_id, act, EPISODES, RECORDING_SEED, record=True)
    if not np.array_equal(recorded.obs[:n_demos, 0], load_demos(env_id, n_demos).obs[:, 0]):
        raise UserError(f"{env_id}: its demonstrations do not start as episodes of seed {RECORDING_SEED} do")
    random = np.array([agent["mean"] for agent in load_card(env_id)["scores"]["random"].values()])
    script = json.loads((folder / "summary.json").read_text())["script"]
    seen = nss(played[:n_demos], shown[:n_demos], random)
    unseen = nss(played[STORED:], shown[STORED:], random)
    return f"| `{env_id}` | {n_demos} | `{script}`, {run['discriminator']} | {seen} | {unseen} |"


def main(args: Args) -> None:
    if not args.folders:
        raise UserError("name at least one run folder")
    torch.set_num_threads(1)
    print("| task | demonstrations | run | NSS on their starts | on other starts |\n|---|---:|---|---:|---:|")
    for folder in args.folders:
        print(row(folder, args.greedy), flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
