"""Retraining: policies from scratch on the frozen reward that a run recovered, docs/retrain.md.

The second question of Jeon et al. 2020 (arXiv 2002.10525): is the recovered reward good enough for a new learner to act
like the expert? The reward is g alone for MA-AIRL and MA-DAAC, log D for MA-GAIL, divided by the episode length; the
task's own reward only judges. The new learner is MACK on small tasks and MAAC on rover_tower; both are as in
mairl_mack.py and madaac_discrete.py. NSS and PCC, the Pearson correlation of learned and true rewards, are logged.
All agents' networks are stacked: weights [agents, in, out], activations [agents, batch, in].

    python retrain.py --run runs/cooperative_navigation__madaac_discrete__1__1700000000
"""

import copy
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import env_utils
from env_utils import UserError, make_envs


@dataclass
class Args:
    # Experiment
    run: str = ""
    """the run whose reward to train on: a folder with reward.safetensors"""
    exp_name: str = "retrain"
    """name of the experiment, part of the run folder's name"""
    seed: int = 1
    """seed of everything random; the same seed gives the same policy on the same machine"""
    torch_threads: int = 1
    """threads that torch may use; 0 leaves it to torch"""
    cuda: bool = False
    """train on the GPU"""
    track: bool = False
    """log to Weights & Biases too (needs `pip install wandb`)"""
    capture_video: bool = False
    """write a short video of the learned policy into the run folder"""
    runs: str = "runs"
    """where run folders go"""
    resume: str = ""
    """a run folder of this script to go on with; its config.json has the other arguments, and only these may be
    new: --torch-threads, --save-every, --track, --capture-video, --eval-episodes, paths of the same files, and
    --total-timesteps, to make it longer or end it sooner"""
    save_every: int = 300
    """seconds between checkpoints at the least"""
    log_every: int = 10_000
    """environment steps between TensorBoard points"""
    eval_episodes: int = 500
    """fresh episodes of the evaluation at the end, stochastic and greedy"""

    # Task
    demos: str = ""
    """the file whose mean score is the expert's, for --true-reward without a --run; else it is the run's"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is the paper's 50,000 episodes, 100,000 for rover_tower"""
    true_reward: bool = False
    """train on the task's own reward instead, through the same code: what the learner can reach at best"""
    env_id: str = ""
    """the task of --true-reward without a --run; else it is the run's"""

    reward_sha256: tyro.conf.Suppress[str] = ""
    """filled in by the script: of the run's reward.safetensors, so that a resumed run goes on with the same reward"""

    # Algorithm
    rl: Literal["auto", "mack", "maac"] = "auto"
    """the learner; auto is MAAC for rover_tower and MACK for all other tasks, as in the paper"""
    num_envs: int = 0
    """copies of the task stepped in lockstep; 0 is 40 for MACK, 100 for MAAC"""
    gamma: float = 0.995
    """discount factor"""
    hidden_size: int = 128
    """units of every hidden layer"""
    anneal_lr: bool = False
    """let all step sizes fall linearly to zero, and MACK's KL clips with their squares"""

    # MACK; MAAC does without these
    num_steps: int = 25
    """steps of each copy in a rollout; copies times steps is the batch"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    kfac_lr: float = 0.25
    """KFAC step size of policies and value functions, before the KL clip"""
    kl_clip: float = 0.001
    """bound of the squared length of a policy step in the metric of the Fisher matrix (twice its KL divergence)"""
    critic_kl_clip: float = 0.01
    """the same for the value functions"""
    momentum: float = 0.9
    """momentum of KFAC's steps"""
    stat_decay: float = 0.99
    """decay of the running Kronecker factors"""
    damping: float = 0.01
    """added to the products of the factors' eigenvalues"""
    eigen_every: int = 10
    """updates between eigendecompositions of the factors"""
    entropy: float = 0.01
    """policy entropy coefficient"""
    value_coef: float = 0.5
    """weight of the value loss (Huber)"""
    critic_max_grad_norm: float = 10.0
    """clip the norm of each value function's gradient, before it is preconditioned"""
    normalize_advantages: bool = True
    """standardise each agent's advantages over the batch"""
    timeout_bootstrap: bool = False
    """let the value of the last observation stand for what a time limit cut off; default: nothing comes after it.
    Value functions then do not see the time"""
    critic_sees_time: bool = True
    """tell the value functions how much of the episode is over (policies never know); else what is left to be earned
    before the time limit is noise to them"""

    # MAAC; MACK does without these
    buffer_size: int = 1_250_000
    """transitions in the replay buffer"""
    batch_size: int = 1000
    """transitions in an update"""
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
    update_period: int = 100
    """environment steps between rounds of updates"""
    updates_per_period: int = 1
    """updates in a round (the released MAAC code does 4)"""
    policy_max_grad_norm: float = 0.5
    """clip the norm of each policy's gradient"""
    maac_max_grad_norm: float = 1.0
    """clip the norm of the critic's gradient"""
    critic_batch_norm: bool = True
    """normalise the critic's inputs over each batch, as the released code does; policies see raw observations"""
    attention_heads: int = 4
    """heads of the critic's attention"""
    attention_regularization: float = 1e-6
    """weight of the squared attention logits; the released 0.001 is for rewards that are not divided by 25"""
    logit_regularization: float = 1e-3
    """weight of the squared policy logits"""


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


