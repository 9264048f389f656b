"""MA-GAIL on MACK: multi-agent generative adversarial imitation learning, docs/magail_mack.md.

The baseline of Jeon et al. 2020 (arXiv 2002.10525) after Song, Ren, Sadigh & Ermon 2018. Discriminators tell learner
from expert, log D is the reward of MACK, a multi-agent ACKTR by the same authors: on-policy actor-critic whose steps
are natural gradients, by Kronecker-factored approximations of the Fisher matrix (KFAC; Martens & Grosse 2015, Wu et
al. 2017). D is the probability of *expert* everywhere, and everything is done in logits.
All agents' networks are stacked: weights [agents, in, out], activations [agents, batch, in].

    python magail_mack.py --env-id cooperative_navigation --n-demos 50
"""

import time
from dataclasses import asdict, dataclass
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
from env_utils import UserError, load_demos, make_envs


@dataclass
class Args:
    # Experiment
    exp_name: str = "magail_mack"
    """name of the experiment, part of the run folder's name"""
    seed: int = 1
    """seed of everything random; the same seed gives the same policy on the same machine"""
    torch_threads: int = 1
    """threads that torch may use; 0 leaves it to torch (batches are small: one is hardly slower than two)"""
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
    save_every: int = 60
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
    num_envs: int = 40
    """copies of the task stepped in lockstep"""
    num_steps: int = 25
    """steps of each copy in a rollout; copies times steps is the batch"""

    # Algorithm: MACK (the paper's table "Hyperparameters for MACK" where it can be; else docs/magail_mack.md)
    gamma: float = 0.995
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    policy_lr: float = 0.25
    """KFAC step size of the policies, before the KL clip"""
    critic_lr: float = 0.25
    """KFAC step size of the value functions, before the KL clip"""
    anneal_lr: bool = False
    """let all step sizes fall linearly to zero, and the KL clips with their squares"""
    kl_clip: float = 0.001
    """bound of the squared length of a policy step in the metric of the Fisher matrix (twice its KL divergence)"""
    critic_kl_clip: float = 0.01
    """the same for the value functions"""
    joint_optimizer: bool = False
    """one KFAC for an agent's policy and value function, under --policy-lr and --kl-clip, as in the released code"""
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
    hidden_size: int = 128
    """units of every hidden layer"""

    # Discriminator
    discriminator: Literal["decentralized", "centralized"] = "decentralized"
    """decentralized: D_i(o_i, a_i), a network an agent; centralized: D(o), one network on all observations"""
    disc_actions: tyro.conf.FlagCreatePairsOff[bool] = False
    """let discriminators see actions also if centralized (decentralized ones do anyway); see docs/magail_mack.md"""
    no_disc_actions: tyro.conf.FlagCreatePairsOff[bool] = False
    """keep actions from discriminators"""
    disc_reward: Literal["log_d", "logit", "softplus", "centered"] = "log_d"
    """log D; log D - log(1 - D); -log(1 - D); or 2 D - 1, which is what the released code computes"""
    disc_lr: float = 0.01
    """Adam step size of the discriminators"""
    disc_batch_size: int = 1000
    """transitions of the expert (drawn with replacement), and at most as many of the learner, in an update"""
    disc_minibatches: int = 1
    """Adam steps of the discriminators a rollout: its transitions are dealt out to as many minibatches"""
    disc_memory: int = 250_000
    """learner's transitions are drawn from so many that stand for all it has ever made; 0: from the current rollout"""
    disc_entropy: float = 0.01
    """weight of the discriminators' entropy, which is encouraged"""
    disc_weight_decay: float = 0.0
    """L2 regularisation in the discriminators' Adam: this times half the squared weights (the released code has 0.1)"""
    disc_max_grad_norm: float = 10.0
    """clip the norm of the gradient, of each agent's discriminator if decentralized"""
    reward_clip: float = 0.0
    """keep learned rewards within plus and minus this; 0 does not"""
    true_reward: bool = False
    """train MACK on the task's own reward, to tell a broken learner from a broken reward"""


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
        self.mlp = StackedMLP(obs_sizes, int(obs_sizes.max()), hidden, widest).orthogonal(gain_out=0.01)
        # [agents, 1, widest]: true for the actions an agent does not have
        self.register_buffer("missing", (torch.arange(widest) >= num_actions[:, None])[:, None], persistent=False)

    def forward(self, obs: torch.Tensor, seen: list | None = None) -> torch.Tensor:
        """obs [agents, batch, widest obs] -> log probabilities [agents, batch, widest action]."""
        # A missing action has probability zero; -1e9 and not -inf, since 0 * inf has no value.
        return F.log_softmax(self.mlp(obs, seen).masked_fill(self.missing, -1e9), -1)


