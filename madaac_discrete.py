"""MA-DAAC: multi-agent discriminator-actor-attention-critic, docs/madaac_discrete.md.

Jeon, Barde, Nowrouzezahrai, Pineau 2020, "Scalable Multi-Agent Inverse Reinforcement Learning via
Actor-Attention-Critic" (arXiv 2002.10525), algorithm 1. From demonstrations it learns a policy and a reward per agent:
discriminators tell learner from expert, their logits are the rewards of an off-policy multi-agent actor-critic (MAAC).
Equation numbers below are the paper's. D is the probability of *expert* everywhere, and everything is done in logits.
All agents' networks are stacked: weights [agents, in, out], activations [agents, batch, in].

    python madaac_discrete.py --env-id simple_tag --n-demos 50
"""

import copy
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import env_utils
from env_utils import UserError, load_demos, make_envs


@dataclass
class Args:
    # Experiment
    exp_name: str = "madaac_discrete"
    """name of the experiment, part of the run folder's name"""
    seed: int = 1
    """seed of everything random; the same seed gives the same policy on the same machine"""
    torch_threads: int = 0
    """threads that torch may use; 0 leaves it to torch (one thread a run is best when several run side by side)"""
    cuda: bool = False
    """train on the GPU"""
    track: bool = False
    """log to Weights & Biases too (needs `pip install wandb`)"""
    capture_video: bool = False
    """write a short video of the learned policy into the run folder"""
    runs: str = "runs"
    """where run folders go"""
    resume: str = ""
    """a run folder to go on with; its config.json has the other arguments, and only these may be
    new: --torch-threads, --save-every, --track, --capture-video, --eval-episodes, paths of the same files, and
    --total-timesteps, to make it longer or end it sooner"""
    save_every: int = 300
    """seconds between checkpoints at the least"""
    log_every: int = 10_000
    """environment steps between TensorBoard points"""
    eval_episodes: int = 500
    """fresh episodes of the evaluation at the end, stochastic and greedy"""

    # Task
    env_id: str = "cooperative_navigation"
    """the task: ours, mpe2's by short name, or a PettingZoo module path"""
    n_demos: int = 50
    """how many demonstrations to learn from: the first ones of the file"""
    demos: str = ""
    """a file of demonstrations of your own (.npz); default: those shipped for the task"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is the paper's 50,000 episodes, 100,000 for rover_tower"""
    num_envs: int = 100
    """copies of the task stepped in lockstep"""

    # Algorithm (the paper's table "Hyperparameters for MA-DAAC"; else docs/madaac_discrete.md)
    gamma: float = 0.995
    """discount factor"""
    buffer_size: int = 1_250_000
    """transitions in the replay buffer"""
    batch_size: int = 1000
    """transitions of the learner, and as many of the expert, in an update"""
    learning_starts: int = 1000
    """environment steps before the first update"""
    policy_lr: float = 1e-3
    """Adam step size of the policies"""
    critic_lr: float = 1e-3
    """Adam step size of the critic"""
    policy_tau: float = 5e-4
    """target policy update rate"""
    critic_tau: float = 5e-4
    """target critic update rate"""
    alpha: float = 0.01
    """policy entropy coefficient"""
    entropy_in_target: bool = True
    """add the entropy bonus to the critic's target, as the released MAAC code does; the paper's equation has none"""
    update_period: int = 100
    """environment steps between rounds of updates"""
    updates_per_period: int = 1
    """updates in a round (the released MAAC code does 4)"""
    critic_max_grad_norm: float = 1.0
    """clip the norm of the critic's gradient"""
    policy_max_grad_norm: float = 0.5
    """clip the norm of each policy's gradient"""
    critic_weight_decay: float = 0.0
    """L2 regularisation in the critic's Adam"""
    critic_batch_norm: bool = True
    """normalise the critic's inputs over each batch, as the released code does; policies see raw observations"""
    hidden_size: int = 128
    """units of every hidden layer"""
    attention_heads: int = 4
    """heads of the critic's attention"""
    attention_regularization: float = 1e-6
    """weight of the squared attention logits; the released 0.001 is for rewards that are not divided by 25"""
    logit_regularization: float = 1e-3
    """weight of the squared policy logits"""

    # Discriminator
    discriminator: Literal["decentralized", "centralized"] = "decentralized"
    """decentralized: g_i(o_i, a_i), h_i(o_i), a network an agent; centralized: one network on all observations"""
    disc_actions: tyro.conf.FlagCreatePairsOff[bool] = False
    """let g see actions also if centralized (decentralized ones do anyway), which the paper's does not"""
    no_disc_actions: tyro.conf.FlagCreatePairsOff[bool] = False
    """keep actions from g"""
    disc_lr: float = 5e-4
    """Adam step size of the discriminators"""
    disc_entropy: float = 0.01
    """weight of the discriminators' entropy, which is encouraged"""
    disc_max_grad_norm: float = 10.0
    """clip the norm of the gradient, of each agent's discriminator if decentralized"""
    log_prob_min: float = -20.0
    """log pi in the discriminator is at least this, so that a reward cannot run off to infinity"""
    log_prob_before_policy_step: bool = False
    """let the discriminator's loss use log pi from before this round's policy step instead of after it"""
    debug_true_reward: Annotated[bool, tyro.conf.arg(aliases=["--true-reward"])] = False
    """train the policies on the task's own reward with the same loop, to tell a broken learner from a broken reward"""


