"""Small tasks and random data for the tests of the mathematics, in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bc_discrete as cloning
import madaac_discrete as madaac
import magail_mack as magail
import mairl_mack as mairl
import train_expert_maac as expert
from madaac_utils.demos import Transitions


def task(obs_sizes: list[int], num_actions: list[int]) -> SimpleNamespace:
    """What networks and buffers need to know about a task."""
    return SimpleNamespace(
        agents=[f"agent_{i}" for i in range(len(obs_sizes))],
        obs_sizes=np.array(obs_sizes),
        num_actions=np.array(num_actions),
        num_envs=8,
        episode_length=25,
    )


UNEQUAL = task([4, 7, 3], [5, 3, 2])
TWO = task([3, 11], [3, 5])
EQUAL = task([6, 6, 6, 6], [5, 5, 5, 5])
SIX = task([4, 7, 3, 5, 5, 6], [5, 3, 2, 5, 4, 3])
TASKS = pytest.mark.parametrize("envs", [UNEQUAL, TWO, EQUAL, SIX], ids=["unequal", "two", "equal", "six"])


def scripts(*modules):
    """Run a test for each of these scripts."""
    return pytest.mark.parametrize("script", modules, ids=[module.__name__ for module in modules])


ALL = scripts(madaac, expert, mairl, magail, cloning)
MAAC = scripts(madaac, expert)
MACK = scripts(mairl, magail)
IMITATION = scripts(madaac, mairl, magail)


def small_args(script, **changes):
    heads = {"attention_heads": 2} if script in (madaac, expert) else {}
    return script.Args(**({"hidden_size": 16} | heads | changes))


def random_transitions(envs, batch: int = 7, seed: int = 0) -> Transitions:
    """Observations are zero where an agent has no input, and actions are those that an agent has."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, len(envs.agents), batch, int(envs.obs_sizes.max()))
    obs, next_obs = torch.randn(shape, generator=generator, dtype=torch.float64)
    for i, size in enumerate(envs.obs_sizes):
        obs[i, :, size:] = next_obs[i, :, size:] = 0.0
    actions = torch.stack([torch.randint(int(n), (batch,), generator=generator) for n in envs.num_actions])
    return Transitions(obs, actions, next_obs)


def random_batch(script, envs, batch: int = 7, seed: int = 0):
    """A batch of MAAC; every third transition ends an episode."""
    rewards = torch.randn(len(envs.agents), batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    terminated = (torch.arange(batch) % 3 == 0).double()
    return script.Batch(*random_transitions(envs, batch, seed), rewards, terminated)


def random_rollout(script, envs, steps: int = 5, copies: int = 8, seed: int = 0):
    """A rollout of MACK in which no episode ends."""
    agents = len(envs.agents)

    def steps_first(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(steps, copies, agents, *x.shape[2:]).contiguous()

    generator = torch.Generator().manual_seed(seed)
    return script.Rollout(
        *map(steps_first, random_transitions(envs, steps * copies, seed)),
        rewards=torch.randn(steps, copies, agents, generator=generator, dtype=torch.float64),
        done=torch.zeros(steps, copies, dtype=torch.bool),
        time=(torch.arange(steps, dtype=torch.float64) / steps)[:, None].expand(steps, copies).contiguous(),
    )


def plain_mlp(network, i: int, x: torch.Tensor) -> torch.Tensor:
    """The output of agent i's network with leaky ReLUs for one input, layer by layer."""
    layers = [(module.weight[i], module.bias[i, 0]) for module in network if hasattr(module, "weight")]
    for weight, bias in layers[:-1]:
        x = x @ weight + bias
        x = torch.where(x > 0, x, 0.01 * x)
    return x @ layers[-1][0] + layers[-1][1]


def one_hot(action: torch.Tensor, size: int) -> torch.Tensor:
    return torch.eye(size, dtype=torch.float64)[action]


def huber(error: torch.Tensor) -> torch.Tensor:
    return 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
