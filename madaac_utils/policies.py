"""Policies on disk: any script can rebuild one from its file alone.

The tensors are those of networks.py, and obs_mean and obs_var [agents, widest observation] if observations are
normalised: (o - mean) / sqrt(var + 1e-8), clipped to [-10, 10].
"""

from pathlib import Path

import numpy as np
import torch

from env_utils import Policy
from madaac_utils.networks import SavedNetwork, describe, load_tensors, rebuilding, require_same

# Of files that do not list their layers, such as the shipped experts
DEFAULT_LAYERS = [["linear"], ["LeakyReLU", 0.01], ["linear"], ["LeakyReLU", 0.01], ["linear"]]


class SavedPolicy:
    """The policies of all agents, as a file describes them."""

    def __init__(self, tensors: dict[str, torch.Tensor], header: dict, origin: Path | str):
        self.header, self.tensors, num_actions = header, tensors, torch.tensor(header["num_actions"])
        self.missing = torch.arange(num_actions.max()) >= num_actions[:, None, None]  # [agents, 1, widest action]
        with rebuilding(origin):
            self.network = SavedNetwork(header.get("layers", DEFAULT_LAYERS), tensors)
            logits = self.logits(torch.zeros(2, len(header["agents"]), max(header["obs_sizes"])))
            if logits[0].shape != self.missing[:, 0].shape:
                raise ValueError(f"the network has outputs of shape {list(logits.shape)}")
            if "obs_var" in tensors and (tensors["obs_var"] < 0).any():
                raise ValueError("a variance is negative")

    @torch.no_grad()
    def logits(self, obs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """[B, agents, widest observation] -> [B, agents, widest action]; -inf for actions that an agent lacks."""
        x = torch.as_tensor(obs).transpose(0, 1)  # [agents, B, widest]
        if self.tensors.keys() & {"obs_mean", "obs_var"}:
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


def describe_policy(policies, envs, normalizer=None) -> SavedPolicy:
    """A script's policies as a file holds them; `normalizer` has the mean and var of observations, if any.

    An error is raised if the description does not compute what the policies compute.
    """
    tensors, header = describe(policies.network, envs, kind="stacked_mlp_policy")
    if normalizer is not None:
        tensors |= {"obs_mean": normalizer.mean.float().cpu(), "obs_var": normalizer.var.float().cpu()}
    policy = SavedPolicy(tensors, header, "the policy")
    device = next(policies.parameters()).device

    def in_memory(obs: torch.Tensor) -> torch.Tensor:
        x = obs.to(device)
        if normalizer is not None:
            x = normalizer.normalized(x).clamp(-10, 10)
        return policies(x).log_softmax(-1).cpu().masked_fill(policy.missing, 0)

    def described(obs: torch.Tensor) -> torch.Tensor:
        return policy.logits(obs.transpose(0, 1)).log_softmax(-1).transpose(0, 1).masked_fill(policy.missing, 0)

    require_same(described, in_memory, envs, "`network`, the nn.Sequential of the policies,")
    return policy


def load_policy(path: Path, envs=None) -> SavedPolicy:
    """Rebuild a policy from its file. With `envs`, it must fit that task."""
    return SavedPolicy(*load_tensors(path, "stacked_mlp_policy", "policy", envs), path)
