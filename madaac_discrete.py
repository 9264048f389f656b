"""MA-DAAC: multi-agent discriminator-actor-attention-critic.

Jeon, Barde, Nowrouzezahrai, Pineau 2020, "Scalable Multi-Agent Inverse Reinforcement Learning via
Actor-Attention-Critic" (arXiv 2002.10525), Algorithm 1. From demonstrations it learns one policy and one reward per
agent: discriminators tell the learner from the expert, and their logits are the rewards of an off-policy multi-agent
actor-critic (MAAC). Equation numbers are those of the paper. D is the probability of *expert* everywhere.
The networks of all agents are stacked: weights [agents, in, out], activations [agents, batch, in].
docs/madaac_discrete.md explains the logged metrics and every departure from the paper.

    python madaac_discrete.py --env-id simple_tag --n-demos 50
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tyro

from madaac_utils.arguments import ExperimentArgs


@dataclass
class Args(ExperimentArgs):
    # Task
    env_id: str = "cooperative_navigation"
    """the task: one of ours, one of mpe2's by its short name, or the module path of a PettingZoo environment"""
    n_demos: int = 50
    """number of demonstrations to learn from, the first ones of the file"""
    demos: str = ""
    """a file of your own demonstrations (.npz) instead of those shipped for the task"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is 10,000 episodes (paper: 50,000, Rover Tower 100,000)"""
    num_envs: int = 100
    """copies of the task, stepped in lockstep"""

    # Algorithm
    gamma: float = 0.995
    """discount factor"""
    buffer_size: int = 1_250_000
    """transitions in the replay buffer"""
    batch_size: int = 125
    """transitions of the learner, and as many of the expert, per update (paper: 1000)"""
    learning_starts: int = 1000
    """environment steps before the first update"""
    update_period: int = 100
    """environment steps between rounds of updates"""
    updates_per_period: int = 4
    """updates per round; with 1 update of 1000 transitions the discriminators learn several times more slowly"""
    policy_lr: float = 1e-3
    """Adam step size of the policies"""
    critic_lr: float = 1e-3
    """Adam step size of the critic"""
    disc_lr: float = 1e-3
    """Adam step size of the discriminators (paper: 0.0005)"""
    policy_tau: float = 0.003
    """update rate of the target policies (paper: 0.0005, and 0.01 for experts)"""
    critic_tau: float = 0.003
    """update rate of the target critic (paper: 0.0005, and 0.01 for experts)"""
    alpha: float = 0.01
    """policy entropy coefficient"""
    critic_max_grad_norm: float = 1.0
    """maximum norm of the critic's gradient"""
    policy_max_grad_norm: float = 0.5
    """maximum norm of each policy's gradient"""
    disc_max_grad_norm: float = 10.0
    """maximum norm of each discriminator's gradient"""
    hidden_size: int = 128
    """units of every hidden layer"""
    attention_heads: int = 4
    """attention heads of the critic"""
    attention_regularization: float = 1e-6
    """weight of the squared attention logits (released code: 0.001, for rewards that are not divided by 25)"""
    logit_regularization: float = 1e-3
    """weight of the squared policy logits"""
    discriminator: Literal["decentralized", "centralized", "shared"] = "decentralized"
    """decentralized: g_i(o_i, a_i) and h_i(o_i), networks of each agent; centralized: one g and one h for all agents;
    shared (not in the paper): decentralized, with equal weights for agents of one kind (rover_0, rover_1, ...)"""
    disc_actions: Literal["auto", "yes", "no"] = "auto"
    """whether g sees actions; auto is the paper's choice: no if centralized, otherwise yes"""
    disc_entropy: float = 0.01
    """weight of the entropy bonus of the discriminators"""
    true_reward: bool = False
    """train the policies on the task's own reward, to tell a broken learner from a broken reward"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from env_utils import RecordEpisodes, make_envs
from madaac_utils.configuration import total_timesteps
from madaac_utils.demos import Transitions, load_demos, reference_scores
from madaac_utils.files import UserError, exit_on_user_error
from madaac_utils.run import Run

LOG_PROB_MIN = -20.0  # log pi in the discriminators is at least this, so that rewards stay bounded

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


def log_pi(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log pi_i(a_i | o_i) [agents, batch], a constant for the discriminators."""
    return gather_actions(logits.detach().log_softmax(-1), actions).clamp(min=LOG_PROB_MIN)


