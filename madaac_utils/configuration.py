"""Arguments of training scripts: what they must satisfy, and what a resumed run takes from its config.json."""

import importlib.util
import math
import os
import sys
import typing
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch

from env_utils import require_known_task, task_name
from madaac_utils.demos import require_same_demos
from madaac_utils.files import UserError, read_config, sha256

# Arguments that a resumed run takes from the command line and not from its config.json
OF_THE_COMMAND = {"resume", "resume_changed", "runs", "torch_threads", "save_every", "track", "capture_video"}
OF_THE_COMMAND |= {"experts"}
PATHS = {"demos", "run"}  # of files that may have moved; their hashes are compared

TINY = 1e-40  # numbers that must be above 0 are at least this
# The lowest and the highest value of numbers by their names, otherwise by their types
LIMITS = {"seed": (0, 2**32 - 1), "hidden_size": (1, 2**14), "eval_episodes": (2, 2**53)}
LIMITS |= dict.fromkeys(("torch_threads", "total_timesteps", "num_envs", "save_every", "disc_memory"), (0, 2**53))
LIMITS |= dict.fromkeys(("gamma", "policy_tau", "critic_tau", "gae_lambda", "held_out_fraction"), (0, 1))
LIMITS |= dict.fromkeys(("lr", "policy_lr", "critic_lr", "disc_lr", "kl_clip"), (TINY, 1e40))
LIMITS |= dict.fromkeys((f"{part}_max_grad_norm" for part in ("policy", "critic", "disc")), (TINY, math.inf))
LIMITS_OF_TYPES = {int: (1, 2**53), float: (0, 1e40)}


def flag(name: str) -> str:
    """--total-timesteps for total_timesteps"""
    return "--" + name.replace("_", "-")


def check_args(args) -> None:
    """Check what all training scripts require of their arguments."""
    for field in fields(args):
        if type(field.default) in LIMITS_OF_TYPES:
            value = getattr(args, field.name)
            lowest, highest = LIMITS.get(field.name, LIMITS_OF_TYPES[type(field.default)])
            if not lowest <= value <= highest:
                limits = f"from {lowest} to {highest}"
                if value < lowest:
                    limits = f"at least {lowest}" if lowest != TINY else "above 0"
                raise UserError(f"{flag(field.name)} must be {limits}, got {value}")
    if os.sep in args.exp_name:
        raise UserError(f"--exp-name must be part of a folder's name, without {os.sep!r}, got {args.exp_name}")
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
    path, config = folder / "config.json", read_config(folder)
    saved = config["args"]
    if config.get("script") != script.name:
        raise UserError(f"{folder} is a run of {config.get('script')}, not of {script.name}")
    if config.get("script_sha256") != sha256(script) and not given.resume_changed:
        raise UserError(
            f"{script.name} has changed since {folder} began, so the run could not go on as it began; "
            f"--resume-changed continues it anyway"
        )
    if asdict(given).keys() != saved.keys():
        raise UserError(f"{path} does not have the arguments of this version of {script.name}")
    words = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in sys.argv[1:] if word[:2] == "--"}
    typed = words | {word.removeprefix("no_") for word in words}  # --no-capture-video
    args, hints = replace(given), typing.get_type_hints(type(given))
    for field in fields(given):
        name, wanted, of_run = field.name, getattr(given, field.name), saved[field.name]
        if name in OF_THE_COMMAND:
            continue
        types, choices = {type(field.default)}, typing.get_args(hints[name])
        if float in types:
            types.add(int)
            of_run = math.inf if of_run is None else of_run  # JSON cannot hold infinity
        if type(of_run) not in types or (choices and of_run not in choices) or "\0" in str(of_run):
            raise UserError(f"{path}: {name} cannot be {of_run!r}")
        setattr(args, name, of_run)
        if name not in typed or wanted == of_run or (name == "env_id" and task_name(wanted) == task_name(of_run)):
            continue
        if name not in (budget, "eval_episodes") and not (name in PATHS and of_run):
            raise UserError(f"{folder} was started with {flag(name)} {of_run}, so it cannot be resumed with {wanted}")
        setattr(args, name, wanted or of_run)
    if getattr(args, budget) != saved[budget] and getattr(args, "anneal_lr", False):
        raise UserError(f"{folder} anneals its step sizes over its budget, so {flag(budget)} cannot change")
    if "experts" in saved and "experts" not in typed and saved["experts"] != given.experts:
        raise UserError(f"{folder} was started with --experts {saved['experts']}: name it again, or another place")
    if saved["torch_threads"] != given.torch_threads:
        print("note: the number of threads differs from that of the run; results may differ in their last digits")
    if "env_id" not in typed and args.env_id:
        require_known_task(args.env_id, path)
    require_same_demos(config | {"args": asdict(args)})
    return args
