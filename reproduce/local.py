"""The scheduler, the display, and scripts as processes on this machine."""

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from madaac_utils.files import UserError
from reproduce.grid import Cell, resume_command, start_command
from reproduce.store import Workspace, lock_run, read_config, read_progress


def as_hours(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def progress_text(folder: Path | None) -> str:
    progress = read_progress(folder)
    if not progress:
        return f"{'starting':>15}"
    return f"{progress['done']:>6.0%}  NSS {progress['nss']:>6.3f}  {as_hours(progress['left']):>7} left"


def last_lines(log: Path, count: int = 15) -> str:
    """The end of the last command's output; of a progress bar only its last state."""
    content = log.read_bytes() if log.is_file() else b""
    text = content[-20_000:].decode(errors="replace").rsplit("\n$ ", 1)[-1]
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join([line for line in lines if line.strip()][-count:])


class Process:
    """A script at work on a cell. `popen` is None if another command has started it and it is waited for."""

    def __init__(self, cell: Cell, work: Workspace):
        self.cell, self.work, self.popen = cell, work, None
        lock = lock_run(work.folder(cell))
        if not lock:
            return
        with lock, open(work.folder(cell) / "log.txt", "a") as log:
            if work.summary(cell):  # another command has just finished it
                return
            command = self.command()
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            # The script gets a session of its own, so that Ctrl-C reaches this process only, which passes it on.
            # It inherits the lock, which is free again when the script has ended, however that happens.
            self.popen = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )

    def command(self) -> list[str]:
        """Continue the run that is there if that is possible, else start a new one."""
        cell, work = self.cell, self.work
        folder = work.run_folder(cell)
        config = read_config(folder) if folder else {}
        if config and (folder / "checkpoint.pt").is_file() and work.has_current_inputs(cell):
            return resume_command(cell, work.grid, folder, config["args"].get("total_timesteps") or 0)
        work.set_aside(cell)
        reward_run = work.run_folder(cell.imitation) if cell.stage == "retrain" else None
        return start_command(cell, work.grid, work.folder(cell), reward_run)

    def has_ended(self) -> bool:
        return self.popen.poll() is not None if self.popen else not self.work.is_running(self.cell)


class Scheduler:
    """What is still to run, what has failed and what can start now, for both launchers."""

    def __init__(self, work: Workspace, todo: list[Cell]):
        self.work, self.waiting, self.shown_at = work, list(todo), time.time()
        self.failures: dict[Cell, int] = {}
        self.failed: list[Cell] = []
        self.total, self.ended = len(todo), 0
        self.say(f"{self.total} runs to do")

    def next(self) -> Cell | None:
        """A run to start, whose imitation, if it needs one, has ended."""
        for cell in self.waiting[:]:
            if cell.stage == "retrain" and not self.work.summary(cell.imitation):
                continue
            self.waiting.remove(cell)
            self.work.failure_note(cell).unlink(missing_ok=True)
            if not self.work.summary(cell):
                return cell
            self.succeed(cell)  # an earlier command was killed before it wrote the row
        return None

    def succeed(self, cell: Cell) -> None:
        row = self.work.record(cell)
        self.ended += 1
        self.say(f"ended    {cell.run_id}: NSS {row.nss:.3f} in {as_hours(row.seconds)}")

    def fail(self, cell: Cell, reason: str, log: str = "", again: bool = True) -> None:
        """Report a failure and try once more; then give up the run, and the retrainings that need it."""
        self.failures[cell] = self.failures.get(cell, 0) + 1
        again = again and self.failures[cell] < 2
        self.say(f"FAILED   {cell.run_id}: {reason}{'; trying once more' if again else ''}\n{log}".rstrip())
        if again:
            self.waiting.insert(0, cell)
            return
        self.failed.append(cell)
        self.work.folder(cell).mkdir(parents=True, exist_ok=True)
        self.work.failure_note(cell).write_text(reason + "\n")
        for other in [other for other in self.waiting if other.stage == "retrain" and other.imitation == cell]:
            self.waiting.remove(other)
            self.fail(other, f"no reward to train on, because {cell.run_id} failed", again=False)

    def fail_waiting(self) -> None:
        """Nothing runs and nothing can start: somebody has removed run folders meanwhile."""
        while self.waiting:
            self.fail(self.waiting.pop(), "the imitation that recovers its reward is gone", again=False)

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def show_progress(self, running: list[Cell], workers: int) -> None:
        """What runs and how long the rest takes, every 10 seconds in a terminal and every five minutes elsewhere."""
        if time.time() - self.shown_at > (10 if sys.stdout.isatty() else 300):
            self.shown_at = time.time()
            for cell in running:
                self.say(f"running  {cell.run_id:<72}{progress_text(self.work.run_folder(cell))}")
            left = as_hours(self.work.estimate_seconds(self.waiting + running) / workers)
            self.say(f"{self.ended} of {self.total} ended, {len(self.failed)} failed, time left: {left}")

    def finish(self) -> int:
        """Print how it went and return the exit code."""
        for cell in self.failed:
            print(f"failed: {cell.run_id}, log: {self.work.folder(cell) / 'log.txt'}", file=sys.stderr)
        print(f"{self.ended} runs ended, {len(self.failed)} failed; rows: {self.work.results / 'runs.csv'}")
        return 1 if self.failed else 0


def run_locally(work: Workspace, scheduler: Scheduler, workers: int) -> int:
    running, stopping = [], []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopping.append(True))
    # Scripts that a killed command has left behind are waited for, beside the workers.
    for cell in [cell for cell in scheduler.waiting if work.is_running(cell)]:
        scheduler.waiting.remove(cell)
        running.append(Process(cell, work))
        scheduler.say(f"found    {cell.run_id}, still running")
    while (running or scheduler.waiting) and not stopping:
        while len(running) < workers and (cell := scheduler.next()):
            try:
                running.append(Process(cell, work))
                scheduler.say(f"started  {cell.run_id}")
            except (UserError, OSError) as error:  # the other runs go on
                scheduler.fail(cell, f"cannot be started: {error}", again=False)
        if not running:
            scheduler.fail_waiting()
        for process in [process for process in running if process.has_ended()]:
            running.remove(process)
            if work.summary(process.cell):
                scheduler.succeed(process.cell)
                continue
            code = process.popen.returncode if process.popen else None
            reason = f"exit code {code}" if process.popen else "ended without a result"
            log = last_lines(work.folder(process.cell) / "log.txt")
            scheduler.fail(process.cell, reason, log, again=code != 2)  # 2: a mistake in the arguments
        scheduler.show_progress([process.cell for process in running], workers)
        time.sleep(0.2)
    if not stopping:
        return scheduler.finish()
    scheduler.say("stopping: the scripts save their checkpoints")
    started = [process.popen for process in running if process.popen]  # not those of other commands
    for popen in started:
        popen.send_signal(signal.SIGINT)
    for popen in started:
        popen.wait()
    print("stopped; the same command continues from here", file=sys.stderr)
    return 130
