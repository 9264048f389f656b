"""MA-DAAC with discriminators that attend: g_i(o_i, a_i) is local, and h_i also sees what i attends to in the others.

    python studies/attending_discriminators.py --env-id rover_tower_8 --n-demos 50 --total-timesteps 100000

Keys, queries and values are shared by all agents, as in the critic, so that parameters grow linearly with their number.
All arguments are those of madaac_discrete.py. The run folder says that the run is one of madaac_discrete.py with
decentralized discriminators, and it cannot be resumed. docs/madaac_discrete.md has the result.
"""

import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import madaac_discrete as madaac
from madaac_discrete import Attention, StackedLinear
from madaac_utils.files import UserError, exit_on_user_error


class AttendingNetwork(nn.Module):
    """One output per agent, from its observation and what it attends to among the observations of the others."""

    def __init__(self, obs_sizes: torch.Tensor, hidden: int, heads: int):
        super().__init__()
        wide = torch.full_like(obs_sizes, hidden)
        self.encode = StackedLinear(obs_sizes, int(obs_sizes.max()), hidden)
        self.attention = Attention(len(obs_sizes), hidden, heads)
        self.head = nn.Sequential(
            StackedLinear(2 * wide, 2 * hidden, hidden), nn.LeakyReLU(), StackedLinear(wide, hidden, 1)
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """[agents, batch, widest obs] -> [agents, batch, 1]"""
        e = F.leaky_relu(self.encode(obs))
        return self.head(torch.cat([e, self.attention(e, e)[0]], -1))


class AttendingDiscriminators(madaac.Discriminators):
    def __init__(self, envs, args: madaac.Args):
        super().__init__(envs, args)
        self.h = AttendingNetwork(torch.as_tensor(envs.obs_sizes), args.hidden_size, args.attention_heads)


def clip(module: nn.Module, max_norm: float, clip_each_agent=madaac.clip_each_agent) -> torch.Tensor:
    """Attending discriminators are not a stack of networks: their gradients are clipped together."""
    if isinstance(module, AttendingDiscriminators):
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    return clip_each_agent(module, max_norm)


def main(args: madaac.Args) -> None:
    if args.discriminator != "decentralized" or args.resume:
        raise UserError("--discriminator and --resume do not go with this study")
    args.exp_name = args.exp_name or Path(__file__).stem
    madaac.Discriminators, madaac.clip_each_agent = AttendingDiscriminators, clip
    madaac.main(args)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(madaac.Args, description=__doc__))