# Networks, stacked over agents.


class FewOutputs(torch.autograd.Function):
    """x [num, batch, in] @ weight [num, in, out] with a handful of outputs.

    On a CPU and large batches the transposed products are several times as fast as those that torch.bmm and its
    gradient make.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(weight.mT, x.mT).mT

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = grad * weight.mT if weight.shape[2] == 1 else torch.bmm(grad, weight.mT)
        return grad_x, torch.bmm(grad.mT, x).mT


class StackedLinear(nn.Module):
    """`num` linear layers at once: [num, batch, in] -> [num, batch, out]. Initialised as nn.Linear is."""

    def __init__(self, num: int, fan_in: torch.Tensor | int, size_in: int, size_out: int):
        super().__init__()
        # An agent's inputs may be fewer than size_in, the rest being zero padding: its bound is by its own number.
        bound = torch.as_tensor(fan_in, dtype=torch.float32).expand(num).rsqrt()[:, None, None]
        self.weight = nn.Parameter(bound * torch.empty(num, size_in, size_out).uniform_(-1, 1))
        self.bias = nn.Parameter(bound * torch.empty(num, 1, size_out).uniform_(-1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.shape[2] < 16:
            return self.bias + FewOutputs.apply(x, self.weight)
        return torch.baddbmm(self.bias, x, self.weight)


class Policies(nn.Module):
    """pi_i(a_i | o_i) of all agents: two hidden layers each."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, hidden: int):
        super().__init__()
        num, widest = len(obs_sizes), int(num_actions.max())
        self.layers = nn.ModuleList(
            [
                StackedLinear(num, obs_sizes, int(obs_sizes.max()), hidden),
                StackedLinear(num, hidden, hidden, hidden),
                StackedLinear(num, hidden, hidden, widest),
            ]
        )
        # [agents, 1, widest]: 1 for the actions an agent has, 0 for padding
        has_action = (torch.arange(widest) < num_actions[:, None]).float()[:, None]
        self.register_buffer("has_action", has_action, persistent=False)
        self.all_have_all = bool(has_action.all())

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """obs [agents, batch, widest obs] -> logits and log probabilities [agents, batch, widest action]."""
        x = F.leaky_relu(self.layers[0](obs), inplace=True)
        x = F.leaky_relu(self.layers[1](x), inplace=True)
        logits = self.layers[2](x)
        if self.all_have_all:
            return logits, F.log_softmax(logits, -1)
        # A padding action has probability zero; -1e9 and not -inf, since 0 * inf has no value.
        return logits * self.has_action, F.log_softmax(logits.masked_fill(self.has_action == 0, -1e9), -1)


def sample(log_probs: torch.Tensor) -> torch.Tensor:
    """Actions ~ softmax, [agents, batch]: argmax of p / Exp(1) is distributed as p."""
    return (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1)


