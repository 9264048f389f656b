"""What can a pusher do in Keep Away? Other pushers against the shipped expert's reacher, for docs/train_expert_maac.md:

    python docs/keep_away_pusher.py

Prints the scores of pusher and reacher, and how much more they are than beside a pusher that does nothing in the same
episodes (with the standard error of that), for the expert's pusher, for scripted ones, and for one that plans: before
each step it plays the episode to its end in the simulator, against the very reacher it is up against, for each action
(held for 1 and for 4 steps) followed by each of the other pushers, and does what scored best.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import ROOT, UserError, exit_on_user_error, load_policy, make_envs

PUSHER = 0  # the agent's number
IDLE = "does nothing"


@dataclass
class Args:
    episodes: int = 1000
    """episodes, the same ones for each pusher"""


def towards(weight_of_goal: float):
    """A pusher that goes to a point between reacher (0) and goal (1), along the axis on which it is further off."""

    def act(obs: np.ndarray) -> np.ndarray:
        """The pusher's obs [B, 10]: its velocity (2), the goal (2) and at the end the reacher (2), as seen from it."""
        velocity, goal, reacher = obs[:, :2], obs[:, 2:4], obs[:, 8:10]
        off = weight_of_goal * goal + (1 - weight_of_goal) * reacher - 0.3 * velocity  # less what it will coast
        axis = np.abs(off).argmax(-1)
        along = off[np.arange(len(off)), axis]
        return np.where(np.abs(along) < 0.01, 0, np.where(along > 0, 1 + 2 * axis, 2 + 2 * axis))

    return act


def play_on(envs, obs: np.ndarray, expert, pusher, left: int, first: int = 0, hold: int = 0) -> np.ndarray:
    """Returns [B, agents] of the `left` steps to the end; the pusher's first `hold` actions are `first`."""
    returns = 0.0
    for t in range(left):
        actions = expert.greedy(obs)
        actions[:, PUSHER] = first if t < hold else pusher(obs[:, PUSHER, :10])
        obs, rewards, *_ = envs.step(actions)
        returns = returns + rewards
    return returns


def plan(envs, obs: np.ndarray, expert, pushers: list, left: int) -> np.ndarray:
    """The pusher's best next action [B]; leaves the tasks as they were."""
    state, best, actions = envs.get_state(), np.full(len(obs), -np.inf), np.zeros(len(obs), dtype=np.int64)
    for pusher in pushers:
        for first in range(5):
            for hold in (1, 4):
                score = play_on(envs, envs.set_state(state), expert, pusher, left, first, hold)[:, PUSHER]
                better = score > best
                best[better], actions[better] = score[better], first
    envs.set_state(state)
    return actions


def main(args: Args) -> None:
    if args.episodes < 2:
        raise UserError(f"--episodes {args.episodes} must be at least 2")
    envs = make_envs("keep_away", args.episodes, seed=5)
    expert = load_policy(ROOT / "experts/keep_away/policy.safetensors", envs)
    obs = envs.reset()
    start = envs.get_state()

    def expert_pusher(pusher_obs: np.ndarray) -> np.ndarray:
        padded = np.zeros(obs.shape, dtype=np.float32)
        padded[:, PUSHER, :10] = pusher_obs
        return expert.greedy(padded)[:, PUSHER]

    pushers = {"the expert's": expert_pusher, IDLE: lambda pusher_obs: 0}
    pushers |= {"goes to the goal": towards(1.0), "goes to the reacher": towards(0.0)}
    pushers |= {"goes between, nearer to the goal": towards(0.8), "goes midway between": towards(0.5)}
    rows = {
        name: play_on(envs, envs.set_state(start), expert, act, envs.episode_length) for name, act in pushers.items()
    }

    now, planned = envs.set_state(start), 0.0
    for left in tqdm(range(envs.episode_length, 0, -1), desc="planning", unit="step"):
        actions = expert.greedy(now)
        actions[:, PUSHER] = plan(envs, now, expert, list(pushers.values()), left)
        now, rewards, *_ = envs.step(actions)
        planned = planned + rewards
    rows["plans"] = planned

    print("| pusher | its score | more than idle | the reacher's score | more than beside the idle one |")
    print("|---|---:|---:|---:|---:|")
    for name, returns in rows.items():
        more = returns - rows[IDLE]  # of the same episodes
        errors = more.std(0, ddof=1) / len(more) ** 0.5
        cells = [f"{returns[:, k].mean():.2f} | {more[:, k].mean():+.2f} ± {errors[k]:.2f}" for k in (0, 1)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
