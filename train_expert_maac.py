"""Experts: Multi-Actor-Attention-Critic (MAAC) on the true reward, docs/train_expert_maac.md.

MAAC is Iqbal & Sha 2019, "Actor-Attention-Critic for Multi-Agent Reinforcement Learning"; this is the variant of
Jeon et al. 2020 (arXiv 2002.10525), appendix A, who train the experts of their imitation experiments with it.
Equation numbers below are theirs. All agents' networks are stacked: weights [agents, in, out], activations
[agents, batch, in], one batched matrix multiply for all of them.

    python train_expert_maac.py --env-id cooperative_navigation

trains, keeps the best policy, and writes experts/<env_id>/policy.safetensors, demos.npz and card.json.
"""

import copy
import math
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
from env_utils import UserError, make_envs, mean_and_interval, play_episodes

RECORDING_SEED = 10_000_019  # of the episodes that score an expert and become its demonstrations
# Of the episodes that choose which policy becomes the expert: the same ones at every evaluation, since starts differ
# more than policies do. The scores of equal policies of rover_tower_8, each over 200 episodes of its own, differ with a
# standard deviation of 4.
SELECTION_SEED = 30_000_001


@dataclass
class Args:
    # Experiment
    exp_name: str = "train_expert_maac"
    """name of the experiment, part of the run folder's name"""
    seed: int = 1
    """seed of everything random; the same seed gives the same policy on the same machine"""
    torch_threads: int = 0
    """threads that torch may use; 0 leaves it to torch (one thread a run is best when several run side by side)"""
    cuda: bool = False
    """train on the GPU (the CPU is the faster one for these small networks)"""
    track: bool = False
    """log to Weights & Biases too (needs `pip install wandb`)"""
    capture_video: bool = False
    """write a short video of the kept policy, playing greedily, into the run folder (with --record-only
    beside the card); of the tasks of particle_envs, which can be drawn"""
    runs: str = "runs"
    """where run folders go"""
    experts: str = str(env_utils.EXPERTS)
    """where the expert, its demonstrations and its card go, in a folder named after the task"""
    resume: str = ""
    """a run folder to go on with; its config.json has the other arguments, and only these may be
    new: --torch-threads, --save-every, --track, --capture-video, --experts, and --total-timesteps
    (not with --anneal-lr), to make it longer or end it sooner"""
    record_only: str = ""
    """skip training: evaluate and record this policy.safetensors (or the folder that has one)"""

    save_every: int = 60
    """seconds between checkpoints"""

    # Task
    env_id: str = "cooperative_navigation"
    """the task: ours, mpe2's by short name, or a PettingZoo module path"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is the paper's 50,000 episodes, 100,000 for rover_tower"""
    num_envs: int = 100
    """copies of the task stepped in lockstep"""

    # Algorithm (the paper's table "Hyperparameters for training experts with MAAC"; else docs/train_expert_maac.md)
    gamma: float = 0.995
    """discount factor"""
    buffer_size: int = 50_000
    """transitions in the replay buffer"""
    batch_size: int = 1000
    """transitions in an update"""
    policy_lr: float = 1e-3
    """Adam step size of the policies"""
    critic_lr: float = 1e-3
    """Adam step size of the critic"""
    anneal_lr: bool = False
    """let both step sizes fall linearly to zero"""
    policy_tau: float = 0.01
    """target policy update rate"""
    critic_tau: float = 0.01
    """target critic update rate"""
    alpha: float = 0.01
    """policy entropy coefficient"""
    soft_discounted: bool = False
    """discount and mask the entropy term of the target, gamma (Q' - alpha log pi'), as in soft actor-critic"""
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
    critic_batch_norm: bool = False
    """normalise the critic's inputs over each batch, as the released code does, on top of the running statistics"""
    normalize_rewards: bool = True
    """standardise each agent's reward by running statistics, before the division by the episode length"""
    hidden_size: int = 128
    """units of every hidden layer"""
    attention_heads: int = 4
    """heads of the critic's attention"""
    attention_regularization: float = 1e-6
    """weight of the squared attention logits; the released 0.001 is for rewards that are not divided by 25"""
    logit_regularization: float = 1e-3
    """weight of the squared policy logits"""

    # Evaluation
    log_every: int = 10_000
    """environment steps between TensorBoard points"""
    eval_every: int = 25_000
    """environment steps between evaluations of the greedy policy, on episodes that are used for nothing else"""
    eval_episodes: int = 200
    """episodes of such an evaluation, the same ones every time, so that policies are told apart and not starts"""
    keep: Literal["auto", "best", "last"] = "auto"
    """which policy becomes the expert: the best evaluated one or the last; auto is last where agents compete"""
    final_episodes: int = 500
    """fresh episodes of the final scores of expert and random play"""
    store_demos: int = 200
    """how many of the final episodes become demonstrations"""


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


