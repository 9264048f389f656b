"""MA-AIRL on MACK: multi-agent adversarial inverse reinforcement learning.

The baseline of Jeon et al. 2020 (arXiv 2002.10525), after Yu, Song & Ermon 2019. Discriminators tell the learner from
the expert, and their logits are the rewards of MACK, a multi-agent ACKTR (Song et al. 2018): an on-policy actor-critic
whose steps are natural gradients, by Kronecker-factored approximations of the Fisher matrix (KFAC; Martens & Grosse
2015, Wu et al. 2017). D is the probability of *expert* everywhere.
The networks of all agents are stacked: weights [agents, in, out], activations [agents, batch, in].
docs/mairl_mack.md explains the logged metrics and every departure from the paper.

    python mairl_mack.py --env-id cooperative_navigation --n-demos 50
"""

import contextlib
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
    """environment steps over all copies; 0 is the paper's 50,000 episodes, 100,000 for rover_tower"""
    num_envs: int = 40
    """copies of the task, stepped in lockstep"""
    num_steps: int = 25
    """steps of each copy per rollout; copies times steps is the batch"""

    # MACK
    gamma: float = 0.995
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    policy_lr: float = 0.25
    """KFAC step size of the policies, before the KL clip"""
    critic_lr: float = 0.25
    """KFAC step size of the value functions, before the KL clip"""
    kl_clip: float = 0.001
    """bound of the squared length of a policy step in the metric of the Fisher matrix (twice its KL divergence)"""
    entropy: float = 0.01
    """policy entropy coefficient"""
    critic_max_grad_norm: float = 10.0
    """maximum norm of each value function's gradient, before it is preconditioned"""
    hidden_size: int = 128
    """units of every hidden layer"""
    true_reward: bool = False
    """train the policies on the task's own reward, to tell a broken learner from a broken reward"""

    # Discriminators
    discriminator: Literal["decentralized", "centralized"] = "decentralized"
    """decentralized: g_i(o_i, a_i) and h_i(o_i), one network per agent; centralized: one network for all agents"""
    disc_actions: Literal["auto", "yes", "no"] = "auto"
    """whether g sees actions; auto is the paper's choice: yes if decentralized, no if centralized"""
    disc_lr: float = 0.01
    """Adam step size of the discriminators"""
    disc_updates: int = 1
    """updates of the discriminators per rollout"""
    disc_batch_size: int = 1000
    """transitions of the expert, and at most as many of the learner, per update of the discriminators"""
    disc_memory: int = 250_000
    """size of a uniform sample of all past transitions from which the learner's are drawn; 0: the current rollout"""
    disc_entropy: float = 0.01
    """weight of the entropy bonus of the discriminators"""
    disc_max_grad_norm: float = 10.0
    """maximum norm of each discriminator's gradient"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import torch
import torch.nn as nn
import torch.nn.functional as F

from env_utils import RecordEpisodes, make_envs
from madaac_utils.configuration import total_timesteps
from madaac_utils.demos import Transitions, load_demos, reference_scores
from madaac_utils.files import UserError, exit_on_user_error
from madaac_utils.paper import paper_episodes
from madaac_utils.run import Run

LOG_PROB_MIN = -20.0  # log pi in the discriminators is at least this, so that rewards stay bounded
VALUE_KL_CLIP = 0.01  # of the value functions; ten times that of the policies, so that they follow growing rewards

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


def linear_layers(network: nn.Sequential) -> list[StackedLinear]:
    return [module for module in network if isinstance(module, StackedLinear)]


@torch.no_grad()
def initialize_orthogonally(network: nn.Sequential, gain_out: float) -> None:
    """As the released MACK does: orthogonal weights with gain sqrt(2), gain_out for the output, and zero biases."""
    for layer, gain in zip(linear_layers(network), (2**0.5, 2**0.5, gain_out), strict=True):
        for weight in layer.weight:
            nn.init.orthogonal_(weight, gain)
        layer.bias.zero_()


class Policies(nn.Module):
    """pi_i(a_i | o_i) of all agents."""

    def __init__(self, envs, hidden: int):
        super().__init__()
        obs_sizes, num_actions = torch.as_tensor(envs.obs_sizes), torch.as_tensor(envs.num_actions)
        widest_action = int(num_actions.max())
        self.network = stacked_mlp(obs_sizes, int(obs_sizes.max()), hidden, widest_action)
        initialize_orthogonally(self.network, gain_out=0.01)
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


class Values(nn.Module):
    """V_i(o, a_-i, t): each agent's value function sees all observations, the other agents' actions and the time.

    MACK takes the time limit for an end. A value function that is blind to the time could not know what is left to be
    earned; policies never see it.
    """

    def __init__(self, envs, hidden: int):
        super().__init__()
        self.obs_sizes, self.num_actions = envs.obs_sizes.tolist(), envs.num_actions.tolist()
        num, size_in = len(self.obs_sizes), sum(self.obs_sizes) + sum(self.num_actions) + 1
        self.network = stacked_mlp(torch.full((num,), size_in), size_in, hidden, 1)
        initialize_orthogonally(self.network, gain_out=1.0)
        owner = torch.arange(num).repeat_interleave(torch.tensor(self.num_actions))  # of each entry of the joint action
        others = (owner != torch.arange(num)[:, None]).float()[:, None]  # [agents, 1, sum of actions]: 0 for own action
        self.register_buffer("others", others, persistent=False)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """obs [agents, batch, widest obs], actions [agents, batch], time [batch] from 0 to 1 -> [agents, batch]."""
        num, batch, _ = obs.shape
        joint_obs = torch.cat([own[:, :size] for own, size in zip(obs, self.obs_sizes)], -1)  # [batch, sum of sizes]
        joint_action = torch.cat([F.one_hot(own, number) for own, number in zip(actions, self.num_actions)], -1)
        time = time.view(1, batch, 1).expand(num, -1, -1)
        x = torch.cat([joint_obs.expand(num, -1, -1), joint_action * self.others, time], -1)
        return self.network(x)[..., 0]


class Discriminators(nn.Module):
    """f_i = g_i + gamma h_i(o') - h_i(o). The logit of D_i is f_i - log pi_i(a_i | o_i)."""

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

    def forward(self, batch: Transitions) -> torch.Tensor:
        """f, [agents, batch]"""
        h, next_h = self.apply_network(self.h, torch.cat([batch.obs, batch.next_obs], 1)).chunk(2, 1)
        return self.reward(batch.obs, batch.actions) + self.gamma * next_h - h


def discriminator_logits(batch: Transitions, discriminators: Discriminators, policies: Policies) -> torch.Tensor:
    """log D_i - log(1 - D_i) = f_i - log pi_i(a_i | o_i), [agents, batch]. The policies get no gradient from it."""
    with torch.no_grad():
        log_pi = gather_actions(policies(batch.obs).log_softmax(-1), batch.actions)
    return discriminators(batch) - log_pi.clamp(min=LOG_PROB_MIN)


# Natural gradients


class KFAC:
    """Natural-gradient steps for stacked layers, for each agent by itself.

    The Fisher matrix of a layer's weights is approximated by the Kronecker product of A, the second moment of the
    layer's inputs, and G, the second moment of the gradients of each example's log-likelihood by its outputs. A bias is
    a layer of its own with the constant input 1. In the eigenbases Q_A and Q_G of A and G, the damped inverse is a
    division by d_A d_G^T + damping, with d the eigenvalues.
    """

    momentum, decay, damping, eigen_every = 0.9, 0.99, 0.01, 10  # those of ikostrikov's code

    def __init__(self, network: nn.Sequential, lr: float, kl_clip: float):
        self.layers, self.lr, self.kl_clip, self.steps = linear_layers(network), lr, kl_clip, 0
        self.parameters = list(network.parameters())  # weight and bias of each layer
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]
        # A and G of the first layer, A and G of the second, ...: [agents, in, in] and [agents, out, out]
        weights = [layer.weight for layer in self.layers]
        self.factors = [w.new_zeros(len(w), size, size) for w in weights for size in w.shape[1:]]
        self.eigenvalues = [torch.zeros_like(factor[:, 0]) for factor in self.factors]
        self.eigenvectors = [torch.zeros_like(factor) for factor in self.factors]
        self.recorded = []

    @contextlib.contextmanager
    def recording(self):
        """Record the inputs and outputs of the linear layers in a forward pass, for `observe`."""
        self.recorded = []
        hooks = [layer.register_forward_hook(self.record) for layer in self.layers]
        yield
        for hook in hooks:
            hook.remove()

    def record(self, layer: StackedLinear, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        self.recorded.append((inputs[0], output))

    @torch.no_grad()
    def observe(self, log_likelihood: torch.Tensor) -> None:
        """Update the running means A and G. The log-likelihood is a mean over the batch, summed over agents."""
        (inputs, outputs), self.recorded = zip(*self.recorded), []
        gradients = torch.autograd.grad(log_likelihood, outputs, retain_graph=True)
        vectors = []  # [agents, batch, in] and [agents, batch, out] of each layer
        for x, gradient in zip(inputs, gradients):
            vectors += [x, x.shape[1] * gradient]  # the factor undoes the mean: the gradient of each example
        for factor, x in zip(self.factors, vectors):
            second_moment = x.mT @ x / x.shape[1]
            factor.lerp_(second_moment, 1 - self.decay if self.steps else 1.0)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """A step on the gradients of the parameters; returns by how much each agent's step was shortened."""
        if self.steps % self.eigen_every == 0:
            for k, factor in enumerate(self.factors):
                d, self.eigenvectors[k] = torch.linalg.eigh(factor)
                self.eigenvalues[k] = d.where(d > 1e-6, 0.0)
        directions = []  # V, the damped inverse of F times the gradient
        for k, layer in enumerate(self.layers):
            d_a, d_g = self.eigenvalues[2 * k : 2 * k + 2]
            q_a, q_g = self.eigenvectors[2 * k : 2 * k + 2]
            rotated = q_a.mT @ layer.weight.grad @ q_g  # [agents, in, out]
            rotated /= d_a[:, :, None] * d_g[:, None, :] + self.damping
            directions.append(q_a @ rotated @ q_g.mT)
            directions.append(layer.bias.grad @ q_g / (d_g[:, None, :] + self.damping) @ q_g.mT)
        # The squared length of each agent's step in the metric F, lr^2 <V, grad>, becomes at most kl_clip.
        products = [(v * p.grad).flatten(1).sum(1) for v, p in zip(directions, self.parameters)]
        squared_length = self.lr**2 * sum(products)  # [agents]
        shorten = (self.kl_clip / squared_length.clamp(min=1e-20)).sqrt().clamp(max=1.0)
        for parameter, velocity, direction in zip(self.parameters, self.velocity, directions):
            velocity.mul_(self.momentum).add_(direction * shorten.view(-1, 1, 1))
            parameter.sub_(velocity, alpha=self.lr * (1 - self.momentum))
        self.steps += 1
        return shorten

    def state_dict(self) -> dict:
        names = ("steps", "velocity", "factors", "eigenvalues", "eigenvectors")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict) -> None:
        device = self.velocity[0].device
        for name, value in state.items():
            setattr(self, name, value if name == "steps" else [tensor.to(device) for tensor in value])


