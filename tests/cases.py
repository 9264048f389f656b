"""The training scripts with arguments for tiny runs, for the tests and for tests/torture.py."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from madaac_utils.files import read_json, write_json
from madaac_utils.networks import load_tensors, save_tensors
from tests.running import run

TASK = "cooperative_communication"


class Case(NamedTuple):
    """A script, and arguments with which it makes a few updates in a moment."""

    script: str
    options: dict
    metrics: set  # TensorBoard keys that it writes, besides charts/SPS and the returns of episodes
    mistakes: tuple = ()  # groups of wrong arguments in test_training_scripts.py
    diverges: dict | None = None  # arguments that make it diverge
    has_reward: bool = False


COMMON = {"seed": 3, "total-timesteps": 1000, "num-envs": 20, "hidden-size": 16, "eval-episodes": 4, "log-every": 100}
ON_TASK = {"env-id": TASK}
MAAC = {"batch-size": 32, "buffer-size": 600, "update-period": 20, "updates-per-period": 1}
MACK = {"num-steps": 5, "disc-memory": 300, "disc-batch-size": 50}
EXPERT = {"store-demos": 4, "eval-every": 200, "selection-episodes": 4, "keep": "best"}

LEARNER = {"losses/critic", "losses/policy", "losses/policy_entropy", "gradients/critic"}
IMITATOR = LEARNER | {"charts/nss", "eval/nss_greedy", "eval/nss_stochastic", "gradients/discriminator"}
IMITATOR |= {f"discriminator/accuracy_{who}" for who in ("learner", "expert", "unseen_expert")}
IMITATOR |= {f"discriminator/{name}" for name in ("loss", "entropy", "reward_mean", "reward_std")}
RETRAINED = LEARNER | {"charts/nss", "charts/pcc", "charts/pcc-listener_0", "eval/nss_greedy"}
EVALUATED = LEARNER | {f"eval/greedy_return-{name}" for name in ("speaker_0", "listener_0", "mean")}

CASES = {
    "madaac_discrete": Case(
        "madaac_discrete.py",
        ON_TASK | MAAC | {"learning-starts": 200},
        IMITATOR | {"losses/q_mean", "losses/attention_entropy", "gradients/policy_max"},
        ("task", "demonstrations", "discriminators", "MAAC", "madaac_discrete"),
        diverges={"critic-lr": 1e30},
        has_reward=True,
    ),
    "mairl_mack": Case(
        "mairl_mack.py",
        ON_TASK | MACK,
        IMITATOR,
        ("task", "demonstrations", "discriminators", "MACK"),
        diverges={"disc-lr": 1e30},
        has_reward=True,
    ),
    "magail_mack": Case(
        "magail_mack.py",
        ON_TASK | MACK,
        IMITATOR,
        ("task", "demonstrations", "discriminators", "MACK"),
        diverges={"disc-lr": 1e30},
        has_reward=True,
    ),
    "train_expert_maac": Case(
        "train_expert_maac.py",
        ON_TASK | MAAC | EXPERT,
        EVALUATED,
        ("task", "MAAC", "train_expert_maac"),
        diverges={"critic-lr": 1e30},
    ),
    "retrain_mack": Case("retrain.py", {"rl": "mack", "num-envs": 4}, RETRAINED, ("retrain",)),
    "retrain_maac": Case(
        "retrain.py", {"rl": "maac", "batch-size": 32, "total-timesteps": 1500, "num-envs": 50}, RETRAINED
    ),
}


class Runs:
    """Starts the cases in one folder; finished runs are made once."""

    def __init__(self, folder: Path):
        self.folder, self.made, self.numbers = folder, {}, iter(range(10**6))

    def words(self, name: str, folder: Path, **changes) -> list[str]:
        """The command of a case, with a run folder in `folder`."""
        case = CASES[name]
        options = COMMON | {"runs": folder} | case.options | changes
        if case.script == "train_expert_maac.py":
            options["experts"] = folder / "experts"
        words = [case.script, *([str(self.finished("madaac_discrete"))] if case.script == "retrain.py" else [])]
        return words + [str(part) for option, value in options.items() for part in (f"--{option}", value)]

    def new_folder(self) -> Path:
        return self.folder / str(next(self.numbers))

    def finish(self, name: str, **changes) -> Path:
        folder = self.new_folder()
        ended = run(*self.words(name, folder, **changes))
        assert ended.code == 0, ended.err
        return run_folder(folder)

    def finished(self, name: str) -> Path:
        if name not in self.made:
            self.made[name] = self.finish(name)
        return self.made[name]


def run_folder(folder: Path) -> Path:
    """The one run folder in a folder of runs."""
    [config] = folder.glob("*/config.json")
    return config.parent


def results(folder: Path) -> dict[str, bytes]:
    """What must be the same, bit by bit, in runs with the same seed."""
    found = {
        name: (folder / name).read_bytes()
        for name in ("policy.safetensors", "reward.safetensors")
        if (folder / name).is_file()
    }
    for expert in folder.parent.glob("experts/*"):
        found["expert"] = (expert / "policy.safetensors").read_bytes()
        with np.load(expert / "demos.npz") as arrays:  # the archive itself has a time stamp
            found["demos"] = b"".join(arrays[name].tobytes() for name in sorted(arrays.files))
    return found


def experts_option(name: str, folder: Path) -> list:
    """A resumed run takes the place of its expert from the command line only."""
    return ["--experts", folder / "experts"] if CASES[name].script == "train_expert_maac.py" else []


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    content = read_json(path, "JSON")
    change(content)
    write_json(path, content)


def name_task(folder: Path, task: str) -> None:
    """Make every file of a folder name another task."""
    for path in folder.glob("*.safetensors"):
        kind = "reward" if path.stem == "reward" else "stacked_mlp_policy"
        tensors, header = load_tensors(path, kind, path.stem)
        save_tensors(path, tensors, header, SimpleNamespace(**header | {"env_id": task}))
    for path in folder.glob("*.json"):
        edit_json(path, lambda content: content.get("args", content).update(env_id=task))
