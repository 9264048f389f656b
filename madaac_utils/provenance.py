"""Where results come from: run folders with their configuration, versions and commit."""

import contextlib
import importlib.metadata
import itertools
import os
import platform
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from madaac_utils.demos import demos_path
from madaac_utils.files import ROOT, UserError, read_config, sha256, write_json


def make_run_folder(args, script: Path) -> Path:
    """runs/{env_id}__{exp_name}__{seed}__{time}/ with its config.json."""
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    for number in itertools.count(1):
        folder = Path(args.runs) / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)  # fails if another process has just made it
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot write {folder}: {error.strerror}") from None
    config = {"script": script.name, "script_sha256": sha256(script), "args": asdict(args)}
    config |= {"versions": versions(), "commit": commit(script)}
    if hasattr(args, "n_demos"):
        config["demos_sha256"] = sha256(demos_path(Path(args.demos) if args.demos else args.env_id))
    write_json(folder / "config.json", config)
    return folder


def update_config(folder: Path, args, script: Path, step: int) -> None:
    """Write the arguments of a resumed run, and after which step its script has changed."""
    config = read_config(folder)
    if config.get("script_sha256") != sha256(script):  # --resume-changed
        before = {name: config.get(name) for name in ("script_sha256", "commit")}
        config["changed"] = [*config.get("changed", []), {"step": step, **before}]
        config |= {"script_sha256": sha256(script), "commit": commit(script)}
    write_json(folder / "config.json", config | {"args": asdict(args)})


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in ("torch", "numpy", "mpe2", "pettingzoo"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def commit(script: Path) -> str:
    """The commit of this code, with + if tracked files other than results differ from it, or the script is no part.

    The environment variable MADAAC_COMMIT names it for a copy of the code that is not a git checkout.
    """
    if os.environ.get("MADAAC_COMMIT"):
        return os.environ["MADAAC_COMMIT"]

    def git(*words: str) -> str:
        # Without locks: a run must not get in the way of the user's own git commands.
        command = ["git", "--no-optional-locks", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        is_tracked = script.is_relative_to(ROOT) and git("ls-files", str(script))
        # Rows that come in while a grid is running do not change the code.
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", ":!README.md")
        return git("rev-parse", "HEAD") + ("" if is_tracked and not changed else "+")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