# Data


class Rollout(NamedTuple):
    obs: torch.Tensor  # [steps, envs, agents, widest obs]
    actions: torch.Tensor  # [steps, envs, agents]
    next_obs: torch.Tensor  # true successors, also at the end of an episode
    rewards: torch.Tensor  # the task's own, [steps, envs, agents]
    done: torch.Tensor  # [steps, envs]; a time limit is an end like any other
    time: torch.Tensor  # the share of the episode that was over, [steps, envs]


def agents_first(x: torch.Tensor) -> torch.Tensor:
    """[steps, envs, agents, ...] -> [agents, steps * envs, ...]"""
    return x.flatten(0, 1).transpose(0, 1)


@torch.no_grad()
def roll_out(envs: RecordEpisodes, policies: Policies, num_steps: int, device: torch.device) -> Rollout:
    """Steps of the current policies in all copies of the task."""
    steps = []
    for _ in range(num_steps):
        obs, time = torch.as_tensor(envs.obs, device=device), envs.age * (1 / envs.episode_length)
        actions = sample(policies(obs.transpose(0, 1)).log_softmax(-1)).T  # [envs, agents]
        next_obs, rewards, _, done = envs.step(actions.cpu().numpy())
        steps.append((obs, actions, *(torch.as_tensor(x, device=device) for x in (next_obs, rewards, done, time))))
    return Rollout(*map(torch.stack, zip(*steps)))