class StackedMLP(nn.Module):
    """A network with two hidden layers for each agent: [agents, batch, in] -> [agents, batch, out]."""

    def __init__(self, fan_in: torch.Tensor, size_in: int, hidden: int, size_out: int):
        super().__init__()
        num = len(fan_in)
        self.layers = nn.ModuleList(
            [
                StackedLinear(num, fan_in, size_in, hidden),
                StackedLinear(num, hidden, hidden, hidden),
                StackedLinear(num, hidden, hidden, size_out),
            ]
        )

    @torch.no_grad()
    def orthogonal(self, gain_out: float) -> "StackedMLP":
        """Initialise as the released MACK does: orthogonal weights, gain sqrt(2) but for the output, zero biases."""
        for layer, gain in zip(self.layers, (2**0.5, 2**0.5, gain_out)):
            for weight in layer.weight:
                nn.init.orthogonal_(weight, gain)
            layer.bias.zero_()
        return self

    def forward(self, x: torch.Tensor, seen: list | None = None) -> torch.Tensor:
        """With a list `seen`, every layer's input and output before the activation are appended to it, for KFAC."""
        for layer in self.layers:
            y = layer(x)
            if seen is not None:
                seen.append((x, y))
            x = y if layer is self.layers[-1] else F.leaky_relu(y)
        return x


class Policies(nn.Module):
    """pi_i(a_i | o_i) of all agents: two hidden layers each."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, hidden: int):
        super().__init__()
        widest = int(num_actions.max())
        self.mlp = StackedMLP(obs_sizes, int(obs_sizes.max()), hidden, widest)
        # [agents, 1, widest]: 1 for the actions an agent has, 0 for padding
        has_action = (torch.arange(widest) < num_actions[:, None]).float()[:, None]
        self.register_buffer("has_action", has_action, persistent=False)

    def forward(self, obs: torch.Tensor, seen: list | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """obs [agents, batch, widest obs] -> logits and log probabilities [agents, batch, widest action]."""
        logits = self.mlp(obs, seen)
        # A padding action has probability zero; -1e9 and not -inf, since 0 * inf has no value.
        return logits * self.has_action, F.log_softmax(logits.masked_fill(self.has_action == 0, -1e9), -1)


def sample(log_probs: torch.Tensor) -> torch.Tensor:
    """Actions ~ softmax, [agents, batch]: argmax of p / Exp(1) is distributed as p."""
    return (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1)


def taken(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The entries of values [agents, batch, actions] at the actions [agents, batch]."""
    return values.gather(-1, actions[..., None])[..., 0]


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of every agent of a stack by itself; returns the norms [agents]."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= scale.view(-1, 1, 1)
    return norms


# MACK, as in mairl_mack.py


