"""Demonstrations of other experts on cooperative_communication, for the section on them in docs/mairl_mack.md:

    python docs/other_demonstrations.py runs/others
    python mairl_mack.py --env-id cooperative_communication --demos runs/others/scripted.npz

writes greedy.npz (the shipped expert, other episodes than its file has), drawn.npz (its actions drawn, not the most
probable ones) and scripted.npz, 200 episodes each, and prints their mean scores.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import ROOT, exit_on_user_error, load_policy, make_envs, play_episodes, save_demos

TASK = "cooperative_communication"


@dataclass
class Args:
    folder: tyro.conf.Positional[Path]
    """where to write the three files"""


def scripted(obs: np.ndarray) -> np.ndarray:
    """obs [B, 2, 11] -> actions [B, 2]: the speaker names the goal, the listener heads for the landmark named.

    The listener sees its velocity (2), the landmarks' relative positions (3 x 2) and the message (3). It pushes along
    the axis on which it is further off, counting in how far it will coast, and rests within 0.03.
    """
    velocity, landmarks, message = obs[:, 1, :2], obs[:, 1, 2:8].reshape(-1, 3, 2), obs[:, 1, 8:11]
    target = landmarks[np.arange(len(obs)), message.argmax(-1)] * (message.max(-1) > 0.5)[:, None]
    off = target - 0.26 * velocity  # [B, 2]
    axis = np.abs(off).argmax(-1)
    off = off[np.arange(len(off)), axis]
    push = np.where(off > 0, 1 + 2 * axis, 2 + 2 * axis)  # actions: rest, +x, -x, +y, -y
    return np.stack([obs[:, 0, :3].argmax(-1), np.where(np.abs(off) < 0.03, 0, push)], -1)


def main(args: Args) -> None:
    expert = load_policy(ROOT / "experts" / TASK / "policy.safetensors", make_envs(TASK, 1))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, act in (("greedy", expert.greedy), ("drawn", expert.stochastic(7)), ("scripted", scripted)):
        returns, demos = play_episodes(TASK, act, 200, seed=777, record=True)
        save_demos(args.folder / f"{name}.npz", demos)
        print(f"{args.folder / name}.npz: {returns.mean():.1f}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
