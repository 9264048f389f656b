"""Experts: Multi-Actor-Attention-Critic (MAAC) on the true reward.

MAAC is Iqbal & Sha 2019, "Actor-Attention-Critic for Multi-Agent Reinforcement Learning". This is the variant with
which Jeon et al. 2020 (arXiv 2002.10525), appendix A, train the experts of their imitation experiments; equation
numbers are theirs. The networks of all agents are stacked: weights [agents, in, out], activations [agents, batch, in].
docs/train_expert_maac.md explains the logged metrics and every departure from the paper.

    python train_expert_maac.py --env-id cooperative_navigation

trains, keeps the best policy, and writes experts/<env_id>/policy.safetensors, demos.npz and card.json.
"""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import tyro

from madaac_utils.arguments import ExperimentArgs


@dataclass
class Args(ExperimentArgs):
    # Experiment
    experts: str = str(Path(__file__).resolve().parent / "experts")
    """where the expert, its demonstrations and its card go, in a folder named after the task"""
    record_only: str = ""
    """skip training: evaluate and record this policy.safetensors, or the one in this folder"""
    store_demos: int = 200
    """how many of the --eval-episodes become demonstrations"""
    keep: Literal["auto", "best", "last"] = "auto"
    """which policy becomes the expert: the best evaluated one or the last; auto is last where agents compete"""
    eval_every: int = 25_000
    """environment steps between evaluations that choose the best policy"""
    selection_episodes: int = 200
    """episodes of such an evaluation, always the same ones"""

    # Task
    env_id: str = "cooperative_navigation"
    """the task: one of ours, one of mpe2's by its short name, or the module path of a PettingZoo environment"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is the paper's 50,000 episodes, 100,000 for rover_tower"""
    num_envs: int = 100
    """copies of the task, stepped in lockstep"""

    # Algorithm
    gamma: float = 0.995
    """discount factor"""
    buffer_size: int = 50_000
    """transitions in the replay buffer"""
    batch_size: int = 1000
    """transitions per update"""
    update_period: int = 100
    """environment steps between rounds of updates"""
    updates_per_period: int = 1
    """updates per round"""
    policy_lr: float = 1e-3
    """Adam step size of the policies"""
    critic_lr: float = 1e-3
    """Adam step size of the critic"""
    anneal_lr: bool = False
    """let both step sizes fall linearly to zero"""
    policy_tau: float = 0.01
    """update rate of the target policies"""
    critic_tau: float = 0.01
    """update rate of the target critic"""
    alpha: float = 0.01
    """policy entropy coefficient"""
    critic_max_grad_norm: float = 1.0
    """maximum norm of the critic's gradient"""
    policy_max_grad_norm: float = 0.5
    """maximum norm of each policy's gradient"""
    hidden_size: int = 128
    """units of every hidden layer"""
    attention_heads: int = 4
    """attention heads of the critic"""
    attention_regularization: float = 1e-6
    """weight of the squared attention logits (released code: 0.001, for rewards that are not divided by 25)"""
    logit_regularization: float = 1e-3
    """weight of the squared policy logits"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from env_utils import RecordEpisodes, make_envs, play_episodes, task_name
from madaac_utils.configuration import total_timesteps
from madaac_utils.experts import SELECTION_SEED, Kept, agents_compete, record_expert, training_of
from madaac_utils.files import UserError, exit_on_user_error, require_writable, write_json
from madaac_utils.paper import paper_episodes
from madaac_utils.policies import describe_policy, load_policy
from madaac_utils.run import Run
from madaac_utils.video import write_video

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


def stacked_mlp(fan_in: torch.Tensor, size_in: int, hidden: int, size_out: int) -> nn.Sequential:
    """One network with two hidden layers per agent."""
    wide = torch.full_like(fan_in, hidden)
    return nn.Sequential(
        StackedLinear(fan_in, size_in, hidden),
        nn.LeakyReLU(),
        StackedLinear(wide, hidden, hidden),
        nn.LeakyReLU(),
        StackedLinear(wide, hidden, size_out),
    )


class Policies(nn.Module):
    """pi_i(a_i | o_i) of all agents."""

    def __init__(self, envs, hidden: int):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        widest_action = int(num_actions.max())
        self.network = stacked_mlp(obs_sizes, int(obs_sizes.max()), hidden, widest_action)
        has_action = (torch.arange(widest_action) < num_actions[:, None])[:, None]  # [agents, 1, widest action]
        self.register_buffer("has_action", has_action, persistent=False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """obs [agents, batch, widest obs] -> logits [agents, batch, widest action]; -1e9 for actions an agent lacks."""
        return self.network(obs).masked_fill(~self.has_action, -1e9)


def sample(log_probs: torch.Tensor) -> torch.Tensor:
    """Draw actions [agents, batch]: argmax of p / Exp(1) is distributed as p."""
    return (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1)


def gather_actions(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The entries of values [agents, batch, actions] at actions [agents, batch]."""
    return values.gather(-1, actions[..., None])[..., 0]


