"""What all scripts share, and nothing that only one of them uses.

- `make_envs`: a lockstep batch of any task, ours (particle_envs/) or a PettingZoo one
- `play_episodes`, `mean_and_interval`, `normalized_score_similarity`: scores
- `save_demos`, `load_demos`, `expert_scores`, `random_scores`: demonstrations and the cards they come with
- `save_policy`, `load_policy`: policies that any script can rebuild from the file alone
- `learned_reward`, `learned_reward_env`: recovered rewards as functions of batches and as PettingZoo environments
- `make_run_folder`, `write_json`, `save_checkpoint`, `load_checkpoint`: files that appear whole or not at all
- `UserError`, `exit_on_user_error`: a mistake by the user ends in one line, not in a traceback
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import pkgutil
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes

from particle_envs import (
    TASK_IDS,
    Canvas,
    ParticleParallelEnv,
    ParticleTask,
    TaskError,
    is_task_id,
    make_task,
    parallel_env,
    unknown_id_message,
)
from particle_envs.world import check_actions, check_num_envs

ROOT = Path(__file__).resolve().parent
EXPERTS = ROOT / "experts"
FORMAT_VERSION = 1
EVALUATION_SEED = 40_000_003  # of the episodes that judge a run: far from the seeds of training


class UserError(Exception):
    """Something the user can mend; its text says what was wrong and what would be right."""


@contextlib.contextmanager
def exit_on_user_error():
    """Turn a user's mistake into one line on stderr and exit code 2."""
    try:
        yield
    except (UserError, TaskError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # piped into head, say: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that closing stdout does not fail, too
        sys.exit(141)


# Environments


def make_envs(env_id: str, num_envs: int, seed: int | None = None) -> "ParticleTask | PettingZooEnvs":
    """A lockstep batch of `num_envs` copies of a task.

    It has `agents` (names), `obs_sizes` and `num_actions` (a number per agent) and `episode_length`;
    `obs = envs.reset()` is float32 [num_envs, num_agents, max(obs_sizes)], zero-padded;
    `obs, rewards, terminated, truncated, final_obs = envs.step(actions)` takes integers [num_envs, num_agents].
    Copies reset themselves: where one is `terminated` or `truncated` ([num_envs], a timeout is a truncation),
    `obs` starts the next episode and `final_obs` is the true last observation of the old one.

    `env_id` is one of ours, one of mpe2's by its short name, or the module path of any PettingZoo parallel
    environment with Box observations, Discrete actions and a fixed set of agents.
    """
    if not isinstance(env_id, str):
        raise TaskError(f"a task is named by a string, got {env_id!r}")
    if is_task_id(env_id):
        return make_task(env_id, num_envs, seed)
    short_names = mpe2_short_names()
    module_path = short_names.get(env_id, env_id)
    if "." not in module_path or module_path.startswith("."):
        hint = "" if short_names else " (mpe2's own are missing: the package mpe2 is not installed)"
        raise TaskError(unknown_id_message(env_id, sorted({*TASK_IDS, *short_names}, key=_ours_first)) + hint)
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise TaskError(f"cannot import {module_path!r} ({error}); is the package that has it installed?") from None
    if not hasattr(module, "parallel_env"):
        raise TaskError(f"module {module_path!r} has no parallel_env(): it is not a PettingZoo environment module")
    return PettingZooEnvs(module.parallel_env, num_envs, seed, env_id)


def same_task(one: str, other: str) -> bool:
    """Whether two ids name the same task: simple_tag is mpe2.simple_tag_v3, by whichever code it runs."""

    def short(env_id: str) -> str:
        return re.sub(r"^mpe2\.(\w+)_v\d+$", r"\1", env_id)

    return short(one) == short(other)


def _ours_first(env_id: str) -> tuple[int, str]:
    return (TASK_IDS.index(env_id) if env_id in TASK_IDS else len(TASK_IDS), env_id)


@functools.cache
def mpe2_short_names() -> dict[str, str]:
    """{"simple_crypto": "mpe2.simple_crypto_v3", ...}: the newest version of each of mpe2's tasks."""
    try:
        import mpe2
    except ImportError:
        return {}  # our own tasks do without it

    versions: dict[str, int] = {}
    for module in pkgutil.iter_modules(mpe2.__path__):
        match = re.fullmatch(r"(\w+)_v(\d+)", module.name)
        if match:
            versions[match[1]] = max(int(match[2]), versions.get(match[1], 0))
    return {name: f"mpe2.{name}_v{version}" for name, version in versions.items()}


def padded(observations: dict, agents: list[str], widest: int) -> np.ndarray:
    """PettingZoo's observations by agent as a copy [agents, widest], zero-padded."""
    out = np.zeros((len(agents), widest), dtype=np.float32)
    for i, agent in enumerate(agents):
        flat = np.asarray(observations[agent], dtype=np.float32).ravel()
        out[i, : len(flat)] = flat
    return out


class PettingZooEnvs:
    """Copies of a PettingZoo parallel environment behind the same calls as our own tasks, stepped one by one."""

    def __init__(self, make: Callable, num_envs: int, seed: int | None, env_id: str):
        self.env_id, self.num_envs, self._make = env_id, check_num_envs(num_envs), make
        self.rng = np.random.default_rng(seed)
        self.envs = [make() for _ in range(self.num_envs)]
        first = self.envs[0]
        self.agents = list(first.possible_agents)
        self.num_agents = len(self.agents)
        for agent in self.agents:
            self._require_spaces(agent, first.observation_space(agent), first.action_space(agent))
        self.obs_sizes = np.array([int(np.prod(first.observation_space(agent).shape)) for agent in self.agents])
        self.num_actions = np.array([int(first.action_space(agent).n) for agent in self.agents])
        self._first_action = [int(first.action_space(agent).start) for agent in self.agents]
        self._obs = np.zeros((self.num_envs, self.num_agents, int(self.obs_sizes.max())), dtype=np.float32)
        self.episode_length = self._find_episode_length()

    def _require_spaces(self, agent: str, observation: spaces.Space, action: spaces.Space) -> None:
        if not isinstance(observation, spaces.Box):
            raise TaskError(f"{self.env_id}: observations must be Box, {agent} has {type(observation).__name__}")
        if not isinstance(action, spaces.Discrete):
            kind = "continuous actions (Box)" if isinstance(action, spaces.Box) else f"{type(action).__name__} actions"
            raise TaskError(f"{self.env_id}: actions must be Discrete, {agent} has {kind}")

    def _find_episode_length(self) -> int:
        """The time limit where the environment tells it, else the longest of three random episodes."""
        inner, seen = self.envs[0], []
        while inner is not None and inner not in seen:
            for name in ("max_cycles", "max_steps"):
                if isinstance(getattr(inner, name, None), int):
                    return getattr(inner, name)
            seen.append(inner)
            inner = getattr(inner, "aec_env", None) or getattr(inner, "env", None) or getattr(inner, "unwrapped", None)
        probe, rng, longest = self._make(), np.random.default_rng(0), 0
        for episode in range(3):
            probe.reset(seed=episode)
            steps = 0
            while probe.agents and steps < 1000:
                probe.step({agent: self._env_action(agent, int(rng.integers(2**31))) for agent in probe.agents})
                steps += 1
            longest = max(longest, steps)
        probe.close()
        return longest

    def _env_action(self, agent: str, action: int) -> int:
        k = self.agents.index(agent)
        return self._first_action[k] + action % int(self.num_actions[k])

    def _reset_one(self, k: int) -> None:
        observations, _ = self.envs[k].reset(seed=int(self.rng.integers(2**31)))
        if set(self.envs[k].agents) != set(self.agents):
            raise TaskError(
                f"{self.env_id}: the set of agents must be fixed, but an episode starts with "
                f"{sorted(self.envs[k].agents)} out of {self.agents}"
            )
        self._obs[k] = padded(observations, self.agents, self._obs.shape[-1])

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        for k in range(self.num_envs):
            self._reset_one(k)
        return self._obs.copy()

    def step(self, actions: np.ndarray):
        actions = check_actions(actions, self.num_envs, self.agents, self.num_actions)
        rewards = np.zeros((self.num_envs, self.num_agents), dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        final_obs = np.empty_like(self._obs)
        for k, env in enumerate(self.envs):
            joint = {agent: self._env_action(agent, int(a)) for agent, a in zip(self.agents, actions[k])}
            observations, reward, ended, cut, _ = env.step(joint)
            over = self._is_over(env, ended, cut)
            final_obs[k] = self._obs[k] = padded(observations, self.agents, self._obs.shape[-1])
            rewards[k] = [reward[agent] for agent in self.agents]
            if over:
                terminated[k] = any(ended.values())
                truncated[k] = not terminated[k]
                self._reset_one(k)
        return self._obs.copy(), rewards, terminated, truncated, final_obs

    def _is_over(self, env, ended: dict, cut: dict) -> bool:
        """Whether the episode has ended, which it must do for all agents at once."""
        gone = [agent for agent in self.agents if ended.get(agent, True) or cut.get(agent, True)]
        if 0 < len(gone) < self.num_agents or (env.agents and set(env.agents) != set(self.agents)):
            left = gone or sorted(set(self.agents) - set(env.agents))
            raise TaskError(
                f"{self.env_id}: the set of agents must be fixed, but {', '.join(left)} left before the others"
            )
        return not env.agents or bool(gone)

    def get_state(self) -> dict:
        """The seeds to come only: PettingZoo has no call for more. An interrupted run goes on with fresh episodes."""
        return {"rng": json.dumps(self.rng.bit_generator.state)}

    def set_state(self, state: dict) -> np.ndarray:
        self.rng.bit_generator.state = json.loads(state["rng"])
        return self.reset()


# Scores


def play_episodes(
    env_id: str, act: Callable, num_episodes: int, seed: int, record: bool = False
) -> tuple[np.ndarray, "Demos | None"]:
    """Play `num_episodes` fresh episodes; returns [episodes, agents], and what was played if `record`.

    `act(obs [B, agents, widest])` gives actions [B, agents]. Copies run side by side and each gives its first
    episode only, so that short episodes are not favoured.
    """
    all_returns, recorded = [], []
    while (played := sum(map(len, all_returns))) < num_episodes:
        copies = min(num_episodes - played, 500)
        envs = make_envs(env_id, copies, seed + len(all_returns))
        obs = envs.reset()
        returns, running = np.zeros((copies, len(envs.agents))), np.ones(copies, dtype=bool)
        lengths = np.zeros(copies, dtype=np.int64)
        steps = {"obs": [obs], "actions": [], "rewards": []}
        while running.any():
            actions = np.asarray(act(obs))
            obs, rewards, terminated, truncated, final_obs = envs.step(actions)
            returns += rewards * running[:, None]
            lengths += running
            if record:
                for name, values in (("obs", final_obs), ("actions", actions), ("rewards", rewards)):
                    steps[name].append(values * running.reshape(-1, *[1] * (values.ndim - 1)))  # zero once over
            running &= ~(terminated | truncated)
        all_returns.append(returns)
        if record:
            recorded.append(Demos(env_id, envs.agents, envs.obs_sizes, *_episodes_first(steps), lengths, {}))
    returns = np.concatenate(all_returns)
    return returns, Demos.joined(recorded) if record else None


def _episodes_first(steps: dict[str, list]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    obs, actions, rewards = (np.stack(steps[name], axis=1) for name in ("obs", "actions", "rewards"))
    return obs.astype(np.float32), actions.astype(np.int64), rewards.astype(np.float32)


def random_actions(num_actions: np.ndarray, seed: int) -> Callable:
    """A policy for `play_episodes`: every agent uniformly at random over its own actions."""
    # Not default_rng(seed): environments of the same seed would place their bodies by the very numbers drawn here.
    rng = np.random.default_rng([seed, 1])
    return lambda obs: rng.integers(num_actions, size=(len(obs), len(num_actions)))


def mean_and_interval(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over episodes [episodes, agents] and the half width of its 95 % interval (normal, over episodes)."""
    if len(returns) < 2:
        return returns.mean(axis=0), np.full(returns.shape[1], np.nan)
    return returns.mean(axis=0), 1.96 * returns.std(axis=0, ddof=1) / np.sqrt(len(returns))


def normalized_score_similarity(score: np.ndarray, expert: np.ndarray, random: np.ndarray) -> np.ndarray:
    """(score_A - score_R) / (score_E - score_R) per agent (last axis); the paper's NSS is its mean over agents.

    It is nan for an agent whose expert scores exactly as random play does; means leave it out.
    """
    gap = np.asarray(expert, dtype=np.float64) - random
    return (np.asarray(score) - random) / np.where(gap == 0, np.nan, gap)


def mean_nss(score: np.ndarray, references: dict) -> float:
    """NSS, mean over agents; `references` has "expert" and "random" scores [agents]."""
    nss = normalized_score_similarity(score, references["expert"], references["random"])
    return float(np.nanmean(nss)) if not np.isnan(nss).all() else float("nan")


# Demonstrations


@dataclass
class Demos:
    """Episodes of joint play. Observations are raw, zero-padded to the widest agent's, and T + 1 an episode."""

    env_id: str
    agents: list[str]
    obs_sizes: np.ndarray  # [agents]
    obs: np.ndarray  # float32 [episodes, T + 1, agents, widest]
    actions: np.ndarray  # int64 [episodes, T, agents]
    rewards: np.ndarray  # float32 [episodes, T, agents]
    lengths: np.ndarray  # int64 [episodes]: how many of the T steps were played
    metadata: dict

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, n: int) -> "Demos":
        return self.episodes(slice(n))

    def episodes(self, which: slice) -> "Demos":
        cut = {name: getattr(self, name)[which] for name in ("obs", "actions", "rewards", "lengths")}
        return Demos(self.env_id, self.agents, self.obs_sizes, **cut, metadata=self.metadata)

    @property
    def played(self) -> np.ndarray:
        """[episodes, T]: whether a step was played; what stands behind an episode's end counts for nothing."""
        return np.arange(self.actions.shape[1]) < self.lengths[:, None]

    def returns(self) -> np.ndarray:
        """[episodes, agents]"""
        return self.rewards.sum(axis=1, dtype=np.float64, where=self.played[:, :, None])

    def transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """obs [n, agents, widest], actions [n, agents] and true successors, of all steps that were played."""
        return self.obs[:, :-1][self.played], self.actions[self.played], self.obs[:, 1:][self.played]

    @staticmethod
    def joined(parts: "list[Demos]") -> "Demos":
        longest = max(part.actions.shape[1] for part in parts)

        def padded(array: np.ndarray, to: int) -> np.ndarray:
            return np.pad(array, [(0, 0), (0, to - array.shape[1])] + [(0, 0)] * (array.ndim - 2))

        whole = {name: [padded(getattr(part, name), longest) for part in parts] for name in ("actions", "rewards")}
        whole["obs"] = [padded(part.obs, longest + 1) for part in parts]
        whole["lengths"] = [part.lengths for part in parts]
        arrays = {name: np.concatenate(pieces) for name, pieces in whole.items()}
        return Demos(parts[0].env_id, parts[0].agents, parts[0].obs_sizes, **arrays, metadata=parts[0].metadata)


def save_demos(path: Path, demos: Demos) -> None:
    """Write demonstrations as .npz: obs_<agent>, actions, rewards, lengths, and metadata as a JSON string."""
    arrays = {
        f"obs_{agent}": demos.obs[:, :, i, : demos.obs_sizes[i]].astype(np.float32)
        for i, agent in enumerate(demos.agents)
    }
    header = {"format_version": FORMAT_VERSION, "env_id": demos.env_id, "agents": demos.agents, **demos.metadata}
    with writing(path) as temporary:
        np.savez_compressed(
            temporary,
            **arrays,
            actions=demos.actions.astype(np.int64),
            rewards=demos.rewards.astype(np.float32),
            lengths=demos.lengths.astype(np.int64),
            metadata=np.array(json.dumps(header)),
        )


def load_demos(env_id_or_path: str | Path, n_demos: int | None = None, envs=None) -> Demos:
    """The first `n_demos` demonstrations of a task (shipped in experts/) or of a file, checked.

    With `envs` (from `make_envs`), the file must also fit that task: its agents, sizes and number of actions.
    """
    is_file = isinstance(env_id_or_path, Path) or env_id_or_path.endswith(".npz") or os.sep in env_id_or_path
    path = Path(env_id_or_path) if is_file else EXPERTS / env_id_or_path / "demos.npz"
    if not path.is_file():
        if is_file:
            raise UserError(f"no demonstrations at {path}: {'it is a folder' if path.is_dir() else 'no such file'}")
        make_envs(str(env_id_or_path), 1)  # a task that there is not is told as such
        raise UserError(
            f"no demonstrations for {env_id_or_path!r}: make them with "
            f"`python train_expert_maac.py --env-id {env_id_or_path}`, or give a file of your own with --demos"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # NumPy and zipfile raise many kinds for foreign or damaged files
        raise UserError(f"{path} is not a readable .npz of demonstrations ({type(error).__name__})") from None
    demos = _demos_from_arrays(path, arrays)
    if envs is not None:
        _require_fit(path, demos, envs)
    if n_demos is not None:
        if not isinstance(n_demos, int | np.integer) or n_demos < 1:
            raise UserError(f"the number of demonstrations must be a whole number of at least 1, got {n_demos}")
        if n_demos > len(demos):
            raise UserError(f"{n_demos} demonstrations asked for, but {path} holds {len(demos)}")
        demos = demos.first(n_demos)
    return demos


def unseen_transitions(env_id_or_path: str | Path, n_demos: int, device, most: int = 100) -> list[torch.Tensor]:
    """obs [agents, n, widest], actions [agents, n] and next_obs of demonstrations behind the first `n_demos`.

    Nothing learns from them: discriminators that take these for the learner's have learned their own ones by heart.
    Empty lists of transitions where the file holds no more.
    """
    unseen = load_demos(env_id_or_path).episodes(slice(n_demos, n_demos + most)).transitions()
    return [torch.as_tensor(part, device=device).transpose(0, 1) for part in unseen]


def _demos_from_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Demos:
    def require(condition: bool, complaint: str) -> None:
        if not condition:
            raise UserError(f"{path}: {complaint}")

    missing = [name for name in ("metadata", "actions", "rewards", "lengths") if name not in arrays]
    require(not missing, f"not a file of demonstrations, it lacks {', '.join(missing)}")
    try:
        metadata = json.loads(str(arrays["metadata"]))
        version, env_id, agents = metadata["format_version"], metadata["env_id"], metadata["agents"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: metadata must be JSON with format_version, env_id and agents ({error!r})") from None
    require(version == FORMAT_VERSION, f"format version {version}, this code reads version {FORMAT_VERSION}")
    require(isinstance(env_id, str), f"metadata must name the task, found {env_id!r}")
    named = isinstance(agents, list) and agents and all(isinstance(agent, str) for agent in agents)
    require(bool(named), f"metadata must name the agents in a list, found {agents!r}")
    missing = [f"obs_{agent}" for agent in agents if f"obs_{agent}" not in arrays]
    require(not missing, f"observations {', '.join(missing)} are missing")
    for name in ("rewards", *(f"obs_{agent}" for agent in agents)):
        require(arrays[name].dtype.kind in "fiu", f"{name} must be real numbers, found {arrays[name].dtype}")
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is found below
            arrays[name] = arrays[name].astype(np.float32)
    actions, rewards, lengths = arrays["actions"], arrays["rewards"], arrays["lengths"]
    require(np.issubdtype(actions.dtype, np.integer), f"actions must be integers, found {actions.dtype}")
    require(actions.ndim == 3, f"actions must be [episodes, T, agents], found shape {actions.shape}")
    episodes, steps, _ = actions.shape
    require(episodes > 0 and steps > 0, "it holds no steps")
    expected = (episodes, steps, len(agents))
    require(actions.shape == expected, f"actions must have shape {expected}, found {actions.shape}")
    require(rewards.shape == expected, f"rewards must have shape {expected}, found {rewards.shape}")
    require(lengths.shape == (episodes,), f"lengths must have shape {(episodes,)}, found {lengths.shape}")
    require(
        bool(np.issubdtype(lengths.dtype, np.integer) and (lengths >= 1).all() and (lengths <= steps).all()),
        f"lengths must be whole numbers from 1 to {steps}",
    )
    for agent in agents:
        obs = arrays[f"obs_{agent}"]
        require(
            obs.ndim == 3 and obs.shape[:2] == (episodes, steps + 1),
            f"obs_{agent} must have shape ({episodes}, {steps + 1}, size), found {obs.shape}",
        )
        require(bool(np.isfinite(obs).all()), f"obs_{agent} contains NaN or infinity")
    require(bool(np.isfinite(rewards).all()), "rewards contain NaN or infinity")
    require(bool((actions >= 0).all()), "actions must not be negative")

    obs_sizes = np.array([arrays[f"obs_{agent}"].shape[2] for agent in agents])
    padded = np.zeros((episodes, steps + 1, len(agents), int(obs_sizes.max())), dtype=np.float32)
    for i, agent in enumerate(agents):
        padded[:, :, i, : obs_sizes[i]] = arrays[f"obs_{agent}"]
    return Demos(env_id, list(agents), obs_sizes, padded, actions.astype(np.int64), rewards, lengths, metadata)


def _require_fit(path: Path, demos: Demos, envs) -> None:
    # Not only sizes: cooperative_communication and simple_speaker_listener have the same, with directions flipped.
    if not same_task(demos.env_id, envs.env_id):
        raise UserError(f"{path} is for another task: expected {envs.env_id}, found {demos.env_id}")
    if demos.agents != list(envs.agents):
        raise UserError(f"{path}: expected agents {list(envs.agents)}, found {demos.agents}")
    if not np.array_equal(demos.obs_sizes, envs.obs_sizes):
        expected, found = envs.obs_sizes.tolist(), demos.obs_sizes.tolist()
        raise UserError(f"{path}: expected observation sizes {expected}, found {found} ({demos.env_id})")
    largest = np.where(demos.played[:, :, None], demos.actions, 0).max(axis=(0, 1))
    for agent, largest_action, number in zip(demos.agents, largest, envs.num_actions):
        if largest_action >= number:
            raise UserError(
                f"{path}: action {largest_action} of {agent} is out of range, it has actions 0-{number - 1}"
            )


def load_card(env_id: str, folder: Path | None = None) -> dict:
    """card.json of experts/<env_id> (or `folder`): who made the demonstrations, scores of expert and random play."""
    path = (folder or EXPERTS / env_id) / "card.json"
    if not path.is_file():
        raise UserError(f"no expert for {env_id!r}: make one with `python train_expert_maac.py --env-id {env_id}`")
    return read_json_object(path, "the card of an expert")


def expert_scores(env_id: str) -> np.ndarray:
    """Mean score per agent of 500 episodes of the expert: score_E of NSS."""
    return references_with_intervals(env_id)["expert"][0]


def of_todays_expert(env_id: str, expert_scores: np.ndarray | list[float], arguments: str) -> bool:
    """Whether a result with this score_E is of the expert that is there now; a successor makes results history.

    So it is if its extra arguments name demonstrations of their own, or if there is no expert to compare with.
    """
    if re.search(r"--demos\b", arguments) or not (EXPERTS / env_id / "card.json").is_file():
        return True
    today = [score["mean"] for score in load_card(env_id)["scores"]["expert"].values()]
    return len(today) == len(expert_scores) and bool(np.allclose(expert_scores, today, rtol=0, atol=1e-3))


def random_scores(env_id: str) -> np.ndarray:
    """Mean score per agent of 500 episodes of uniformly random play: score_R of NSS."""
    return references_with_intervals(env_id)["random"][0]


def reference_scores(env_id: str, demos_path: str = "") -> dict[str, np.ndarray]:
    """ "expert" and "random": score_E and score_R of NSS, per agent. Warns of agents that NSS cannot judge."""
    references = references_with_intervals(env_id, demos_path)
    agents = list(make_envs(env_id, 1).agents)
    warn_of_references(too_close(agents, references), below_random(agents, references))
    return {name: mean for name, (mean, _) in references.items()}


def too_close(agents: list[str], references: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """Agents whose expert hardly differs from random play: their NSS divides by next to nothing."""
    (expert, expert_half), (random, random_half) = references["expert"], references["random"]
    apart = np.abs(expert - random) >= 3 * np.hypot(expert_half, random_half)  # not so for nan
    return [agent for agent, is_apart in zip(agents, apart & (expert != random)) if not is_apart]


def below_random(agents: list[str], references: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """Agents whose expert scores less than random play, among random opponents: a better agent has the lower NSS."""
    return [agent for agent, gap in zip(agents, references["expert"][0] - references["random"][0]) if gap < 0]


def warn_of_references(close: list[str], below: list[str]) -> None:
    for agent in close:
        print(f"warning: expert and random scores of {agent} are too close for its NSS to mean much")
    for agent in (agent for agent in below if agent not in close):
        print(f"warning: {agent} scores less as the expert than in random play: its NSS says more of the others")


def references_with_intervals(
    env_id: str, demos_path: str = "", expert_folder: Path | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and half widths of 95 % intervals, per agent, of "expert" and "random".

    From the card of the shipped expert, or of `expert_folder`; for a file of demonstrations, which has no card, its own
    mean (all episodes, however many of them are learned from) and 500 random episodes.
    """
    envs = make_envs(env_id, 1)
    if demos_path:
        expert = load_demos(Path(demos_path), envs=envs).returns()
        return {"expert": mean_and_interval(expert), "random": play_randomly(env_id)}
    card, folder = load_card(env_id, expert_folder), Path(expert_folder or EXPERTS / env_id)

    def scores(name: str, key: str) -> np.ndarray:
        return np.array([float(card["scores"][name][agent][key]) for agent in envs.agents])

    try:
        demos, digest = folder / "demos.npz", card.get("sha256", {}).get("demos.npz")
        if digest and demos.is_file() and sha256(demos) != digest:  # a card's scores are those of its own expert
            again = f"python train_expert_maac.py --env-id {env_id} --record-only {folder} --experts {folder.parent}"
            raise UserError(f"{folder / 'card.json'} is not of the demos.npz beside it; record both again: `{again}`")
        return {name: (scores(name, "mean"), scores(name, "interval_95")) for name in ("expert", "random")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'card.json'} lacks scores of {', '.join(envs.agents)} ({error!r})") from None


def play_randomly(env_id: str, episodes: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of uniformly random play, per agent, for tasks whose card does not tell."""
    act = random_actions(make_envs(env_id, 1).num_actions, seed=20_000_003)
    return mean_and_interval(play_episodes(env_id, act, episodes, seed=20_000_003)[0])


# Policies: stacked multilayer perceptrons, one an agent.


class SavedPolicy:
    """A policy read from a file: logits, and actions for `play_episodes`."""

    def __init__(self, tensors: dict[str, torch.Tensor], header: dict):
        self.header, self.tensors = header, tensors
        self.num_actions = torch.tensor(header["num_actions"])
        self.num_layers = sum(name.startswith("weight_") for name in tensors)

    def checked(self, origin: Path) -> "SavedPolicy":
        """Itself, if its weights fit one another and what its header says of agents, observations and actions."""
        header, tensors = self.header, self.tensors
        agents, size = len(header["agents"]), max(header["obs_sizes"])
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        fits = self.num_layers > 0
        for k in range(self.num_layers):
            size_out = (0, *shapes.get(f"weight_{k}", ()))[-1]
            fits &= shapes.get(f"weight_{k}") == (agents, size, size_out)
            fits &= shapes.get(f"bias_{k}") == (agents, 1, size_out)
            size = size_out
        if not fits or size != max(header["num_actions"]):
            raise UserError(f"{origin}: a policy's weights {shapes} do not fit its task {header['env_id']}")
        return self

    @torch.no_grad()
    def logits(self, obs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """[B, agents, widest observation] to [B, agents, widest number of actions]; -inf where there is no action."""
        x = torch.as_tensor(obs).transpose(0, 1)  # [agents, B, widest]
        if "obs_mean" in self.tensors:
            x = (x - self.tensors["obs_mean"][:, None]) / (self.tensors["obs_var"][:, None] + 1e-8).sqrt()
            x = x.clamp(-10, 10)
        for layer in range(self.num_layers):
            x = torch.baddbmm(self.tensors[f"bias_{layer}"], x, self.tensors[f"weight_{layer}"])
            if layer + 1 < self.num_layers:
                x = F.leaky_relu(x)
        missing = torch.arange(x.shape[-1]) >= self.num_actions[:, None, None]
        return x.masked_fill(missing, -torch.inf).transpose(0, 1)

    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The most probable actions, [B, agents]."""
        return self.logits(obs).argmax(-1).numpy()

    def stochastic(self, seed: int) -> Callable:
        """A function like `greedy` that draws actions by their probabilities."""
        generator = torch.Generator().manual_seed(seed)

        def act(obs: np.ndarray) -> np.ndarray:
            noise = torch.empty_like(logits := self.logits(obs)).exponential_(generator=generator)
            return (logits - noise.log()).argmax(-1).numpy()  # Gumbel: argmax(logits + noise) ~ softmax(logits)

        return act


def save_policy(path: Path, tensors: dict[str, torch.Tensor], env_id: str, envs) -> None:
    """weight_<k> [agents, in, out], bias_<k> [agents, 1, out] (LeakyReLU between), and obs_mean, obs_var if any."""
    _save_tensors(path, tensors, {"kind": "stacked_mlp_policy"}, env_id, envs)


def save_reward(path: Path, tensors: dict[str, torch.Tensor], header: dict, env_id: str, envs) -> None:
    """A learned reward: the discriminator's weights, and in the header what is needed to rebuild it."""
    _save_tensors(path, tensors, {"kind": "airl_reward", **header}, env_id, envs)


def _save_tensors(path: Path, tensors: dict[str, torch.Tensor], header: dict, env_id: str, envs) -> None:
    header = {
        **header,
        "format_version": FORMAT_VERSION,
        "env_id": env_id,
        "agents": list(envs.agents),
        "obs_sizes": np.asarray(envs.obs_sizes).tolist(),
        "num_actions": np.asarray(envs.num_actions).tolist(),
    }
    # One entry: safetensors writes several in an order of its own, and equal weights should be equal files.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(path) as temporary:
        temporary.write_bytes(safetensors_bytes(tensors, {"header": json.dumps(header)}))


def _load_tensors(path: Path, what: str, kinds: tuple[str, ...], envs) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and header of a policy or reward file of the right kind; with `envs`, it must fit that task."""
    if not Path(path).is_file():
        raise UserError(f"no {what} at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("header", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable {what} file ({error})") from None
    if not isinstance(header, dict) or not {"agents", "obs_sizes", "num_actions", "env_id"} <= header.keys():
        raise UserError(f"{path} is not a {what} of format version {FORMAT_VERSION}: its header is incomplete")
    if header.get("kind") not in kinds or header.get("format_version") != FORMAT_VERSION:
        raise UserError(f"{path} is not a {what} of format version {FORMAT_VERSION}")
    if envs is not None:
        if not same_task(header["env_id"], envs.env_id):
            found = header["env_id"]
            raise UserError(f"{path} is for another task: expected {envs.env_id}, found {found} (--env-id {found})")
        for name in ("agents", "obs_sizes", "num_actions"):
            expected = np.asarray(getattr(envs, name)).tolist()
            if header[name] != expected:
                raise UserError(f"{path} does not fit the task: expected {name} {expected}, found {header[name]}")
    return tensors, header


def load_policy(path: Path, envs=None) -> SavedPolicy:
    """Rebuild a policy from its file; with `envs`, it must fit that task."""
    return SavedPolicy(*_load_tensors(path, "policy", ("stacked_mlp_policy",), envs)).checked(path)


# Recovered rewards


REWARD_FORMS = {
    "g": lambda x: x,  # MA-AIRL and MA-DAAC: the network's output
    "logit": lambda x: x,  # MA-GAIL, of the logit of D: itself, log D, -log(1 - D), 2 D - 1
    "log_d": lambda x: -F.softplus(-x),
    "softplus": F.softplus,
    "centered": lambda x: 2 * torch.sigmoid(x) - 1,
}


class LearnedReward:
    """A recovered reward: g of MA-AIRL and MA-DAAC, log D (or another form) of MA-GAIL; nothing trains it further."""

    def __init__(self, tensors: dict[str, torch.Tensor], header: dict):
        if missing := {"decentralized", "sees_actions", "reward"} - header.keys():
            raise UserError(f"the reward of {header['env_id']} has no {sorted(missing)} in its header")
        self.header, self.agents, self.env_id = header, header["agents"], header["env_id"]
        network = "g." if header["kind"] == "airl_reward" else "d."
        parts = {name.removeprefix(network): part for name, part in tensors.items() if name.startswith(network)}
        names = [f"layers.{k}" for k in range(3)] if header["decentralized"] else ["trunk.0", "trunk.2", "heads"]
        try:
            self.layers = [(parts[f"{name}.weight"], parts[f"{name}.bias"]) for name in names]
        except KeyError as missing:
            raise UserError(
                f"the reward of {self.env_id} has no {missing}: its weights do not match its header"
            ) from None
        if header["reward"] not in REWARD_FORMS:
            raise UserError(f"the reward of {self.env_id} is {header['reward']!r}; known: {', '.join(REWARD_FORMS)}")
        self.num_actions, self.widest_action = torch.tensor(header["num_actions"]), max(header["num_actions"])
        size = max(header["obs_sizes"]) + (self.widest_action if header["sees_actions"] else 0)
        if not header["decentralized"]:
            size *= len(self.agents)
        for name, (weight, bias) in zip(names, self.layers):
            # a stack of [in, out] and [1, out], or nn.Linear's [out, in] and [out]
            size_out = bias.shape[-1] if bias.ndim else 0
            stack = (len(self.agents), size, size_out), (len(self.agents), 1, size_out)
            linear = (size_out, size), (size_out,)
            if (tuple(weight.shape), tuple(bias.shape)) != (stack if header["decentralized"] else linear):
                shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
                raise UserError(f"the reward of {self.env_id}: {name} of {shapes} does not fit its {size} inputs")
            size = size_out
        if size != (1 if header["decentralized"] else len(self.agents)):
            raise UserError(f"the reward of {self.env_id} has {size} outputs for {len(self.agents)} agents")

    @torch.no_grad()
    def __call__(self, obs: np.ndarray | torch.Tensor, actions: np.ndarray | torch.Tensor) -> np.ndarray:
        """obs [B, agents, widest observation], actions [B, agents] -> rewards float32 [B, agents]."""
        x, actions = torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(actions)
        if actions.shape != x.shape[:2] or x.shape[1:] != (len(self.agents), max(self.header["obs_sizes"])):
            expected = f"[B, {len(self.agents)}, {max(self.header['obs_sizes'])}] and [B, {len(self.agents)}]"
            raise UserError(f"observations and actions must be {expected}, got {list(x.shape)}, {list(actions.shape)}")
        outside = (actions < 0) | (actions >= self.num_actions) | (actions != actions.long())
        if outside.any():
            agent = self.agents[int(outside.any(0).nonzero()[0])]
            raise UserError(f"an action of {agent} is none that it has: {actions[outside][0].item()}")
        if self.header["sees_actions"]:
            x = torch.cat([x, F.one_hot(actions.long(), self.widest_action).to(x.dtype)], -1)
        x = x.transpose(0, 1) if self.header["decentralized"] else x.flatten(1)
        for k, (weight, bias) in enumerate(self.layers):
            x = torch.baddbmm(bias, x, weight) if self.header["decentralized"] else F.linear(x, weight, bias)
            x = F.leaky_relu(x) if k + 1 < len(self.layers) else x
        x = x[..., 0].T if self.header["decentralized"] else x
        return REWARD_FORMS[self.header["reward"]](x).numpy()


def learned_reward(run: str | Path, envs=None) -> LearnedReward:
    """The reward that a run recovered, as a function of batches; with `envs`, it must fit that task."""
    path = Path(run)
    if not path.exists():
        raise UserError(f"there is no run at {path}")
    path = path / "reward.safetensors" if path.is_dir() else path
    if not path.is_file():
        if path.with_name("policy.safetensors").is_file() or path.with_name("config.json").is_file():
            without = (
                "an expert and a run of retrain.py have none, a run that was cut short has it when --resume ends it"
            )
            raise UserError(f"{path.parent} has no reward.safetensors: {without}")
        raise UserError(f"{path.parent} is not a run of madaac_discrete.py, mairl_mack.py or magail_mack.py")
    return LearnedReward(*_load_tensors(path, "reward", ("airl_reward", "gail_reward"), envs))


def learned_reward_env(run: str | Path, env: ParallelEnv | None = None) -> "LearnedRewardEnv":
    """A PettingZoo parallel environment that pays a run's recovered reward; `env` defaults to the run's own task."""
    reward = learned_reward(run)
    if env is None:
        envs = make_envs(reward.env_id, 1)
        env = parallel_env(reward.env_id) if isinstance(envs, ParticleTask) else envs.envs[0]
    return LearnedRewardEnv(env, reward)


class LearnedRewardEnv(BaseParallelWrapper):
    """Pays the recovered rewards; the task's own are in infos[agent]["true_reward"]."""

    def __init__(self, env: ParallelEnv, reward: LearnedReward):
        super().__init__(env)
        if list(env.possible_agents) != list(reward.agents):
            raise UserError(f"the reward is for agents {reward.agents}, the environment has {env.possible_agents}")
        sizes = [int(np.prod(env.observation_space(agent).shape)) for agent in reward.agents]
        if sizes != reward.header["obs_sizes"]:
            raise UserError(
                f"the reward is for observations of {reward.header['obs_sizes']}, the environment's: {sizes}"
            )
        numbers = [int(env.action_space(agent).n) for agent in reward.agents]
        if numbers != reward.header["num_actions"]:
            raise UserError(f"the reward is for {reward.header['num_actions']} actions, the environment has {numbers}")
        inner = env.unwrapped
        if isinstance(inner, ParticleParallelEnv) and not same_task(inner.metadata["name"], reward.env_id):
            raise UserError(f"the reward is for {reward.env_id}, the environment is {inner.metadata['name']}")
        self.reward, self._before = reward, None  # what agents saw before a step, [agents, widest]
        self._first_action = np.array([int(env.action_space(agent).start) for agent in reward.agents])

    def _keep(self, observations: dict) -> None:
        """A copy: clients may change in place what they are given."""
        if observations.keys() >= set(self.reward.agents):  # some environments give none at the end
            self._before = padded(observations, self.reward.agents, max(self.reward.header["obs_sizes"]))

    def reset(self, seed: int | None = None, options: dict | None = None):
        observations, infos = super().reset(seed=seed, options=options)
        self._keep(observations)
        return observations, infos

    def step(self, actions: dict):
        observations, true_rewards, terminations, truncations, infos = super().step(actions)
        agents = self.reward.agents
        taken = np.array([actions[agent] for agent in agents]) - self._first_action
        learned = self.reward(self._before[None], taken[None])[0]
        self._keep(observations)
        rewards = {agent: float(learned[agents.index(agent)]) for agent in true_rewards}
        infos = {agent: {**infos.get(agent, {}), "true_reward": true_rewards[agent]} for agent in true_rewards}
        return observations, rewards, terminations, truncations, infos


# Files


@contextlib.contextmanager
def writing(path: Path):
    """Give a temporary file to fill, then put it in place: readers see the old file or the whole new one."""
    path = Path(path)
    # The same ending, since np.savez appends one to names that lack it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raise now if files could not be written to the folder later; leaves nothing behind."""
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".writable.{os.getpid()}"
    try:
        with writing(probe) as temporary:
            temporary.touch()
    except UserError as error:
        raise UserError(str(error).replace(str(probe), f"into {folder}")) from None
    probe.unlink(missing_ok=True)
    for path in missing:
        with contextlib.suppress(OSError):  # somebody else may have begun to use it
            path.rmdir()


def for_json(content):
    """The same with null for what is not finite, which JSON cannot hold."""
    if isinstance(content, dict):
        return {name: for_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [for_json(value) for value in content]
    return None if isinstance(content, float) and not np.isfinite(content) else content


def write_json(path: Path, content: dict) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(for_json(content), indent=2, allow_nan=False) + "\n")


def read_json_object(path: Path, what: str) -> dict:
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # not JSON, not even text
        raise UserError(f"{path} is not {what} ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not {what} (found {type(content).__name__}, not an object)")
    return content


def save_checkpoint(path: Path, content: dict) -> None:
    """Tensors and plain values only, so that reading it back cannot run code."""
    with writing(path) as temporary:
        try:
            with open(temporary, "wb") as file:
                torch.save(content, file)
        except RuntimeError as error:  # of a full disk, behind which torch keeps the one that says so
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def for_checkpoint(state: dict) -> dict:
    """A task's state with arrays as tensors, which is what a checkpoint may hold."""
    return {name: torch.as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def from_checkpoint(state: dict) -> dict:
    return {name: value.numpy() if torch.is_tensor(value) else value for name, value in state.items()}


def rng_state() -> list[torch.Tensor]:
    """Of torch's generators, on the CPU and on GPUs."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def set_rng_state(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def load_checkpoint(path: Path) -> dict:
    if not Path(path).is_file():
        raise UserError(f"nothing to resume: there is no {path} (--resume takes the folder of a run)")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for foreign files
        raise UserError(f"{path} is not a readable checkpoint ({type(error).__name__})") from None


def sha256(path: Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def versions() -> dict[str, str]:
    """What a result depends on besides its arguments."""
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "mpe2", "pettingzoo"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # our own tasks do without mpe2
            found[name] = importlib.metadata.version(name)
    return found


def commit() -> str:
    """The commit of this code, with + when files differ from it; unknown outside a checkout.

    MADAAC_COMMIT tells it to a copy of the code that is no checkout.
    """
    if os.environ.get("MADAAC_COMMIT"):
        return os.environ["MADAAC_COMMIT"]
    try:
        run = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
        return run(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def make_run_folder(runs: str, env_id: str, exp_name: str, seed: int, config: dict) -> Path:
    """runs/{env_id}__{exp_name}__{seed}__{time}/ with its config.json."""
    name = f"{env_id}__{exp_name}__{seed}__{int(time.time())}"
    for number in itertools.count(1):
        folder = Path(runs) / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)  # fails if another process has just made it
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot write {folder}: {error.strerror}") from None
    content = {"args": config, "versions": versions(), "commit": commit()}
    if "n_demos" in config and (demos := demos_file(config)).is_file():
        content["demos_sha256"] = sha256(demos)
    write_json(folder / "config.json", content)
    return folder


def lengthen_run(run_folder: Path, total_timesteps: int) -> None:
    """Let --resume go on to a larger number of steps; what the shorter run ended with is no longer its result."""
    path = Path(run_folder) / "config.json"
    config = json.loads(path.read_text())
    if config["args"].get("anneal_lr"):
        raise UserError(f"{run_folder} lets its step sizes fall to zero and cannot be made longer")
    config["args"]["total_timesteps"] = total_timesteps
    for name in ("summary.json", "policy.safetensors", "reward.safetensors"):
        (path.parent / name).unlink(missing_ok=True)
    write_json(path, config)


def demos_file(args: dict) -> Path:
    """The demonstrations that a run with these arguments learns from: those of --demos, or the task's shipped ones."""
    return Path(args.get("demos") or EXPERTS / str(args["env_id"]) / "demos.npz")


def demos_of_run(config: dict) -> str:
    """The file of demonstrations that a run was given with --demos, still the same; "" if it has the shipped ones."""
    demos, path, digest = config["args"].get("demos", ""), demos_file(config["args"]), config.get("demos_sha256")
    if digest and path.is_file() and sha256(path) != digest:
        raise UserError(f"{path} is not the file that the run was begun with, or it has changed since")
    return demos


def resumed_args(run_folder: Path, given):
    """The arguments of a run, from its config.json; `given` are those of the command line that asks for --resume.

    A run goes on as it began: other values are refused, but for those that do not touch what is learned, for new paths
    of the same files, and for --total-timesteps, which makes a run longer (also one that has ended) or ends it sooner.
    """
    path = Path(run_folder) / "config.json"
    if not path.is_file():
        raise UserError(f"cannot resume: there is no {path}")
    try:
        config = json.loads(path.read_text())
        args = type(given)(**{name: math.inf if value is None else value for name, value in config["args"].items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot resume: {path} is not a config of this script, but of another one or another version ({error!r})"
        ) from None
    typed = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in sys.argv[1:] if word[:2] == "--"}
    names = {field.name for field in fields(given)}
    typed |= {name.removeprefix("no_") for name in typed - names}  # --no-capture-video
    for field in fields(given):
        name, wanted, was = field.name, getattr(given, field.name), getattr(args, field.name)
        if name in ("run", "demos", "experts") and wanted:
            wanted = str(Path(wanted).resolve())
        if name in ("resume", "runs") or wanted == was or (name not in typed and getattr(given, name) == field.default):
            continue
        if name == "total_timesteps":
            if wanted and getattr(args, "anneal_lr", False):
                raise UserError(f"{run_folder} lets its step sizes fall to zero at its end, which cannot be moved")
            args.total_timesteps = wanted or was
            continue
        # That a moved reward or file of demonstrations is still the same is checked by its hash.
        moved = was and wanted and (name in ("run", "experts") or (name == "demos" and "demos_sha256" in config))
        judged = name == "eval_episodes" and "eval_every" not in names  # experts are chosen by such episodes
        if moved or judged or name in ("torch_threads", "save_every", "track", "capture_video"):
            setattr(args, name, wanted)
        elif not (name == "env_id" and same_task(wanted, was)):
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"--resume goes on with what {path} says: {flag} was {was!r}, and now {wanted!r} was asked for"
            )
    demos_of_run(config | {"args": vars(args)})
    return args


def save_resumed_args(run_folder: Path, args) -> None:
    """Once a run has been read back whole: config.json says from now on what was changed for its second part."""
    path = Path(run_folder) / "config.json"
    config = json.loads(path.read_text())
    if args.total_timesteps > config["args"]["total_timesteps"]:
        lengthen_run(run_folder, args.total_timesteps)
    elif (Path(run_folder) / "summary.json").is_file():
        steps = config["args"]["total_timesteps"]
        print(f"{run_folder} has ended: it is evaluated again (--total-timesteps, now {steps}, makes it longer)")
    if config["args"] != for_json(vars(args)):
        write_json(path, config | {"args": vars(args)})


def check_common_args(args) -> None:
    """What the arguments of all training scripts have to satisfy."""
    at_least = {"seed": 0, "torch_threads": 0, "eval_episodes": 2}
    at_least |= dict.fromkeys(("num_envs", "num_steps", "hidden_size", "attention_heads", "n_demos", "log_every"), 1)
    at_least |= dict.fromkeys(
        ("buffer_size", "batch_size", "learning_starts", "update_period", "updates_per_period"), 1
    )
    for name, least in at_least.items():
        if getattr(args, name, least) < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(args, name)}")
    for name in ("policy_lr", "critic_lr", "disc_lr"):
        if not getattr(args, name, 1) > 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    for name in ("gamma", "policy_tau", "critic_tau", "gae_lambda"):
        if not 0 <= getattr(args, name, 0) <= 1:
            raise UserError(f"--{name.replace('_', '-')} must be from 0 to 1, got {getattr(args, name)}")
    if args.hidden_size % getattr(args, "attention_heads", 1):
        raise UserError(f"--attention-heads {args.attention_heads} must divide --hidden-size {args.hidden_size}")
    if getattr(args, "disc_actions", False) and getattr(args, "no_disc_actions", False):
        raise UserError("--disc-actions and --no-disc-actions exclude one another")
    if os.sep in args.exp_name:
        raise UserError(f"--exp-name is part of a folder's name and must not contain {os.sep!r}, got {args.exp_name!r}")
    if args.cuda and not torch.cuda.is_available():
        raise UserError("--cuda asked for, but torch finds no GPU")
    if args.track:
        require_wandb()


class Interrupt:
    """Ctrl-C, or a scheduler's SIGTERM, asks a training loop to save and stop after its current step; a second one
    stops it at once."""

    def __init__(self):
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, *_) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def stop(self, script: str, run_folder: Path, step: int) -> None:
        print(f"\nstopped at step {step}; go on with: python {script} --resume {run_folder}", file=sys.stderr)
        sys.exit(130)


def report_run(run_folder: Path, script: str, args, envs, writer, scores: dict, training: dict) -> dict:
    """The end of a training run: play its saved policy on fresh episodes, print a table, write summary.json last.

    `scores` has the references of NSS, "expert" and "random" [agents]; `training` goes into the summary as it is.
    """
    policy = load_policy(run_folder / "policy.safetensors", envs)
    references = {name: dict(zip(envs.agents, values.tolist())) for name, values in scores.items()}
    summary = {"script": script, "env_id": args.env_id, **training, **references}
    columns = {name: [f"{value:.2f}" for value in scores[name]] for name in ("expert", "random")}
    for name, act in (("stochastic", policy.stochastic(args.seed)), ("greedy", policy.greedy)):
        returns = play_episodes(args.env_id, act, args.eval_episodes, seed=EVALUATION_SEED + args.seed)[0]
        mean, half_width = mean_and_interval(returns)
        nss = normalized_score_similarity(mean, scores["expert"], scores["random"])
        summary[name] = {
            "nss": mean_nss(mean, scores),
            "scores": {
                a: {"mean": float(m), "interval_95": float(h)} for a, m, h in zip(envs.agents, mean, half_width)
            },
            "nss_by_agent": dict(zip(envs.agents, nss.tolist())),
        }
        columns[name] = [f"{m:.2f} ± {h:.2f}" for m, h in zip(mean, half_width)]
        writer.add_scalar(f"eval/nss_{name}", summary[name]["nss"], training["steps"])
    writer.close()
    print("\n" + "".join(f"{title:>18}" for title in ("agent", *columns)))
    for agent, cells in zip(envs.agents, zip(*columns.values())):
        print("".join(f"{cell:>18}" for cell in (agent, *cells)))
    nss = [f"{summary[name]['nss']:.3f}" for name in ("stochastic", "greedy")]
    print("".join(f"{cell:>18}" for cell in ("NSS", "1", "0", *nss)))
    if args.capture_video:
        write_video(run_folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
    write_json(run_folder / "summary.json", summary)
    weights = ", ".join(sorted(path.name for path in run_folder.glob("*.safetensors")))
    print(f"written: {run_folder} ({weights}, summary.json)")
    print(f"next: tensorboard --logdir {run_folder}\n      python eval_nss.py {run_folder}")
    if (Path(run_folder) / "reward.safetensors").is_file():
        print(f"      python retrain.py --run {run_folder}")
    return summary


def total_timesteps(args, envs) -> int:
    """What --total-timesteps asks for; 0 is the paper's number of episodes."""
    episodes = 100_000 if args.env_id.startswith("rover_tower") else 50_000
    steps = args.total_timesteps or episodes * envs.episode_length
    if steps < args.num_envs * envs.episode_length:
        least = args.num_envs * envs.episode_length
        raise UserError(f"--total-timesteps must be at least one episode of all {args.num_envs} copies, {least} steps")
    return steps


def require_can_draw(envs, flag: str = "--capture-video") -> None:
    """Raise now, and not after training, if there is no video to be had of a task."""
    if not isinstance(envs, ParticleTask):
        raise UserError(f"{flag} draws the tasks of particle_envs only, not {envs.env_id!r}")


def require_wandb() -> None:
    if importlib.util.find_spec("wandb") is None:
        raise UserError("--track needs Weights & Biases: pip install wandb")


def track(run_folder: Path, config: dict) -> None:
    """Mirror the run's TensorBoard to Weights & Biases."""
    import wandb

    wandb.init(project="madaac", name=run_folder.name, config=config, sync_tensorboard=True, dir=run_folder)


def write_video(path: Path, env_id: str, players: dict[str, Callable], seed: int, episodes: int = 3) -> None:
    """A video of a few episodes, one after the other; of several players side by side, from the same initial states."""
    import imageio.v2 as imageio

    views = []
    for title, act in players.items():
        envs = make_envs(env_id, 1, seed)
        views.append([envs, Canvas(title), act, envs.reset()])
    frames = []
    for _ in range(episodes * views[0][0].episode_length):
        frames.append(np.concatenate([canvas.draw(envs, 0) for envs, canvas, _, _ in views], axis=1))
        for view in views:
            envs, _, act, obs = view
            view[3] = envs.step(act(obs))[0]
    for _, canvas, _, _ in views:
        canvas.close()
    with writing(path) as temporary:
        imageio.mimwrite(temporary, frames, fps=Canvas.fps, macro_block_size=4)
