"""Demonstrations of Rover Tower by a scripted expert, for any number of agents and without training.

    python studies/scripted_rover_tower.py --agents 32 --out rover_tower_32.npz
    python madaac_discrete.py --env-id rover_tower_32 --demos rover_tower_32.npz --n-demos 50

A tower names the direction of the larger coordinate difference between its rover and the goal, or message 0 if both
differences are below 0.05. A rover plays the message that it hears as its action.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import record_episodes
from madaac_utils.demos import demos_from_episodes, save_demos
from madaac_utils.files import exit_on_user_error


@dataclass
class Args:
    out: str
    """file for the demonstrations (.npz)"""
    agents: int = 8
    """number of agents: half of them rovers, half of them towers"""
    episodes: int = 200
    """number of demonstrations"""
    seed: int = 0
    """seed of the initial states"""


def act(obs: np.ndarray) -> np.ndarray:
    """obs [B, agents, widest], zero-padded -> actions [B, agents]"""
    half = obs.shape[1] // 2
    rovers, towers = obs[:, :half], obs[:, half:]
    moves = rovers[..., half : half + 5].argmax(-1)  # 0, no move, before the first message
    way = towers[..., half + 2 : half + 4] - towers[..., half : half + 2]  # from the rover to the goal, [B, towers, 2]
    axis = np.abs(way).argmax(-1)
    along = np.take_along_axis(way, axis[..., None], -1)[..., 0]
    messages = np.where(np.abs(along) < 0.05, 0, 2 * axis + np.where(along > 0, 1, 2))
    return np.concatenate([moves, messages], axis=1)


def main(args: Args) -> None:
    env_id = f"rover_tower_{args.agents}"
    episodes = record_episodes(env_id, act, num_episodes=args.episodes, seed=args.seed)
    save_demos(args.out, demos_from_episodes(env_id, episodes, {"made_by": "studies/scripted_rover_tower.py"}))
    scores = episodes.returns.mean(1)  # over agents, as in the tables
    half_width = 1.96 * scores.std(ddof=1) / np.sqrt(len(scores))
    print(f"{args.out}: {args.episodes} demonstrations of {env_id}, score {scores.mean():.1f} ± {half_width:.1f}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
