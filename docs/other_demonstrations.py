"""Demonstrations of other experts than the shipped ones, for docs/mairl_mack.md and docs/madaac_discrete.md:

    python docs/other_demonstrations.py runs/others
    python mairl_mack.py --env-id cooperative_communication --demos runs/others/scripted.npz
    python madaac_discrete.py --env-id rover_tower_8 --demos runs/others/scripted_rover_tower_8.npz

writes for cooperative_communication greedy.npz (the shipped expert, other episodes than its file has), drawn.npz (its
actions drawn, not the most probable ones) and scripted.npz, and for rover_tower_8 scripted_rover_tower_8.npz; 200
episodes each. Prints their mean scores.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import ROOT, exit_on_user_error, load_policy, make_envs, play_episodes, require_writable, save_demos


@dataclass
class Args:
    folder: tyro.conf.Positional[Path]
    """where to write the files"""


def push_along_longer_axis(off: np.ndarray, near: float) -> np.ndarray:
    """off [..., 2], where to go from here -> actions [...]: rest (if near), +x, -x, +y, -y."""
    axis = np.abs(off).argmax(-1)
    along = np.take_along_axis(off, axis[..., None], -1)[..., 0]
    return np.where(np.abs(along) < near, 0, np.where(along > 0, 1 + 2 * axis, 2 + 2 * axis))


def scripted_communication(obs: np.ndarray) -> np.ndarray:
    """obs [B, 2, 11] -> actions [B, 2]: the speaker names the goal, the listener heads for the landmark named.

    The listener sees its velocity (2), the landmarks' relative positions (3 x 2) and the message (3). It pushes along
    the axis on which it is further off, counting in how far it will coast, and rests within 0.03.
    """
    velocity, landmarks, message = obs[:, 1, :2], obs[:, 1, 2:8].reshape(-1, 3, 2), obs[:, 1, 8:11]
    target = landmarks[np.arange(len(obs)), message.argmax(-1)] * (message.max(-1) > 0.5)[:, None]
    listener = push_along_longer_axis(target - 0.26 * velocity, near=0.03)
    return np.stack([obs[:, 0, :3].argmax(-1), listener], -1)


def scripted_rover_tower(obs: np.ndarray) -> np.ndarray:
    """obs [B, agents, widest] -> actions [B, agents]: a tower names the push its rover needs, a rover pushes as told.

    With p pairs, a rover sees its tower's one-hot (p), the message (5), its position and velocity (2 + 2), a tower its
    rover's one-hot (p), the rover's position (2) and the goal (2).
    """
    pairs = obs.shape[1] // 2
    message, tower = obs[:, :pairs, pairs : pairs + 5], obs[:, pairs:, pairs:]
    heard = message.argmax(-1)  # 0, rest, as long as nothing was said
    said = push_along_longer_axis(tower[..., 2:4] - tower[..., :2], near=0.05)
    return np.concatenate([heard, said], 1)


def main(args: Args) -> None:
    communication, rovers = "cooperative_communication", "rover_tower_8"
    expert = load_policy(ROOT / "experts" / communication / "policy.safetensors", make_envs(communication, 1))
    require_writable(args.folder)
    for name, task, act in (
        ("greedy", communication, expert.greedy),
        ("drawn", communication, expert.stochastic(7)),
        ("scripted", communication, scripted_communication),
        ("scripted_rover_tower_8", rovers, scripted_rover_tower),
    ):
        returns, demos = play_episodes(task, act, 200, seed=777, record=True)
        save_demos(args.folder / f"{name}.npz", demos)
        print(f"{args.folder / name}.npz: {returns.mean():.1f}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
