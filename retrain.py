"""Retraining: new policies from scratch on the frozen reward that a run recovered.

The second question of Jeon et al. 2020 (arXiv 2002.10525): is the recovered reward good enough for a new learner to act
like the expert? The reward is g for MA-AIRL and MA-DAAC and log D for MA-GAIL, divided by the episode length; the
task's own reward only judges. The learner is MACK on small tasks and MAAC on rover_tower, as in the paper, with the
networks and losses of mairl_mack.py and madaac_discrete.py. NSS and PCC, the Pearson correlation of learned and true
rewards, are logged. docs/retrain.md has more.

    python retrain.py runs/cooperative_navigation__madaac_discrete__1__1700000000
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from madaac_utils.arguments import ExperimentArgs


@dataclass
class Args(ExperimentArgs):
    run: tyro.conf.Positional[str] = ""
    """the run whose reward to train on: a folder with reward.safetensors"""

    # Task
    env_id: str = ""
    """the task for --true-reward without a run; with a run, its own task"""
    demos: str = ""
    """demonstrations that define the expert's score, for --true-reward without a run"""
    total_timesteps: int = 0
    """environment steps over all copies; 0 is 20,000 episodes with MAAC (paper: 100,000), and the paper's 50,000 with
    MACK, 100,000 for rover_tower"""
    true_reward: bool = False
    """train on the task's own reward instead: what the learner can reach at best"""
    reward_sha256: tyro.conf.Suppress[str] = ""

    # Algorithm
    rl: Literal["auto", "mack", "maac"] = "auto"
    """the learner; auto is MAAC for rover_tower and MACK for all other tasks, as in the paper"""
    num_envs: int = 0
    """copies of the task, stepped in lockstep; 0 is 40 for MACK and 100 for MAAC"""
    gamma: float = 0.995
    """discount factor"""
    hidden_size: int = 128
    """units of every hidden layer"""
    batch_size: int = 125
    """transitions per update of MAAC; MACK takes one step per rollout"""
    updates_per_period: int = 4
    """updates of MAAC per 100 environment steps"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import numpy as np
import torch
import torch.nn as nn

import madaac_discrete as maac
import mairl_mack as mack
from env_utils import RecordEpisodes, make_envs, require_known_task, task_name
from madaac_utils.configuration import total_timesteps
from madaac_utils.demos import reference_scores, require_same_demos
from madaac_utils.files import UserError, exit_on_user_error, read_json, sha256
from madaac_utils.paper import paper_episodes, paper_learner
from madaac_utils.rewards import LearnedReward, learned_reward
from madaac_utils.run import Run


class Correlation:
    """PCC of learned and true rewards since the last logged point, per agent, from running sums."""

    def __init__(self, num_agents: int):
        self.last = np.full(num_agents, np.nan)  # at the last logged point
        self.reset()

    def reset(self) -> None:
        self.count, self.sums, self.largest = 0, np.zeros((5, len(self.last))), np.zeros((2, len(self.last)))

    def add(self, learned: np.ndarray, true: np.ndarray) -> None:
        """Rewards of some steps, [..., agents] each."""
        x, y = (part.reshape(-1, len(self.last)).astype(np.float64) for part in (learned, true))
        self.count += len(x)
        self.sums += [part.sum(0) for part in (x, y, x * x, y * y, x * y)]
        self.largest = np.maximum(self.largest, [np.abs(x).max(0), np.abs(y).max(0)])

    def compute(self) -> np.ndarray:
        """[agents]; nan where one of the two does not vary."""
        x, y, xx, yy, xy = self.sums / max(self.count, 1)
        variances = np.maximum([xx - x * x, yy - y * y], 0.0)
        varies = (np.sqrt(variances) > 1e-6 * self.largest).all(0)  # more than the rounding of float32
        return np.where(varies, (xy - x * y) / np.sqrt(np.where(varies, variances.prod(0), 1.0)), np.nan)

    def metrics(self, agents: list[str]) -> dict[str, float]:
        """For the log, and start anew. A correlation that is not defined is left out, and never zero."""
        self.last = self.compute()
        self.reset()
        by_agent = {f"charts/pcc-{agent}": value for agent, value in zip(agents, self.last) if not np.isnan(value)}
        return by_agent | ({"charts/pcc": self.mean()} if by_agent else {})

    def mean(self) -> float | None:
        known = self.last[~np.isnan(self.last)]
        return float(known.mean()) if len(known) else None

    def state_dict(self) -> dict:
        return vars(self)

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(
            {name: np.asarray(value) if torch.is_tensor(value) else value for name, value in state.items()}
        )


def find_source(args: Args) -> tuple[str, str, LearnedReward | None]:
    """The task, the run's own demonstrations if it had any, and the reward to train on."""
    if not args.run:
        if not (args.true_reward and args.env_id):
            raise UserError("name the run whose reward to train on, or use --true-reward with --env-id")
        return args.env_id, str(Path(args.demos).resolve()) if args.demos else "", None
    if args.demos:
        raise UserError("--demos is for --true-reward without a run; a run has its demonstrations already")
    folder, reward = Path(args.run), learned_reward(args.run)
    if args.reward_sha256 and args.reward_sha256 != sha256(folder / "reward.safetensors"):
        raise UserError(f"the reward in {folder} is not the one that this run began with")
    config = read_json(folder / "config.json", "the config of a run")
    try:
        env_id, demos = config["args"]["env_id"], require_same_demos(config)
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} is not the config of a run ({error!r})") from None
    if not args.env_id:
        require_known_task(reward.env_id, folder)
    for other in (env_id, args.env_id or env_id):
        if not isinstance(other, str) or task_name(other) != task_name(reward.env_id):
            raise UserError(f"the reward in {folder} is for {reward.env_id}, not for {other}")
    return args.env_id or reward.env_id, demos, None if args.true_reward else reward