class Values(nn.Module):
    """V_i(o, a_-i) of all agents: of all observations and the other agents' actions. None is shared."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, hidden: int, sees_time: bool):
        super().__init__()
        num, self.widest_action, self.sees_time = len(obs_sizes), int(num_actions.max()), sees_time
        # Which columns of the padded, concatenated observations and one-hot actions are somebody's: [total]
        real_obs = (torch.arange(int(obs_sizes.max())) < obs_sizes[:, None]).flatten().nonzero()[:, 0]
        real_action = (torch.arange(self.widest_action) < num_actions[:, None]).flatten().nonzero()[:, 0]
        # [agents, 1, total actions]: zero for an agent's own action
        owner = torch.arange(num).repeat_interleave(num_actions)
        others = (owner != torch.arange(num)[:, None]).float()[:, None]
        for name, buffer in (("real_obs", real_obs), ("real_action", real_action), ("others", others)):
            self.register_buffer(name, buffer, persistent=False)
        size_in = len(real_obs) + len(real_action) + sees_time
        self.mlp = StackedMLP(torch.full((num,), size_in), size_in, hidden, 1).orthogonal(gain_out=1.0)

    def forward(self, obs, actions, time_over, seen: list | None = None) -> torch.Tensor:
        """obs [agents, batch, widest], actions [agents, batch], time_over [batch] (0 to 1) -> [agents, batch]."""
        num, batch, _ = obs.shape
        joint_obs = obs.transpose(0, 1).flatten(1)[:, self.real_obs]  # [batch, sum of obs sizes]
        one_hot = F.one_hot(actions, self.widest_action).to(obs.dtype).transpose(0, 1).flatten(1)[:, self.real_action]
        parts = [joint_obs.expand(num, -1, -1), one_hot * self.others]
        if self.sees_time:
            parts.append(time_over.view(1, batch, 1).expand(num, -1, -1))
        return self.mlp(torch.cat(parts, -1), seen)[..., 0]


class KFAC:
    """Natural-gradient steps for stacked layers, each agent by itself.

    The Fisher matrix of a layer's weights is taken to be A (x) G: A the second moment of its inputs, G that of the
    gradients of each example's log-likelihood by its outputs. A bias is a layer of its own with the constant input 1.
    In the eigenbases Q_A and Q_G of A and G the damped inverse is a division by d_A d_G^T + damping, the eigenvalues.
    Each agent's step is shortened so that its squared length in that metric, lr^2 <V, grad>, is at most `kl_clip`.
    """

    def __init__(self, layers: list[StackedLinear], lr: float, kl_clip: float, args: Args):
        self.layers, self.lr, self.kl_clip = layers, lr, kl_clip
        self.momentum, self.stat_decay, self.damping = args.momentum, args.stat_decay, args.damping
        self.eigen_every, self.steps = args.eigen_every, 0
        self.factors, self.eigen = [], []  # by layer: [A, G], and [d_A, Q_A, d_G, Q_G]
        self.parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def observe(self, seen: list[tuple[torch.Tensor, torch.Tensor]], output_gradients: list[torch.Tensor]) -> None:
        """Inputs of the layers, and gradients by their outputs of the *mean* log-likelihood over the batch."""
        for k, ((inputs, _), gradient) in enumerate(zip(seen, output_gradients)):
            batch = inputs.shape[1]
            example_gradient = batch * gradient  # undoes the mean: every example by itself
            a = inputs.transpose(1, 2) @ inputs / batch  # [agents, in, in]
            g = example_gradient.transpose(1, 2) @ example_gradient / batch  # [agents, out, out]
            if len(self.factors) == k:  # the first time
                self.factors.append([a, g])
            else:
                for factor, new in zip(self.factors[k], (a, g)):
                    factor.lerp_(new, 1 - self.stat_decay)

    @torch.no_grad()
    def step(self, progress_left: float = 1.0) -> torch.Tensor:
        """A step on the gradients that the parameters have; returns by how much each agent's was shortened."""
        if self.steps % self.eigen_every == 0:
            self.eigen = []
            for factors in self.factors:
                decompositions = [torch.linalg.eigh(factor) for factor in factors]
                self.eigen.append([part for d, q in decompositions for part in (d.where(d > 1e-6, 0.0), q)])
        directions = []
        for layer, (d_a, q_a, d_g, q_g) in zip(self.layers, self.eigen):
            rotated = q_a.mT @ layer.weight.grad @ q_g  # [agents, in, out]
            rotated /= d_a[:, :, None] * d_g[:, None, :] + self.damping
            directions.append(q_a @ rotated @ q_g.mT)
            directions.append(layer.bias.grad @ q_g / (d_g[:, None, :] + self.damping) @ q_g.mT)
        lr = self.lr * progress_left
        products = [(v * p.grad).flatten(1).sum(1) for v, p in zip(directions, self.parameters)]
        squared_length = lr**2 * sum(products)  # [agents]
        bound = self.kl_clip * progress_left**2
        shorten = (bound / squared_length.clamp(min=1e-20)).sqrt().clamp(max=1.0)
        for parameter, velocity, direction in zip(self.parameters, self.velocity, directions):
            velocity.mul_(self.momentum).add_(direction * shorten.view(-1, 1, 1))
            parameter.sub_(velocity, alpha=lr * (1 - self.momentum))
        self.steps += 1
        return shorten

    def state_dict(self) -> dict:
        return {"factors": self.factors, "eigen": self.eigen, "velocity": self.velocity, "steps": self.steps}

    def load_state_dict(self, state: dict) -> None:
        device = self.velocity[0].device
        self.factors = [[part.to(device) for part in parts] for parts in state["factors"]]
        self.eigen = [[part.to(device) for part in parts] for parts in state["eigen"]]
        self.velocity = [part.to(device) for part in state["velocity"]]
        self.steps = state["steps"]


def generalized_advantages(rewards, values, next_values, done, gamma: float, gae_lambda: float) -> torch.Tensor:
    """GAE of rewards, values and values of true successors [steps, envs, agents]; done [steps, envs] ends episodes."""
    advantages, following = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    deltas = rewards + gamma * next_values - values
    for t in reversed(range(len(rewards))):
        following = deltas[t] + gamma * gae_lambda * (~done[t])[:, None] * following
        advantages[t] = following
    return advantages


