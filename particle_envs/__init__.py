"""Multi-agent particle tasks: batches of environments in NumPy, and single environments behind PettingZoo's API.

This package holds the tasks of Jeon et al. 2020 and five of mpe2. `TASKS` below lists them.

    tasks = make_task("cooperative_navigation", num_envs=100, seed=0)
    obs = tasks.reset()                                                   # [100, 3, 16]
    obs, rewards, terminated, truncated, final_obs = tasks.step(actions)  # actions [100, 3]

    env = parallel_env("cooperative_navigation", render_mode="human")
"""

import difflib
import re

from particle_envs.communication import CooperativeCommunication, SimpleSpeakerListener
from particle_envs.keep_away import KeepAway
from particle_envs.navigation import CooperativeNavigation, SimpleSpread
from particle_envs.parallel_env import ParticleParallelEnv
from particle_envs.render import Canvas as Canvas
from particle_envs.rover_tower import RoverTower
from particle_envs.simple_adversary import SimpleAdversary
from particle_envs.simple_push import SimplePush
from particle_envs.simple_tag import SimpleTag
from particle_envs.world import ParticleTask, TaskError

TASKS: dict[str, type[ParticleTask]] = {
    # Jeon et al. 2020. Rover Tower takes any even number of agents; these are the paper's.
    "keep_away": KeepAway,
    "cooperative_communication": CooperativeCommunication,
    "cooperative_navigation": CooperativeNavigation,
    "rover_tower_8": RoverTower,
    "rover_tower_12": RoverTower,
    "rover_tower_16": RoverTower,
    # mpe2
    "simple_tag": SimpleTag,
    "simple_spread": SimpleSpread,
    "simple_push": SimplePush,
    "simple_speaker_listener": SimpleSpeakerListener,
    "simple_adversary": SimpleAdversary,
}
TASK_IDS = list(TASKS)
ROVER_TOWER = re.compile(r"rover_tower_(\d+)")


def is_task_id(task_id: str) -> bool:
    return task_id in TASKS or ROVER_TOWER.fullmatch(task_id) is not None


def make_task(task_id: str, num_envs: int, seed: int | None = None) -> ParticleTask:
    """A batch of `num_envs` environments of a task."""
    if not is_task_id(task_id):
        raise TaskError(unknown_id_message(task_id, TASK_IDS))
    rover_tower = ROVER_TOWER.fullmatch(task_id)
    task = RoverTower(num_envs, seed, int(rover_tower[1])) if rover_tower else TASKS[task_id](num_envs, seed)
    task.env_id = task_id
    return task


def parallel_env(task_id: str, render_mode: str | None = None) -> ParticleParallelEnv:
    """One environment of a task as a PettingZoo parallel environment."""
    return ParticleParallelEnv(make_task(task_id, num_envs=1), render_mode)


def unknown_id_message(task_id: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(task_id, known, n=1, cutoff=0.4)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"unknown task {task_id!r}{hint} Known tasks: {', '.join(known)}"
