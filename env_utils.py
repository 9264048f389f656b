"""Environments for all scripts: lockstep batches, recorded episodes and evaluation.

envs = make_envs("cooperative_navigation", num_envs=100, seed=1)
obs = envs.reset()                                                    # [100, agents, widest observation]
obs, rewards, terminated, truncated, final_obs = envs.step(actions)   # actions [100, agents]
"""

import functools
import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from particle_envs import TASK_IDS, ParticleTask, TaskError, is_task_id, make_task, unknown_id_message
from particle_envs.world import check_actions, check_num_envs


def make_envs(env_id: str, num_envs: int, seed: int | None = None) -> "ParticleTask | PettingZooEnvs":
    """Make a lockstep batch of `num_envs` copies of a task.

    The batch has `agents` (names), `obs_sizes` and `num_actions` (one number per agent) and `episode_length`.
    `reset()` returns float32 observations [num_envs, num_agents, max(obs_sizes)], zero-padded. `step(actions)` takes
    integers [num_envs, num_agents]. Copies reset themselves: where `terminated` or `truncated` ([num_envs], a time
    limit is a truncation) is set, `obs` starts the next episode and `final_obs` is the last observation of the old one.

    `env_id` is one of our tasks, one of mpe2's tasks by its short name, or the module path of any PettingZoo parallel
    environment with Box observations, Discrete actions and a fixed set of agents.
    """
    name = env_id if env_id.startswith("mpe2.") else task_name(env_id)  # mpe2.simple_tag_v3 is mpe2's own code
    if is_task_id(name):
        return make_task(name, num_envs, seed)
    module_path = mpe2_tasks().get(name, name)
    if "." not in module_path or module_path.startswith("."):
        known = [*TASK_IDS, *sorted(set(mpe2_tasks()) - set(TASK_IDS))]
        raise TaskError(unknown_id_message(env_id, known))
    if module_path.split(".")[0] in ("runs", "experts"):
        raise TaskError(f"{env_id!r} lies in a folder of results; results are never imported as code")
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise TaskError(f"cannot import {module_path!r} ({error}); is its package installed?") from None
    if not hasattr(module, "parallel_env"):
        raise TaskError(f"module {module_path!r} has no parallel_env(), so it is not a PettingZoo environment")
    return PettingZooEnvs(module.parallel_env, num_envs, seed, env_id)


def task_name(env_id: str) -> str:
    """The short name of one of our or mpe2's tasks: simple_tag for simple_tag_v3, mpe2.simple_tag_v3 and so on."""
    match = re.fullmatch(r"(?:mpe2\.|pettingzoo\.mpe\.)?(\w+)_v\d+", env_id)
    return match[1] if match and is_known_task(match[1]) else env_id


def is_known_task(name: str) -> bool:
    return is_task_id(name) or name in mpe2_tasks()


def require_known_task(env_id: str, origin: Path) -> None:
    """Refuse a module path that a file names: importing it could run anybody's code. The user may name it instead."""
    if not is_known_task(task_name(env_id)):
        raise TaskError(
            f"{origin} names the task {env_id!r}, which is not one of ours or mpe2's. If you trust that module, name "
            f"it yourself with --env-id"
        )


@functools.cache
def mpe2_tasks() -> dict[str, str]:
    """{"simple_crypto": "mpe2.simple_crypto_v3", ...}: the newest version of each of mpe2's tasks."""
    try:
        import mpe2
    except ImportError:  # our own tasks do not need it
        return {}
    names = sorted(module.name for module in pkgutil.iter_modules(mpe2.__path__) if "_v" in module.name)
    return {name.rpartition("_v")[0]: f"mpe2.{name}" for name in names}  # newer versions replace older ones


def pad(observations: dict, agents: list[str], widest: int) -> np.ndarray:
    """A dictionary of observations by agent as a new array [agents, widest], zero-padded."""
    padded = np.zeros((len(agents), widest), dtype=np.float32)
    for i, agent in enumerate(agents):
        flat = np.asarray(observations[agent], dtype=np.float32).ravel()
        padded[i, : len(flat)] = flat
    return padded


