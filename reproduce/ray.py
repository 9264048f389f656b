"""The same runs as tasks of a Ray cluster.

Nodes may share no disk: a task gets the code and the files that it needs, and returns the files of its run folder.
Ray starts a task whose node is lost again on another node, from its beginning.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from madaac_utils.files import ROOT, UserError, writing
from madaac_utils.provenance import commit
from reproduce.grid import Cell, start_command
from reproduce.store import Workspace

KEPT_FILES = ("config.json", "policy.safetensors", "reward.safetensors")  # checkpoints stay on the node


def run_files(folder: Path) -> dict[str, bytes]:
    """The files of a run that are worth keeping; summary.json is last, as in a local run."""
    paths = [folder / name for name in KEPT_FILES] + sorted(folder.glob("events.out.tfevents.*"))
    return {path.name: path.read_bytes() for path in [*paths, folder / "summary.json"] if path.is_file()}


def die_with_parent() -> None:
    """On Linux, let the kernel kill the script if its Ray worker is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_script(command: list[str], reward_run: dict[str, bytes], code_commit: str) -> dict:
    """On a node: run a script in a temporary folder; return its exit code, its log and the files of its run folder."""
    if not Path(command[1]).is_file():
        raise FileNotFoundError(f"{command[1]} is not on the node (yet)")
    with tempfile.TemporaryDirectory() as scratch:
        places = {"PYTHON": sys.executable, "OUT": f"{scratch}/out", "REWARD_RUN": f"{scratch}/reward"}
        Path(places["REWARD_RUN"]).mkdir()
        for name, content in reward_run.items():
            (Path(places["REWARD_RUN"]) / name).write_bytes(content)
        done = subprocess.run(
            [places.get(word, word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MADAAC_COMMIT": code_commit},
            preexec_fn=die_with_parent,
        )
        result = {"code": done.returncode, "log": done.stdout[-20_000:], "files": {}}
        for summary in Path(places["OUT"]).glob("*/summary.json"):
            folder = summary.parent
            result["files"] = {f"{folder.name}/{name}": content for name, content in run_files(folder).items()}
        return result


class RayLauncher:
    def __init__(self, work: Workspace, args):
        try:
            import ray
        except ImportError:
            raise UserError("--launcher ray needs Ray: pip install -r requirements-ray.txt") from None
        self.work, self.args, self.ray, self.commit = work, args, ray, commit(ROOT / "reproduce")
        self.stopped = False
        environment = {"working_dir": str(ROOT), "excludes": ["/runs/", "/.git/", "/.venv/", "/results/", "/docs/"]}
        memory = {"memory": int(args.memory_per_run * 1e9)} if args.memory_per_run else {}
        try:
            if match := re.fullmatch(r"([\w.-]+):(\d+)", args.address):  # Ray itself would try for minutes
                socket.create_connection((match[1], int(match[2])), timeout=10).close()
            ray.init(address=args.address, runtime_env=environment, log_to_driver=False, logging_level="warning")
            # Ray retries a task whose worker or node has died; the scheduler retries a script that fails. Each task
            # has a new worker process: one that started while Ray was unpacking the code would never find it.
            self.task = ray.remote(max_retries=5, max_calls=1, num_cpus=args.cpus_per_run, **memory)(run_script)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot use the Ray cluster at --address {args.address}: {error}") from None
        largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        if not 0 < args.cpus_per_run <= largest:
            raise UserError(f"--cpus-per-run must be above 0 and at most {largest:g}, the CPUs of the largest node")

        cpus = ray.cluster_resources().get("CPU", 0)
        self.workers = args.workers or max(1, int(cpus / args.cpus_per_run))

    def run(self, cell: Cell, lock) -> int:
        folder, retrain = self.work.folder(cell), cell.stage == "retrain"
        self.work.set_aside(cell)
        reward_run = run_files(self.work.run_folder(cell.imitation)) if retrain else {}
        command = start_command(cell, self.work.grid, Path("OUT"), Path("REWARD_RUN"))
        command[:2] = ["PYTHON", Path(command[1]).name]  # those of the node
        for pause in (3, 10, 0):
            try:
                result = self.ray.get(self.task.remote(command, reward_run, self.commit))
                break
            except self.ray.exceptions.RayError as error:  # not the script, but its node or the code on it
                result = {"code": 1, "log": str(error).encode(), "files": {}}
                time.sleep(pause)
            if self.stopped:
                break
        (folder / "log.txt").write_bytes(result["log"])
        for name, content in result["files"].items():
            with writing(folder / name) as temporary:
                temporary.write_bytes(content)
        return result["code"]

    def stop(self) -> None:
        self.stopped = True
        self.ray.shutdown()