class AttentionCritic(nn.Module):
    """Q_i(o, a) of all agents for all own actions; agents attend to the observations and actions of the others."""

    def __init__(self, envs, hidden: int, heads: int):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        num, widest_obs, self.widest_action = len(obs_sizes), int(obs_sizes.max()), int(num_actions.max())
        wide = torch.full_like(obs_sizes, hidden)
        self.heads = heads
        self.encode_state = StackedLinear(obs_sizes, widest_obs, hidden)
        self.encode_state_action = StackedLinear(obs_sizes + num_actions, widest_obs + self.widest_action, hidden)
        # Shared by all agents; the projections of the heads stand side by side in one matrix.
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden)
        self.head = nn.Sequential(
            StackedLinear(2 * wide, 2 * hidden, hidden),
            nn.LeakyReLU(),
            StackedLinear(wide, hidden, self.widest_action),
        )
        self.register_buffer("self_mask", torch.eye(num, dtype=torch.bool), persistent=False)

    def shared_parameters(self) -> list[nn.Parameter]:
        """Those that the losses of all agents reach. Released code: their gradient is divided by the agents' number."""
        modules = (self.query, self.key, self.value, self.encode_state_action)
        return [parameter for module in modules for parameter in module.parameters()]

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """obs [agents, batch, widest obs], actions [agents, batch].

        Returns Q [agents, batch, widest action] for every own action, the squared attention logits (summed over
        agents and heads, averaged over batch and others) and the attention weights [batch, heads, agents, agents].
        """
        num, batch, _ = obs.shape
        one_hot = F.one_hot(actions, self.widest_action).to(obs.dtype)
        s = F.leaky_relu(self.encode_state(obs))  # [agents, batch, hidden]
        e = F.leaky_relu(self.encode_state_action(torch.cat([obs, one_hot], -1)))

        # P_ij ~ exp((W_K e_j)^T W_Q s_i / sqrt(d)), v_j = sigma(W_V e_j). The paper's text has e_i in the query. With
        # the own action in it, Q_i could not be computed for all own actions at once; the released code uses s_i.
        def by_head(x: torch.Tensor) -> torch.Tensor:
            """[agents, batch, heads * d] -> [batch, heads, agents, d]"""
            return x.view(num, batch, self.heads, -1).permute(1, 2, 0, 3)

        queries, keys, values = by_head(self.query(s)), by_head(self.key(e)), by_head(F.leaky_relu(self.value(e)))
        logits = queries @ keys.mT  # [batch, heads, agents, agents]
        weights = (logits / math.sqrt(keys.shape[-1])).masked_fill(self.self_mask, -torch.inf).softmax(-1)
        attended = (weights @ values).permute(2, 0, 1, 3).reshape(num, batch, -1)  # [agents, batch, hidden]
        squared_logits = logits.masked_fill(self.self_mask, 0.0).square().sum() / (batch * (num - 1))
        return self.head(torch.cat([s, attended], -1)), squared_logits, weights