# Data


class RunningMeanStd(nn.Module):
    """Mean and variance of all data so far, per agent and feature, by merging the moments of batches."""

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    def update(self, batch: torch.Tensor) -> None:
        """batch [n, *shape]"""
        n = len(batch)
        var, mean = torch.var_mean(batch.double(), dim=0, correction=0)
        delta, total = mean - self.mean, self.count + n
        self.var = (self.var * self.count + var * n + delta.square() * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def normalized(self, batch: torch.Tensor) -> torch.Tensor:
        """batch [agents, n, ...] standardised; zero padding stays zero."""
        return (batch - self.mean.float()[:, None]) * (self.var.float()[:, None] + 1e-8).rsqrt()


class ReplayBuffer(nn.Module):
    """The latest transitions of all agents, raw, in a ring. A module, so that a checkpoint takes it along."""

    names = ("obs", "next_obs", "actions", "rewards", "terminated")

    def __init__(self, capacity: int, num_agents: int, widest_obs: int):
        super().__init__()
        self.register_buffer("obs", torch.zeros(capacity, num_agents, widest_obs))
        self.register_buffer("next_obs", torch.zeros(capacity, num_agents, widest_obs))
        self.register_buffer("actions", torch.zeros(capacity, num_agents, dtype=torch.int64))
        self.register_buffer("rewards", torch.zeros(capacity, num_agents))
        self.register_buffer("terminated", torch.zeros(capacity))
        self.register_buffer("added", torch.tensor(0))  # transitions ever added

    def add(self, **transitions: torch.Tensor) -> None:
        """One tensor [n, ...] a name of `names`."""
        capacity, n = len(self.terminated), len(transitions["terminated"])
        rows = (int(self.added) + torch.arange(n, device=self.obs.device)) % capacity
        for name in self.names:
            store = getattr(self, name)
            store[rows] = transitions[name].to(store)
        self.added += n

    def __len__(self) -> int:
        return min(int(self.added), len(self.terminated))

    def sample(self, batch: int) -> list[torch.Tensor]:
        """obs, next_obs [agents, batch, widest], actions, rewards [agents, batch], terminated [batch]."""
        rows = torch.randint(len(self), (batch,), device=self.obs.device)
        picked = [getattr(self, name)[rows] for name in self.names]
        return [part.transpose(0, 1) if part.dim() > 1 else part for part in picked]


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
        alive = args.gamma * (1 - terminated)
        if args.soft_discounted:
            y = rewards + alive * (next_q + entropy_bonus)
        else:
            y = rewards + alive * next_q + entropy_bonus
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


def make_networks(obs_sizes: np.ndarray, num_actions: np.ndarray, args: Args, device="cpu") -> SimpleNamespace:
    """Everything an update changes: networks, their targets and optimizers."""
    sizes, actions = torch.as_tensor(obs_sizes), torch.as_tensor(num_actions)
    policies = Policies(sizes, actions, args.hidden_size).to(device)
    critic = AttentionCritic(sizes, actions, args.hidden_size, args.attention_heads, args.critic_batch_norm).to(device)
    return SimpleNamespace(
        policies=policies,
        critic=critic,
        target_policies=copy.deepcopy(policies),
        target_critic=copy.deepcopy(critic),
        policy_optimizer=torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True),
        critic_optimizer=torch.optim.Adam(
            critic.parameters(), args.critic_lr, weight_decay=args.critic_weight_decay, fused=True
        ),
    )


