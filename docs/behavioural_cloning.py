"""A yardstick: how well plain behavioural cloning imitates from the shipped demonstrations.

    python docs/behavioural_cloning.py --n-demos 50 200

One network an agent (two hidden layers, as everywhere here) learns to predict the expert's action from the agent's own
observation; nothing is played while it learns. NSS over 500 fresh episodes, stochastic / greedy, after a fixed number
of steps (2,000 was the best of 200, 500, 1,000 and 2,000 on other episodes), and the share of the expert's actions in
up to 100 demonstrations that were not learned from which the clone would take too.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import env_utils
from env_utils import (
    UserError,
    exit_on_user_error,
    load_demos,
    make_envs,
    mean_nss,
    play_episodes,
    reference_scores,
    unseen_transitions,
)


@dataclass
class Args:
    env_id: tuple[str, ...] = ("keep_away", "cooperative_communication", "cooperative_navigation")
    """tasks"""
    n_demos: tuple[int, ...] = (50, 100, 200)
    """how many demonstrations to learn from: the first ones of the file"""
    demos: str = ""
    """a file of demonstrations (.npz) of the one task, whose own mean is then NSS 1; default: those shipped"""
    seeds: tuple[int, ...] = (1, 2, 3)
    """seeds, a row each"""
    steps: int = 2000
    """Adam steps"""
    batch_size: int = 500
    """transitions in a step"""
    lr: float = 1e-3
    """Adam step size"""
    weight_decay: float = 1e-4
    """L2 regularisation in Adam"""


def clone(env_id: str, n_demos: int, seed: int, references, args: Args) -> tuple[str, str]:
    """NSS stochastic / greedy, and the share of unseen actions predicted"""
    torch.manual_seed(seed)
    envs = make_envs(env_id, 1)
    demos_from = Path(args.demos) if args.demos else env_id
    demos = load_demos(demos_from, n_demos, envs)
    unseen_obs, unseen_actions, _ = (part.transpose(0, 1) for part in unseen_transitions(demos_from, n_demos, "cpu"))
    obs, actions, _ = (torch.as_tensor(part) for part in demos.transitions())
    policies = [
        nn.Sequential(nn.Linear(size, 128), nn.LeakyReLU(), nn.Linear(128, 128), nn.LeakyReLU(), nn.Linear(128, number))
        for size, number in zip(envs.obs_sizes.tolist(), envs.num_actions.tolist())
    ]

    def logits(obs: torch.Tensor) -> list[torch.Tensor]:
        """obs [batch, agents, widest] -> [batch, actions] of each agent"""
        return [policy(obs[:, i, :size]) for i, (policy, size) in enumerate(zip(policies, envs.obs_sizes))]

    @torch.no_grad()
    def greedy(obs: np.ndarray) -> np.ndarray:
        return torch.stack([each.argmax(-1) for each in logits(torch.as_tensor(obs))], 1).numpy()

    @torch.no_grad()
    def stochastic(obs: np.ndarray) -> np.ndarray:
        drawn = [torch.multinomial(each.softmax(-1), 1)[:, 0] for each in logits(torch.as_tensor(obs))]
        return torch.stack(drawn, 1).numpy()

    optimizer = torch.optim.Adam(nn.ModuleList(policies).parameters(), args.lr, weight_decay=args.weight_decay)
    for _ in tqdm(range(args.steps), desc=f"{env_id}, {n_demos} demos, seed {seed}", leave=False, file=sys.stderr):
        rows = torch.randint(len(obs), (args.batch_size,))
        loss = sum(F.cross_entropy(each, actions[rows, i]) for i, each in enumerate(logits(obs[rows])))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    seed = env_utils.EVALUATION_SEED + seed  # the same episodes as at the end of a run of that seed
    scores = [play_episodes(env_id, act, 500, seed)[0].mean(0) for act in (stochastic, greedy)]
    nss = " / ".join(f"{mean_nss(score, references):.3f}" for score in scores)
    right = (greedy(unseen_obs) == unseen_actions.numpy()).mean() if len(unseen_obs) else np.nan
    return nss, "none left" if np.isnan(right) else f"{right:.3f}"


def main(args: Args) -> None:
    if not (args.env_id and args.n_demos and args.seeds):
        raise UserError("--env-id, --n-demos and --seeds need at least one value each")
    if args.steps < 1 or args.batch_size < 1:
        raise UserError(f"--steps {args.steps} and --batch-size {args.batch_size} must be at least 1")
    torch.set_num_threads(1)
    seeds = ", ".join(map(str, args.seeds))
    references = {env_id: reference_scores(env_id, args.demos) for env_id in args.env_id}
    print(f"| task | demonstrations | NSS of seeds {seeds} | unseen actions predicted |\n|---|---:|---:|---:|")
    for env_id in args.env_id:
        for n_demos in args.n_demos:
            scores, right = zip(*(clone(env_id, n_demos, seed, references[env_id], args) for seed in args.seeds))
            print(f"| `{env_id}` | {n_demos} | {', '.join(scores)} | {', '.join(right)} |", flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