def train_mack(run: Run, envs: RecordEpisodes, references: dict, reward: LearnedReward | None) -> Correlation:
    """MACK of mairl_mack.py on a frozen reward."""
    args, device = run.args, run.device
    settings = mack.Args(gamma=args.gamma)
    policies = mack.Policies(envs, args.hidden_size).to(device)
    values = mack.Values(envs, args.hidden_size).to(device)
    policy_kfac = mack.KFAC(policies.network, settings.policy_lr, settings.kl_clip)
    value_kfac = mack.KFAC(values.network, settings.critic_lr, mack.VALUE_KL_CLIP)
    correlation = Correlation(len(envs.agents))
    run.start(
        envs,
        references,
        policies=policies,
        values=values,
        policy_kfac=policy_kfac,
        value_kfac=value_kfac,
        correlation=correlation,
    )
    for _ in run.steps(args.num_envs * settings.num_steps):
        rollout = mack.roll_out(envs, policies, settings.num_steps, device)
        rewards = rollout.rewards
        if reward is not None:
            flat = reward(rollout.obs.flatten(0, 1).cpu(), rollout.actions.flatten(0, 1).cpu())
            rewards = torch.as_tensor(flat, device=device).view_as(rollout.rewards)
        correlation.add(rewards.cpu().numpy(), rollout.rewards.cpu().numpy())
        rewards = rewards / envs.episode_length
        advantages, returns = mack.advantages_and_returns(
            rollout, rewards, policies, values, envs.episode_length, settings
        )
        metrics = mack.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, settings)
        if run.due(run.log_every):
            run.log(metrics | correlation.metrics(envs.agents))
    return correlation