class Memory:
    """A uniform sample of all transitions that the learner has ever made (reservoir sampling)."""

    def __init__(self, size: int, batch: int, envs, device: torch.device):
        """`batch` is the number of transitions that are added at a time; the size is rounded down to a multiple."""
        self.size, self.added = size // batch * batch, 0
        agents, widest = len(envs.agents), int(max(envs.obs_sizes))
        obs, next_obs = torch.zeros(2, agents, self.size, widest, device=device)
        self.store = Transitions(obs, torch.zeros(agents, self.size, dtype=torch.int64, device=device), next_obs)

    def add(self, transitions: Transitions) -> None:
        """Each transition comes in with probability size / (number added so far) and replaces a random one."""
        device, batch = transitions.actions.device, transitions.actions.shape[1]
        places = torch.arange(self.added, self.added + batch, device=device)
        self.added += batch
        comes_in = torch.rand(batch, device=device) * self.added < self.size
        if self.added > self.size:
            places = torch.randperm(self.size, device=device)[: int(comes_in.sum())]
        for part, new in zip(self.store, transitions):
            part[:, places] = new[:, comes_in]

    def contents(self) -> Transitions:
        return Transitions(*(part[:, : self.added] for part in self.store))

    def state_dict(self) -> dict:
        return {"added": self.added, **self.contents()._asdict()}

    def load_state_dict(self, state: dict) -> None:
        self.added = state["added"]
        for name, part in self.store._asdict().items():
            part[:, : self.added] = state[name]


