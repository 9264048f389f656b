"""Recovered rewards: as functions of batches, and as PettingZoo environments that pay them.

reward = learned_reward("runs/...")              # reward(obs [B, agents, widest], actions [B, agents]) -> [B, agents]
env = learned_reward_env("runs/...", scale=0.1)  # a PettingZoo parallel environment
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from env_utils import make_envs, pad, require_known_task, task_name
from madaac_utils.files import UserError, require_fits_task
from madaac_utils.networks import SavedNetwork, describe, load_tensors, rebuilding, require_same, save_tensors
from particle_envs import ParticleParallelEnv, ParticleTask, parallel_env

REWARD_FORMS = {
    "g": lambda x: x,  # MA-AIRL and MA-DAAC: the output of g
    "logit": lambda x: x,  # MA-GAIL, with x the logit of D: x, log D, -log(1 - D) or 2 D - 1
    "log_d": lambda x: -F.softplus(-x),
    "softplus": F.softplus,
    "centered": lambda x: 2 * torch.sigmoid(x) - 1,
}


class LearnedReward:
    """A recovered reward that nothing trains any further."""

    def __init__(self, tensors: dict[str, torch.Tensor], header: dict, origin: Path | str):
        self.tensors, self.header, self.agents, self.env_id = tensors, header, header["agents"], header["env_id"]
        self.num_actions, self.widest_obs = np.array(header["num_actions"]), max(header["obs_sizes"])
        self.one_hot = np.eye(max(header["num_actions"]), dtype=np.float32)
        with rebuilding(origin):
            self.joint, self.sees_actions, self.form = header["joint"], header["sees_actions"], header["form"]
            self.network = SavedNetwork(header["layers"], tensors)
            rewards = self(np.zeros((2, len(self.agents), self.widest_obs)), np.zeros((2, len(self.agents))))
            if rewards.shape != (2, len(self.agents)):
                raise ValueError(f"rewards of shape {rewards.shape}")

    @torch.inference_mode()
    def __call__(self, obs: np.ndarray | torch.Tensor, actions: np.ndarray | torch.Tensor) -> np.ndarray:
        """obs [B, agents, widest observation], actions [B, agents] -> rewards float32 [B, agents]."""
        x, actions = np.asarray(obs, dtype=np.float32), np.asarray(actions)
        if actions.shape != x.shape[:2] or x.shape[1:] != (len(self.agents), self.widest_obs):
            expected = f"[B, {len(self.agents)}, {self.widest_obs}] and [B, {len(self.agents)}]"
            raise UserError(f"observations and actions must be {expected}, got {list(x.shape)}, {list(actions.shape)}")
        outside = (actions < 0) | (actions >= self.num_actions) | (actions % 1 != 0)
        if outside.any():
            agent = self.agents[int(outside.any(0).argmax())]
            raise UserError(f"{agent} has no action {actions[outside][0]}")
        if self.sees_actions:  # in NumPy: for one environment, each call of torch takes longer than its work
            x = np.concatenate([x, self.one_hot[actions.astype(np.int64)]], -1)
        x = torch.as_tensor(x)
        x = self.network(x.flatten(1)[None])[0] if self.joint else self.network(x.transpose(0, 1))[..., 0].T
        return REWARD_FORMS[self.form](x).numpy()


def describe_reward(discriminators, envs) -> LearnedReward:
    """What discriminators pay, as a file holds it: `reward_network`, `reward_form`, `joint` and `sees_actions`.

    An error is raised if the description does not compute what the discriminators compute.
    """
    options = {"form": discriminators.reward_form, "joint": discriminators.joint}
    options["sees_actions"] = discriminators.sees_actions
    tensors, header = describe(discriminators.reward_network, envs, kind="reward", **options)
    reward = LearnedReward(tensors, header, "the reward")
    device = next(discriminators.parameters()).device
    actions = torch.arange(16) % torch.as_tensor(envs.num_actions)[:, None]  # [agents, batch]
    require_same(
        lambda obs: torch.as_tensor(reward(obs.transpose(0, 1), actions.T)).T,
        lambda obs: discriminators.reward(obs.to(device), actions.to(device)),
        envs,
        "`reward_network`, an nn.Sequential, with `reward_form`",
    )
    return reward


def save_reward(path: Path, discriminators, envs) -> None:
    reward = describe_reward(discriminators, envs)
    save_tensors(path, reward.tensors, reward.header, envs)


def learned_reward(run: str | Path, envs=None) -> LearnedReward:
    """The reward that a run recovered, as a function of batches. With `envs`, it must fit that task."""
    path = Path(run) / "reward.safetensors" if Path(run).is_dir() else Path(run)
    if path.parent.is_dir() and path.name == "reward.safetensors" and not path.is_file():
        raise UserError(
            f"{path.parent} has no reward.safetensors. Runs of madaac_discrete.py, mairl_mack.py and magail_mack.py "
            f"have one; experts, cloned policies and retrained policies do not"
        )
    return LearnedReward(*load_tensors(path, "reward", "recovered reward", envs), path)


def learned_reward_env(run: str | Path, env: ParallelEnv | None = None, scale: float = 1.0) -> "LearnedRewardEnv":
    """A PettingZoo parallel environment that pays a run's recovered reward; `env` defaults to the run's own task."""
    reward = learned_reward(run)
    if env is None:
        require_known_task(reward.env_id, Path(run))
        envs = make_envs(reward.env_id, 1)
        env = parallel_env(task_name(reward.env_id)) if isinstance(envs, ParticleTask) else envs.envs[0]
    return LearnedRewardEnv(env, reward, scale)


class LearnedRewardEnv(BaseParallelWrapper):
    """Pays `scale` times the recovered rewards; the task's own are in infos[agent]["true_reward"]."""

    def __init__(self, env: ParallelEnv, reward: LearnedReward, scale: float = 1.0):
        super().__init__(env)
        inner, agents = env.unwrapped, list(env.possible_agents)
        task = SimpleNamespace(
            env_id=inner.metadata["name"] if isinstance(inner, ParticleParallelEnv) else reward.env_id,
            agents=agents,
            obs_sizes=[int(np.prod(env.observation_space(agent).shape)) for agent in agents],
            num_actions=[int(env.action_space(agent).n) for agent in agents],
        )
        require_fits_task("the reward", reward.header, task)
        self.reward, self.scale = reward, scale
        self._obs = None  # what the agents saw before the next step, [agents, widest]
        self._first_action = np.array([int(env.action_space(agent).start) for agent in agents])

    def _remember(self, observations: dict) -> None:
        if observations.keys() >= set(self.reward.agents):  # some environments return nothing at the end
            self._obs = pad(observations, self.reward.agents, self.reward.widest_obs)

    def reset(self, seed: int | None = None, options: dict | None = None):
        observations, infos = super().reset(seed=seed, options=options)
        self._remember(observations)
        return observations, infos

    def step(self, actions: dict):
        observations, true_rewards, terminations, truncations, infos = super().step(actions)
        agents = self.reward.agents
        joint_action = np.array([actions[agent] for agent in agents]) - self._first_action
        learned = self.scale * self.reward(self._obs[None], joint_action[None])[0]
        self._remember(observations)
        rewards = {agent: float(learned[agents.index(agent)]) for agent in true_rewards}
        infos = {agent: {**infos.get(agent, {}), "true_reward": true_rewards[agent]} for agent in true_rewards}
        return observations, rewards, terminations, truncations, infos
