"""Demonstrations, and the experts that made them.

`experts/<env_id>/` holds demos.npz, policy.safetensors and card.json with the scores of the expert and of random play.
docs/demonstrations.md describes the format of demos.npz, which any file of your own can follow.
"""

import json
import math
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from env_utils import Episodes, make_envs, play_episodes, random_actions, task_name
from madaac_utils.files import (
    EXPERTS,
    FORMAT_VERSION,
    UserError,
    is_list_of,
    read_json,
    require_fits_task,
    sha256,
    writing,
)
from madaac_utils.scores import Reference, mean_and_interval

RANDOM_SEED = 20_000_003  # of the episodes of random play
MAX_BYTES = 2**29  # of the arrays of a file; about 18,000 demonstrations of rover_tower_16


class Transitions(NamedTuple):
    """Steps of all agents; the first axis is that of agents."""

    obs: torch.Tensor  # [agents, n, widest observation]
    actions: torch.Tensor  # [agents, n]
    next_obs: torch.Tensor  # the true successors, [agents, n, widest observation]

    def sample(self, batch: int) -> "Transitions":
        """Draw transitions with replacement."""
        rows = torch.randint(self.actions.shape[1], (batch,), device=self.actions.device)
        return Transitions(*(part[:, rows] for part in self))


@dataclass
class Demos:
    """Episodes of joint play with raw observations, zero-padded to those of the widest agent."""

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

    def __getitem__(self, which: slice) -> "Demos":
        arrays = (part[which] for part in (self.obs, self.actions, self.rewards, self.lengths))
        return Demos(self.env_id, self.agents, self.obs_sizes, *arrays, self.metadata)

    @property
    def played(self) -> np.ndarray:
        """[episodes, T]: whether a step was played; padding behind the end of an episode does not count."""
        return np.arange(self.actions.shape[1]) < self.lengths[:, None]

    def returns(self) -> np.ndarray:
        """[episodes, agents]"""
        return self.rewards.sum(axis=1, dtype=np.float64, where=self.played[:, :, None])

    def transitions(self, device: torch.device | str = "cpu") -> Transitions:
        parts = (self.obs[:, :-1], self.actions, self.obs[:, 1:])
        return Transitions(*(torch.as_tensor(part[self.played], device=device).transpose(0, 1) for part in parts))

    def split(self, n_demos: int, device: torch.device | str = "cpu") -> tuple[Transitions, Transitions]:
        """The first `n_demos` demonstrations to learn from, and up to 100 others that nothing learns from."""
        return self.first(n_demos).transitions(device), self[n_demos : n_demos + 100].transitions(device)

    def first(self, n_demos: int) -> "Demos":
        """The first `n_demos` demonstrations."""
        if n_demos > len(self):
            raise UserError(f"--n-demos {n_demos} asks for more demonstrations than the {len(self)} that there are")
        return self[:n_demos]


def demos_from_episodes(env_id: str, episodes: Episodes, metadata: dict) -> Demos:
    envs = make_envs(env_id, 1)
    return Demos(env_id, list(envs.agents), envs.obs_sizes, *episodes[1:], metadata)


def save_demos(path: Path, demos: Demos) -> None:
    """Write demonstrations as .npz."""
    arrays = {
        f"obs_{agent}": demos.obs[:, :, i, : demos.obs_sizes[i]].astype(np.float32)
        for i, agent in enumerate(demos.agents)
    }
    header = demos.metadata | {"format_version": FORMAT_VERSION, "env_id": demos.env_id, "agents": demos.agents}
    with writing(path) as temporary:
        np.savez_compressed(
            temporary,
            **arrays,
            actions=demos.actions.astype(np.int64),
            rewards=demos.rewards.astype(np.float32),
            lengths=demos.lengths.astype(np.int64),
            metadata=np.array(json.dumps(header)),
        )


def demos_path(env_id_or_path: str | Path) -> Path:
    """The file of a task's shipped demonstrations, or the file or folder that a path names."""
    text = str(env_id_or_path)
    if isinstance(env_id_or_path, Path) or text.endswith(".npz") or os.sep in text:
        path = Path(text)
        return path / "demos.npz" if (path / "demos.npz").is_file() else path
    return EXPERTS / task_name(text) / "demos.npz"


def load_demos(env_id_or_path: str | Path, envs=None) -> Demos:
    """Read and check demonstrations. With `envs`, they must fit that task."""
    path = demos_path(env_id_or_path)
    if not path.is_file():
        if path.parent.parent != EXPERTS:
            what = "it is a folder without demos.npz" if path.is_dir() else "no such file"
            raise UserError(f"there are no demonstrations at {path}: {what}")
        make_envs(str(env_id_or_path), 1)  # raises an error if there is no such task
        raise UserError(
            f"there are no demonstrations for {env_id_or_path!r}: record them with "
            f"`python train_expert_maac.py --env-id {env_id_or_path}`, or name a file of your own with --demos"
        )
    try:
        demos = read_demos(path)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for foreign or damaged files
        raise UserError(f"{path} is not a readable .npz file of demonstrations ({type(error).__name__})") from None
    if envs is not None:
        header = {"env_id": demos.env_id, "agents": demos.agents, "obs_sizes": demos.obs_sizes.tolist()}
        require_fits_task(path, header, envs)
        largest = np.where(demos.played[:, :, None], demos.actions, 0).max(axis=(0, 1))
        for agent, action, number in zip(demos.agents, largest, envs.num_actions):
            if action >= number:
                raise UserError(f"{path}: {agent} has actions 0 to {number - 1}, found action {action}")
    return demos


def require(condition: bool, complaint: str) -> None:
    if not condition:
        raise UserError(complaint)