class Attention(nn.Module):
    """Each agent attends to all others: P_ij ~ exp((W_K e_j)^T W_Q s_i / sqrt(d)), v_j = sigma(W_V e_j)."""

    def __init__(self, num_agents: int, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        # Shared by all agents; the projections of the heads stand side by side in one matrix.
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden)
        self.register_buffer("self_mask", torch.eye(num_agents, dtype=torch.bool), persistent=False)

    def forward(self, s: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """s of the agents that attend and e of the agents that they attend to, [agents, batch, hidden] each.

        Returns the attended values [agents, batch, hidden], and the logits (0 for an agent itself) and weights,
        [batch, heads, agents, agents] each.
        """
        num, batch, _ = s.shape

        def by_head(x: torch.Tensor) -> torch.Tensor:
            """[agents, batch, heads * d] -> [batch, heads, agents, d]"""
            return x.view(num, batch, self.heads, -1).permute(1, 2, 0, 3)

        queries, keys, values = by_head(self.query(s)), by_head(self.key(e)), by_head(F.leaky_relu(self.value(e)))
        logits = queries @ keys.mT
        weights = (logits / math.sqrt(keys.shape[-1])).masked_fill(self.self_mask, -torch.inf).softmax(-1)
        attended = (weights @ values).permute(2, 0, 1, 3).reshape(num, batch, -1)
        return attended, logits.masked_fill(self.self_mask, 0.0), weights


class AttentionCritic(nn.Module):
    """Q_i(o, a) of all agents for all own actions; agents attend to the observations and actions of the others."""

    def __init__(self, envs, hidden: int, heads: int):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        num, widest_obs, self.widest_action = len(obs_sizes), int(obs_sizes.max()), int(num_actions.max())
        wide = torch.full_like(obs_sizes, hidden)
        self.encode_state = StackedLinear(obs_sizes, widest_obs, hidden)
        self.encode_state_action = StackedLinear(obs_sizes + num_actions, widest_obs + self.widest_action, hidden)
        self.attention = Attention(num, hidden, heads)
        self.head = nn.Sequential(
            StackedLinear(2 * wide, 2 * hidden, hidden),
            nn.LeakyReLU(),
            StackedLinear(wide, hidden, self.widest_action),
        )

    def shared_parameters(self) -> list[nn.Parameter]:
        """Those that the losses of all agents reach; the released code divides their gradient by the agents' count."""
        return [*self.attention.parameters(), *self.encode_state_action.parameters()]

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """obs [agents, batch, widest obs], actions [agents, batch].

        Returns Q [agents, batch, widest action] for every own action, the squared attention logits (summed over
        agents and heads, averaged over batch and others) and the attention weights [batch, heads, agents, agents].
        """
        num, batch, _ = obs.shape
        one_hot = F.one_hot(actions, self.widest_action).to(obs.dtype)
        inputs = batch_norm(torch.cat([obs, one_hot], -1))  # [agents, batch, widest obs + widest action]
        s = F.leaky_relu(self.encode_state(inputs[..., : obs.shape[-1]]))  # [agents, batch, hidden]
        e = F.leaky_relu(self.encode_state_action(inputs))
        # The paper's text has e_i in the query. With the own action in it, Q_i could not be computed for all own
        # actions at once; the released code uses s_i.
        attended, logits, weights = self.attention(s, e)
        squared_logits = logits.square().sum() / (batch * (num - 1))
        return self.head(torch.cat([s, attended], -1)), squared_logits, weights


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    """Normalise over the batch, as the released critic does with its inputs; policies see raw observations."""
    var, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5)


