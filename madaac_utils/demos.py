"""Demonstrations, and the experts that made them.

`experts/<env_id>/` holds demos.npz, policy.safetensors and card.json with the scores of the expert and of random play.
docs/demonstrations.md describes the format of demos.npz, which any file of your own can follow.
"""

import contextlib
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
from madaac_utils.files import EXPERTS, FORMAT_VERSION, UserError, read_json, sha256, writing
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
    if path.is_dir():
        raise UserError(f"there are no demonstrations at {path}: it is a folder without demos.npz")
    if not path.is_file():
        if path.parent.parent != EXPERTS:
            raise UserError(f"there are no demonstrations at {path}: no such file")
        make_envs(str(env_id_or_path), 1)  # raises an error if there is no such task
        raise UserError(
            f"there are no demonstrations for {env_id_or_path!r}: record them with "
            f"`python train_expert_maac.py --env-id {env_id_or_path}`, or name a file of your own with --demos"
        )
    arrays = read_npz(path)
    demos = parse_demos(path, arrays)
    if envs is not None:
        require_fit(path, demos, envs)
    return demos


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the format. Other members of the file are not read, and sizes are checked before reading."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:

            def read(names: list[str], limit: int) -> dict[str, np.ndarray]:
                names = [name for name in names if name in file.files]
                size = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
                if size > limit:
                    raise UserError(f"{path}: {', '.join(names)} take {size:,} bytes; at most {limit:,} are read")
                return {name: file[name] for name in names}

            arrays, names = read(["metadata"], 2**20), ["actions", "rewards", "lengths"]
            with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):  # parse_demos says what is wrong
                names += [f"obs_{agent}" for agent in json.loads(str(arrays["metadata"]))["agents"]]
            return arrays | read(names, MAX_BYTES)
    except UserError:
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for foreign or damaged files
        raise UserError(f"{path} is not a readable .npz file of demonstrations ({type(error).__name__})") from None


def parse_demos(path: Path, arrays: dict[str, np.ndarray]) -> Demos:
    def require(condition: bool, complaint: str) -> None:
        if not condition:
            raise UserError(f"{path}: {complaint}")

    missing = [name for name in ("metadata", "actions", "rewards", "lengths") if name not in arrays]
    require(not missing, f"this is not a file of demonstrations, because it lacks {', '.join(missing)}")
    try:
        metadata = json.loads(str(arrays["metadata"]))
        version, env_id, agents = metadata["format_version"], metadata["env_id"], metadata["agents"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: metadata must be JSON with format_version, env_id and agents ({error!r})") from None
    require(version == FORMAT_VERSION, f"format version {version} found, but this code reads {FORMAT_VERSION}")
    require(isinstance(env_id, str), f"metadata must name the task, found {env_id!r}")
    named = isinstance(agents, list) and agents and all(isinstance(agent, str) for agent in agents)
    require(bool(named), f"metadata must name the agents in a list, found {agents!r}")
    missing = [f"obs_{agent}" for agent in agents if f"obs_{agent}" not in arrays]
    require(not missing, f"observations {', '.join(missing)} are missing")

    actions, lengths = arrays["actions"], arrays["lengths"]
    require(np.issubdtype(actions.dtype, np.integer), f"actions must be integers, found {actions.dtype}")
    require(actions.ndim == 3, f"actions must have shape [episodes, T, agents], found {actions.shape}")
    episodes, steps, _ = actions.shape
    require(episodes > 0 and steps > 0, "it holds no steps")
    shapes = {"actions": (len(agents),), "rewards": (len(agents),)}
    for name, rest in shapes.items():
        expected = (episodes, steps, *rest)
        require(arrays[name].shape == expected, f"{name} must have shape {expected}, found {arrays[name].shape}")
    require(lengths.shape == (episodes,), f"lengths must have shape {(episodes,)}, found {lengths.shape}")
    whole = np.issubdtype(lengths.dtype, np.integer) and (lengths >= 1).all() and (lengths <= steps).all()
    require(bool(whole), f"lengths must be whole numbers from 1 to {steps}")
    require(bool((actions >= 0).all()), "actions must not be negative")
    for name in ("rewards", *(f"obs_{agent}" for agent in agents)):
        array = arrays[name]
        require(array.dtype.kind in "fiu", f"{name} must be real numbers, found {array.dtype}")
        if name != "rewards":
            fits = array.ndim == 3 and array.shape[:2] == (episodes, steps + 1) and array.shape[2] > 0
            require(fits, f"{name} must have shape ({episodes}, {steps + 1}, size), found {array.shape}")
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite and is refused
            arrays[name] = array.astype(np.float32)
        require(bool(np.isfinite(arrays[name]).all()), f"{name} contains NaN or infinity")

    obs_sizes = np.array([arrays[f"obs_{agent}"].shape[2] for agent in agents])
    shape = (episodes, steps + 1, len(agents), int(obs_sizes.max()))
    require(math.prod(shape) * 4 <= 2 * MAX_BYTES, f"observations of {shape} numbers are too many")
    obs = np.zeros(shape, dtype=np.float32)
    for i, agent in enumerate(agents):
        obs[:, :, i, : obs_sizes[i]] = arrays[f"obs_{agent}"]
    return Demos(env_id, agents, obs_sizes, obs, actions.astype(np.int64), arrays["rewards"], lengths, metadata)


def require_fit(path: Path, demos: Demos, envs) -> None:
    # The names matter and not only sizes: simple_speaker_listener and cooperative_communication differ in directions.
    if task_name(demos.env_id) != task_name(envs.env_id):
        raise UserError(f"{path} is for another task: expected {envs.env_id}, found {demos.env_id}")
    if demos.agents != list(envs.agents):
        raise UserError(f"{path}: expected agents {list(envs.agents)}, found {demos.agents}")
    if not np.array_equal(demos.obs_sizes, envs.obs_sizes):
        expected, found = list(map(int, envs.obs_sizes)), demos.obs_sizes.tolist()
        raise UserError(f"{path}: expected observation sizes {expected}, found {found}")
    largest = np.where(demos.played[:, :, None], demos.actions, 0).max(axis=(0, 1))
    for agent, action, number in zip(demos.agents, largest, envs.num_actions):
        if action >= number:
            raise UserError(f"{path}: {agent} has actions 0 to {number - 1}, found action {action}")


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
    folder = Path(expert_folder or EXPERTS / task_name(env_id))
    card = load_card(env_id, folder)

    def scores(name: str, key: str) -> np.ndarray:
        return np.array([float(card["scores"][name][agent][key]) for agent in envs.agents])

    try:
        file, digest = folder / "demos.npz", card.get("sha256", {}).get("demos.npz")
        if digest and file.is_file() and sha256(file) != digest:
            raise UserError(
                f"{folder / 'card.json'} does not belong to the demos.npz beside it; record both again with "
                f"`python train_expert_maac.py --env-id {env_id} --record-only {folder} --experts {folder.parent}`"
            )
        return {name: (scores(name, "mean"), scores(name, "interval_95")) for name in ("expert", "random")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'card.json'} lacks scores of {', '.join(envs.agents)} ({error!r})") from None


def play_randomly(env_id: str, episodes: int = 500) -> Reference:
    act = random_actions(make_envs(env_id, 1).num_actions, seed=RANDOM_SEED)
    return mean_and_interval(play_episodes(env_id, act, episodes, seed=RANDOM_SEED))