def taken(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The entries of values [agents, batch, actions] at the actions [agents, batch]."""
    return values.gather(-1, actions[..., None])[..., 0]


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, myself: torch.Tensor) -> tuple:
    """Every agent attends to all others: queries, keys, values [agents, rows, d], rows being those of batch and heads.

    myself [agents, agents] is the identity. Returns sum_j P_ij v_j [agents, rows, d], the logits and the weights P,
    both [rows, agents, agents].
    """
    scale = 1 / math.sqrt(queries.shape[-1])
    if len(queries) <= 3:  # matrices so small are multiplied faster element by element
        logits = (queries[:, None] * keys).sum(-1)  # [agents, agents, rows]
        weights = (scale * logits).masked_fill(myself[:, :, None], -torch.inf).softmax(1)
        return (weights[..., None] * values).sum(1), logits.permute(2, 0, 1), weights.permute(2, 0, 1)
    logits = torch.bmm(queries.transpose(0, 1), keys.permute(1, 2, 0))
    weights = (scale * logits).masked_fill(myself, -torch.inf).softmax(-1)
    return torch.bmm(weights, values.transpose(0, 1)).transpose(0, 1), logits, weights


class AttentionCritic(nn.Module):
    """Q_i(o, a) of all agents, for all own actions; an agent attends to the others' observations and actions."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, hidden: int, heads: int, batch_norm: bool):
        super().__init__()
        num, self.widest_action = len(obs_sizes), int(num_actions.max())
        widest_obs = int(obs_sizes.max())
        self.heads, self.batch_norm = heads, batch_norm
        self.encode_state = StackedLinear(num, obs_sizes, widest_obs, hidden)
        self.encode_state_action = StackedLinear(num, obs_sizes + num_actions, widest_obs + self.widest_action, hidden)
        # Shared by all agents; the heads' projections stand side by side in one matrix.
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden)
        # f_i of the state encoding and of what was attended to: two halves of one layer, spared a concatenation.
        self.head_state = StackedLinear(num, 2 * hidden, hidden, hidden)
        self.head_attended = nn.Parameter(StackedLinear(num, 2 * hidden, hidden, hidden).weight.detach())
        self.head_out = StackedLinear(num, hidden, hidden, self.widest_action)
        self.register_buffer("myself", torch.eye(num, dtype=torch.bool), persistent=False)

    def shared_parameters(self) -> list[nn.Parameter]:
        """Those that all agents' losses reach: their gradient is divided by the number of agents (released code)."""
        modules = (self.query, self.key, self.value, self.encode_state_action)
        return [parameter for module in modules for parameter in module.parameters()]

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        if not self.batch_norm:
            return x
        var, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """obs [agents, batch, widest], actions [agents, batch].

        Returns Q [agents, batch, widest action] for every own action, the squared attention logits (summed over
        agents and heads, averaged over batch and others) and the attention weights [batch * heads, agents, agents].
        """
        num, batch, _ = obs.shape
        one_hot = F.one_hot(actions, self.widest_action).to(obs.dtype)
        s = F.leaky_relu(self.encode_state(self.normalized(obs)), inplace=True)  # [agents, batch, hidden]
        e = F.leaky_relu(self.encode_state_action(self.normalized(torch.cat([obs, one_hot], -1))), inplace=True)

        # P_ij ~ exp((W_K e_j)^T W_Q s_i / sqrt(d)), v_j = sigma(W_V e_j). The paper's text has e_i in the query; with
        # the own action in it Q_i could not be had for all own actions at once, and the released code uses s_i.
        def by_head(x: torch.Tensor) -> torch.Tensor:
            """[agents, batch, heads * d] -> [agents, batch * heads, d], a view"""
            return x.view(num, batch * self.heads, -1)

        queries, keys = by_head(self.query(s)), by_head(self.key(e))
        values = by_head(F.leaky_relu(self.value(e), inplace=True))
        attended, logits, weights = attend(queries, keys, values, self.myself)
        attended = attended.reshape(num, batch, -1)  # [agents, batch, hidden]
        squared_logits = logits.masked_fill(self.myself, 0.0).square().sum() / (batch * (num - 1))

        x = torch.baddbmm(self.head_state(s), attended, self.head_attended)
        return self.head_out(F.leaky_relu(x, inplace=True)), squared_logits, weights