def agents_first(x: torch.Tensor) -> torch.Tensor:
    """[steps, envs, agents, ...] -> [agents, steps * envs, ...]"""
    return x.flatten(0, 1).transpose(0, 1)


@torch.no_grad()
def advantages_and_returns(rollout: SimpleNamespace, rewards: torch.Tensor, nets: SimpleNamespace, args: Args):
    """GAE on rewards [steps, envs, agents]; returns advantages and value targets, [agents, steps * envs] each."""
    steps, envs, num = rewards.shape
    obs, actions = agents_first(rollout.obs), agents_first(rollout.actions)
    values = nets.values(obs, actions, rollout.time_over.flatten()).T.view(steps, envs, num)
    # V_i of the next step, where the rollout has it; where an episode or the rollout ends, of the true successor and
    # of actions sampled there; nothing where nothing comes after.
    next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
    ends = rollout.done.clone()
    ends[-1] = True
    nothing_after = rollout.terminated if args.timeout_bootstrap else rollout.done
    if (ends & ~nothing_after).any():
        last_obs = rollout.final_obs[ends].transpose(0, 1)  # [agents, ends, widest]
        last_actions = sample(nets.policies(last_obs)[1])
        last_time = (rollout.time_over + rollout.time_step)[ends]
        next_values[ends] = nets.values(last_obs, last_actions, last_time).T
    next_values[nothing_after] = 0.0
    advantages = generalized_advantages(rewards, values, next_values, rollout.done, args.gamma, args.gae_lambda)
    return agents_first(advantages), agents_first(advantages + values)


def mack_update(rollout, advantages, returns, nets: SimpleNamespace, args: Args, progress_left: float = 1.0) -> dict:
    """One KFAC step of all policies and value functions; advantages, returns [agents, batch]."""
    obs, actions = agents_first(rollout.obs), agents_first(rollout.actions)
    if args.normalize_advantages:
        std, mean = torch.std_mean(advantages, dim=1, keepdim=True)
        advantages = (advantages - mean) / (std + 1e-8)
    seen_pi, seen_v = [], []
    _, log_probs = nets.policies(obs, seen_pi)
    log_prob = taken(log_probs, actions)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean(1)  # [agents]
    values = nets.values(obs, actions, rollout.time_over.flatten(), seen_v)
    # Log-likelihoods of samples from the models themselves: actions are such, and for V, a Gaussian's mean, v + noise.
    # The squared error lacks its 1/2, as in the released code: gradients are 2 noise, and V's output has G of about 4.
    policy_likelihood = log_prob.mean(1).sum()
    value_likelihood = -(values - (values + torch.randn_like(values)).detach()).square().mean(1).sum()
    likelihood, seen = policy_likelihood + value_likelihood, seen_pi + seen_v
    output_gradients = torch.autograd.grad(likelihood, [output for _, output in seen], retain_graph=True)

    policy_loss = (-(advantages * log_prob).mean(1) - args.entropy * entropy).sum()
    value_loss = F.huber_loss(values, returns, reduction="none").mean(1).sum()
    nets.policies.zero_grad()
    nets.values.zero_grad()
    (policy_loss + args.value_coef * value_loss).backward()
    value_norms = clip_each_agent(nets.values, args.critic_max_grad_norm)
    split = len(seen_pi)
    for kfac, part in ((nets.policy_kfac, slice(split)), (nets.value_kfac, slice(split, None))):
        kfac.observe(seen[part], output_gradients[part])
        kfac.step(progress_left)
    explained = 1 - (returns - values.detach()).var(1) / (returns.var(1) + 1e-8)
    return {
        "losses/critic": value_loss.detach(),
        "losses/policy": policy_loss.detach(),
        "losses/policy_entropy": entropy.detach().mean(),
        "losses/explained_variance": explained.mean(),
        "gradients/critic": value_norms.max(),
    }