class RunningMeanStd(nn.Module):
    """Mean and variance of all data so far, per agent and feature."""

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    def update(self, batch: torch.Tensor) -> None:
        """Merge the moments of a batch [n, *shape]."""
        n = len(batch)
        var, mean = torch.var_mean(batch.double(), dim=0, correction=0)
        delta, total = mean - self.mean, self.count + n
        self.var = (self.var * self.count + var * n + delta.square() * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def normalized(self, batch: torch.Tensor) -> torch.Tensor:
        """Standardise a batch [agents, n, ...]; zero padding stays zero."""
        return (batch - self.mean.float()[:, None]) * (self.var.float()[:, None] + 1e-8).rsqrt()


# Data


class Batch(NamedTuple):
    obs: torch.Tensor  # [agents, batch, widest obs]
    actions: torch.Tensor  # [agents, batch]
    next_obs: torch.Tensor  # true successors, also at the end of an episode
    rewards: torch.Tensor  # the task's own, [agents, batch]
    terminated: torch.Tensor  # [batch]; a time limit does not terminate: the critic looks past it


class ReplayBuffer:
    """The latest transitions in a ring. Memory that was never written is never taken from the system."""

    def __init__(self, capacity: int, envs, device: torch.device):
        agents, widest = len(envs.agents), int(max(envs.obs_sizes))
        self.store = Batch(
            obs=torch.empty(capacity, agents, widest),
            actions=torch.empty(capacity, agents, dtype=torch.int64),
            next_obs=torch.empty(capacity, agents, widest),
            rewards=torch.empty(capacity, agents),
            terminated=torch.empty(capacity),
        )
        self.capacity, self.added, self.device = capacity, 0, device

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, *transitions: np.ndarray) -> None:
        """Arrays [n, ...] in the order of Batch."""
        n = len(transitions[0])
        rows = (self.added + torch.arange(n)) % self.capacity
        for part, new in zip(self.store, transitions):
            part[rows] = torch.as_tensor(new).to(part.dtype)
        self.added += n

    def sample(self, batch: int) -> Batch:
        rows = torch.randint(len(self), (batch,))
        *by_agent, terminated = (part[rows].to(self.device) for part in self.store)
        return Batch(*(part.transpose(0, 1) for part in by_agent), terminated)

    def state_dict(self) -> dict:
        return {"added": self.added} | {name: part[: len(self)] for name, part in self.store._asdict().items()}

    def load_state_dict(self, state: dict) -> None:
        self.added = state["added"]
        for name, part in self.store._asdict().items():
            part[: len(self)] = state[name]


# Losses