class StackedMLP(nn.Module):
    """A network with two hidden layers for each agent: [agents, batch, in] -> [agents, batch]."""

    def __init__(self, fan_in: torch.Tensor, size_in: int, hidden: int):
        super().__init__()
        num = len(fan_in)
        self.layers = nn.ModuleList(
            [
                StackedLinear(num, fan_in, size_in, hidden),
                StackedLinear(num, hidden, hidden, hidden),
                StackedLinear(num, hidden, hidden, 1),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x), inplace=True)
        return self.layers[-1](x)[..., 0]


class JointMLP(nn.Module):
    """One trunk on what all agents see, and a head for each agent: [agents, batch, in] -> [agents, batch]."""

    def __init__(self, num: int, size_in: int, hidden: int):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(num * size_in, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU()
        )
        self.heads = nn.Linear(hidden, num)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(self.trunk(x.transpose(0, 1).flatten(1))).T


class Discriminators(nn.Module):
    """f_i = g_i + gamma h_i(o') - h_i(o), equation (4): the logit of D_i is f_i - log pi_i(a_i | o_i)."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, args: Args):
        super().__init__()
        self.gamma, self.widest_action = args.gamma, int(num_actions.max())
        self.decentralized = args.discriminator == "decentralized"
        self.sees_actions = (self.decentralized or args.disc_actions) and not args.no_disc_actions
        widest, hidden = int(obs_sizes.max()), args.hidden_size
        extra = self.widest_action if self.sees_actions else 0
        if self.decentralized:
            own_inputs = obs_sizes + (num_actions if self.sees_actions else 0)
            self.g, self.h = StackedMLP(own_inputs, widest + extra, hidden), StackedMLP(obs_sizes, widest, hidden)
        else:
            self.g = JointMLP(len(obs_sizes), widest + extra, hidden)
            self.h = JointMLP(len(obs_sizes), widest, hidden)

    def reward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """g alone, the recovered reward: obs [agents, batch, widest], actions [agents, batch] -> [agents, batch]."""
        if not self.sees_actions:
            return self.g(obs)
        return self.g(torch.cat([obs, F.one_hot(actions, self.widest_action).to(obs.dtype)], -1))

    def forward(self, obs: torch.Tensor, actions: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:
        """f [agents, batch]"""
        h, next_h = self.h(torch.cat([obs, next_obs], 1)).chunk(2, 1)
        return self.reward(obs, actions) + self.gamma * next_h - h


# Data


class ReplayBuffer:
    """The latest transitions of all agents, in a ring."""

    names = ("obs", "next_obs", "actions", "rewards", "terminated")

    def __init__(self, capacity: int, num_agents: int, widest_obs: int):
        # Not initialised: memory that was never written is never taken from the system.
        self.obs = torch.empty(capacity, num_agents, widest_obs)
        self.next_obs = torch.empty(capacity, num_agents, widest_obs)
        self.actions = torch.empty(capacity, num_agents, dtype=torch.int64)
        self.rewards = torch.empty(capacity, num_agents)
        self.terminated = torch.empty(capacity)
        self.added = 0

    def add(self, **transitions: np.ndarray) -> None:
        """One array [n, ...] per name."""
        n = len(transitions["terminated"])
        rows = (self.added + torch.arange(n)) % len(self.terminated)
        for name in self.names:
            store = getattr(self, name)
            store[rows] = torch.as_tensor(transitions[name]).to(store.dtype)
        self.added += n

    def __len__(self) -> int:
        return min(self.added, len(self.terminated))

    def sample(self, batch: int) -> list[torch.Tensor]:
        """obs, next_obs [agents, batch, widest], actions, rewards [agents, batch], terminated [batch]."""
        rows = torch.randint(len(self), (batch,))
        picked = [getattr(self, name)[rows] for name in self.names]
        return [part.transpose(0, 1) if part.dim() > 1 else part for part in picked]

    def state_dict(self) -> dict:
        # Copies: a checkpoint of a slice would hold all of the memory it is a slice of.
        return {name: getattr(self, name)[: len(self)].clone() for name in self.names} | {"added": self.added}

    def load_state_dict(self, state: dict) -> None:
        for name in self.names:
            getattr(self, name)[: len(state[name])] = state[name]
        self.added = state["added"]


# Losses


def critic_loss(batch, critic, target_critic, target_policies, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (1): sum_i (y_i - Q_i)^2, here with the Huber loss, plus the released code's attention term."""
    obs, next_obs, actions, rewards, terminated = batch
    with torch.no_grad():
        _, next_log_probs = target_policies(next_obs)
        next_actions = sample(next_log_probs)  # a' ~ pi'(. | o')
        next_q = taken(target_critic(next_obs, next_actions)[0], next_actions)
        entropy_bonus = -args.alpha * taken(next_log_probs, next_actions)
        # y_i = r_i + gamma Q'_i(o', a') - alpha log pi'_i(a'_i | o'_i). The paper's equation leaves out the entropy;
        # the released code adds it neither discounted nor masked.
        y = rewards + args.gamma * (1 - terminated) * next_q + args.entropy_in_target * entropy_bonus
    q, squared_logits, attention = critic(obs, actions)
    q_taken = taken(q, actions)  # [agents, batch]
    td_loss = F.huber_loss(q_taken, y, reduction="none").mean(1).sum()
    loss = td_loss + args.attention_regularization * squared_logits
    return loss, {"td": td_loss.detach(), "attention": attention.detach(), "q": q_taken.detach(), "y": y}