class Mack:
    """Rolls out, then one KFAC step of all policies and value functions on the rollout."""

    def __init__(self, envs, args: Args, device: torch.device):
        self.args = args
        sizes, actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        policies = Policies(sizes, actions, args.hidden_size).to(device)
        policies.mlp.orthogonal(gain_out=0.01)
        # Where a time limit is bootstrapped through, what is to come does not depend on the time.
        sees_time = args.critic_sees_time and not args.timeout_bootstrap
        values = Values(sizes, actions, args.hidden_size, sees_time).to(device)
        self.nets = SimpleNamespace(
            policies=policies,
            values=values,
            policy_kfac=KFAC(list(policies.mlp.layers), args.kfac_lr, args.kl_clip, args),
            value_kfac=KFAC(list(values.mlp.layers), args.kfac_lr, args.critic_kl_clip, args),
        )
        shape, widest = (args.num_steps, args.num_envs, len(sizes)), int(sizes.max())
        self.rollout = SimpleNamespace(
            obs=torch.zeros(*shape, widest, device=device),
            final_obs=torch.zeros(*shape, widest, device=device),
            actions=torch.zeros(shape, dtype=torch.int64, device=device),
            rewards=torch.zeros(shape, device=device),
            terminated=torch.zeros(shape[:2], dtype=torch.bool, device=device),
            done=torch.zeros(shape[:2], dtype=torch.bool, device=device),
            time_over=torch.zeros(shape[:2], device=device),  # the part of the episode that was over
            time_step=1 / envs.episode_length,
        )
        self.filled = 0  # steps of the rollout

    def learn(self, transition: dict[str, torch.Tensor], step: int, progress_left: float) -> dict:
        """Take a step of all copies; returns what is worth logging if it led to an update."""
        for name, value in transition.items():
            getattr(self.rollout, name)[self.filled] = value
        self.filled += 1
        if self.filled < self.args.num_steps:
            return {}
        self.filled = 0
        advantages, returns = advantages_and_returns(self.rollout, self.rollout.rewards, self.nets, self.args)
        return mack_update(self.rollout, advantages, returns, self.nets, self.args, progress_left)

    def forget_unfinished(self) -> None:
        """Begin the rollout anew: its episodes do not go on."""
        self.filled = 0

    def state_dict(self) -> dict:
        rollout = {name: value for name, value in vars(self.rollout).items() if torch.is_tensor(value)}
        return {name: part.state_dict() for name, part in vars(self.nets).items()} | {
            "rollout": rollout,
            "filled": self.filled,
        }

    def load_state_dict(self, state: dict) -> None:
        for name, part in vars(self.nets).items():
            part.load_state_dict(state[name])
        for name, value in state["rollout"].items():
            getattr(self.rollout, name).copy_(value)
        self.filled = state["filled"]


# MAAC, as in madaac_discrete.py


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


class ReplayBuffer:
    """The latest transitions of all agents in a ring."""

    names = ("obs", "next_obs", "actions", "rewards", "terminated")

    def __init__(self, capacity: int, num_agents: int, widest_obs: int):
        # Not initialised: memory that was never written is never taken from the system.
        self.obs = torch.empty(capacity, num_agents, widest_obs)
        self.next_obs = torch.empty(capacity, num_agents, widest_obs)
        self.actions = torch.empty(capacity, num_agents, dtype=torch.int64)
        self.rewards = torch.empty(capacity, num_agents)
        self.terminated = torch.empty(capacity)
        self.added = 0  # transitions ever added

    def add(self, **transitions: torch.Tensor) -> None:
        """One tensor [n, ...] a name of `names`."""
        capacity, n = len(self.terminated), len(transitions["terminated"])
        rows = (self.added + torch.arange(n)) % capacity
        for name in self.names:
            store = getattr(self, name)
            store[rows] = transitions[name].to(store)
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
        y = rewards + args.gamma * (1 - terminated) * next_q + entropy_bonus
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


@torch.no_grad()
def move_target(target: nn.Module, online: nn.Module, tau: float) -> None:
    """theta' <- (1 - tau) theta' + tau theta"""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