# Losses


@torch.no_grad()
def advantages_and_returns(rollout: Rollout, rewards: torch.Tensor, policies, values, episode_length: int, args):
    """Generalized advantages and value targets, [agents, steps * envs] each, from rewards [steps, envs, agents].

    A_t = delta_t + gamma lambda A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t. Where an episode ends, A_{t+1} and
    V_{t+1} are 0.
    """
    v = values(agents_first(rollout.obs), agents_first(rollout.actions), rollout.time.flatten()).T.view_as(rewards)
    next_v = torch.cat([v[1:], torch.zeros_like(v[:1])])
    if not rollout.done[-1].all():  # the rollout ends within an episode: V of the true successors and sampled actions
        last_obs = rollout.next_obs[-1].transpose(0, 1)  # [agents, envs, widest obs]
        last_actions = sample(policies(last_obs).log_softmax(-1))
        next_v[-1] = values(last_obs, last_actions, rollout.time[-1] + 1 / episode_length).T
    next_v[rollout.done] = 0.0
    advantages = rewards + args.gamma * next_v - v  # delta_t
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += args.gamma * args.gae_lambda * (~rollout.done[t])[:, None] * advantages[t + 1]
    return agents_first(advantages), agents_first(advantages + v)


def mack_update(rollout, advantages, returns, policies, values, policy_kfac: KFAC, value_kfac: KFAC, args) -> dict:
    """One KFAC step of all policies and value functions; advantages and returns [agents, batch]."""
    obs, actions = agents_first(rollout.obs), agents_first(rollout.actions)
    std, mean = torch.std_mean(advantages, dim=1, keepdim=True)
    normalized = (advantages - mean) / (std + 1e-8)
    with policy_kfac.recording():
        log_probs = policies(obs).log_softmax(-1)
    with value_kfac.recording():
        v = values(obs, actions, rollout.time.flatten())
    log_prob = gather_actions(log_probs, actions)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean(1)  # [agents]

    # The Fisher matrix, from samples of the models themselves: the actions for pi, and for V, the mean of a Gaussian,
    # v + noise. The squared error lacks its 1/2 as in the released code, so that the output of V has G of about 4.
    noisy_v = (v + torch.randn_like(v)).detach()
    policy_kfac.observe(log_prob.mean(1).sum())
    value_kfac.observe(-(v - noisy_v).square().mean(1).sum())

    policy_loss = (-(normalized * log_prob).mean(1) - args.entropy * entropy).sum()
    value_loss = F.huber_loss(v, returns, reduction="none").mean(1).sum()
    policies.zero_grad()
    values.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    value_norms = clip_each_agent(values, args.critic_max_grad_norm)
    policy_shortened, value_shortened = policy_kfac.step(), value_kfac.step()
    explained = 1 - (returns - v.detach()).var(1) / (returns.var(1) + 1e-8)
    return {
        "losses/policy": policy_loss.detach(),
        "losses/critic": value_loss.detach(),
        "losses/policy_entropy": entropy.detach().mean(),
        "losses/explained_variance": explained.mean(),
        "losses/value_target_mean": returns.mean(),
        "losses/advantage_std": advantages.std(),
        "gradients/critic": value_norms.max(),
        "gradients/policy_step_shortened_to": policy_shortened.mean(),
        "gradients/value_step_shortened_to": value_shortened.mean(),
    }


