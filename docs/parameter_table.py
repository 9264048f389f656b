"""Parameters of each algorithm against the number of agents, on rover_tower: python docs/parameter_table.py"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import madaac_discrete
import magail_mack
import mairl_mack
from particle_envs import make_task

# Networks that act or judge while training; targets are copies and do not count.
CRITICS = {madaac_discrete: "critic", mairl_mack: "values", magail_mack: "values"}
NAMES = {madaac_discrete: "MA-DAAC", mairl_mack: "MA-AIRL", magail_mack: "MA-GAIL"}


def parameters(module, obs_sizes: np.ndarray, num_actions: np.ndarray, kind: str) -> dict[str, int]:
    """Numbers that are used: weights of inputs that are always zero are not counted."""
    nets = module.make_networks(obs_sizes, num_actions, module.Args(discriminator=kind))
    padding = int(obs_sizes.max()) * len(obs_sizes) - int(obs_sizes.sum())  # where agents see less than the widest
    hidden = module.Args.hidden_size
    found = {}
    for name, network in (
        ("policies", nets.policies),
        ("critics", getattr(nets, CRITICS[module])),
        ("discriminators", nets.discriminators),
    ):
        found[name] = sum(parameter.numel() for parameter in network.parameters())
    found["policies"] -= padding * hidden
    if module is madaac_discrete:
        found["critics"] -= 2 * padding * hidden  # both encoders
    else:
        found["critics"] -= int(num_actions.sum()) * hidden  # an agent's own action in its value function
    found["discriminators"] -= padding * hidden * (1 if module is magail_mack else 2)  # D, or g and h
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)  # many small networks: threads would wait for one another
    print("| agents | algorithm | discriminators | policies | critics | discriminators | all |")
    print("|---:|---|---|---:|---:|---:|---:|")
    for agents in (8, 12, 16, 24, 32, 48, 64):
        task = make_task(f"rover_tower_{agents}", 1)
        for module, name in NAMES.items():
            for kind in ("decentralized", "centralized"):
                counts = parameters(module, task.obs_sizes, task.num_actions, kind)
                cells = " | ".join(f"{count:,}" for count in (*counts.values(), sum(counts.values())))
                print(f"| {agents} | {name} | {kind} | {cells} |")