def update(batch: tuple[torch.Tensor, ...], nets: SimpleNamespace, args: Args) -> dict[str, torch.Tensor]:
    """One MAAC update: critic, then policies, then targets, all on one batch. Returns what is worth logging."""
    loss_q, seen = critic_loss(batch, nets.critic, nets.target_critic, nets.target_policies, args)
    nets.critic_optimizer.zero_grad(set_to_none=True)
    loss_q.backward()
    for parameter in nets.critic.shared_parameters():
        parameter.grad /= batch[0].shape[0]
    seen["critic_norm"] = nn.utils.clip_grad_norm_(nets.critic.parameters(), args.critic_max_grad_norm)
    nets.critic_optimizer.step()

    loss_pi, seen_pi = policy_loss(batch[0], nets.policies, nets.critic, args)
    nets.policy_optimizer.zero_grad(set_to_none=True)
    loss_pi.backward()
    seen["policy_norms"] = clip_each_agent(nets.policies, args.policy_max_grad_norm)
    nets.policy_optimizer.step()

    move_target(nets.target_critic, nets.critic, args.critic_tau)
    move_target(nets.target_policies, nets.policies, args.policy_tau)
    return seen | seen_pi | {"policy_loss": loss_pi.detach()}


def scaled_rewards(rewards: torch.Tensor, stats: RunningMeanStd, episode_length: int, args: Args) -> torch.Tensor:
    """rewards [agents, batch]: standardised per agent, then divided by the episode length."""
    return (stats.normalized(rewards) if args.normalize_rewards else rewards) / episode_length


def set_learning_rates(nets: SimpleNamespace, step: int, args: Args) -> None:
    factor = max(0.0, 1 - step / args.total_timesteps) if args.anneal_lr else 1.0
    nets.policy_optimizer.param_groups[0]["lr"] = args.policy_lr * factor
    nets.critic_optimizer.param_groups[0]["lr"] = args.critic_lr * factor


# Around training


def policy_tensors(policies: Policies, obs_stats: RunningMeanStd) -> dict[str, torch.Tensor]:
    """What `env_utils.load_policy` rebuilds a policy from."""
    tensors = {"obs_mean": obs_stats.mean.float(), "obs_var": obs_stats.var.float()}
    for k, layer in enumerate(policies.layers):
        tensors |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def agents_compete(env_id: str, num_actions: np.ndarray) -> bool:
    """Whether some agents' scores run against one another in random play: then no score says which policy is best."""
    scores = play_episodes(env_id, env_utils.random_actions(num_actions, seed=0), 200, seed=0)[0]
    scores = scores[:, scores.std(0) > 0]
    # Of unrelated pairs, as in rover_tower, the lowest of 200 episodes comes to about -0.1; of rivals, to -0.6 or less.
    return scores.shape[1] > 1 and bool(np.corrcoef(scores.T).min() < -0.3)


def keeps_best(args: Args, envs) -> bool:
    """Whether the best policy becomes the expert, or the last."""
    return args.keep == "best" or (args.keep == "auto" and not agents_compete(args.env_id, envs.num_actions))


def args_of_training(args: dict) -> dict:
    """Those that a policy depends on, not where files are nor what is recorded of it."""
    others = ("resume", "record_only", "runs", "experts", "final_episodes", "store_demos")
    return {name: value for name, value in args.items() if name not in others}


def training_so_far(run_folder: Path, envs) -> dict | None:
    """For the card: how the policy that a run has kept was trained, from its config and its last checkpoint."""
    config = env_utils.read_json_object(run_folder / "config.json", "a config")
    if "keep" not in config["args"]:
        return None  # of another script
    step, _, kept_at_step, seconds, _ = env_utils.load_checkpoint(run_folder / "checkpoint.pt")["progress"]
    return {
        "script": "train_expert_maac.py",
        "args": args_of_training(config["args"]),
        "commit": config["commit"],  # of its beginning
        "kept": "best" if keeps_best(Args(**config["args"]), envs) else "last",
        "kept_at_step": kept_at_step,
        "steps": step,
        "episodes": step // envs.episode_length,
        "seconds": round(seconds),
    }


