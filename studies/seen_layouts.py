"""How a run plays from the initial states that its demonstrations showed, and from others.

    python studies/seen_layouts.py runs/<run folder> ...
    python studies/seen_layouts.py --rewards runs/<run folder> ...

The policies of a run and its expert play from the same 500 initial states, those of the expert's recording. The first
--n-demos of them belong to the demonstrations that the run learned from, the first 200 to the file, and the others
were not stored. NSS is averaged over agents. Each episode is compared with the expert's from the same initial state.
With --rewards, the table shows the mean recovered reward per step for the expert's play and for the run's play.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import Episodes, record_episodes
from madaac_utils.demos import load_demos, reference_scores
from madaac_utils.experts import RECORDING_SEED
from madaac_utils.files import EXPERTS, UserError, exit_on_user_error, read_json
from madaac_utils.policies import load_policy
from madaac_utils.rewards import learned_reward
from madaac_utils.scores import mean_and_interval

EPISODES, STORED = 500, 200  # episodes that were recorded of an expert, and how many of them are demonstrations


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """run folders of madaac_discrete.py, mairl_mack.py or magail_mack.py, trained on shipped demonstrations"""
    rewards: bool = False
    """show the mean recovered reward per step instead of NSS"""


def play(folder: Path) -> tuple[dict, Episodes, Episodes]:
    """The arguments of a run, the expert's episodes and the run's episodes."""
    args = read_json(folder / "config.json", "the config of a run")["args"]
    if not args.get("n_demos") or args.get("demos"):
        raise UserError(f"{folder} did not learn from shipped demonstrations")
    env_id, n_demos = args["env_id"], args["n_demos"]
    expert = load_policy(EXPERTS / env_id / "policy.safetensors").greedy
    policy = load_policy(folder / "policy.safetensors").stochastic(args["seed"])
    played = [record_episodes(env_id, act, EPISODES, RECORDING_SEED) for act in (expert, policy)]
    if not np.array_equal(played[1].obs[:n_demos, 0], load_demos(env_id).obs[:n_demos, 0]):
        raise UserError(f"the demonstrations of {env_id} do not start as episodes with seed {RECORDING_SEED} do")
    return args, *played


def nss_cells(args: dict, expert: Episodes, run: Episodes) -> list[str]:
    gap = expert.returns.mean(0) - reference_scores(args["env_id"])["random"][0]
    nss = 1 - ((expert.returns - run.returns) / gap).mean(1, keepdims=True)  # [episodes, 1]
    seen, others = mean_and_interval(nss[: args["n_demos"]]), mean_and_interval(nss[args["n_demos"] :])
    cells = [f"{mean[0]:.3f} ± {half[0]:.3f}" for mean, half in (seen, others)]
    return [*cells, f"{seen[0][0] - others[0][0]:+.3f} ± {np.hypot(seen[1], others[1])[0]:.3f}"]


def reward_cells(folder: Path, args: dict, expert: Episodes, run: Episodes) -> list[str]:
    reward, means = learned_reward(folder), []
    for part in (slice(args["n_demos"]), slice(STORED, None)):
        for played in (expert, run):
            obs, actions = played.obs[part, :-1], played.actions[part]  # [episodes, T, agents, ...]
            means.append(reward(obs.reshape(-1, *obs.shape[2:]), actions.reshape(-1, actions.shape[2])).mean(0))
    return [" / ".join(f"{value:.1f}" for value in mean) for mean in means]


def main(args: Args) -> None:
    if not args.folders:
        raise UserError("name at least one run folder")
    torch.set_num_threads(1)
    titles = ["NSS, demonstrated states", "NSS, other states", "difference"]
    if args.rewards:
        titles = ["demonstrated states: expert", "run", "other states: expert", "run"]
    print("| task | demonstrations | experiment | " + " | ".join(titles) + " |")
    print("|---|---:|---|" + "---:|" * len(titles))
    for folder in args.folders:
        found, expert, run = play(folder)
        cells = reward_cells(folder, found, expert, run) if args.rewards else nss_cells(found, expert, run)
        print(f"| `{found['env_id']}` | {found['n_demos']} | {found['exp_name']} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