def policy_loss(obs, policies, critic, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (2): grad log pi_i(a_i | o_i) A_i, with actions of all agents from the current policies."""
    logits, log_probs = policies(obs)
    actions = sample(log_probs.detach())
    log_prob = taken(log_probs, actions)  # [agents, batch]
    with torch.no_grad():  # nothing of this reaches the critic
        q = critic(obs, actions)[0]
        baseline = (log_probs.exp() * q).sum(-1)  # sum_a pi_i(a | o_i) Q_i(o, a_-i(a))
        advantage = taken(q, actions) - baseline
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    gradient_term = (log_prob * (args.alpha * log_prob - advantage).detach()).mean(1)
    logit_term = logits.square().mean(1).sum(-1) / policies.has_action.sum((1, 2))
    loss = (gradient_term + args.logit_regularization * logit_term).sum()
    return loss, {"entropy": entropy.mean(), "advantage": advantage}


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of every agent of a stack by itself; returns the norms [agents]."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= scale.view(-1, 1, 1)
    return norms


@torch.no_grad()
def move_target(target: nn.Module, online: nn.Module, tau: float) -> None:
    """theta' <- (1 - tau) theta' + tau theta"""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


def discriminator_loss(logits: torch.Tensor, batch: int, entropy_weight: float) -> tuple[torch.Tensor, dict]:
    """Equation (3), to be minimised, on logits [agents, learner's batch then expert's] of "this is the expert".

    -sum_i { mean_A log(1 - D_i) + mean_E log D_i }, with log D = -softplus(-logit), log(1 - D) = -softplus(logit),
    less the weighted entropy of the classification, H = softplus(logit) - logit sigmoid(logit).
    """
    learner, expert = logits[:, :batch], logits[:, batch:]
    cross_entropy = F.softplus(learner).mean(1) + F.softplus(-expert).mean(1)
    entropy = F.softplus(logits) - logits * torch.sigmoid(logits)
    entropy = entropy[:, :batch].mean(1) + entropy[:, batch:].mean(1)
    loss = (cross_entropy - entropy_weight * entropy).sum()
    return loss, {
        "disc_loss": cross_entropy.detach().mean(),
        "disc_entropy": entropy.detach().mean() / 2,
        "accuracy_learner": (learner.detach() < 0).float().mean(),
        "accuracy_expert": (expert.detach() > 0).float().mean(),
    }


def make_networks(obs_sizes: np.ndarray, num_actions: np.ndarray, args: Args, device="cpu") -> SimpleNamespace:
    """Everything an update changes: networks, targets and optimizers."""
    sizes, actions = torch.as_tensor(obs_sizes), torch.as_tensor(num_actions)
    policies = Policies(sizes, actions, args.hidden_size).to(device)
    critic = AttentionCritic(sizes, actions, args.hidden_size, args.attention_heads, args.critic_batch_norm).to(device)
    discriminators = Discriminators(sizes, actions, args).to(device)
    return SimpleNamespace(
        policies=policies,
        critic=critic,
        discriminators=discriminators,
        target_policies=copy.deepcopy(policies),
        target_critic=copy.deepcopy(critic),
        policy_optimizer=torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True),
        critic_optimizer=torch.optim.Adam(
            critic.parameters(), args.critic_lr, weight_decay=args.critic_weight_decay, fused=True
        ),
        disc_optimizer=torch.optim.Adam(discriminators.parameters(), args.disc_lr, fused=True),
    )


@torch.no_grad()  # a constant to the discriminator
def log_pi(policies: Policies, obs: torch.Tensor, actions: torch.Tensor, args: Args) -> torch.Tensor:
    """log pi_i(a_i | o_i) [agents, batch]"""
    return taken(policies(obs)[1], actions).clamp(min=args.log_prob_min)


def logits_expert_is_high(nets: SimpleNamespace, obs, actions, next_obs, args: Args) -> torch.Tensor:
    """The logit of D_i [agents, batch]: f_i - log pi_i(a_i | o_i)."""
    return nets.discriminators(obs, actions, next_obs) - log_pi(nets.policies, obs, actions, args)


def update(
    learner: list[torch.Tensor], expert: list[torch.Tensor], nets: SimpleNamespace, args: Args, episode_length: int
) -> dict[str, torch.Tensor]:
    """One training iteration of algorithm 1, lines 6 to 10. Returns what is worth logging.

    learner: obs, next_obs [agents, batch, widest], actions, rewards [agents, batch], terminated [batch];
    expert: obs, next_obs, actions.
    """
    obs, next_obs, actions, rewards, terminated = learner
    agents, batch, _ = obs.shape
    both_obs, both_next_obs, both_actions = (torch.cat([learner[k], expert[k]], 1) for k in range(3))

    # The discriminator does not change before its own step below, so this pass of f serves rewards and loss.
    f = nets.discriminators(both_obs, both_actions, both_next_obs)  # [agents, 2 * batch]
    log_pi_now = log_pi(nets.policies, both_obs, both_actions, args)
    # r_i = log D_i - log(1 - D_i) = f_i - log pi_i(a_i | o_i), with the current discriminator and policies
    learned_rewards = (f.detach() - log_pi_now)[:, :batch]
    rewards = (rewards if args.debug_true_reward else learned_rewards) / episode_length

    # Policy learning via MAAC
    maac_batch = (obs, next_obs, actions, rewards, terminated)
    loss_q, seen = critic_loss(maac_batch, nets.critic, nets.target_critic, nets.target_policies, args)
    nets.critic_optimizer.zero_grad(set_to_none=True)
    loss_q.backward()
    for parameter in nets.critic.shared_parameters():
        parameter.grad /= agents
    seen["critic_norm"] = nn.utils.clip_grad_norm_(nets.critic.parameters(), args.critic_max_grad_norm)
    nets.critic_optimizer.step()

    loss_pi, seen_pi = policy_loss(obs, nets.policies, nets.critic, args)
    nets.policy_optimizer.zero_grad(set_to_none=True)
    loss_pi.backward()
    seen["policy_norms"] = clip_each_agent(nets.policies, args.policy_max_grad_norm)
    nets.policy_optimizer.step()
    move_target(nets.target_critic, nets.critic, args.critic_tau)
    move_target(nets.target_policies, nets.policies, args.policy_tau)

    # Reward learning
    if not args.log_prob_before_policy_step:
        log_pi_now = log_pi(nets.policies, both_obs, both_actions, args)
    logits = f - log_pi_now
    loss_d, seen_d = discriminator_loss(logits, batch, args.disc_entropy)
    nets.disc_optimizer.zero_grad(set_to_none=True)
    loss_d.backward()
    if nets.discriminators.decentralized:
        seen["disc_norm"] = clip_each_agent(nets.discriminators, args.disc_max_grad_norm).max()
    else:
        seen["disc_norm"] = nn.utils.clip_grad_norm_(nets.discriminators.parameters(), args.disc_max_grad_norm)
    nets.disc_optimizer.step()
    rewards_seen = {"reward": learned_rewards, "log_pi": log_pi_now[:, :batch], "policy_loss": loss_pi.detach()}
    return seen | seen_pi | seen_d | rewards_seen


# Around training


def policy_tensors(policies: Policies) -> dict[str, torch.Tensor]:
    """What `env_utils.load_policy` rebuilds a policy from."""
    tensors = {}
    for k, layer in enumerate(policies.layers):
        tensors |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def check_args(args: Args) -> None:
    env_utils.check_common_args(args)
    if args.buffer_size < args.num_envs:
        raise UserError(f"--buffer-size {args.buffer_size} cannot hold one step of {args.num_envs} copies")


def main(args: Args) -> None:
    checkpoint = {}
    if args.resume:
        run_folder = Path(args.resume)
        checkpoint = env_utils.load_checkpoint(run_folder / "checkpoint.pt")
        args = env_utils.resumed_args(run_folder, args)
    check_args(args)
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    device = torch.device("cuda" if args.cuda else "cpu")
    torch.manual_seed(args.seed)
    envs = make_envs(args.env_id, args.num_envs, args.seed)
    if len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent; the critic attends to others and needs at least two")
    if args.capture_video:
        env_utils.require_can_draw(envs)
    if args.demos:
        args.demos = str(Path(args.demos).resolve())  # config.json is read from other folders too
    demos_from = Path(args.demos) if args.demos else args.env_id
    demos = load_demos(demos_from, args.n_demos, envs)
    unseen = env_utils.unseen_transitions(demos_from, args.n_demos, device)  # demonstrations nothing learns from
    references = env_utils.reference_scores(args.env_id, args.demos)  # scores of "expert" and "random" [agents]
    args.total_timesteps = env_utils.total_timesteps(args, envs)
    if args.learning_starts >= args.total_timesteps:
        raise UserError(
            f"--learning-starts {args.learning_starts} lies beyond the {args.total_timesteps} steps of the run"
        )
    expert_obs, expert_actions, expert_next_obs = (torch.as_tensor(x, device=device) for x in demos.transitions())
    if len(expert_obs) < args.batch_size:
        print(f"warning: only {len(expert_obs)} expert transitions for batches of {args.batch_size}")

    if not checkpoint:
        run_folder = env_utils.make_run_folder(args.runs, args.env_id, args.exp_name, args.seed, asdict(args))
    if args.track:
        env_utils.track(run_folder, asdict(args))
    writer = SummaryWriter(str(run_folder), purge_step=checkpoint["step"] + 1 if checkpoint else None)

    num_agents, widest_obs = len(envs.agents), int(envs.obs_sizes.max())
    nets = make_networks(envs.obs_sizes, envs.num_actions, args, device)
    buffer = ReplayBuffer(args.buffer_size, num_agents, widest_obs)
    modules = vars(nets) | {"buffer": buffer}
    obs = envs.reset()
    episode_return, recent_returns = np.zeros((args.num_envs, num_agents)), []
    step, seconds_before = 0, 0.0
    if checkpoint:
        for name, module in modules.items():
            module.load_state_dict(checkpoint[name])
        step, seconds_before, recent_returns = checkpoint["progress"]
        episode_return = checkpoint["episode_return"].numpy()
        obs = envs.set_state(env_utils.from_checkpoint(checkpoint["env_state"]))
        if not np.array_equal(obs, checkpoint["obs"]):  # a task that cannot be put back starts new episodes
            episode_return[:] = 0.0
        env_utils.set_rng_state(checkpoint["rng"])
        env_utils.save_resumed_args(run_folder, args)

    print(f"run folder: {run_folder}")
    interrupt = env_utils.Interrupt()
    first_step, started = step, time.time()
    last_saved = started
    progress = tqdm(total=args.total_timesteps, initial=step, unit="step", unit_scale=True, desc=args.env_id)
    # Algorithm 1
    while step < args.total_timesteps:
        # Sample rollouts with the current policies and add them to the buffer.
        with torch.no_grad():
            actions = sample(nets.policies(torch.as_tensor(obs, device=device).transpose(0, 1))[1]).T.cpu().numpy()
        next_obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        done = terminated | truncated
        buffer.add(obs=obs, next_obs=final_obs, actions=actions, rewards=rewards, terminated=terminated)
        obs = next_obs
        episode_return += rewards
        recent_returns = (recent_returns + episode_return[done].tolist())[-500:]
        episode_return[done] = 0.0
        previous, step = step, step + args.num_envs
        progress.update(args.num_envs)

        rounds = step // args.update_period - previous // args.update_period
        seen = {}
        for _ in range(rounds * args.updates_per_period if step >= args.learning_starts else 0):
            learner = [part.to(device) for part in buffer.sample(args.batch_size)]
            rows = torch.randint(len(expert_obs), (args.batch_size,), device=device)
            expert = [part[rows].transpose(0, 1) for part in (expert_obs, expert_next_obs, expert_actions)]
            seen = update(learner, expert, nets, args, envs.episode_length)

        # Log
        if seen and recent_returns and step // args.log_every > previous // args.log_every:
            mean_returns = np.mean(recent_returns, axis=0)
            nss = env_utils.mean_nss(mean_returns, references)
            for agent, value in zip(envs.agents, mean_returns):
                writer.add_scalar(f"charts/episodic_return-{agent}", value, step)
            for name, value in {
                "charts/nss": nss,
                "charts/SPS": (step - first_step) / (time.time() - started),
                "charts/seconds": seconds_before + time.time() - started,
                "charts/episodes": step / envs.episode_length,
                "losses/critic": seen["td"],
                "losses/policy": seen["policy_loss"],
                "losses/policy_entropy": seen["entropy"],
                "losses/attention_entropy": torch.special.entr(seen["attention"]).sum(-1).mean(),
                "losses/q_mean": seen["q"].mean(),
                "losses/q_abs_max": seen["q"].abs().max(),
                "losses/advantage_std": seen["advantage"].std(),
                "discriminator/loss": seen["disc_loss"],
                "discriminator/entropy": seen["disc_entropy"],
                "discriminator/accuracy_learner": seen["accuracy_learner"],
                "discriminator/accuracy_expert": seen["accuracy_expert"],
                "discriminator/reward_mean": seen["reward"].mean(),
                "discriminator/reward_std": seen["reward"].std(),
                "discriminator/log_pi_percentile_1": seen["log_pi"].flatten().quantile(0.01),
                "gradients/critic": seen["critic_norm"],
                "gradients/policy_max": seen["policy_norms"].max(),
                "gradients/discriminator": seen["disc_norm"],
            }.items():
                writer.add_scalar(name, float(value), step)
            accuracy = [f"expert {seen['accuracy_expert']:.2f}", f"learner {seen['accuracy_learner']:.2f}"]
            if unseen[0].numel():
                with torch.no_grad():
                    accuracy_unseen = (logits_expert_is_high(nets, *unseen, args) > 0).float().mean()
                writer.add_scalar("discriminator/accuracy_unseen_expert", float(accuracy_unseen), step)
                accuracy.insert(1, f"unseen expert {accuracy_unseen:.2f}")
            episodes = f"{step // envs.episode_length:,} episodes"
            progress.set_postfix_str(f"{episodes}, NSS {nss:.3f}, D right on {', '.join(accuracy)}")

        finished = step >= args.total_timesteps
        if finished or interrupt.requested or time.time() - last_saved > args.save_every:
            last_saved = time.time()
            state = {
                "progress": (step, seconds_before + last_saved - started, recent_returns),
                "step": step,
                "episode_return": torch.as_tensor(episode_return),
                "obs": torch.as_tensor(obs),
                "env_state": env_utils.for_checkpoint(envs.get_state()),
                "rng": env_utils.rng_state(),
            }
            state |= {name: module.state_dict() for name, module in modules.items()}
            env_utils.save_checkpoint(run_folder / "checkpoint.pt", state)
            if interrupt.requested and not finished:
                interrupt.stop("madaac_discrete.py", run_folder, step)
    progress.close()

    # What was learned: policies, rewards, scores.
    env_utils.save_policy(run_folder / "policy.safetensors", policy_tensors(nets.policies), args.env_id, envs)
    disc = nets.discriminators
    header = {"gamma": args.gamma, "decentralized": disc.decentralized, "sees_actions": disc.sees_actions}
    header |= {"hidden_size": args.hidden_size, "reward": "g"}
    env_utils.save_reward(run_folder / "reward.safetensors", disc.state_dict(), header, args.env_id, envs)
    training = {
        "steps": step,
        "episodes": step // envs.episode_length,
        "seconds": round(seconds_before + time.time() - started),
        "nss_last_500_training_episodes": env_utils.mean_nss(np.mean(recent_returns, 0), references),
        "true_reward": args.debug_true_reward,
    }
    env_utils.report_run(run_folder, "madaac_discrete.py", args, envs, writer, references, training)


if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