def record_expert(policy: env_utils.SavedPolicy, envs, args: Args, training: dict | None, code: str) -> dict:
    """Score expert and random play on fresh episodes; write the policy, its demonstrations and the card."""
    folder = Path(args.experts) / args.env_id
    returns, demos = play_episodes(args.env_id, policy.greedy, args.final_episodes, RECORDING_SEED, record=True)
    random_policy = env_utils.random_actions(envs.num_actions, seed=20_000_003)
    random_returns, _ = play_episodes(args.env_id, random_policy, args.final_episodes, seed=20_000_003)
    # One mean and interval an agent, and those of their mean: agents of one episode are not independent.
    scores, over_agents, references = {}, {}, {}
    for who, played in (("expert", returns), ("random", random_returns)):
        references[who] = mean_and_interval(played)
        columns = np.hstack([references[who], mean_and_interval(played.mean(1, keepdims=True))])  # [2, agents + 1]
        *by_agent, over_agents[who] = [{"mean": float(m), "interval_95": float(h)} for m, h in columns.T]
        scores[who] = dict(zip(envs.agents, by_agent))
    demos.metadata = {
        "made_by": "train_expert_maac.py, the most probable action of each agent",
        "episodes_played": args.final_episodes,
    }
    env_utils.save_policy(folder / "policy.safetensors", policy.tensors, args.env_id, envs)
    env_utils.save_demos(folder / "demos.npz", demos.first(args.store_demos))
    card = {
        "format_version": env_utils.FORMAT_VERSION,
        "env_id": args.env_id,
        "episodes": args.final_episodes,
        "demonstrations": args.store_demos,
        "scores": scores,
        "mean_over_agents": over_agents,
        "training": training,
        "versions": env_utils.versions(),
        "commit": code,
        "sha256": {name: env_utils.sha256(folder / name) for name in ("policy.safetensors", "demos.npz")},
    }
    env_utils.write_json(folder / "card.json", card)
    print(f"\n{'agent':<16}{'expert':>20}{'random':>20}   ({args.final_episodes} episodes each, 95 % intervals)")
    for agent in [*envs.agents, "mean"]:
        found = [scores[who].get(agent, over_agents[who]) for who in scores]
        cells = [f"{score['mean']:.2f} ± {score['interval_95']:.2f}" for score in found]
        print(f"{agent:<16}{cells[0]:>20}{cells[1]:>20}")
    below = env_utils.below_random(envs.agents, references)
    env_utils.warn_of_references(env_utils.too_close(envs.agents, references), below)
    if len(below) == len(envs.agents):
        print("warning: no agent of this expert scores better than random play; NSS against it means nothing")
    print(f"written: {folder}/policy.safetensors, demos.npz ({args.store_demos} episodes), card.json")
    return scores


