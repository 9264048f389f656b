"""Maps of a recovered reward beside the task's own, for cooperative_navigation and cooperative_communication.

    python studies/reward_maps.py runs/cooperative_navigation__* runs/cooperative_communication__* --out maps.png

The expert plays an episode to its end. Then one agent is put at every point of the field, at rest and with the action
"nothing", while all others stay where they are. Each run has one row: on the left an episode that was among its
demonstrations, on the right one that was not. The table has the correlation of both rewards over a map, averaged over
the maps of 50 episodes of either kind.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from env_utils import make_envs
from madaac_utils.experts import RECORDING_SEED
from madaac_utils.files import EXPERTS, UserError, exit_on_user_error, read_json, writing
from madaac_utils.policies import load_policy
from madaac_utils.rewards import learned_reward
from particle_envs import ParticleTask

MOVED = {"cooperative_navigation": 0, "cooperative_communication": 1}  # the agent that is put everywhere
EPISODES = 50  # of either kind for the table
REACH, SIDE = 1.25, 61  # of a map: half its width, and its points along one axis
RECORDED, UNSEEN = 500, 200  # episodes that were recorded of an expert; those from 200 on are not demonstrations


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """run folders with a recovered reward"""
    out: Path = Path("reward_maps.png")
    """the image to write"""
    episode: int = 0
    """which of the demonstrations, and which of the other episodes, is drawn"""


def play_expert(env_id: str) -> ParticleTask:
    """All recorded episodes at their last step."""
    task = make_envs(env_id, RECORDED, RECORDING_SEED)
    act, obs = load_policy(EXPERTS / env_id / "policy.safetensors").greedy, task.reset()
    for _ in range(task.episode_length):
        task.advance(act(obs))
        obs = task.observe()
    return task


def put_everywhere(played: ParticleTask, episode: int, agent: int) -> tuple[ParticleTask, np.ndarray]:
    """One episode with the agent at each point of the map, and the observations [points, agents, widest]."""
    axis = np.linspace(-REACH, REACH, SIDE)
    state = played.get_state()
    copies = {name: np.repeat(state[name][..., episode : episode + 1], SIDE**2, axis=-1) for name in played.drawn}
    copies |= {"rows": np.repeat(state["rows"][:, episode : episode + 1], SIDE**2, axis=1), "time": state["time"]}
    task = make_envs(played.env_id, SIDE**2)
    task.set_state(copies)
    task.pos[:, agent] = np.stack([part.ravel() for part in np.meshgrid(axis, axis)])
    task.vel[...] = 0
    return task, task.set_state(task.get_state())  # measures distances again


def maps(played: ParticleTask, episode: int, reward, agent: int) -> tuple[ParticleTask, np.ndarray, np.ndarray]:
    """The task with the agent everywhere, the task's own reward and the recovered one, [points] each."""
    task, obs = put_everywhere(played, episode, agent)
    own = np.broadcast_to(task.reward(), (task.num_agents, SIDE**2))[agent]
    return task, own, reward(obs, np.zeros(obs.shape[:2], dtype=int))[:, agent]


def draw_map(figure, axis, values: np.ndarray, task: ParticleTask, agent: int, title: str) -> None:
    extent = (-REACH, REACH, -REACH, REACH)
    image = axis.imshow(values.reshape(SIDE, SIDE), origin="lower", extent=extent, cmap="viridis")
    figure.colorbar(image, ax=axis, shrink=0.8)
    places, looks = task.pos[:, :, 0].T, task.appearance(0)
    for k, (entity, (x, y)) in enumerate(zip(task.entities, places)):
        if k != agent:
            color = np.clip(looks[k]["color"], 0, 1)
            axis.plot(x, y, "o" if entity.moves else "s" if entity.is_agent else "D", color=color, mec="white", ms=9)
    if looks[agent]["goal"] is not None:
        axis.plot(*places[looks[agent]["goal"]], "o", mfc="none", mec="red", mew=2, ms=18)
    axis.set(title=title, xlim=extent[:2], ylim=extent[2:], xticks=(), yticks=())


def main(args: Args) -> None:
    torch.set_num_threads(1)
    configs = [read_json(folder / "config.json", "the config of a run")["args"] for folder in args.folders]
    for folder, config in zip(args.folders, configs):
        if config["env_id"] not in MOVED or config["n_demos"] < EPISODES:
            raise UserError(f"{folder} is not a run on {' or '.join(MOVED)} with at least {EPISODES} demonstrations")
    if not args.folders or not 0 <= args.episode < EPISODES:
        raise UserError(f"name at least one run folder, and an --episode below {EPISODES}")
    figure, axes = plt.subplots(len(configs), 4, figsize=(15, 3.6 * len(configs)), squeeze=False)
    print("| run | demonstrated episodes | other episodes |\n|---|---:|---:|")
    for folder, config, row in zip(args.folders, configs, axes):
        agent, played, reward = MOVED[config["env_id"]], play_expert(config["env_id"]), learned_reward(folder)
        cells = []
        for first, what, pair in ((0, "demonstrated", row[:2]), (UNSEEN, "not demonstrated", row[2:])):
            task, own, recovered = maps(played, first + args.episode, reward, agent)
            draw_map(figure, pair[0], own, task, agent, f"{what}: true reward")
            draw_map(figure, pair[1], recovered, task, agent, f"{what}: recovered reward")
            found = [maps(played, first + k, reward, agent)[1:] for k in range(EPISODES)]
            cells.append(f"{np.mean([np.corrcoef(*pair)[0, 1] for pair in found]):.2f}")
        row[0].set_ylabel(f"{config['env_id']}\n{config['exp_name']}, {played.agents[agent]}")
        print(f"| {config['exp_name']}, `{config['env_id']}` | {' | '.join(cells)} |", flush=True)
    figure.tight_layout()
    with writing(args.out) as temporary:
        figure.savefig(temporary, dpi=70)
    print(f"written: {args.out}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