class PettingZooEnvs:
    """Copies of a PettingZoo parallel environment, stepped one after the other, with the interface of our own tasks."""

    def __init__(self, make: Callable, num_envs: int, seed: int | None, env_id: str):
        self.env_id, self.num_envs, self.make = env_id, check_num_envs(num_envs), make
        self.rng = np.random.default_rng(seed)
        self.envs = [make() for _ in range(self.num_envs)]
        first = self.envs[0]
        self.agents = list(first.possible_agents)
        self.num_agents = len(self.agents)
        for agent in self.agents:
            observation, action = first.observation_space(agent), first.action_space(agent)
            if not isinstance(observation, spaces.Box):
                raise TaskError(f"{env_id}: observations must be Box, but {agent} has {type(observation).__name__}")
            if not isinstance(action, spaces.Discrete):
                raise TaskError(f"{env_id}: actions must be Discrete, but {agent} has {type(action).__name__}")
        self.obs_sizes = np.array([int(np.prod(first.observation_space(agent).shape)) for agent in self.agents])
        self.num_actions = np.array([int(first.action_space(agent).n) for agent in self.agents])
        self._first_action = np.array([int(first.action_space(agent).start) for agent in self.agents])
        self._obs = np.zeros((self.num_envs, self.num_agents, int(self.obs_sizes.max())), dtype=np.float32)
        self.episode_length = self._find_episode_length()

    def _find_episode_length(self) -> int:
        """The time limit if the environment tells it, otherwise the longest of three random episodes."""
        inner = self.envs[0]
        while inner is not None:
            for name in ("max_cycles", "max_steps"):
                if isinstance(getattr(inner, name, None), int):
                    return getattr(inner, name)
            inner = getattr(inner, "aec_env", None) or getattr(inner, "env", None)
        probe, rng, longest = self.make(), np.random.default_rng(0), 0
        for episode in range(3):
            probe.reset(seed=episode)
            steps = 0
            while probe.agents and steps < 1000:
                actions = dict(zip(self.agents, rng.integers(self.num_actions) + self._first_action))
                probe.step({agent: int(actions[agent]) for agent in probe.agents})
                steps += 1
            longest = max(longest, steps)
        probe.close()
        return longest

    def _reset_copy(self, k: int) -> None:
        observations, _ = self.envs[k].reset(seed=int(self.rng.integers(2**31)))
        if set(self.envs[k].agents) != set(self.agents):
            found = f"an episode starts with {sorted(self.envs[k].agents)} out of {self.agents}"
            raise TaskError(f"{self.env_id}: the set of agents must be fixed, but {found}")
        self._obs[k] = pad(observations, self.agents, self._obs.shape[-1])

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        for k in range(self.num_envs):
            self._reset_copy(k)
        return self._obs.copy()

    def step(self, actions: np.ndarray):
        actions = check_actions(actions, self.num_envs, self.agents, self.num_actions) + self._first_action
        rewards = np.zeros((self.num_envs, self.num_agents), dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        final_obs = np.empty_like(self._obs)
        for k, env in enumerate(self.envs):
            observations, reward, ended, cut, _ = env.step(dict(zip(self.agents, actions[k].tolist())))
            over = self._is_over(env, ended, cut)
            final_obs[k] = self._obs[k] = pad(observations, self.agents, self._obs.shape[-1])
            rewards[k] = [reward[agent] for agent in self.agents]
            if over:
                terminated[k] = any(ended.values())
                truncated[k] = not terminated[k]
                self._reset_copy(k)
        return self._obs.copy(), rewards, terminated, truncated, final_obs

    def _is_over(self, env, ended: dict, cut: dict) -> bool:
        """Whether the episode has ended, which must happen for all agents at once."""
        gone = [agent for agent in self.agents if ended.get(agent, True) or cut.get(agent, True)]
        if 0 < len(gone) < self.num_agents or (env.agents and set(env.agents) != set(self.agents)):
            left = ", ".join(gone or sorted(set(self.agents) - set(env.agents)))
            raise TaskError(f"{self.env_id}: the set of agents must be fixed, but {left} left before the others")
        return not env.agents or bool(gone)

    def get_state(self) -> dict:
        """Only the seeds to come, because PettingZoo offers no more: a resumed run starts new episodes."""
        return {"rng": json.dumps(self.rng.bit_generator.state)}

    def set_state(self, state: dict) -> np.ndarray:
        self.rng.bit_generator.state = json.loads(state["rng"])
        return self.reset()


class EnvStep(NamedTuple):
    next_obs: np.ndarray  # the true successor, also at the end of an episode: [num_envs, agents, widest]
    rewards: np.ndarray  # the task's own: [num_envs, agents]
    terminated: np.ndarray  # [num_envs]
    done: np.ndarray  # terminated or truncated: [num_envs]


class RecordEpisodes:
    """A batch of environments that keeps the current observations and the returns of the last 500 episodes."""

    def __init__(self, envs: "ParticleTask | PettingZooEnvs"):
        self.envs = envs
        self.obs = envs.reset()  # [num_envs, agents, widest]
        self.age = np.zeros(envs.num_envs, dtype=np.float32)  # steps since the episode began
        self.episode_return = np.zeros((envs.num_envs, envs.num_agents))
        self.recent_returns: list[list[float]] = []

    def __getattr__(self, name: str):
        return getattr(self.__dict__["envs"], name)

    def step(self, actions: np.ndarray) -> EnvStep:
        self.obs, rewards, terminated, truncated, final_obs = self.envs.step(actions)
        done = terminated | truncated
        self.episode_return = self.episode_return + rewards  # a new array: states that were taken stay as they are
        self.recent_returns = (self.recent_returns + self.episode_return[done].tolist())[-500:]
        self.episode_return[done] = 0.0
        self.age = np.where(done, 0, self.age + 1).astype(np.float32)
        return EnvStep(final_obs, rewards, terminated, done)

    def mean_returns(self) -> np.ndarray | None:
        """The mean over the last 500 episodes per agent; None before the first episode has ended."""
        return np.mean(self.recent_returns, axis=0) if self.recent_returns else None

    def state_dict(self) -> dict:
        arrays = {"obs": self.obs, "age": self.age, "episode_return": self.episode_return}
        return arrays | {"recent_returns": self.recent_returns, "envs": self.envs.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.obs = self.envs.set_state(state["envs"])
        self.recent_returns = np.reshape(state["recent_returns"], (-1, self.envs.num_agents)).astype(float).tolist()
        if np.array_equal(self.obs, state["obs"]):  # otherwise the task cannot be put back and starts new episodes
            self.age, self.episode_return = state["age"], state["episode_return"]


# Evaluation

Policy = Callable[[np.ndarray], np.ndarray]  # observations [B, agents, widest] -> actions [B, agents]


class Episodes(NamedTuple):
    returns: np.ndarray  # [episodes, agents]
    obs: np.ndarray  # float32 [episodes, T + 1, agents, widest]
    actions: np.ndarray  # int64 [episodes, T, agents]
    rewards: np.ndarray  # float32 [episodes, T, agents]
    lengths: np.ndarray  # int64 [episodes]; what stands behind the end of an episode is zero


def record_episodes(env_id: str, act: Policy, num_episodes: int, seed: int) -> Episodes:
    """Play `num_episodes` fresh episodes, at most 500 side by side, and return all that happened in them."""
    batches = []
    for first in range(0, num_episodes, 500):
        envs = make_envs(env_id, min(num_episodes - first, 500), seed + len(batches))
        batches.append(play_one_episode_each(envs, act))

    def join(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        """Join arrays [episodes, steps, ...]; those with fewer steps are padded with zeros."""
        longest = max(array.shape[1] for array in arrays)
        missing = [(0, longest - array.shape[1]) for array in arrays]
        return np.concatenate([np.pad(x, [(0, 0), m, *[(0, 0)] * (x.ndim - 2)]) for x, m in zip(arrays, missing)])

    returns, *by_step, lengths = zip(*batches)
    return Episodes(np.concatenate(returns), *map(join, by_step), np.concatenate(lengths))


def play_one_episode_each(envs: "ParticleTask | PettingZooEnvs", act: Policy) -> Episodes:
    """Each copy plays one episode, so that short episodes are not favoured."""
    all_obs, all_actions, all_rewards = [obs := envs.reset()], [], []
    running, lengths = np.ones(envs.num_envs, dtype=bool), np.zeros(envs.num_envs, dtype=np.int64)
    while running.any():
        actions = np.asarray(act(obs))
        obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        all_obs.append(final_obs * running[:, None, None])
        all_actions.append((actions * running[:, None]).astype(np.int64))
        all_rewards.append(rewards * running[:, None])
        lengths += running
        running &= ~(terminated | truncated)
    returns = np.sum(all_rewards, axis=0, dtype=np.float64)
    return Episodes(returns, *(np.stack(steps, axis=1) for steps in (all_obs, all_actions, all_rewards)), lengths)


def play_episodes(env_id: str, act: Policy, num_episodes: int, seed: int) -> np.ndarray:
    """The returns [episodes, agents] of fresh episodes."""
    return record_episodes(env_id, act, num_episodes, seed).returns


def random_actions(num_actions: np.ndarray, seed: int) -> Policy:
    """A policy that draws each agent's action uniformly."""
    # Not default_rng(seed): environments with the same seed would draw their initial states from the same numbers.
    rng = np.random.default_rng([seed, 1])
    return lambda obs: rng.integers(num_actions, size=(len(obs), len(num_actions)))