def check_args(args: Args) -> None:
    env_utils.check_common_args(args)
    counts = "buffer_size batch_size update_period updates_per_period eval_every log_every"
    for name in counts.split():
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    for name in ("alpha", "critic_weight_decay", "attention_regularization", "logit_regularization"):
        if not 0 <= getattr(args, name) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be a number from 0 on, got {getattr(args, name)}")
    for name in ("critic_max_grad_norm", "policy_max_grad_norm"):
        if not getattr(args, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0 (inf: no clipping), got {getattr(args, name)}")
    if args.buffer_size < max(args.batch_size, args.num_envs):
        raise UserError(f"--buffer-size {args.buffer_size} cannot hold a batch of {args.batch_size} transitions")
    if args.total_timesteps < 0 or 0 < args.total_timesteps <= args.batch_size:
        raise UserError(f"--total-timesteps must exceed --batch-size {args.batch_size}: learning starts there")
    if min(args.eval_episodes, args.final_episodes) < 2:
        raise UserError("--eval-episodes and --final-episodes must be at least 2")
    if not 1 <= args.store_demos <= args.final_episodes:
        raise UserError(f"--store-demos must be from 1 to --final-episodes ({args.final_episodes})")


def main(args: Args) -> None:
    code = env_utils.commit()  # now: files may change while this runs
    checkpoint = {}
    if args.resume:
        run_folder = Path(args.resume)
        checkpoint = env_utils.load_checkpoint(run_folder / "checkpoint.pt")
        args = env_utils.resumed_args(run_folder, args)
        end_before = env_utils.read_json_object(run_folder / "config.json", "a config")["args"]["total_timesteps"]
        if args.total_timesteps != end_before and args.total_timesteps <= checkpoint["step"]:
            raise UserError(
                f"{run_folder} is at step {checkpoint['step']} already: --total-timesteps, which has to be above, "
                f"was {args.total_timesteps} (--record-only takes the policy that the run has kept so far)"
            )
    check_args(args)
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    device = torch.device("cuda" if args.cuda else "cpu")
    torch.manual_seed(args.seed)
    envs = make_envs(args.env_id, args.num_envs, args.seed)

    if args.capture_video:
        env_utils.require_can_draw(envs)
    expert_folder = Path(args.experts) / args.env_id
    env_utils.require_writable(expert_folder)  # now, not after an hour of training
    if (expert_folder / "card.json").is_file():
        print(f"what is in {expert_folder} will be replaced at the end (--experts: elsewhere)")
    if args.record_only:
        path = Path(args.record_only)
        path = path / "policy.safetensors" if path.is_dir() else path
        policy = env_utils.load_policy(path, envs)
        beside = [path.with_name(name) for name in ("card.json", "summary.json") if path.with_name(name).is_file()]
        found = env_utils.read_json_object(beside[0], "what the policy beside it was trained by") if beside else {}
        training = found.get("training")
        if training and "args" in training:
            training |= {"args": args_of_training(training["args"])}
        elif not training and path.with_name("checkpoint.pt").is_file():  # of a run that has not ended
            training = training_so_far(path.parent, envs)
        record_expert(policy, envs, args, training, code)
        if args.capture_video:
            env_utils.write_video(expert_folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
            print(f"video: {expert_folder}/video.mp4")
        return

    if len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent; MAAC attends to others and needs at least two")
    if not args.total_timesteps:
        args.total_timesteps = (100_000 if args.env_id.startswith("rover_tower") else 50_000) * envs.episode_length
    interrupt = env_utils.Interrupt()
    if not checkpoint:
        run_folder = env_utils.make_run_folder(args.runs, args.env_id, args.exp_name, args.seed, asdict(args))
    if args.track:
        env_utils.track(run_folder, asdict(args))
    writer = SummaryWriter(str(run_folder), purge_step=checkpoint["step"] + 1 if checkpoint else None)

    num_agents, widest_obs = len(envs.agents), int(envs.obs_sizes.max())
    nets = make_networks(envs.obs_sizes, envs.num_actions, args, device)
    buffer = ReplayBuffer(args.buffer_size, num_agents, widest_obs).to(device)
    obs_stats = RunningMeanStd(num_agents, widest_obs).to(device)
    reward_stats = RunningMeanStd(num_agents).to(device)
    modules = vars(nets) | {"buffer": buffer, "obs_stats": obs_stats, "reward_stats": reward_stats}
    keep_best = keeps_best(args, envs)
    if args.keep == "auto" and not keep_best:
        print(f"agents of {args.env_id} compete: the last policy will be the expert, not the best (--keep)")

    obs = torch.as_tensor(envs.reset(), device=device)
    episode_return, recent_returns = torch.zeros(args.num_envs, num_agents), []
    step, best_score, kept_at_step, seconds_before, kept = 0, -math.inf, 0, 0.0, {}
    if checkpoint:
        for name, module in modules.items():
            module.load_state_dict(checkpoint[name])
        step, best_score, kept_at_step, seconds_before, recent_returns = checkpoint["progress"]
        episode_return, kept = checkpoint["episode_return"], checkpoint["kept"]
        env_utils.save_resumed_args(run_folder, args)
        if kept:  # the file may be newer than the checkpoint, or be gone with the end of a shorter run
            env_utils.save_policy(run_folder / "policy.safetensors", kept, args.env_id, envs)
        obs = torch.as_tensor(envs.set_state(env_utils.from_checkpoint(checkpoint["env_state"])), device=device)
        if isinstance(envs, env_utils.PettingZooEnvs):  # which cannot be put back: new episodes
            episode_return[:] = 0.0
        env_utils.set_rng_state(checkpoint["rng"])

    print(f"run folder: {run_folder}")
    first_step, started = step, time.time()
    last_saved = started
    progress = tqdm(total=args.total_timesteps, initial=step, unit="step", unit_scale=True, desc=args.env_id)
    while step < args.total_timesteps:
        # Act: sample from the policies on normalised observations.
        with torch.no_grad():
            clipped = obs_stats.normalized(obs.transpose(0, 1)).clamp_(-10, 10)
            actions = sample(nets.policies(clipped)[1]).T  # [num_envs, agents]
        next_obs, rewards, terminated, truncated, final_obs = envs.step(actions.cpu().numpy())

        # Store raw data; a timeout is not an end: the critic looks past it, to the true last observation.
        rewards, terminated, truncated = (torch.as_tensor(x) for x in (rewards, terminated, truncated))
        final_obs = torch.as_tensor(final_obs)
        buffer.add(obs=obs, next_obs=final_obs, actions=actions, rewards=rewards, terminated=terminated)
        obs_stats.update(obs)
        reward_stats.update(rewards.to(device))
        obs = torch.as_tensor(next_obs, device=device)
        episode_return += rewards
        done = terminated | truncated
        recent_returns = (recent_returns + episode_return[done].tolist())[-500:]
        episode_return[done] = 0.0
        previous, step = step, step + args.num_envs
        progress.update(args.num_envs)

        # Learn
        rounds = step // args.update_period - previous // args.update_period
        set_learning_rates(nets, step, args)
        seen = {}
        for _ in range(rounds * args.updates_per_period if len(buffer) >= args.batch_size else 0):
            b_obs, b_next_obs, b_actions, b_rewards, b_terminated = buffer.sample(args.batch_size)
            b_obs, b_next_obs = (obs_stats.normalized(x).clamp_(-10, 10) for x in (b_obs, b_next_obs))
            b_rewards = scaled_rewards(b_rewards, reward_stats, envs.episode_length, args)
            seen = update((b_obs, b_next_obs, b_actions, b_rewards, b_terminated), nets, args)

        # Log
        if seen and recent_returns and step // args.log_every > previous // args.log_every:
            mean_returns = np.mean(recent_returns, axis=0)
            for agent, value in zip(envs.agents, mean_returns):
                writer.add_scalar(f"charts/episodic_return-{agent}", value, step)
            for name, value in {
                "charts/SPS": (step - first_step) / (time.time() - started),
                "charts/episodes": step / envs.episode_length,
                "losses/critic": seen["td"],
                "losses/policy": seen["policy_loss"],
                "losses/policy_entropy": seen["entropy"],
                "losses/attention_entropy": torch.special.entr(seen["attention"]).sum(-1).mean(),
                "losses/q_mean": seen["q"].mean(),
                "losses/q_abs_max": seen["q"].abs().max(),
                "losses/target_std": seen["y"].std(),
                "losses/advantage_std": seen["advantage"].std(),
                "gradients/critic": seen["critic_norm"],
                "gradients/policy_max": seen["policy_norms"].max(),
            }.items():
                writer.add_scalar(name, float(value), step)
            best = f", best greedy {best_score:.1f}" if kept else ""
            progress.set_postfix_str(f"score {mean_returns.mean():.1f}{best}")

        # Evaluate the greedy policy, always on the same episodes, and keep the best.
        finished = step >= args.total_timesteps
        if finished or step // args.eval_every > previous // args.eval_every:
            tensors = policy_tensors(nets.policies, obs_stats)
            greedy = env_utils.SavedPolicy(tensors, {"num_actions": envs.num_actions.tolist()}).greedy
            scores = play_episodes(args.env_id, greedy, args.eval_episodes, SELECTION_SEED)[0].mean(0)
            for agent, value in [*zip(envs.agents, scores), ("mean", scores.mean())]:
                writer.add_scalar(f"eval/greedy_return-{agent}", value, step)
            if scores.mean() > best_score or not keep_best:
                best_score, kept_at_step, kept = float(scores.mean()), step, tensors
                env_utils.save_policy(run_folder / "policy.safetensors", kept, args.env_id, envs)
        if finished or interrupt.requested or time.time() - last_saved > args.save_every:
            last_saved = time.time()
            seconds = seconds_before + last_saved - started
            env_utils.save_checkpoint(
                run_folder / "checkpoint.pt",
                {name: module.state_dict() for name, module in modules.items()}
                | {
                    "progress": (step, best_score, kept_at_step, seconds, recent_returns),
                    "step": step,
                    "kept": kept,
                    "episode_return": episode_return,
                    "env_state": env_utils.for_checkpoint(envs.get_state()),
                    "rng": env_utils.rng_state(),
                },
            )
            if interrupt.requested and not finished:
                interrupt.stop("train_expert_maac.py", run_folder, step)
    progress.close()
    writer.close()

    # The expert: fresh episodes, demonstrations, card.
    policy = env_utils.load_policy(run_folder / "policy.safetensors", envs)
    training = training_so_far(run_folder, envs)
    scores = record_expert(policy, envs, args, training, code)
    if args.capture_video:
        env_utils.write_video(run_folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
        print(f"video: {run_folder}/video.mp4")
    # Last: its presence means that the run ended well.
    env_utils.write_json(run_folder / "summary.json", {"env_id": args.env_id, "scores": scores, "training": training})


if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