def discriminator_loss(learner: torch.Tensor, expert: torch.Tensor, args: Args) -> tuple[torch.Tensor, dict]:
    """To be minimised, of logits [agents, batch] that are high for the expert.

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
    }


def clip_each_agent(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the gradient norm of each network of a stack by itself; returns the norms."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient *= scale.view(-1, 1, 1)
    return norms


def main(args: Args) -> None:
    run = Run(__file__, args)  # a new run, or the one that --resume names
    args, device = run.args, run.device
    envs = RecordEpisodes(make_envs(args.env_id, args.num_envs, args.seed))
    demos = load_demos(args.demos or args.env_id, envs)
    expert, unseen_expert = demos.split(args.n_demos, device)
    references = reference_scores(args.env_id, args.demos)
    args.total_timesteps = total_timesteps(args, envs, paper_episodes(args.env_id))
    batch = args.num_envs * args.num_steps
    if batch < 2:
        raise UserError("--num-envs times --num-steps, the batch, must be at least 2")
    if 0 < args.disc_memory < batch:
        raise UserError(f"--disc-memory {args.disc_memory} cannot hold a rollout of {batch}; 0 works without a memory")

    policies = Policies(envs, args.hidden_size).to(device)
    values = Values(envs, args.hidden_size).to(device)
    discriminators = Discriminators(envs, args).to(device)
    policy_kfac = KFAC(policies.network, args.policy_lr, args.kl_clip)
    value_kfac = KFAC(values.network, args.critic_lr, VALUE_KL_CLIP)
    disc_optimizer = torch.optim.Adam(discriminators.parameters(), args.disc_lr, fused=True)
    memory = Memory(args.disc_memory, batch, envs, device)
    run.start(
        envs,
        references,
        policies=policies,
        values=values,
        discriminators=discriminators,
        policy_kfac=policy_kfac,
        value_kfac=value_kfac,
        disc_optimizer=disc_optimizer,
        memory=memory,
    )

    for _ in run.steps(batch):
        # Roll out the current policies.
        rollout = roll_out(envs, policies, args.num_steps, device)
        transitions = Transitions(*map(agents_first, rollout[:3]))

        # Rewards r_i = log D_i - log(1 - D_i) by the current discriminators
        with torch.no_grad():
            learned_rewards = discriminator_logits(transitions, discriminators, policies)  # [agents, batch]
        rewards = rollout.rewards if args.true_reward else learned_rewards.T.view_as(rollout.rewards)
        rewards = rewards / envs.episode_length

        # Advantages, then one natural-gradient step of policies and value functions
        advantages, returns = advantages_and_returns(rollout, rewards, policies, values, envs.episode_length, args)
        metrics = mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)

        # Discriminators
        if args.disc_memory:
            memory.add(transitions)
        pool = memory.contents() if args.disc_memory else transitions
        for _ in range(args.disc_updates):
            rows = torch.randperm(pool.actions.shape[1], device=device)[: args.disc_batch_size]
            learner, demo = [part[:, rows] for part in pool], expert.sample(args.disc_batch_size)
            both = Transitions(*(torch.cat(parts, 1) for parts in zip(learner, demo)))
            logits = discriminator_logits(both, discriminators, policies)
            loss, disc_metrics = discriminator_loss(logits[:, : len(rows)], logits[:, len(rows) :], args)
            disc_optimizer.zero_grad()
            loss.backward()
            norm = clip_each_agent(discriminators, args.disc_max_grad_norm).max()
            disc_optimizer.step()

        if run.due(run.log_every):
            metrics |= disc_metrics | {"gradients/discriminator": norm}
            metrics["discriminator/reward_mean"] = learned_rewards.mean()
            metrics["discriminator/reward_std"] = learned_rewards.std()
            if unseen_expert.actions.numel():
                with torch.no_grad():
                    logits = discriminator_logits(unseen_expert, discriminators, policies)
                metrics["discriminator/accuracy_unseen_expert"] = (logits > 0).float().mean()
            run.log(metrics)

    run.finish(true_reward=args.true_reward)


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
