"""Small real runs of the training scripts, for tests of what is done with runs."""

import runpy
import signal
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--hidden-size", 16, "--torch-threads", 1, "--eval-episodes", 4, "--num-envs", 20]


def run_script(name: str, *arguments) -> int:
    """Run a script of the repository in this process, as the command line would; returns its exit code."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with mock.patch.object(sys, "argv", [name, *map(str, arguments)]):
            runpy.run_path(str(ROOT / name), run_name="__main__")
        return 0
    except SystemExit as stop:
        return stop.code or 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def make_run(folder: Path, script: str, env_id: str, *options) -> Path:
    """Train for a few updates and return the run folder."""
    before = set(folder.glob("*"))
    length = ["--updates", 60] if script == "bc_discrete.py" else ["--total-timesteps", 3000]
    assert run_script(script, "--env-id", env_id, "--runs", folder, *SMALL, *length, *options) == 0
    return (set(folder.glob("*")) - before).pop()
