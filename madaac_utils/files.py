"""Files that appear whole or not at all, and mistakes that end in one line instead of a traceback."""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

from env_utils import task_name
from particle_envs import TaskError

ROOT = Path(__file__).resolve().parent.parent
EXPERTS = ROOT / "experts"
FORMAT_VERSION = 1  # of demonstrations, policies and rewards


class UserError(Exception):
    """A mistake that the user can correct. The message says what is wrong and what to do."""


class Diverged(Exception):
    """Training has produced a number that is not finite."""


@contextlib.contextmanager
def exit_on_user_error():
    """End with one line on stderr: exit code 2 for a mistake of the user, 1 for a run that diverged."""
    try:
        yield
    except (UserError, TaskError, Diverged) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, Diverged) else 2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the output was piped into a program that has ended, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


@contextlib.contextmanager
def writing(path: Path):
    """Yield a temporary path to write to, then rename it: readers see the old file or the complete new one."""
    path = Path(path)
    # The temporary file keeps the suffix because np.savez would append a missing one.
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


def remove_left_overs(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for path in folder.glob(".*.tmp*"):
        path.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raise an error now if files could not be written to the folder later. Nothing is left behind."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".writable.{os.getpid()}"
    with writing(probe) as temporary:
        temporary.touch()
    probe.unlink()
    for path in created:
        with contextlib.suppress(OSError):  # another process may have started to use it
            path.rmdir()


def for_json(content):
    """The content with None in place of numbers that are not finite, because JSON cannot hold them."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


def write_json(path: Path, content: dict) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(for_json(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> dict:
    """Read a JSON object; `what` says in the error message what the file should be."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not {what} ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not {what} (expected a JSON object, found {type(content).__name__})")
    return content


def read_config(folder: Path) -> dict:
    """config.json of a run; its "args" are the arguments of the run."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: there is no config.json")
    config = read_json(path, "the config of a run")
    if not isinstance(config.get("args"), dict) or not isinstance(config["args"].get("env_id"), str):
        raise UserError(f"{path} is not the config of a run: it does not name a task")
    return config


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_list_of(kind: type, value) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(entry) is kind for entry in value)


def require_fits_task(path: Path | str, header: dict, envs) -> None:
    """Raise an error unless a file that describes its task with `header` is for the task of `envs`."""
    # The name matters and not only sizes: simple_speaker_listener and cooperative_communication differ in directions.
    if task_name(header["env_id"]) != task_name(envs.env_id):
        raise UserError(f"{path} is for another task: expected {envs.env_id}, found {header['env_id']}")
    for name in ("agents", "obs_sizes", "num_actions"):
        expected = np.asarray(getattr(envs, name)).tolist()
        if header.get(name, expected) != expected:
            raise UserError(f"{path} does not fit the task: expected {name} {expected}, found {header[name]}")
