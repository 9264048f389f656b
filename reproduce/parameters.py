"""Trainable parameters of each algorithm against the number of agents, on Rover Tower."""

import functools
import importlib

from reproduce.grid import ALGORITHMS, DISCRIMINATORS, PAPER_DISCRIMINATORS
from reproduce.tables import Table

AGENTS = (8, 12, 16, 24, 32, 48, 64)
COUNTED = ("magail", "mairl", "madaac")


@functools.cache
def count_parameters(algorithm: str, agents: int, discriminator: str) -> dict[str, int]:
    """Weights of policies, critics and discriminators, without targets and without weights of padded zeros."""
    import torch

    from particle_envs import make_task

    torch.set_num_threads(1)  # many small networks
    module = importlib.import_module(ALGORITHMS[algorithm].script.removesuffix(".py"))
    task, args = make_task(f"rover_tower_{agents}", 1), module.Args(discriminator=discriminator)
    attention = algorithm == "madaac"
    if attention:
        critics = module.AttentionCritic(task, args.hidden_size, args.attention_heads)
    else:
        critics = module.Values(task, args.hidden_size)
    parts = {"policies": module.Policies(task, args.hidden_size), "critics": critics}
    parts["discriminators"] = module.Discriminators(task, args)
    counts = {name: sum(weight.numel() for weight in net.parameters()) for name, net in parts.items()}
    padded = (task.obs_sizes.max() - task.obs_sizes) * args.hidden_size  # weights of each agent's first layer
    padding = int(padded.sum())
    counts["policies"] -= padding
    # Two encoders of the attention critic see padded observations; MACK's values get no own action.
    counts["critics"] -= 2 * padding if attention else int(task.num_actions.sum()) * args.hidden_size
    if discriminator == "shared":  # the weights of one agent of each kind
        first = parts["discriminators"].first_of_kind.unique()
        weights = sum(weight.numel() for weight in parts["discriminators"].weights())
        counts["discriminators"] -= weights - weights // agents * len(first)
        padding = int(padded[first].sum())
    counts["discriminators"] -= padding * (1 if algorithm == "magail" else 2)  # D, or g and h
    return counts


def total_parameters(algorithm: str) -> dict[int, int]:
    """All parameters by number of agents, decentralized."""
    return {agents: sum(count_parameters(algorithm, agents, "decentralized").values()) for agents in AGENTS}


def parameters_table() -> Table:
    rows = []
    for agents in AGENTS:
        for algorithm in COUNTED:
            for kind in DISCRIMINATORS if algorithm == "madaac" else PAPER_DISCRIMINATORS:
                counts = count_parameters(algorithm, agents, kind)
                numbers = [f"{count:,}" for count in (*counts.values(), sum(counts.values()))]
                rows.append([str(agents), ALGORITHMS[algorithm].title, kind, *numbers])
    header = ["agents", "algorithm", "discriminator", "policies", "critics", "discriminators", "all"]
    caption = "Trainable parameters in Rover Tower, without target networks."
    return Table("parameters", "Parameters", caption, header, rows)