def sample(log_probs: torch.Tensor) -> torch.Tensor:
    """Actions ~ softmax, [agents, batch]: argmax of p / Exp(1) is distributed as p."""
    return (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1)


def taken(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The entries of values [agents, batch, actions] at the actions [agents, batch]."""
    return values.gather(-1, actions[..., None])[..., 0]


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


class JointMLP(nn.Module):
    """One trunk on what all agents see, and a head for each agent: [agents, batch, in] -> [agents, batch, 1]."""

    def __init__(self, num: int, size_in: int, hidden: int):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(num * size_in, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU()
        )
        self.heads = nn.Linear(hidden, num)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(self.trunk(x.transpose(0, 1).flatten(1))).T[..., None]


class Discriminators(nn.Module):
    """The logit of D_i, the probability that (o_i, a_i), or all agents' observations, are the expert's."""

    def __init__(self, obs_sizes: torch.Tensor, num_actions: torch.Tensor, args: Args):
        super().__init__()
        self.widest_action, self.reward_form = int(num_actions.max()), args.disc_reward
        self.decentralized = args.discriminator == "decentralized"
        self.sees_actions = (self.decentralized or args.disc_actions) and not args.no_disc_actions
        size_in = int(obs_sizes.max()) + (self.widest_action if self.sees_actions else 0)
        if self.decentralized:
            own_inputs = obs_sizes + (num_actions if self.sees_actions else 0)
            self.d = StackedMLP(own_inputs, size_in, args.hidden_size, 1)
        else:
            self.d = JointMLP(len(obs_sizes), size_in, args.hidden_size)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """obs [agents, batch, widest], actions [agents, batch] -> logits [agents, batch]"""
        if not self.sees_actions:
            return self.d(obs)[..., 0]
        return self.d(torch.cat([obs, F.one_hot(actions, self.widest_action).to(obs.dtype)], -1))[..., 0]

    def reward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """[agents, batch]; log D = -softplus(-logit), log(1 - D) = -softplus(logit)"""
        logits = self(obs, actions)
        if self.reward_form == "log_d":
            return -F.softplus(-logits)
        if self.reward_form == "softplus":
            return F.softplus(logits)
        return 2 * torch.sigmoid(logits) - 1 if self.reward_form == "centered" else logits


# Natural gradients


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


# Losses


def generalized_advantages(rewards, values, next_values, done, gamma: float, gae_lambda: float) -> torch.Tensor:
    """GAE of rewards, values and values of true successors [steps, envs, agents]; done [steps, envs] ends episodes."""
    advantages, following = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    deltas = rewards + gamma * next_values - values
    for t in reversed(range(len(rewards))):
        following = deltas[t] + gamma * gae_lambda * (~done[t])[:, None] * following
        advantages[t] = following
    return advantages


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of every agent of a stack by itself; returns the norms [agents]."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= scale.view(-1, 1, 1)
    return norms


def discriminator_loss(logits: torch.Tensor, batch: int, entropy_weight: float) -> tuple[torch.Tensor, dict]:
    """To be minimised, on logits [agents, learner's batch then expert's] of "this is the expert".

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
    """Everything an update changes: networks and optimizers."""
    sizes, actions = torch.as_tensor(obs_sizes), torch.as_tensor(num_actions)
    policies = Policies(sizes, actions, args.hidden_size).to(device)
    # Where a time limit is bootstrapped through, what is to come does not depend on the time.
    sees_time = args.critic_sees_time and not args.timeout_bootstrap
    values = Values(sizes, actions, args.hidden_size, sees_time).to(device)
    discriminators = Discriminators(sizes, actions, args).to(device)
    policy_layers, value_layers = list(policies.mlp.layers), list(values.mlp.layers)
    if args.joint_optimizer:
        optimizers = {"joint_kfac": KFAC(policy_layers + value_layers, args.policy_lr, args.kl_clip, args)}
    else:
        optimizers = {
            "policy_kfac": KFAC(policy_layers, args.policy_lr, args.kl_clip, args),
            "value_kfac": KFAC(value_layers, args.critic_lr, args.critic_kl_clip, args),
        }
    disc_optimizer = torch.optim.Adam(
        discriminators.parameters(), args.disc_lr, weight_decay=args.disc_weight_decay, fused=True
    )
    return SimpleNamespace(
        policies=policies, values=values, discriminators=discriminators, disc_optimizer=disc_optimizer, **optimizers
    )


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
        last_actions = sample(nets.policies(last_obs))
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
    log_probs = nets.policies(obs, seen_pi)
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
    shortened = []
    split = len(seen_pi)
    if args.joint_optimizer:
        nets.joint_kfac.observe(seen, output_gradients)
        shortened.append(nets.joint_kfac.step(progress_left))
    else:
        for kfac, part in ((nets.policy_kfac, slice(split)), (nets.value_kfac, slice(split, None))):
            kfac.observe(seen[part], output_gradients[part])
            shortened.append(kfac.step(progress_left))
    explained = 1 - (returns - values.detach()).var(1) / (returns.var(1) + 1e-8)
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach().mean(),
        "explained_variance": explained.mean(),
        "value_norms": value_norms,
        "policy_step": shortened[0].mean(),
        "value_step": shortened[-1].mean(),
    }