class Maac:
    """Keeps transitions in a replay buffer and learns off-policy, with a shared attention critic."""

    def __init__(self, envs, args: Args, device: torch.device):
        self.args, self.device = args, device
        sizes, actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        policies = Policies(sizes, actions, args.hidden_size).to(device)
        critic = AttentionCritic(sizes, actions, args.hidden_size, args.attention_heads, args.critic_batch_norm)
        critic = critic.to(device)
        self.nets = SimpleNamespace(
            policies=policies,
            critic=critic,
            target_policies=copy.deepcopy(policies),
            target_critic=copy.deepcopy(critic),
            policy_optimizer=torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True),
            critic_optimizer=torch.optim.Adam(critic.parameters(), args.critic_lr, fused=True),
            buffer=ReplayBuffer(args.buffer_size, len(sizes), int(sizes.max())),
        )

    def learn(self, transition: dict[str, torch.Tensor], step: int, progress_left: float) -> dict:
        """Take a step of all copies, the `step`-th over all of them; returns what is worth logging, if it learned."""
        args, nets = self.args, self.nets
        nets.buffer.add(
            obs=transition["obs"],
            next_obs=transition["final_obs"],
            actions=transition["actions"],
            rewards=transition["rewards"],
            terminated=transition["terminated"].float(),
        )
        rounds = step // args.update_period - (step - args.num_envs) // args.update_period
        seen = {}
        for _ in range(rounds * args.updates_per_period if step >= args.learning_starts else 0):
            for optimizer, lr in ((nets.policy_optimizer, args.policy_lr), (nets.critic_optimizer, args.critic_lr)):
                optimizer.param_groups[0]["lr"] = lr * progress_left
            seen = self.update([part.to(self.device) for part in nets.buffer.sample(args.batch_size)])
        return seen

    def update(self, batch: list[torch.Tensor]) -> dict:
        args, nets = self.args, self.nets
        loss_q, seen = critic_loss(batch, nets.critic, nets.target_critic, nets.target_policies, args)
        nets.critic_optimizer.zero_grad(set_to_none=True)
        loss_q.backward()
        for parameter in nets.critic.shared_parameters():
            parameter.grad /= len(batch[0])
        critic_norm = nn.utils.clip_grad_norm_(nets.critic.parameters(), args.maac_max_grad_norm)
        nets.critic_optimizer.step()
        loss_pi, seen_pi = policy_loss(batch[0], nets.policies, nets.critic, args)
        nets.policy_optimizer.zero_grad(set_to_none=True)
        loss_pi.backward()
        clip_each_agent(nets.policies, args.policy_max_grad_norm)
        nets.policy_optimizer.step()
        move_target(nets.target_critic, nets.critic, args.critic_tau)
        move_target(nets.target_policies, nets.policies, args.policy_tau)
        return {
            "losses/critic": seen["td"],
            "losses/policy": loss_pi.detach(),
            "losses/policy_entropy": seen_pi["entropy"],
            "losses/attention_entropy": torch.special.entr(seen["attention"]).sum(-1).mean(),
            "losses/q_mean": seen["q"].mean(),
            "gradients/critic": critic_norm,
        }

    def forget_unfinished(self) -> None:
        """Nothing to forget: every transition stands by itself."""

    def state_dict(self) -> dict:
        return {name: part.state_dict() for name, part in vars(self.nets).items()}

    def load_state_dict(self, state: dict) -> None:
        for name, part in vars(self.nets).items():
            part.load_state_dict(state[name])


# Around training


