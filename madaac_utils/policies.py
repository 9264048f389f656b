"""Policies on disk: any script can rebuild one from its file alone.

The tensors are those of networks.py, and obs_mean and obs_var [agents, widest observation] if observations are
normalised: (o - mean) / sqrt(var + 1e-8), clipped to [-10, 10].
"""

from pathlib import Path

import numpy as np
import torch

from env_utils import Policy
from madaac_utils.files import UserError
from madaac_utils.networks import DEFAULT_LAYERS, SavedNetwork, describe, load_tensors, save_tensors


class SavedPolicy:
    """The policies of all agents, read from a file."""

    def __init__(self, tensors: dict[str, torch.Tensor], header: dict, origin: Path | str):
        self.header, self.tensors = header, tensors
        self.network = SavedNetwork(header.get("layers", DEFAULT_LAYERS), tensors, origin)
        agents, widest = len(header["agents"]), max(header["obs_sizes"])
        self.network.require_shapes(agents, widest, max(header["num_actions"]), stacked=True, origin=origin)
        moments = [tensors[name] for name in ("obs_mean", "obs_var") if name in tensors]
        if moments and ([x.shape for x in moments] != 2 * [(agents, widest)] or (moments[-1] < 0).any()):
            raise UserError(f"{origin}: obs_mean and obs_var must be means and variances [{agents}, {widest}]")
        self.missing = torch.arange(max(header["num_actions"])) >= torch.tensor(header["num_actions"])[:, None, None]

    @torch.no_grad()
    def logits(self, obs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """[B, agents, widest observation] -> [B, agents, widest action]; -inf for actions that an agent lacks."""
        x = torch.as_tensor(obs).transpose(0, 1)  # [agents, B, widest]
        if "obs_mean" in self.tensors:
            x = (x - self.tensors["obs_mean"][:, None]) / (self.tensors["obs_var"][:, None] + 1e-8).sqrt()
            x = x.clamp(-10, 10)
        return self.network(x).masked_fill(self.missing, -torch.inf).transpose(0, 1)

    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The most probable actions, [B, agents]."""
        return self.logits(obs).argmax(-1).numpy()

    def stochastic(self, seed: int) -> Policy:
        """A policy that draws actions by their probabilities."""
        generator = torch.Generator().manual_seed(seed)

        def act(obs: np.ndarray) -> np.ndarray:
            logits = self.logits(obs)
            noise = torch.empty_like(logits).exponential_(generator=generator)
            return (logits - noise.log()).argmax(-1).numpy()  # Gumbel noise: distributed as softmax(logits)

        return act


def policy_tensors(policies, normalizer=None) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and header of a script's policies; `normalizer` has the mean and var of observations, if any."""
    layers, tensors = describe(policies.network)
    if normalizer is not None:
        tensors |= {"obs_mean": normalizer.mean.float().cpu(), "obs_var": normalizer.var.float().cpu()}
    return tensors, {"kind": "stacked_mlp_policy", "layers": layers}


def save_policy(path: Path, tensors: dict[str, torch.Tensor], header: dict, envs) -> None:
    save_tensors(path, tensors, header, envs)


def load_policy(path: Path, envs=None) -> SavedPolicy:
    """Rebuild a policy from its file. With `envs`, it must fit that task."""
    return SavedPolicy(*load_tensors(path, "stacked_mlp_policy", "policy", envs), path)


@torch.no_grad()
def require_same_policy(saved: SavedPolicy, policies, envs, normalizer=None) -> None:
    """Raise an error unless the policy on disk computes what the network in memory computes."""
    device = next(policies.parameters()).device
    obs = random_observations(envs)
    x = obs.to(device)
    if normalizer is not None:
        x = normalizer.normalized(x).clamp(-10, 10)
    expected = policies(x).log_softmax(-1).cpu()
    found = saved.logits(obs.transpose(0, 1)).log_softmax(-1).transpose(0, 1)
    exists = ~saved.missing.expand_as(found)
    if not torch.allclose(found[exists], expected[exists], rtol=1e-3, atol=1e-4, equal_nan=True):
        raise UserError(
            "the policy read back from its file differs from the one in memory: the script's Policies compute "
            "something that `network`, their nn.Sequential, does not describe"
        )


def random_observations(envs, batch: int = 16) -> torch.Tensor:
    """Normally distributed observations [agents, batch, widest], zero-padded. Does not touch torch's generator."""
    obs = torch.randn(len(envs.agents), batch, int(max(envs.obs_sizes)), generator=torch.Generator().manual_seed(0))
    return obs * (torch.arange(obs.shape[-1]) < torch.as_tensor(envs.obs_sizes)[:, None, None])