def train_maac(run: Run, envs: RecordEpisodes, references: dict, reward: LearnedReward | None) -> Correlation:
    """MAAC of madaac_discrete.py on a frozen reward."""
    args, device = run.args, run.device
    settings = maac.Args(gamma=args.gamma)
    policies = maac.Policies(envs, args.hidden_size).to(device)
    critic = maac.AttentionCritic(envs, args.hidden_size, settings.attention_heads).to(device)
    target_policies, target_critic = copy.deepcopy(policies), copy.deepcopy(critic)
    policy_optimizer = torch.optim.Adam(policies.parameters(), settings.policy_lr, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), settings.critic_lr, fused=True)
    buffer = maac.ReplayBuffer(settings.buffer_size, envs, device)
    correlation = Correlation(len(envs.agents))
    run.start(
        envs,
        references,
        policies=policies,
        critic=critic,
        target_policies=target_policies,
        target_critic=target_critic,
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        buffer=buffer,
        correlation=correlation,
    )
    metrics = {}
    for step in run.steps(args.num_envs):
        obs = envs.obs
        with torch.no_grad():
            log_probs = policies(torch.as_tensor(obs, device=device).transpose(0, 1)).log_softmax(-1)
        actions = maac.sample(log_probs).T.cpu().numpy()  # [num_envs, agents]
        next_obs, true_rewards, terminated, _ = envs.step(actions)
        rewards = true_rewards if reward is None else reward(obs, actions)
        correlation.add(rewards, true_rewards)
        buffer.add(obs, actions, next_obs, rewards / envs.episode_length, terminated)

        updates = run.due(settings.update_period) * args.updates_per_period
        for _ in range(updates if step >= settings.learning_starts else 0):
            batch = buffer.sample(args.batch_size)
            loss, metrics = maac.critic_loss(batch, batch.rewards, critic, target_critic, target_policies, settings)
            critic_optimizer.zero_grad()
            loss.backward()
            for parameter in critic.shared_parameters():
                parameter.grad /= len(envs.agents)
            metrics["gradients/critic"] = nn.utils.clip_grad_norm_(critic.parameters(), settings.critic_max_grad_norm)
            critic_optimizer.step()

            logits = policies(batch.obs)
            loss, policy_metrics = maac.policy_loss(batch.obs, logits, policies.has_action, critic, settings)
            policy_optimizer.zero_grad()
            loss.backward()
            metrics["gradients/policy_max"] = maac.clip_each_agent(policies, settings.policy_max_grad_norm).max()
            policy_optimizer.step()
            metrics |= policy_metrics
            maac.soft_update(target_critic, critic, settings.critic_tau)
            maac.soft_update(target_policies, policies, settings.policy_tau)
        if run.due(run.log_every):
            run.log(metrics | correlation.metrics(envs.agents))
    return correlation


def main(args: Args) -> None:
    run = Run(__file__, args)  # a new run, or the one that --resume names
    args = run.args
    args.env_id, demos, reward = find_source(args)
    args.reward_sha256 = sha256(Path(args.run) / "reward.safetensors") if args.run else ""
    args.rl = paper_learner(args.env_id) if args.rl == "auto" else args.rl
    args.num_envs = args.num_envs or (40 if args.rl == "mack" else 100)
    envs = RecordEpisodes(make_envs(args.env_id, args.num_envs, args.seed))
    if args.run:
        learned_reward(args.run, envs)  # raises an error if the reward does not fit the task
    if args.rl == "maac" and len(envs.agents) < 2:
        raise UserError(f"{args.env_id} has one agent, but the critic attends to others and needs at least two")
    if args.rl == "maac" and args.hidden_size % maac.Args().attention_heads:
        raise UserError(f"--hidden-size must be a multiple of {maac.Args().attention_heads}, got {args.hidden_size}")
    references = reference_scores(args.env_id, demos)
    default_episodes = 20_000 if args.rl == "maac" else paper_episodes(args.env_id)
    args.total_timesteps = total_timesteps(args, envs, default_episodes)
    if args.rl == "maac" and args.total_timesteps <= maac.Args().learning_starts:
        raise UserError(f"--total-timesteps must exceed {maac.Args().learning_starts}, where learning starts")
    train = train_mack if args.rl == "mack" else train_maac
    correlation = train(run, envs, references, reward)
    if correlation.count and correlation.mean() is None:  # a run that is too short for a logged point
        correlation.metrics(envs.agents)
    run.finish(reward_of=args.run, true_reward=args.true_reward, rl=args.rl, pcc=correlation.mean())


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
