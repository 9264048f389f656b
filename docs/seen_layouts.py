"""How a run plays from the starts that it was shown, and from others: a row for each run folder.

    python docs/seen_layouts.py runs/<run folder> ...
    python docs/seen_layouts.py --rewards runs/<run folder> ...

Plays a run's policies and the expert's from the same 500 starts, those of the expert's recording: the first ones are
those of the demonstrations that the run learned from, the first 200 those of the file, the others were not stored. NSS
is averaged over agents, on one scale for all starts (the expert's mean over all 500 is 1, random play's of the expert's
card 0), and each episode is set against the expert's from the same start: how easy a start is does not count, but how
much there is to lose from it does, so that the file's other starts are a control. For runs on shipped demonstrations.
With --rewards, what the run's recovered reward pays a step for the expert's play and for the run's, agent by agent.
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
    demos_of_run,
    exit_on_user_error,
    learned_reward,
    load_card,
    load_demos,
    load_policy,
    mean_and_interval,
    play_episodes,
    reference_scores,
)
from train_expert_maac import RECORDING_SEED

EPISODES, STORED = 500, 200  # how many were recorded of an expert, and how many of them are its demonstrations


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """run folders of madaac_discrete.py, mairl_mack.py or magail_mack.py"""
    greedy: bool = False
    """most probable actions instead of drawn ones"""
    rewards: bool = False
    """mean recovered reward a step instead of NSS: of expert and run, from the starts shown and from later ones"""


def nss(losses: np.ndarray) -> tuple[float, float]:
    """NSS from the expert's score minus the run's [episodes, agents], as parts of the scale; its 95 % interval."""
    (mean,), (half_width,) = mean_and_interval(1 - losses.mean(1, keepdims=True))
    return float(mean), float(half_width)


def cells(losses: np.ndarray, n_demos: int) -> list[str]:
    """NSS from the starts shown, from the file's others (if any) and from later ones; the first minus all others."""
    parts = (losses[:n_demos], losses[n_demos:STORED], losses[STORED:])
    texts = ["{:.3f} ± {:.3f}".format(*nss(part)) if len(part) else "" for part in parts]
    (shown, shown_half), (others, others_half) = nss(losses[:n_demos]), nss(losses[n_demos:])
    return [*texts, f"{shown - others:+.3f} ± {np.hypot(shown_half, others_half):.3f}"]


def run_of(folder: Path) -> dict:
    """The arguments of a run that has ended, on shipped demonstrations."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if not all((folder / name).is_file() for name in ("config.json", "summary.json", "policy.safetensors")):
        raise UserError(f"{folder} is not the folder of a run that has ended")
    config = json.loads((folder / "config.json").read_text())
    if "n_demos" not in config["args"] or config["args"]["demos"]:
        raise UserError(f"{folder} did not learn from shipped demonstrations")
    demos_of_run(config)  # which have not changed since
    return config["args"]


def play(folder: Path, greedy: bool) -> tuple[dict, list, list]:
    """A run's arguments; of the expert's play and of the run's, scores [episodes, agents] and what was played."""
    run = run_of(folder)
    env_id, n_demos = run["env_id"], run["n_demos"]
    policy = load_policy(folder / "policy.safetensors")
    acts = [load_policy(EXPERTS / env_id / "policy.safetensors").greedy]
    acts.append(policy.greedy if greedy else policy.stochastic(run["seed"]))
    scores, recorded = zip(*(play_episodes(env_id, act, EPISODES, RECORDING_SEED, record=True) for act in acts))
    if not np.array_equal(recorded[1].obs[:n_demos, 0], load_demos(env_id, n_demos).obs[:, 0]):
        raise UserError(f"{env_id}: its demonstrations do not start as episodes of seed {RECORDING_SEED} do")
    return run, scores, recorded


def names(folder: Path, run: dict) -> str:
    script = json.loads((folder / "summary.json").read_text())["script"]
    return f"| `{run['env_id']}` | {run['n_demos']} | `{script}`, {run['discriminator']}, seed {run['seed']} | "


def row(folder: Path, greedy: bool) -> str:
    run, (expert_scores, scores), _ = play(folder, greedy)
    random = np.array([agent["mean"] for agent in load_card(run["env_id"])["scores"]["random"].values()])
    losses = (expert_scores - scores) / (expert_scores.mean(0) - random)
    return names(folder, run) + " | ".join(cells(losses, run["n_demos"])) + " |"


def reward_row(folder: Path, greedy: bool) -> str:
    run, _, recorded = play(folder, greedy)
    reward, paid = learned_reward(folder), []
    for demos in recorded:
        obs, actions, _ = demos.transitions()  # [episodes * steps, agents, ...]
        paid.append(np.asarray(reward(obs, actions)).reshape(EPISODES, -1, len(demos.agents)))
    shown, later = slice(run["n_demos"]), slice(STORED, None)
    means = [each[part].mean((0, 1)) for part in (shown, later) for each in paid]
    return names(folder, run) + " | ".join(" / ".join(f"{value:.1f}" for value in mean) for mean in means) + " |"


def main(args: Args) -> None:
    if not args.folders:
        raise UserError("name at least one run folder")
    torch.set_num_threads(1)
    for env_id in {run_of(folder)["env_id"] for folder in args.folders}:
        reference_scores(env_id)  # warns of agents whose NSS says little
    titles = ["NSS, their starts", "the file's others", "later ones", "difference"]
    if args.rewards:
        titles = ["their starts: the expert", "the run", "later ones: the expert", "the run"]
    print("| task | demonstrations | run | " + " | ".join(titles) + " |\n|---|---:|---|---:|---:|---:|---:|")
    for folder in args.folders:
        print((reward_row if args.rewards else row)(folder, args.greedy), flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