class Discriminators(nn.Module):
    """f_i = g_i + gamma h_i(o') - h_i(o), equation (4). The logit of D_i is f_i - log pi_i(a_i | o_i)."""

    reward_form = "g"  # the recovered reward is g alone

    def __init__(self, envs, args: Args):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        num, widest_obs, self.widest_action = len(obs_sizes), int(obs_sizes.max()), int(num_actions.max())
        self.gamma, self.joint = args.gamma, args.discriminator == "centralized"
        self.sees_actions = args.disc_actions == "yes" or (args.disc_actions == "auto" and not self.joint)
        size_g = widest_obs + self.sees_actions * self.widest_action
        if self.joint:  # stacks of one network, which sees the padded inputs of all agents and has an output for each
            self.g = stacked_mlp(torch.tensor([num * size_g]), num * size_g, args.hidden_size, num)
            self.h = stacked_mlp(torch.tensor([num * widest_obs]), num * widest_obs, args.hidden_size, num)
        else:
            self.g = stacked_mlp(obs_sizes + self.sees_actions * num_actions, size_g, args.hidden_size, 1)
            self.h = stacked_mlp(obs_sizes, widest_obs, args.hidden_size, 1)
        if args.discriminator == "shared":
            # Agents of the same kind have the same sizes, and names that differ by the number at their end only.
            names = [name.rstrip("0123456789") for name in envs.agents]
            kinds = list(zip(names, envs.obs_sizes, envs.num_actions))
            if len(set(kinds)) == num:
                raise UserError("no two agents are of the same kind, so `shared` would be the same as `decentralized`")
            first_of_kind = torch.tensor([kinds.index(kind) for kind in kinds])  # [agents]
            self.register_buffer("first_of_kind", first_of_kind, persistent=False)
            for weight in self.weights():
                weight.data = weight.data[first_of_kind]

    def weights(self) -> list[nn.Parameter]:
        """Those of all layers. Biases are not shared, so that agents of the same kind can have different roles."""
        return [parameter for name, parameter in self.named_parameters() if name.endswith("weight")]

    def share_gradients(self) -> None:
        """Sum the gradients of weights over agents of the same kind. Equal at first, they stay equal up to rounding."""
        first = self.first_of_kind
        for weight in self.weights():
            weight.grad = torch.zeros_like(weight.grad).index_add_(0, first, weight.grad)[first]

    @property
    def reward_network(self) -> nn.Sequential:
        return self.g

    def apply_network(self, network: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        """[agents, batch, in] -> [agents, batch]"""
        if self.joint:
            return network(x.transpose(0, 1).flatten(1)[None])[0].T  # [1, batch, agents * in] -> [1, batch, agents]
        return network(x)[..., 0]

    def reward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """g, the recovered reward: obs [agents, batch, widest obs], actions [agents, batch] -> [agents, batch]."""
        if self.sees_actions:
            obs = torch.cat([obs, F.one_hot(actions, self.widest_action).to(obs.dtype)], -1)
        return self.apply_network(self.g, obs)

    def forward(self, batch: "Batch | Transitions") -> torch.Tensor:
        """f, [agents, batch]"""
        h, next_h = self.apply_network(self.h, torch.cat([batch.obs, batch.next_obs], 1)).chunk(2, 1)
        return self.reward(batch.obs, batch.actions) + self.gamma * next_h - h


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


def critic_loss(batch: Batch, rewards, critic, target_critic, target_policies, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (1): sum_i (y_i - Q_i)^2, here with the Huber loss, and the released code's attention term."""
    with torch.no_grad():
        next_log_probs = target_policies(batch.next_obs).log_softmax(-1)
        next_actions = sample(next_log_probs)  # a' ~ pi'(. | o')
        next_q = gather_actions(target_critic(batch.next_obs, next_actions)[0], next_actions)
        entropy_bonus = -args.alpha * gather_actions(next_log_probs, next_actions)
        # y_i = r_i + gamma Q'_i(o', a') - alpha log pi'_i(a'_i | o'_i). The paper's equation has no entropy term; the
        # released code adds it, neither discounted nor masked.
        y = rewards + args.gamma * (1 - batch.terminated) * next_q + entropy_bonus
    q, squared_logits, attention = critic(batch.obs, batch.actions)
    q = gather_actions(q, batch.actions)  # [agents, batch]
    td_loss = F.huber_loss(q, y, reduction="none").mean(1).sum()
    return td_loss + args.attention_regularization * squared_logits, {
        "losses/critic": td_loss.detach(),
        "losses/q_mean": q.detach().mean(),
        "losses/q_abs_max": q.detach().abs().max(),
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


def discriminator_loss(learner: torch.Tensor, expert: torch.Tensor, args: Args) -> tuple[torch.Tensor, dict]:
    """Equation (3), to be minimised, of logits [agents, batch] that are high for the expert.

    -sum_i { mean_A log(1 - D_i) + mean_E log D_i }, with log D = -softplus(-logit) and log(1 - D) = -softplus(logit),
    minus the weighted entropy of the classification, H = softplus(logit) - logit sigmoid(logit).
    """
    cross_entropy = F.softplus(learner).mean(1) + F.softplus(-expert).mean(1)
    entropy = sum((F.softplus(x) - x * torch.sigmoid(x)).mean(1) for x in (learner, expert))
    loss = (cross_entropy - args.disc_entropy * entropy).sum()
    return loss, {
        "discriminator/loss": cross_entropy.detach().mean(),
        "discriminator/entropy": entropy.detach().mean() / 2,
        "discriminator/accuracy_learner": (learner.detach() < 0).float().mean(),
        "discriminator/accuracy_expert": (expert.detach() > 0).float().mean(),
        "discriminator/reward_mean": learner.detach().mean(),
        "discriminator/reward_std": learner.detach().std(),
    }


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of each network of a stack by itself; returns the norms."""
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
    demos = load_demos(args.demos or args.env_id, envs)
    expert, unseen_expert = demos.split(args.n_demos, device)
    references = reference_scores(args.env_id, args.demos)
    args.total_timesteps = total_timesteps(args, envs, default_episodes=10_000)
    if len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent, but the critic attends to others and needs at least two")
    if args.learning_starts >= args.total_timesteps or args.buffer_size < args.num_envs:
        raise UserError("--learning-starts must be below --total-timesteps, and --buffer-size at least --num-envs")

    policies = Policies(envs, args.hidden_size).to(device)
    critic = AttentionCritic(envs, args.hidden_size, args.attention_heads).to(device)
    discriminators = Discriminators(envs, args).to(device)
    target_policies, target_critic = copy.deepcopy(policies), copy.deepcopy(critic)
    policy_optimizer = torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), args.critic_lr, fused=True)
    disc_optimizer = torch.optim.Adam(discriminators.parameters(), args.disc_lr, fused=True)
    buffer = ReplayBuffer(args.buffer_size, envs, device)
    run.start(
        envs,
        references,
        policies=policies,
        critic=critic,
        discriminators=discriminators,
        target_policies=target_policies,
        target_critic=target_critic,
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        disc_optimizer=disc_optimizer,
        buffer=buffer,
    )

    # Algorithm 1
    metrics = {}
    for step in run.steps(args.num_envs):
        # Lines 3-4: roll out the current policies and add the transitions to the buffer B_A.
        obs = envs.obs
        with torch.no_grad():
            log_probs = policies(torch.as_tensor(obs, device=device).transpose(0, 1)).log_softmax(-1)
        actions = sample(log_probs).T.cpu().numpy()  # [num_envs, agents]
        next_obs, true_rewards, terminated, _ = envs.step(actions)
        buffer.add(obs, actions, next_obs, true_rewards, terminated)

        for _ in range(run.due(args.update_period) * args.updates_per_period if step >= args.learning_starts else 0):
            # Lines 6-7: sample from B_A and from the demonstrations B_E.
            learner, demo = buffer.sample(args.batch_size), expert.sample(args.batch_size)

            # Line 8: r_i = log D_i - log(1 - D_i) = f_i - log pi_i(a_i | o_i). One pass of the discriminators serves
            # lines 8 and 10, and one pass of the policies serves lines 8 to 10.
            both = Transitions(*(torch.cat(parts, 1) for parts in zip(learner[:3], demo)))
            f_learner, f_demo = discriminators(both).chunk(2, 1)  # equation (4), [agents, batch] each
            logits, demo_logits = policies(learner.obs), policies(demo.obs)
            logits_learner = f_learner - log_pi(logits, learner.actions)
            logits_expert = f_demo - log_pi(demo_logits, demo.actions)
            rewards = (learner.rewards if args.true_reward else logits_learner.detach()) / envs.episode_length

            # Line 9: policy learning by MAAC
            loss, metrics = critic_loss(learner, rewards, critic, target_critic, target_policies, args)
            critic_optimizer.zero_grad()
            loss.backward()
            for parameter in critic.shared_parameters():
                parameter.grad /= len(envs.agents)
            metrics["gradients/critic"] = nn.utils.clip_grad_norm_(critic.parameters(), args.critic_max_grad_norm)
            critic_optimizer.step()

            loss, policy_metrics = policy_loss(learner.obs, logits, policies.has_action, critic, args)
            policy_optimizer.zero_grad()
            loss.backward()
            metrics["gradients/policy_max"] = clip_each_agent(policies, args.policy_max_grad_norm).max()
            policy_optimizer.step()
            soft_update(target_critic, critic, args.critic_tau)
            soft_update(target_policies, policies, args.policy_tau)

            # Line 10: reward learning
            loss, disc_metrics = discriminator_loss(logits_learner, logits_expert, args)
            disc_optimizer.zero_grad()
            loss.backward()
            metrics["gradients/discriminator"] = clip_each_agent(discriminators, args.disc_max_grad_norm).max()
            if args.discriminator == "shared":
                discriminators.share_gradients()
            disc_optimizer.step()
            metrics |= policy_metrics | disc_metrics

        if run.due(run.log_every):
            if unseen_expert.actions.numel():
                with torch.no_grad():
                    log_prob = log_pi(policies(unseen_expert.obs), unseen_expert.actions)
                    right = discriminators(unseen_expert) > log_prob
                metrics["discriminator/accuracy_unseen_expert"] = right.float().mean()
            run.log(metrics)

    run.finish(true_reward=args.true_reward)


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