def critic_loss(batch: Batch, critic, target_critic, target_policies, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (1): sum_i (y_i - Q_i)^2, here with the Huber loss, and the released code's attention term."""
    with torch.no_grad():
        next_log_probs = target_policies(batch.next_obs).log_softmax(-1)
        next_actions = sample(next_log_probs)  # a' ~ pi'(. | o')
        next_q = gather_actions(target_critic(batch.next_obs, next_actions)[0], next_actions)
        entropy_bonus = -args.alpha * gather_actions(next_log_probs, next_actions)
        # y_i = r_i + gamma Q'_i(o', a') - alpha log pi'_i(a'_i | o'_i). The paper's equation has no entropy term; the
        # released code adds it, neither discounted nor masked.
        y = batch.rewards + args.gamma * (1 - batch.terminated) * next_q + entropy_bonus
    q, squared_logits, attention = critic(batch.obs, batch.actions)
    q = gather_actions(q, batch.actions)  # [agents, batch]
    td_loss = F.huber_loss(q, y, reduction="none").mean(1).sum()
    return td_loss + args.attention_regularization * squared_logits, {
        "losses/critic": td_loss.detach(),
        "losses/q_mean": q.detach().mean(),
        "losses/q_abs_max": q.detach().abs().max(),
        "losses/target_std": y.std(),
        "losses/attention_entropy": torch.special.entr(attention.detach()).sum(-1).mean(),
    }


def policy_loss(obs: torch.Tensor, logits: torch.Tensor, has_action, critic, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (2): grad log pi_i(a_i | o_i) A_i, with actions of all agents drawn from the current policies.

    As in the released code, the entropy term alpha log pi_i is part of the factor, and squared logits are penalised.
    """
    log_probs = logits.log_softmax(-1)
    actions = sample(log_probs.detach())
    log_prob = gather_actions(log_probs, actions)  # [agents, batch]
    with torch.no_grad():  # no gradient reaches the critic
        q = critic(obs, actions)[0]
        baseline = (log_probs.exp() * q).sum(-1)  # sum_a pi_i(a | o_i) Q_i(o, a_-i(a))
        advantage = gather_actions(q, actions) - baseline
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    gradient_term = (log_prob * (args.alpha * log_prob - advantage).detach()).mean(1)
    logit_term = (logits * has_action).square().mean(1).sum(-1) / has_action.sum((1, 2))
    loss = (gradient_term + args.logit_regularization * logit_term).sum()
    return loss, {
        "losses/policy": loss.detach(),
        "losses/policy_entropy": entropy.mean(),
        "losses/advantage_std": advantage.std(),
    }


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of each agent of a stack by itself; returns the norms [agents]."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= scale.view(-1, 1, 1)
    return norms


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """theta' <- (1 - tau) theta' + tau theta"""
    for old, new in zip(target.parameters(), online.parameters()):
        old.lerp_(new, tau)


def main(args: Args) -> None:
    run = Run(__file__, args)  # a new run, or the one that --resume names
    args, device = run.args, run.device
    envs = RecordEpisodes(make_envs(args.env_id, args.num_envs, args.seed))
    if args.store_demos > args.eval_episodes:
        raise UserError(f"--store-demos {args.store_demos} must not exceed --eval-episodes {args.eval_episodes}")
    expert_folder = Path(args.experts) / task_name(args.env_id)
    require_writable(expert_folder)  # an error now, not after an hour of training
    if (expert_folder / "card.json").is_file():
        print(f"the expert in {expert_folder} will be replaced at the end (--experts names another place)")
    if args.record_only:
        path = Path(args.record_only)
        path = path / "policy.safetensors" if path.is_dir() else path
        policy = load_policy(path, envs)
        record_expert(policy, envs, args, training_of(path.parent, envs.episode_length), run.script)
        if args.capture_video:
            write_video(expert_folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
        return
    args.total_timesteps = total_timesteps(args, envs, paper_episodes(args.env_id))
    if len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent, but the critic attends to others and needs at least two")
    if max(args.batch_size, args.num_envs) > args.buffer_size or args.batch_size >= args.total_timesteps:
        raise UserError(
            "--buffer-size must hold --batch-size and --num-envs, and --total-timesteps exceed --batch-size"
        )
    keep_best = args.keep == "best" or (args.keep == "auto" and not agents_compete(args.env_id, envs.num_actions))
    if args.keep == "auto" and not keep_best:
        print(f"the agents of {args.env_id} compete: the last policy becomes the expert, not the best (see --keep)")

    policies = Policies(envs, args.hidden_size).to(device)
    critic = AttentionCritic(envs, args.hidden_size, args.attention_heads).to(device)
    target_policies, target_critic = copy.deepcopy(policies), copy.deepcopy(critic)
    policy_optimizer = torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), args.critic_lr, fused=True)
    buffer, kept = ReplayBuffer(args.buffer_size, envs, device), Kept()
    obs_stats = RunningMeanStd(len(envs.agents), int(envs.obs_sizes.max())).to(device)
    reward_stats = RunningMeanStd(len(envs.agents)).to(device)
    run.start(
        envs,
        references=None,
        saves_policy=False,
        policies=policies,
        critic=critic,
        target_policies=target_policies,
        target_critic=target_critic,
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        obs_stats=obs_stats,
        reward_stats=reward_stats,
        buffer=buffer,
        kept=kept,
    )
    if kept.tensors:  # a resumed run: the file may be newer than the checkpoint
        run.save_policy(kept.tensors, kept.header)

    metrics = {}
    for step in run.steps(args.num_envs):
        # Act: sample from the policies, which see normalised observations.
        obs = envs.obs
        with torch.no_grad():
            normalized = obs_stats.normalized(torch.as_tensor(obs, device=device).transpose(0, 1)).clamp_(-10, 10)
            actions = sample(policies(normalized).log_softmax(-1)).T.cpu().numpy()  # [num_envs, agents]
        next_obs, rewards, terminated, _ = envs.step(actions)

        # Store raw data, and normalise it by the latest statistics when it is used.
        buffer.add(obs, actions, next_obs, rewards, terminated)
        obs_stats.update(torch.as_tensor(obs, device=device))
        reward_stats.update(torch.as_tensor(rewards, device=device))

        # Learn
        if args.anneal_lr:
            share_left = max(0.0, 1 - step / args.total_timesteps)
            policy_optimizer.param_groups[0]["lr"] = args.policy_lr * share_left
            critic_optimizer.param_groups[0]["lr"] = args.critic_lr * share_left
        updates = run.due(args.update_period) * args.updates_per_period if len(buffer) >= args.batch_size else 0
        for _ in range(updates):
            batch = buffer.sample(args.batch_size)
            batch = batch._replace(
                obs=obs_stats.normalized(batch.obs).clamp_(-10, 10),
                next_obs=obs_stats.normalized(batch.next_obs).clamp_(-10, 10),
                rewards=reward_stats.normalized(batch.rewards) / envs.episode_length,
            )
            loss, metrics = critic_loss(batch, critic, target_critic, target_policies, args)  # equation (1)
            critic_optimizer.zero_grad()
            loss.backward()
            for parameter in critic.shared_parameters():
                parameter.grad /= len(envs.agents)
            metrics["gradients/critic"] = nn.utils.clip_grad_norm_(critic.parameters(), args.critic_max_grad_norm)
            critic_optimizer.step()

            logits = policies(batch.obs)
            loss, policy_metrics = policy_loss(batch.obs, logits, policies.has_action, critic, args)  # equation (2)
            policy_optimizer.zero_grad()
            loss.backward()
            metrics["gradients/policy_max"] = clip_each_agent(policies, args.policy_max_grad_norm).max()
            policy_optimizer.step()
            metrics |= policy_metrics
            soft_update(target_critic, critic, args.critic_tau)
            soft_update(target_policies, policies, args.policy_tau)

        # Evaluate the greedy policy, always on the same episodes, and keep the best.
        if run.due(args.eval_every) or step >= args.total_timesteps:
            policy = describe_policy(policies, envs, obs_stats)
            scores = play_episodes(args.env_id, policy.greedy, args.selection_episodes, SELECTION_SEED).mean(0)
            by_agent = [*zip(envs.agents, scores), ("mean", scores.mean())]
            run.add_scalars({f"eval/greedy_return-{agent}": value for agent, value in by_agent}, step)
            if scores.mean() > kept.score or not keep_best:
                kept.score, kept.step = float(scores.mean()), step
                kept.tensors, kept.header = policy.tensors, policy.header
                run.save_policy(policy.tensors, policy.header)
        if run.due(run.log_every):
            run.log(metrics)

    # The expert: fresh episodes, demonstrations, card; summary.json last.
    run.writer.close()
    policy = load_policy(run.folder / "policy.safetensors", envs)
    training = training_of(run.folder, envs.episode_length)
    scores = record_expert(policy, envs, args, training, run.script)
    if args.capture_video:
        write_video(run.folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
    summary = {"script": run.script.name, "env_id": args.env_id, "scores": scores, "training": training}
    write_json(run.folder / "summary.json", summary)


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