def read_arrays(path: Path, names: list[str], limit: int) -> dict[str, np.ndarray]:
    """Read these arrays of an .npz file and no others. Their sizes are checked before they are read."""
    with zipfile.ZipFile(path) as archive:
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in archive.infolist()}
    missing = [name for name in names if name not in sizes]
    require(not missing, f"this is not a file of demonstrations, because it lacks {', '.join(missing)}")
    size = sum(sizes[name] for name in names)
    require(size <= limit, f"{', '.join(names)} take {size:,} bytes; at most {limit:,} are read")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in names}


def read_demos(path: Path) -> Demos:
    try:
        metadata = json.loads(str(read_arrays(path, ["metadata"], 2**20)["metadata"]))
        version, env_id, agents = metadata["format_version"], metadata["env_id"], metadata["agents"]
    except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"metadata must be JSON with format_version, env_id and agents ({error!r})") from None
    require(version == FORMAT_VERSION, f"format version {version} found, but this code reads {FORMAT_VERSION}")
    named = isinstance(env_id, str) and is_list_of(str, agents)
    require(named, f"metadata must name the task and a list of agents, found {env_id!r} and {agents!r}")

    obs_names = [f"obs_{agent}" for agent in agents]
    arrays = read_arrays(path, ["actions", "rewards", "lengths", *obs_names], MAX_BYTES)
    actions, rewards, lengths = arrays["actions"], arrays["rewards"], arrays["lengths"]
    require(actions.ndim == 3, f"actions must have shape [episodes, T, agents], found {actions.shape}")
    episodes, steps, _ = actions.shape
    require(episodes > 0 and steps > 0, "it holds no steps")
    shapes = dict.fromkeys(("actions", "rewards"), (episodes, steps, len(agents))) | {"lengths": (episodes,)}
    for name in obs_names:
        size = arrays[name].shape[2] if arrays[name].ndim == 3 and arrays[name].size else "size"
        shapes[name] = (episodes, steps + 1, size)
    for name, shape in shapes.items():
        kinds, numbers = ("iu", "whole numbers") if name in ("actions", "lengths") else ("fiu", "real numbers")
        fits = arrays[name].dtype.kind in kinds and arrays[name].shape == shape
        require(fits, f"{name} must be {numbers} of shape {shape}, found {arrays[name].dtype} {arrays[name].shape}")
        in_float32 = np.abs(arrays[name]) <= np.finfo(np.float32).max  # False for NaN
        require(in_float32.all(), f"{name} contains NaN, infinity or numbers that are too large")
    require((actions >= 0).all(), "actions must not be negative")
    require((lengths >= 1).all() and (lengths <= steps).all(), f"lengths must be from 1 to {steps}")

    obs_sizes = np.array([arrays[name].shape[2] for name in obs_names])
    shape = (episodes, steps + 1, len(agents), int(obs_sizes.max()))
    require(math.prod(shape) * 4 <= 2 * MAX_BYTES, f"observations of {shape} numbers are too many")
    obs = np.zeros(shape, dtype=np.float32)
    for i, name in enumerate(obs_names):
        obs[:, :, i, : obs_sizes[i]] = arrays[name]
    actions, rewards = actions.astype(np.int64), rewards.astype(np.float32)
    return Demos(env_id, agents, obs_sizes, obs, actions, rewards, lengths, metadata)


def require_same_demos(config: dict) -> str:
    """The file of demonstrations that a run was given with --demos, or "" for the shipped ones; it must not change."""
    args, digest = config["args"], config.get("demos_sha256")
    path = demos_path(Path(args["demos"]) if args.get("demos") else args["env_id"])
    if digest and path.is_file() and sha256(path) != digest:
        raise UserError(f"{path} is not the file of demonstrations that the run began with")
    return args.get("demos", "")


# Reference scores of NSS


def load_card(env_id: str, folder: Path | None = None) -> dict:
    """card.json of an expert: how it was trained, and the scores of the expert and of random play."""
    path = (folder or EXPERTS / task_name(env_id)) / "card.json"
    if not path.is_file():
        raise UserError(f"there is no expert for {env_id!r}: train one with train_expert_maac.py --env-id {env_id}")
    return read_json(path, "the card of an expert")


def reference_scores(env_id: str, demos: str = "", expert_folder: Path | None = None) -> dict[str, Reference]:
    """Scores of "expert" and "random", per agent, with half widths of their 95 % intervals.

    They are those of the expert's card. A file of demonstrations has no card: the expert's scores are then the mean
    over all its episodes, and random play is measured.
    """
    envs = make_envs(env_id, 1)
    if demos:
        return {"expert": mean_and_interval(load_demos(Path(demos), envs).returns()), "random": play_randomly(env_id)}
    folder = expert_folder or EXPERTS / task_name(env_id)
    card, file = load_card(env_id, folder), folder / "demos.npz"
    try:
        scores = {}
        for name in ("expert", "random"):
            by_agent = [card["scores"][name][agent] for agent in envs.agents]
            mean, half = ([float(score[key]) for score in by_agent] for key in ("mean", "interval_95"))
            scores[name] = np.array(mean), np.array(half)
        digest = card.get("sha256", {}).get("demos.npz")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'card.json'} lacks scores of {', '.join(envs.agents)} ({error!r})") from None
    if digest and file.is_file() and sha256(file) != digest:
        raise UserError(
            f"{folder / 'card.json'} does not belong to the demos.npz beside it; record both again with "
            f"`python train_expert_maac.py --env-id {env_id} --record-only {folder} --experts {folder.parent}`"
        )
    return scores


def play_randomly(env_id: str, episodes: int = 500) -> Reference:
    act = random_actions(make_envs(env_id, 1).num_actions, seed=RANDOM_SEED)
    return mean_and_interval(play_episodes(env_id, act, episodes, seed=RANDOM_SEED))
