"""Arguments of training scripts: what they must satisfy, and what a resumed run takes from its config.json."""

import importlib.util
import math
import os
import sys
import typing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

import torch

from env_utils import require_known_task, task_name
from madaac_utils.demos import require_same_demos
from madaac_utils.files import UserError, read_json, sha256

# Arguments that a resumed run takes from the command line and not from its config.json
OF_THE_COMMAND = {"resume", "resume_changed", "runs", "torch_threads", "save_every", "track", "capture_video"}
OF_THE_COMMAND |= {"experts"}
PATHS = {"demos", "run"}  # of files that may have moved; their hashes are compared


def flag(name: str) -> str:
    """--total-timesteps for total_timesteps"""
    return "--" + name.replace("_", "-")


def check_args(args) -> None:
    """Check what all training scripts require of their arguments. Names that a script does not have are skipped."""

    def require(names: str, holds, expected: str) -> None:
        for name in names.split():
            if hasattr(args, name) and not holds(getattr(args, name)):
                raise UserError(f"{flag(name)} must be {expected}, got {getattr(args, name)}")

    whole = " ".join(field.name for field in fields(args) if type(getattr(args, field.name)) is int)
    require(whole, lambda x: x < 2**53, "a smaller number")
    require("hidden_size", lambda x: x <= 2**14, "at most 16384")
    require("seed", lambda x: 0 <= x < 2**32, "from 0 to 4294967295")
    require("torch_threads total_timesteps num_envs save_every disc_memory", lambda x: x >= 0, "at least 0")
    require("num_steps hidden_size attention_heads n_demos log_every", lambda x: x >= 1, "at least 1")
    require("buffer_size batch_size learning_starts update_period updates_per_period", lambda x: x >= 1, "at least 1")
    require(
        "disc_batch_size disc_updates eval_every selection_episodes store_demos updates", lambda x: x >= 1, "at least 1"
    )
    require("eval_episodes", lambda x: x >= 2, "at least 2")
    require("policy_lr critic_lr disc_lr lr kl_clip critic_kl_clip", lambda x: 0 < x < math.inf, "above 0")
    require("critic_max_grad_norm policy_max_grad_norm disc_max_grad_norm", lambda x: x > 0, "above 0")
    require("gamma policy_tau critic_tau gae_lambda held_out_fraction", lambda x: 0 <= x <= 1, "from 0 to 1")
    require("alpha entropy disc_entropy bc_coef weight_decay", lambda x: 0 <= x < math.inf, "at least 0")
    require("attention_regularization logit_regularization", lambda x: 0 <= x < math.inf, "at least 0")
    require("exp_name", lambda x: os.sep not in x, f"part of a folder's name, without {os.sep!r}")
    if args.hidden_size % getattr(args, "attention_heads", 1):
        raise UserError(f"--attention-heads {args.attention_heads} must divide --hidden-size {args.hidden_size}")
    if args.cuda and not torch.cuda.is_available():
        raise UserError("--cuda needs a GPU, but torch finds none")
    if args.track and importlib.util.find_spec("wandb") is None:
        raise UserError("--track needs Weights & Biases: pip install wandb")


def total_timesteps(args, envs, default_episodes: int) -> int:
    """--total-timesteps, or its default as a number of episodes."""
    steps, least = args.total_timesteps or default_episodes * envs.episode_length, args.num_envs * envs.episode_length
    if steps < least:
        raise UserError(f"--total-timesteps must be at least one episode of all {args.num_envs} copies, {least} steps")
    return steps


def resumed_args(folder: Path, given, script: Path, budget: str):
    """The arguments of a run from its config.json. `given` are those of the command line, which may not differ.

    Exceptions are OF_THE_COMMAND, the paths of files that have moved, and the budget.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"cannot resume {folder}: there is no config.json, so it is not a run folder")
    config = read_json(folder / "config.json", "the config of a run")
    if config.get("script") != script.name:
        raise UserError(f"{folder} is a run of {config.get('script')}, not of {script.name}")
    if config.get("script_sha256") != sha256(script) and not given.resume_changed:
        raise UserError(
            f"{script.name} has changed since {folder} began, so the run could not go on as it began; "
            f"--resume-changed continues it anyway"
        )
    saved = config.get("args")
    names = {field.name for field in fields(given)}
    if not isinstance(saved, dict) or names != saved.keys():
        raise UserError(f"{folder}/config.json does not have the arguments of this version of {script.name}")
    words = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in sys.argv[1:] if word[:2] == "--"}
    typed = words | {word.removeprefix("no_") for word in words - names}  # --no-capture-video
    args, hints = type(given)(**asdict(given)), typing.get_type_hints(type(given))
    for field in fields(given):
        name, wanted = field.name, getattr(given, field.name)
        if name in OF_THE_COMMAND:
            continue
        was = math.inf if saved[name] is None and isinstance(field.default, float) else saved[name]
        fits = type(was) is type(field.default) or (type(was) is int and isinstance(field.default, float))
        if not fits or "\0" in str(was):
            raise UserError(f"{folder}/config.json: {name} must be a {type(field.default).__name__}, found {was!r}")
        if typing.get_origin(hints[name]) is Literal and was not in typing.get_args(hints[name]):
            raise UserError(
                f"{folder}/config.json: {name} must be one of {typing.get_args(hints[name])}, found {was!r}"
            )
        setattr(args, name, was)
        if name not in typed or wanted == was or (name == "env_id" and task_name(wanted) == task_name(was)):
            continue
        if name in (budget, "eval_episodes") or (name in PATHS and was):
            setattr(args, name, wanted or was)
        else:
            raise UserError(f"{folder} was started with {flag(name)} {was}, so it cannot be resumed with {wanted}")
    if getattr(args, budget) != saved[budget] and getattr(args, "anneal_lr", False):
        raise UserError(f"{folder} anneals its step sizes over its budget, so {flag(budget)} cannot change")
    if "experts" in names and "experts" not in typed and saved["experts"] != given.experts:
        raise UserError(f"{folder} was started with --experts {saved['experts']}: name it again, or another place")
    if saved.get("torch_threads") != given.torch_threads:
        print("note: the number of threads differs from that of the run; results may differ in their last digits")
    if "env_id" not in typed and args.env_id:
        require_known_task(args.env_id, folder / "config.json")
    require_same_demos(config | {"args": asdict(args)})
    return args
