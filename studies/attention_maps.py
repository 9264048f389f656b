"""Whom the agents of MA-DAAC's critic attend to on Rover Tower: does a rover attend to its tower?

    python studies/attention_maps.py runs/rover_tower_8__madaac_discrete__1__* --out attention.png

The run plays fresh episodes, and its critic, which is in checkpoint.pt, is asked for its attention weights. Pairs of
rovers and towers are drawn anew for every episode, so towers are sorted: tower k is the one that guides rover k. Rows
attend to columns, and weights in a row add up to 1. The table has the mean weight of single agents over all heads.
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

from env_utils import make_envs, record_episodes
from madaac_discrete import AttentionCritic
from madaac_utils.checkpoints import load_checkpoint
from madaac_utils.evaluation import EVALUATION_SEED
from madaac_utils.files import UserError, exit_on_user_error, read_json, writing
from madaac_utils.policies import load_policy


@dataclass
class Args:
    folder: tyro.conf.Positional[Path]
    """a run folder of madaac_discrete.py on rover_tower"""
    out: Path = Path("attention.png")
    """the image to write"""
    episodes: int = 200
    """episodes to average over"""


@torch.no_grad()
def attention(folder: Path, config: dict, episodes: int) -> np.ndarray:
    """The mean attention weights [heads, agents, agents], towers in the order of their rovers."""
    envs = make_envs(config["env_id"], 1)
    critic = AttentionCritic(envs, config["hidden_size"], config["attention_heads"])
    critic.load_state_dict(load_checkpoint(folder)["parts"]["critic"])
    policy = load_policy(folder / "policy.safetensors", envs).stochastic(config["seed"])
    played = record_episodes(config["env_id"], policy, episodes, EVALUATION_SEED)
    obs = torch.as_tensor(played.obs[:, :-1]).flatten(0, 1).transpose(0, 1)  # [agents, steps, widest]
    actions = torch.as_tensor(played.actions).flatten(0, 1).T
    weights = critic(obs, actions)[2]  # [steps, heads, agents, agents]
    half = len(envs.agents) // 2
    tower_of_rover = obs[:half, :, :half].argmax(-1).T  # a rover's observation begins with its tower as a one-hot
    order = torch.cat([torch.arange(half).expand(len(tower_of_rover), half), half + tower_of_rover], 1)
    steps = torch.arange(len(order))[:, None, None]
    return weights[steps, :, order[:, :, None], order[:, None, :]].mean(0).permute(2, 0, 1).numpy()


def table(weights: np.ndarray) -> str:
    """Mean weights by role, from weights [agents, agents]."""
    half = len(weights) // 2
    same, partner = ~np.eye(half, dtype=bool), np.eye(half, dtype=bool)
    lines = ["| from | its partner | another of the other kind | another of its kind |", "|---|---:|---:|---:|"]
    for name, mine, others in (("rover", slice(half), slice(half, None)), ("tower", slice(half, None), slice(half))):
        across, within = weights[mine, others], weights[mine, mine]
        cells = [across[partner].mean(), across[~partner].mean(), within[same].mean()]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    return "\n".join([*lines, f"\nuniform attention: {1 / (2 * half - 1):.3f}"])


def main(args: Args) -> None:
    torch.set_num_threads(1)
    config = read_json(args.folder / "config.json", "the config of a run")["args"]
    if not config["env_id"].startswith("rover_tower") or "attention_heads" not in config:
        raise UserError(f"{args.folder} is not a run of madaac_discrete.py on rover_tower")
    weights = attention(args.folder, config, args.episodes)
    half = weights.shape[-1] // 2
    names = [f"rover {k}" for k in range(half)] + [f"tower of {k}" for k in range(half)]
    panels = {f"head {k}": head for k, head in enumerate(weights, 1)} | {"mean": weights.mean(0)}
    figure, axes = plt.subplots(1, len(panels), figsize=(2.7 * len(panels) + 1.5, 3.4), sharey=True)
    for axis, (title, values) in zip(axes, panels.items()):
        image = axis.imshow(values, vmin=0, vmax=weights.max(), cmap="viridis")
        axis.set_title(title)
        axis.set_xticks(range(2 * half), names, rotation=90)
        axis.set_yticks(range(2 * half), names)
    figure.tight_layout()
    figure.colorbar(image, ax=axes, shrink=0.8, label="attention")
    with writing(args.out) as temporary:
        figure.savefig(temporary, dpi=80, bbox_inches="tight")
    print(f"{table(weights.mean(0))}\nwritten: {args.out}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