def pearson(learned: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Correlation over steps of rewards [steps, agents], per agent; nan where one of the two does not vary."""
    varies, centred = True, []
    for x in (learned.astype(np.float64), true.astype(np.float64)):
        varies = varies & (x.std(0) > 1e-6 * np.abs(x).max(0))  # more than float32's rounding
        centred.append(x - x.mean(0))
    learned, true = centred
    lengths = np.sqrt((learned**2).sum(0) * (true**2).sum(0))
    return np.where(varies, (learned * true).sum(0) / np.where(varies, lengths, 1.0), np.nan)


def correlations(paid: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, float | None]:
    """PCC of learned and true rewards, a pair of [num_envs, agents] a step: per agent, and the mean of those that have
    one, None if there is none."""
    pcc = pearson(*(np.concatenate(parts) for parts in zip(*paid)))
    known = pcc[~np.isnan(pcc)]
    return pcc, float(known.mean()) if len(known) else None


def policy_tensors(policies: Policies) -> dict[str, torch.Tensor]:
    """What `env_utils.load_policy` rebuilds a policy from."""
    tensors = {}
    for k, layer in enumerate(policies.mlp.layers):
        tensors |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def source(args: Args) -> tuple[str, str, env_utils.LearnedReward | None]:
    """The task, the demonstrations file of the run if it had one of its own, and the reward to train on."""
    if not args.run:
        if not (args.true_reward and args.env_id):
            raise UserError("name the run whose reward to train on with --run, or --true-reward with --env-id")
        return args.env_id, str(Path(args.demos).resolve()) if args.demos else "", None
    reward = env_utils.learned_reward(args.run)
    if args.reward_sha256 and args.reward_sha256 != env_utils.sha256(Path(args.run) / "reward.safetensors"):
        raise UserError(f"the reward in {args.run} is not the one that this run began with")
    if args.env_id and not env_utils.same_task(args.env_id, reward.env_id):
        raise UserError(f"{args.run} is a run on {reward.env_id}, not on {args.env_id}")
    config = Path(args.run) / "config.json"
    if not config.is_file():
        raise UserError(f"{args.run} is not a run folder: it has no config.json")
    try:
        content = json.loads(config.read_text())
        arguments, demos = content["args"], env_utils.demos_of_run(content)
        env_id = arguments["env_id"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not JSON or not text, or not ours
        raise UserError(f"{config} is not the config of a run ({error!r})") from None
    if not isinstance(env_id, str) or not env_utils.same_task(env_id, reward.env_id):
        raise UserError(f"{args.run}: config.json is of {env_id}, reward.safetensors of {reward.env_id}")
    kind = "gail_reward" if "disc_reward" in arguments else "airl_reward"  # an argument of magail_mack.py alone
    decentralized = arguments.get("discriminator", "decentralized") == "decentralized"
    if (reward.header["kind"], reward.header["decentralized"]) != (kind, decentralized):
        raise UserError(f"{args.run}: config.json and reward.safetensors are not of the same run")
    if args.demos and Path(args.demos).resolve() != Path(demos).resolve():
        raise UserError("--demos is for --true-reward without a --run; a run has its demonstrations already")
    return reward.env_id, demos, None if args.true_reward else reward


def check_args(args: Args) -> None:
    env_utils.check_common_args(args)
    names = [field.name for field in fields(Args)]
    first_of_mack, first_of_maac = names.index("num_steps"), names.index("buffer_size")
    others = names[first_of_maac:] if args.rl == "mack" else names[first_of_mack:first_of_maac]
    for name in others:
        if getattr(args, name) != getattr(Args, name):
            raise UserError(f"--{name.replace('_', '-')} is for the other learner: --rl {args.rl} does without it")
    if args.rl == "maac" and args.buffer_size < args.num_envs:
        raise UserError(f"--buffer-size {args.buffer_size} cannot hold one step of {args.num_envs} copies")
    for name in ("kl_clip", "critic_kl_clip", "damping", "kfac_lr"):
        if not getattr(args, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    for name in ("momentum", "stat_decay"):
        if not 0 <= getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be from 0 to below 1, got {getattr(args, name)}")
    if args.eigen_every < 1:
        raise UserError(f"--eigen-every must be at least 1, got {args.eigen_every}")
    if args.rl == "mack" and args.num_envs * args.num_steps < 2:
        raise UserError("--num-envs times --num-steps, the batch, must be at least 2")


def main(args: Args) -> None:
    checkpoint = {}
    if args.resume:
        run_folder = Path(args.resume)
        checkpoint = env_utils.load_checkpoint(run_folder / "checkpoint.pt")
        args = env_utils.resumed_args(run_folder, args)
    args.env_id, args.demos, reward = source(args)
    if args.run:
        args.run = str(Path(args.run).resolve())
        args.reward_sha256 = env_utils.sha256(Path(args.run) / "reward.safetensors")
    if args.rl == "auto":
        args.rl = "maac" if args.env_id.startswith("rover_tower") else "mack"
    args.num_envs = args.num_envs or (40 if args.rl == "mack" else 100)
    check_args(args)
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    device = torch.device("cuda" if args.cuda else "cpu")
    torch.manual_seed(args.seed)
    envs = make_envs(args.env_id, args.num_envs, args.seed)
    if args.run:
        env_utils.learned_reward(args.run, envs)  # the task may have changed since: it must still fit
    if args.rl == "maac" and len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent; MAAC's critic attends to others and needs at least two")
    if args.capture_video:
        env_utils.require_can_draw(envs)
    references = env_utils.reference_scores(args.env_id, args.demos)  # scores of "expert" and "random" [agents]
    args.total_timesteps = env_utils.total_timesteps(args, envs)
    needed = args.num_envs * args.num_steps if args.rl == "mack" else args.learning_starts
    if needed > args.total_timesteps:
        raise UserError(f"the first update comes after {needed} steps, beyond the {args.total_timesteps} of the run")

    if not checkpoint:
        run_folder = env_utils.make_run_folder(args.runs, args.env_id, args.exp_name, args.seed, asdict(args))
    if args.track:
        env_utils.track(run_folder, asdict(args))
    writer = SummaryWriter(str(run_folder), purge_step=checkpoint["step"] + 1 if checkpoint else None)

    learner = (Mack if args.rl == "mack" else Maac)(envs, args, device)
    num_agents = len(envs.agents)
    obs = envs.reset()
    episode_return, recent_returns = np.zeros((args.num_envs, num_agents)), []
    age = np.zeros(args.num_envs, dtype=np.float32)  # steps since the episode began
    paid = []  # since the last logged point: learned and true rewards of a step, [num_envs, agents] each
    step, seconds_before, last_pcc = 0, 0.0, None
    if checkpoint:
        learner.load_state_dict(checkpoint["learner"])
        step, seconds_before, recent_returns, last_pcc = checkpoint["progress"]
        paid = [(learned.numpy(), true.numpy()) for learned, true in checkpoint["paid"]]
        episode_return, age = checkpoint["episode_return"].numpy(), checkpoint["age"].numpy()
        obs = envs.set_state(env_utils.from_checkpoint(checkpoint["env_state"]))
        if not np.array_equal(obs, checkpoint["obs"]):  # a task that cannot be put back starts new episodes
            episode_return[:], age[:] = 0.0, 0.0
            learner.forget_unfinished()
        env_utils.set_rng_state(checkpoint["rng"])
        env_utils.save_resumed_args(run_folder, args)

    print(f"run folder: {run_folder}")
    interrupt = env_utils.Interrupt()
    first_step, started = step, time.time()
    last_saved = started
    seen = {}
    progress = tqdm(total=args.total_timesteps, initial=step, unit="step", unit_scale=True, desc=args.env_id)
    while step < args.total_timesteps:
        # Act; the reward is the frozen one.
        b_obs = torch.as_tensor(obs, device=device)
        with torch.no_grad():
            actions = sample(learner.nets.policies(b_obs.transpose(0, 1))[1]).T
        next_obs, true_rewards, terminated, truncated, final_obs = envs.step(actions.cpu().numpy())
        learned = true_rewards if reward is None else reward(obs, actions.cpu())
        done = terminated | truncated
        paid.append((learned, true_rewards))
        episode_return += true_rewards
        recent_returns = (recent_returns + episode_return[done].tolist())[-500:]
        episode_return[done] = 0.0
        previous, step = step, step + args.num_envs
        progress.update(args.num_envs)

        # Learn
        transition = {
            "obs": b_obs,
            "actions": actions,
            "rewards": torch.as_tensor(learned / envs.episode_length, device=device),
            "terminated": torch.as_tensor(terminated, device=device),
            "final_obs": torch.as_tensor(final_obs, device=device),
        }
        if args.rl == "mack":
            transition["done"] = torch.as_tensor(done, device=device)
            transition["time_over"] = torch.as_tensor(age / envs.episode_length, device=device)
        seen = learner.learn(transition, step, 1 - previous / args.total_timesteps if args.anneal_lr else 1.0) or seen
        obs, age = next_obs, np.where(done, 0, age + 1).astype(np.float32)

        # Log
        if seen and recent_returns and step // args.log_every > previous // args.log_every:
            mean_returns = np.mean(recent_returns, axis=0)
            nss = env_utils.mean_nss(mean_returns, references)
            pcc, last_pcc = correlations(paid)
            paid = []
            for agent, value, correlation in zip(envs.agents, mean_returns, pcc):
                writer.add_scalar(f"charts/episodic_return-{agent}", value, step)
                if not np.isnan(correlation):  # undefined is missing, not zero
                    writer.add_scalar(f"charts/pcc-{agent}", correlation, step)
            if last_pcc is not None:
                writer.add_scalar("charts/pcc", last_pcc, step)
            for name, value in {
                "charts/nss": nss,
                "charts/SPS": (step - first_step) / (time.time() - started),
                "charts/seconds": seconds_before + time.time() - started,
                "charts/episodes": step / envs.episode_length,
                **seen,
            }.items():
                writer.add_scalar(name, float(value), step)
            correlation = "undefined" if last_pcc is None else f"{last_pcc:.3f}"
            progress.set_postfix_str(f"{step // envs.episode_length:,} episodes, NSS {nss:.3f}, PCC {correlation}")

        finished = step >= args.total_timesteps
        if finished or interrupt.requested or time.time() - last_saved > args.save_every:
            last_saved = time.time()
            state = {
                "progress": (step, seconds_before + last_saved - started, recent_returns, last_pcc),
                "step": step,
                "policies": learner.nets.policies.state_dict(),  # where eval_nss.py looks for them
                "learner": learner.state_dict(),
                "paid": [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in paid],
                "episode_return": torch.as_tensor(episode_return),
                "age": torch.as_tensor(age),
                "obs": torch.as_tensor(obs),
                "env_state": env_utils.for_checkpoint(envs.get_state()),
                "rng": env_utils.rng_state(),
            }
            env_utils.save_checkpoint(run_folder / "checkpoint.pt", state)
            if interrupt.requested and not finished:
                interrupt.stop("retrain.py", run_folder, step)
    progress.close()
    if last_pcc is None and paid:  # a run too short for a logged point
        last_pcc = correlations(paid)[1]

    env_utils.save_policy(run_folder / "policy.safetensors", policy_tensors(learner.nets.policies), args.env_id, envs)
    training = {
        "reward_of": args.run,
        "true_reward": args.true_reward,
        "rl": args.rl,
        "steps": step,
        "episodes": step // envs.episode_length,
        "seconds": round(seconds_before + time.time() - started),
        "nss_last_500_training_episodes": env_utils.mean_nss(np.mean(recent_returns, 0), references),
        "pcc": last_pcc,
    }
    env_utils.report_run(run_folder, "retrain.py", args, envs, writer, references, training)


if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
