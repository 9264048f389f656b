"""Recovered rewards: as functions of batches, and as PettingZoo environments that pay them.

reward = learned_reward("runs/...")              # reward(obs [B, agents, widest], actions [B, agents]) -> [B, agents]
env = learned_reward_env("runs/...", scale=0.1)  # a PettingZoo parallel environment
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from env_utils import make_envs, pad, require_known_task, task_name
from madaac_utils.files import UserError
from madaac_utils.networks import SavedNetwork, describe, load_tensors, save_tensors
from madaac_utils.policies import random_observations
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
        self.header, self.agents, self.env_id = header, header["agents"], header["env_id"]
        self.joint, self.sees_actions = header.get("joint"), header.get("sees_actions")
        if not isinstance(self.joint, bool) or not isinstance(self.sees_actions, bool):
            raise UserError(f"{origin}: its header must say whether the reward is joint and whether it sees actions")
        form = header.get("form")
        if not isinstance(form, str) or form not in REWARD_FORMS:
            raise UserError(f"{origin}: unknown form of reward {form!r}; known: {', '.join(REWARD_FORMS)}")
        self.num_actions, self.widest_action = torch.tensor(header["num_actions"]), max(header["num_actions"])
        self.widest_obs = max(header["obs_sizes"])
        size, agents = self.widest_obs + self.sees_actions * self.widest_action, len(self.agents)
        self.network = SavedNetwork(header.get("layers"), tensors, origin)
        sizes = (agents * size, agents) if self.joint else (size, 1)
        self.network.require_shapes(agents, *sizes, stacked=not self.joint, origin=origin)

    @torch.no_grad()
    def __call__(self, obs: np.ndarray | torch.Tensor, actions: np.ndarray | torch.Tensor) -> np.ndarray:
        """obs [B, agents, widest observation], actions [B, agents] -> rewards float32 [B, agents]."""
        x, actions = torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(actions)
        if actions.shape != x.shape[:2] or x.shape[1:] != (len(self.agents), self.widest_obs):
            expected = f"[B, {len(self.agents)}, {self.widest_obs}] and [B, {len(self.agents)}]"
            raise UserError(f"observations and actions must be {expected}, got {list(x.shape)}, {list(actions.shape)}")
        outside = (actions < 0) | (actions >= self.num_actions) | (actions != actions.long())
        if outside.any():
            agent = self.agents[int(outside.any(0).nonzero()[0])]
            raise UserError(f"{agent} has no action {actions[outside][0].item()}")
        if self.sees_actions:
            x = torch.cat([x, F.one_hot(actions.long(), self.widest_action).to(x.dtype)], -1)
        x = self.network(x.flatten(1)) if self.joint else self.network(x.transpose(0, 1))[..., 0].T
        return REWARD_FORMS[self.header["form"]](x).numpy()


def reward_tensors(discriminators) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and header of what discriminators pay: `reward_network`, `reward_form`, `joint` and `sees_actions`."""
    layers, tensors = describe(discriminators.reward_network)
    header = {"kind": "reward", "layers": layers, "form": discriminators.reward_form}
    return tensors, header | {"joint": discriminators.joint, "sees_actions": discriminators.sees_actions}


def save_reward(path: Path, discriminators, envs) -> None:
    save_tensors(path, *reward_tensors(discriminators), envs)


def learned_reward(run: str | Path, envs=None) -> LearnedReward:
    """The reward that a run recovered, as a function of batches. With `envs`, it must fit that task."""
    path = Path(run)
    if not path.exists():
        raise UserError(f"there is no run at {path}")
    path = path / "reward.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"{path.parent} has no reward.safetensors. Runs of madaac_discrete.py, mairl_mack.py and magail_mack.py "
            f"have one; experts, cloned policies and retrained policies do not"
        )
    return LearnedReward(*load_tensors(path, "reward", "recovered reward", envs), path)


@torch.no_grad()
def require_same_reward(saved: LearnedReward, discriminators, envs) -> None:
    """Raise an error unless the reward on disk computes what the discriminators in memory compute."""
    device = next(discriminators.parameters()).device
    obs = random_observations(envs)
    actions = torch.arange(obs.shape[1]) % torch.as_tensor(envs.num_actions)[:, None]  # [agents, batch]
    expected = discriminators.reward(obs.to(device), actions.to(device)).cpu()
    if not torch.allclose(torch.as_tensor(saved(obs.transpose(0, 1), actions.T)).T, expected, rtol=1e-3, atol=1e-4):
        raise UserError(
            "the reward read back from its file differs from the one in memory: the script's discriminators compute "
            "something that `reward_network`, their nn.Sequential, and `reward_form` do not describe"
        )


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
        if list(env.possible_agents) != list(reward.agents):
            raise UserError(f"the reward is for agents {reward.agents}, but the environment has {env.possible_agents}")
        sizes = [int(np.prod(env.observation_space(agent).shape)) for agent in reward.agents]
        numbers = [int(env.action_space(agent).n) for agent in reward.agents]
        for name, found in (("obs_sizes", sizes), ("num_actions", numbers)):
            if found != reward.header[name]:
                raise UserError(f"the reward is for {name} {reward.header[name]}, but the environment has {found}")
        inner = env.unwrapped
        if isinstance(inner, ParticleParallelEnv) and inner.metadata["name"] != task_name(reward.env_id):
            raise UserError(f"the reward is for {reward.env_id}, but the environment is {inner.metadata['name']}")
        self.reward, self.scale = reward, scale
        self._obs = None  # what the agents saw before the next step, [agents, widest]
        self._first_action = np.array([int(env.action_space(agent).start) for agent in reward.agents])

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
