"""The same runs as tasks of a Ray cluster.

Nodes may share no disk: a task gets the code and the files that it needs, and returns the files of its run folder.
Ray starts a task whose node is lost again on another node, from its beginning.
"""

import contextlib
import ctypes
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from madaac_utils.files import ROOT, UserError, writing
from madaac_utils.provenance import commit
from reproduce.grid import start_command
from reproduce.local import Scheduler, last_lines
from reproduce.store import Workspace, lock_run

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
    """On a node: run a script in a temporary folder; return its run folder's name and files, or why it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {"PYTHON": sys.executable, "OUT": f"{scratch}/out", "REWARD_RUN": f"{scratch}/reward"}
        Path(places["REWARD_RUN"]).mkdir()
        for name, content in reward_run.items():
            (Path(places["REWARD_RUN"]) / name).write_bytes(content)
        with open(f"{scratch}/log.txt", "w") as log:
            code = subprocess.run(
                [places.get(word, word) for word in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MADAAC_COMMIT": code_commit},
                preexec_fn=die_with_parent,
            ).returncode
        summaries = list(Path(places["OUT"]).glob("*/summary.json"))
        log = last_lines(Path(scratch) / "log.txt")
        if code or not summaries:
            return {"failed": f"exit code {code}", "log": log, "again": code != 2}
        folder = summaries[0].parent
        return {"name": folder.name, "files": run_files(folder), "log": log}


def connect(address: str, cpus_per_run: float):
    """The ray module, connected to the cluster."""
    try:
        import ray
    except ImportError:
        raise UserError("--launcher ray needs Ray: pip install -r requirements-ray.txt") from None
    try:
        if match := re.fullmatch(r"([\w.-]+):(\d+)", address):  # Ray itself would try for minutes
            socket.create_connection((match[1], int(match[2])), timeout=10).close()
        excludes = ["/runs/", "/.git/", "/.venv/", "/results/", "/docs/"]
        environment = {"working_dir": str(ROOT), "excludes": excludes}
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level="warning")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot connect to a Ray cluster at --address {address}: {error}") from None
    most = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if not 0 < cpus_per_run <= most or (cpus_per_run > 1 and cpus_per_run % 1):
        raise UserError(
            f"--cpus-per-run {cpus_per_run:g}: expected a number above 0, whole if above 1, and at most {most:g}, "
            "the CPUs of the largest node"
        )
    return ray


def run_on_ray(ray, work: Workspace, scheduler: Scheduler, args) -> int:
    memory = {"memory": int(args.memory_per_run * 1e9)} if args.memory_per_run else {}
    # Ray retries a task whose worker or node has died; the scheduler retries a script that fails.
    task = ray.remote(max_retries=5, num_cpus=args.cpus_per_run, **memory)(run_script)
    code_commit = commit(ROOT / "reproduce")
    running = {}  # task -> (cell, lock)

    def start(cell) -> None:
        lock = lock_run(work.folder(cell))
        if not lock:
            scheduler.fail(cell, "another command is at work on it", again=False)
            return
        work.set_aside(cell)
        reward_files = run_files(work.run_folder(cell.imitation)) if cell.stage == "retrain" else {}
        command = start_command(cell, work.grid, Path("OUT"), Path("REWARD_RUN"))
        command[:2] = ["PYTHON", Path(command[1]).name]  # those of the node
        running[task.remote(command, reward_files, code_commit)] = cell, lock
        scheduler.say(f"started  {cell.run_id}")

    def collect(reference) -> None:
        cell, lock = running.pop(reference)
        try:
            result = ray.get(reference)
        except ray.exceptions.RayError as error:
            result = {"failed": type(error).__name__, "log": str(error), "again": True}
        (work.folder(cell) / "log.txt").write_text(result["log"] + "\n")
        for name, content in result.get("files", {}).items():
            with writing(work.folder(cell) / result["name"] / name) as temporary:
                temporary.write_bytes(content)
        lock.close()
        if "failed" in result:
            scheduler.fail(cell, result["failed"], result["log"], result["again"])
        else:
            scheduler.succeed(cell)

    try:
        while running or scheduler.waiting:
            while len(running) < (args.workers or math.inf) and (cell := scheduler.next()):
                start(cell)
            if not running:
                scheduler.fail_waiting()
            for reference in ray.wait(list(running), timeout=1.0)[0] if running else []:
                collect(reference)
            cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
            scheduler.show_progress([], cpus)
    except KeyboardInterrupt:
        print("stopped, with the runs on the cluster; the same command starts them anew", file=sys.stderr)
        return 130
    finally:
        ray.shutdown()
    return scheduler.finish()
