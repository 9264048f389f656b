"""Behavioural cloning: maximum likelihood on the demonstrations, the yardstick for the other algorithms.

Every agent's policy learns to predict the expert's action from the agent's own observation. No episodes are played to
learn. A share of the demonstrations is held out, and the policies that predict it best are kept.
The networks of all agents are stacked: weights [agents, in, out], activations [agents, batch, in].
docs/bc_discrete.md explains the logged metrics and the choice of policies on held-out demonstrations.

    python bc_discrete.py --env-id cooperative_navigation --n-demos 50
"""

from dataclasses import dataclass

import tyro

from madaac_utils.arguments import ExperimentArgs


@dataclass
class Args(ExperimentArgs):
    # Experiment
    log_every: int = 50
    """updates between comparisons on held-out demonstrations and TensorBoard points, of which there are at least 50"""

    # Task
    env_id: str = "cooperative_navigation"
    """the task: one of ours, one of mpe2's by its short name, or the module path of a PettingZoo environment"""
    n_demos: int = 50
    """number of demonstrations to learn from, the first ones of the file, including those held out"""
    demos: str = ""
    """a file of your own demonstrations (.npz) instead of those shipped for the task"""
    num_envs: int = 100
    """copies of the task in which the kept policies play one episode at every logged point, for charts/nss only"""

    # Algorithm
    updates: int = 2000
    """gradient steps"""
    batch_size: int = 100
    """transitions per update"""
    lr: float = 3e-3
    """Adam step size"""
    weight_decay: float = 3e-3
    """L2 regularisation in Adam"""
    hidden_size: int = 128
    """units of every hidden layer"""
    held_out_fraction: float = 0.1
    """share of the --n-demos demonstrations that is held out, at least one demonstration"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import torch
import torch.nn as nn

from env_utils import RecordEpisodes, make_envs
from madaac_utils.demos import Demos, Transitions, load_demos, reference_scores
from madaac_utils.files import UserError, exit_on_user_error
from madaac_utils.run import Run

# Networks, stacked over agents


class StackedLinear(nn.Module):
    """One linear layer per agent: [agents, batch, in] -> [agents, batch, out]. Initialised as nn.Linear is."""

    def __init__(self, fan_in: torch.Tensor, size_in: int, size_out: int):
        super().__init__()
        # The inputs of an agent may be zero-padded to size_in; fan_in [agents] counts the real ones.
        bound = fan_in.float().rsqrt()[:, None, None]
        self.weight = nn.Parameter(bound * torch.empty(len(fan_in), size_in, size_out).uniform_(-1, 1))
        self.bias = nn.Parameter(bound * torch.empty(len(fan_in), 1, size_out).uniform_(-1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Policies(nn.Module):
    """pi_i(a_i | o_i) of all agents."""

    def __init__(self, envs, hidden: int):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        widest_action = int(num_actions.max())
        wide = torch.full_like(obs_sizes, hidden)
        self.network = nn.Sequential(
            StackedLinear(obs_sizes, int(obs_sizes.max()), hidden),
            nn.LeakyReLU(),
            StackedLinear(wide, hidden, hidden),
            nn.LeakyReLU(),
            StackedLinear(wide, hidden, widest_action),
        )
        has_action = (torch.arange(widest_action) < num_actions[:, None])[:, None]  # [agents, 1, widest action]
        self.register_buffer("has_action", has_action, persistent=False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """obs [agents, batch, widest obs] -> logits [agents, batch, widest action]; -1e9 for actions an agent lacks."""
        return self.network(obs).masked_fill(~self.has_action, -1e9)


class KeptPolicies(Policies):
    """The policies with the highest held-out accuracy so far."""

    def __init__(self, envs, hidden: int):
        super().__init__(envs, hidden)
        self.register_buffer("accuracy", torch.tensor(-1.0))

    @torch.no_grad()
    def keep_better(self, policies: Policies, accuracy: torch.Tensor) -> None:
        """Take over `policies` if they are at least as accurate.

        All agents change at once, although they learn independently: a few demonstrations are too few to choose for
        each agent by itself. Of equally accurate policies the later ones are kept.
        """
        if accuracy >= self.accuracy:
            self.accuracy.copy_(accuracy)
            for kept, new in zip(self.parameters(), policies.parameters()):
                kept.copy_(new)


def sample(log_probs: torch.Tensor) -> torch.Tensor:
    """Draw actions [agents, batch]: argmax of p / Exp(1) is distributed as p."""
    return (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1)


# Losses


def cloning_loss(policies: Policies, batch: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
    """-log pi_i(a_i | o_i) and whether a_i is the most probable action, both averaged over the batch, [agents]."""
    log_probs = policies(batch.obs).log_softmax(-1)
    log_prob = log_probs.gather(-1, batch.actions[..., None])[..., 0]  # [agents, batch]
    return -log_prob.mean(1), (log_probs.argmax(-1) == batch.actions).float().mean(1)


def hold_out(demos: Demos, args: Args, device: torch.device) -> tuple[Transitions, Transitions]:
    """Split the first --n-demos demonstrations into those to learn from and the last few, which are held out.

    Demonstrations beyond --n-demos play no part, because the other algorithms do not see them either.
    """
    demos = demos.first(args.n_demos)
    number = max(1, round(args.held_out_fraction * args.n_demos))
    if number >= args.n_demos:
        raise UserError(
            f"--n-demos {args.n_demos} leaves nothing to learn from when {number} of them are held out; "
            f"use more demonstrations or a smaller --held-out-fraction"
        )
    return demos[:-number].transitions(device), demos[-number:].transitions(device)


@torch.no_grad()
def play_episodes(policies: Policies, envs: RecordEpisodes, device: torch.device) -> None:
    """Play one episode in every copy of the task, for the log."""
    with torch.random.fork_rng():  # how often a run logs does not change what it learns
        for _ in range(envs.episode_length):
            obs = torch.as_tensor(envs.obs, device=device).transpose(0, 1)
            envs.step(sample(policies(obs).log_softmax(-1)).T.cpu().numpy())


def main(args: Args) -> None:
    run = Run(__file__, args, budget="updates")  # a new run, or the one that --resume names
    args, device = run.args, run.device
    envs = RecordEpisodes(make_envs(args.env_id, args.num_envs, args.seed))
    demos = load_demos(args.demos or args.env_id, envs)
    references = reference_scores(args.env_id, args.demos)
    expert, held_out = hold_out(demos, args, device)

    policies = Policies(envs, args.hidden_size).to(device)
    kept_policies = KeptPolicies(envs, args.hidden_size).to(device)
    optimizer = torch.optim.Adam(policies.parameters(), args.lr, weight_decay=args.weight_decay, fused=True)
    # `policies` are those that Run saves and evaluates: here the kept ones.
    run.start(envs, references, policies=kept_policies, trained_policies=policies, optimizer=optimizer)

    for _ in run.steps():
        loss, accuracy = cloning_loss(policies, expert.sample(args.batch_size))
        optimizer.zero_grad()
        loss.sum().backward()  # the sum over agents, so that each learns as if it were alone
        optimizer.step()

        if run.due(run.log_every):
            with torch.no_grad():
                held_out_loss, held_out_accuracy = cloning_loss(policies, held_out)
            kept_policies.keep_better(policies, held_out_accuracy.mean())
            play_episodes(kept_policies, envs, device)
            run.log(
                {
                    "losses/policy": loss.detach().mean(),
                    "losses/held_out": held_out_loss.mean(),
                    "cloning/accuracy": accuracy.mean(),
                    "cloning/accuracy_held_out": held_out_accuracy.mean(),
                    "cloning/accuracy_kept": kept_policies.accuracy,
                }
            )

    run.finish(n_demos=args.n_demos)


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