class Memory:
    """A sample of all transitions that the learner has ever made, each one as likely as any other to be in it."""

    def __init__(self, size: int):
        self.size, self.seen, self.parts = size, 0, []

    def after(self, transitions: list[torch.Tensor]) -> list[torch.Tensor]:
        """Take in transitions [agents, batch, ...]; returns what is remembered then, [agents, at most size, ...]."""
        batch = transitions[0].shape[1]
        if not self.parts:
            self.parts = [x.new_zeros(x.shape[0], self.size // batch * batch, *x.shape[2:]) for x in transitions]
        size, device = self.parts[0].shape[1], transitions[0].device
        # Reservoir sampling: each comes in with probability size / (number seen so far), for a random one that goes.
        places = torch.arange(self.seen, self.seen + batch, device=device)
        self.seen += batch
        comes = torch.rand(batch, device=device) * self.seen < size
        if self.seen > size:
            places = torch.randperm(size, device=device)[: int(comes.sum())]
        for part, new in zip(self.parts, transitions):
            part[:, places] = new[:, comes]
        return [part[:, : self.seen] for part in self.parts]


def discriminator_update(learner, expert, nets: SimpleNamespace, args: Args) -> dict:
    """One Adam step of the discriminators; learner and expert: obs, actions, agents first."""
    obs, actions = (torch.cat([a, b], 1) for a, b in zip(learner, expert))
    logits = nets.discriminators(obs, actions)
    loss, seen = discriminator_loss(logits, learner[0].shape[1], args.disc_entropy)
    nets.disc_optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if nets.discriminators.decentralized:
        seen["disc_norm"] = clip_each_agent(nets.discriminators, args.disc_max_grad_norm).max()
    else:
        seen["disc_norm"] = nn.utils.clip_grad_norm_(nets.discriminators.parameters(), args.disc_max_grad_norm)
    nets.disc_optimizer.step()
    return seen


# Around training


def policy_tensors(policies: Policies) -> dict[str, torch.Tensor]:
    """What `env_utils.load_policy` rebuilds a policy from."""
    tensors = {}
    for k, layer in enumerate(policies.mlp.layers):
        tensors |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def check_args(args: Args) -> None:
    env_utils.check_common_args(args)
    for name in ("kl_clip", "critic_kl_clip", "damping"):
        if not getattr(args, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    for name in ("momentum", "stat_decay"):
        if not 0 <= getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be from 0 to below 1, got {getattr(args, name)}")
    for name in ("eigen_every", "disc_batch_size", "disc_minibatches"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if args.reward_clip < 0:
        raise UserError(f"--reward-clip must be 0 (none) or above, got {args.reward_clip}")
    if args.disc_memory and args.disc_memory < args.num_envs * args.num_steps:
        raise UserError(f"--disc-memory {args.disc_memory} cannot hold a rollout; 0 does without")
    if args.num_envs * args.num_steps < 2:
        raise UserError("--num-envs times --num-steps, the batch, must be at least 2")


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
    if args.capture_video:
        env_utils.require_can_draw(envs)
    if args.demos:
        args.demos = str(Path(args.demos).resolve())  # config.json is read from other folders too
    demos_from = Path(args.demos) if args.demos else args.env_id
    demos = load_demos(demos_from, args.n_demos, envs)
    unseen = env_utils.unseen_transitions(demos_from, args.n_demos, device)  # demonstrations nothing learns from
    references = env_utils.reference_scores(args.env_id, args.demos)  # scores of "expert" and "random" [agents]
    args.total_timesteps = env_utils.total_timesteps(args, envs)
    expert_transitions = [torch.as_tensor(x, device=device) for x in demos.transitions()[:2]]  # obs, actions
    num_expert = len(expert_transitions[0])
    if num_expert < args.disc_batch_size:
        print(f"warning: only {num_expert} expert transitions for batches of {args.disc_batch_size}")

    if not checkpoint:
        run_folder = env_utils.make_run_folder(args.runs, args.env_id, args.exp_name, args.seed, asdict(args))
    if args.track:
        env_utils.track(run_folder, asdict(args))
    writer = SummaryWriter(str(run_folder), purge_step=checkpoint["step"] + 1 if checkpoint else None)

    nets = make_networks(envs.obs_sizes, envs.num_actions, args, device)
    num_agents, widest_obs = len(envs.agents), int(envs.obs_sizes.max())
    shape = (args.num_steps, args.num_envs)
    rollout = SimpleNamespace(
        obs=torch.zeros(*shape, num_agents, widest_obs, device=device),
        final_obs=torch.zeros(*shape, num_agents, widest_obs, device=device),
        actions=torch.zeros(*shape, num_agents, dtype=torch.int64, device=device),
        rewards=torch.zeros(*shape, num_agents, device=device),  # the task's own
        terminated=torch.zeros(shape, dtype=torch.bool, device=device),
        done=torch.zeros(shape, dtype=torch.bool, device=device),
        time_over=torch.zeros(shape, device=device),  # the part of the episode that was over
        time_step=1 / envs.episode_length,
    )
    memory = Memory(args.disc_memory)  # obs, actions of the learner, agents first
    obs = envs.reset()
    episode_return, recent_returns = np.zeros((args.num_envs, num_agents)), []
    age = np.zeros(args.num_envs, dtype=np.float32)  # steps since the episode began
    step, seconds_before = 0, 0.0
    if checkpoint:
        for name, module in vars(nets).items():
            module.load_state_dict(checkpoint[name])
        step, seconds_before, recent_returns = checkpoint["progress"]
        memory.seen, memory.parts = checkpoint["memory"][0], [part.to(device) for part in checkpoint["memory"][1]]
        episode_return, age = checkpoint["episode_return"].numpy(), checkpoint["age"].numpy()
        obs = envs.set_state(env_utils.from_checkpoint(checkpoint["env_state"]))
        if not np.array_equal(obs, checkpoint["obs"]):  # a task that cannot be put back starts new episodes
            episode_return[:], age[:] = 0.0, 0.0
        env_utils.set_rng_state(checkpoint["rng"])
        env_utils.save_resumed_args(run_folder, args)

    print(f"run folder: {run_folder}")
    interrupt = env_utils.Interrupt()
    first_step, started = step, time.time()
    last_saved = started
    progress = tqdm(total=args.total_timesteps, initial=step, unit="step", unit_scale=True, desc=args.env_id)
    while step < args.total_timesteps:
        # Roll out the current policies.
        for t in range(args.num_steps):
            rollout.obs[t], rollout.time_over[t] = torch.as_tensor(obs), torch.as_tensor(age * rollout.time_step)
            with torch.no_grad():
                actions = sample(nets.policies(rollout.obs[t].transpose(0, 1))).T
            obs, rewards, terminated, truncated, final_obs = envs.step(actions.cpu().numpy())
            done = terminated | truncated
            rollout.actions[t], rollout.rewards[t] = actions, torch.as_tensor(rewards)
            rollout.terminated[t], rollout.done[t] = torch.as_tensor(terminated), torch.as_tensor(done)
            rollout.final_obs[t] = torch.as_tensor(final_obs)
            age = np.where(done, 0, age + 1).astype(np.float32)
            episode_return += rewards
            recent_returns = (recent_returns + episode_return[done].tolist())[-500:]
            episode_return[done] = 0.0
        previous, step = step, step + args.num_envs * args.num_steps
        progress.update(args.num_envs * args.num_steps)

        # Rewards: r_i = log D_i(o_i, a_i), with the current discriminator.
        transitions = [agents_first(part) for part in (rollout.obs, rollout.actions)]
        with torch.no_grad():
            learned = nets.discriminators.reward(*transitions)
        if args.reward_clip:
            learned = learned.clamp(-args.reward_clip, args.reward_clip)
        rewards = rollout.rewards if args.true_reward else learned.T.view(*shape, num_agents)

        # Policies and value functions
        progress_left = 1 - previous / args.total_timesteps if args.anneal_lr else 1.0
        advantages, returns = advantages_and_returns(rollout, rewards / envs.episode_length, nets, args)
        seen = mack_update(rollout, advantages, returns, nets, args, progress_left)

        # Discriminators
        pool = memory.after(transitions) if args.disc_memory else transitions
        learner_rows = torch.randperm(pool[0].shape[1], device=device)[: args.disc_batch_size]
        learner = [part[:, learner_rows] for part in pool]
        expert_rows = torch.randint(num_expert, (args.disc_batch_size,), device=device)
        expert = [part[expert_rows].transpose(0, 1) for part in expert_transitions]
        nets.disc_optimizer.param_groups[0]["lr"] = args.disc_lr * progress_left
        for k in range(args.disc_minibatches):
            minibatch = [[part[:, k :: args.disc_minibatches] for part in side] for side in (learner, expert)]
            seen |= discriminator_update(*minibatch, nets, args)

        # Log
        if recent_returns and step // args.log_every > previous // args.log_every:
            mean_returns = np.mean(recent_returns, axis=0)
            nss = env_utils.mean_nss(mean_returns, references)
            for agent, value in zip(envs.agents, mean_returns):
                writer.add_scalar(f"charts/episodic_return-{agent}", value, step)
            for name, value in {
                "charts/nss": nss,
                "charts/SPS": (step - first_step) / (time.time() - started),
                "charts/seconds": seconds_before + time.time() - started,
                "charts/episodes": step / envs.episode_length,
                "losses/critic": seen["value_loss"],
                "losses/policy": seen["policy_loss"],
                "losses/policy_entropy": seen["entropy"],
                "losses/explained_variance": seen["explained_variance"],
                "losses/value_target_mean": returns.mean(),
                "losses/advantage_std": advantages.std(),
                "discriminator/loss": seen["disc_loss"],
                "discriminator/entropy": seen["disc_entropy"],
                "discriminator/accuracy_learner": seen["accuracy_learner"],
                "discriminator/accuracy_expert": seen["accuracy_expert"],
                "discriminator/reward_mean": learned.mean(),
                "discriminator/reward_std": learned.std(),
                "gradients/critic": seen["value_norms"].max(),
                "gradients/policy_step_shortened_to": seen["policy_step"],
                "gradients/value_step_shortened_to": seen["value_step"],
                "gradients/discriminator": seen["disc_norm"],
            }.items():
                writer.add_scalar(name, float(value), step)
            accuracy = [f"expert {seen['accuracy_expert']:.2f}", f"learner {seen['accuracy_learner']:.2f}"]
            if unseen[0].numel():
                with torch.no_grad():
                    accuracy_unseen = (nets.discriminators(*unseen[:2]) > 0).float().mean()
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
                "memory": (memory.seen, memory.parts),
                "episode_return": torch.as_tensor(episode_return),
                "age": torch.as_tensor(age),
                "obs": torch.as_tensor(obs),
                "env_state": env_utils.for_checkpoint(envs.get_state()),
                "rng": env_utils.rng_state(),
            }
            state |= {name: module.state_dict() for name, module in vars(nets).items()}
            env_utils.save_checkpoint(run_folder / "checkpoint.pt", state)
            if interrupt.requested and not finished:
                interrupt.stop("magail_mack.py", run_folder, step)
    progress.close()

    # What was learned: policies, rewards, scores.
    env_utils.save_policy(run_folder / "policy.safetensors", policy_tensors(nets.policies), args.env_id, envs)
    disc = nets.discriminators
    header = {"kind": "gail_reward", "decentralized": disc.decentralized, "sees_actions": disc.sees_actions}
    header |= {"hidden_size": args.hidden_size, "reward": args.disc_reward}
    env_utils.save_reward(run_folder / "reward.safetensors", disc.state_dict(), header, args.env_id, envs)
    training = {
        "steps": step,
        "episodes": step // envs.episode_length,
        "seconds": round(seconds_before + time.time() - started),
        "nss_last_500_training_episodes": env_utils.mean_nss(np.mean(recent_returns, 0), references),
        "true_reward": args.true_reward,
    }
    env_utils.report_run(run_folder, "magail_mack.py", args, envs, writer, references, training)


if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
