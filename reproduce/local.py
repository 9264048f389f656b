"""The scheduler, the display, and scripts as processes on this machine."""

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from reproduce import UserError, store
from reproduce.grid import Cell, resume_command, start_command
from reproduce.store import Workspace, as_hours


def last_lines(log: Path, count: int = 15) -> str:
    """The end of the last command's output; of a progress bar only its last state."""
    if not log.is_file():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        text = file.read().decode(errors="replace").rsplit("\n$ ", 1)[-1]
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join([line for line in lines if line.strip()][-count:])


class Process:
    """A script at work on a cell: started here, or still running from a command that was killed."""

    def __init__(self, cell: Cell, work: Workspace):
        self.cell, self.work, self.folder = cell, work, work.folder(cell)
        self.popen, self.events = None, None
        lock = store.lock_run(self.folder)
        if not lock:  # another command's script is at work on it: wait for that
            return
        if work.summary(cell):  # it has just ended
            lock.close()
            return
        command = self.command()
        with open(self.folder / "log.txt", "a") as log:
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
        lock.close()

    def command(self) -> list[str]:
        """Continue the run that is there if that is possible, else start a new one."""
        cell, work = self.cell, self.work
        reward_run = work.run_folder(cell.imitation) if cell.stage == "retrain" else None
        folder = work.run_folder(cell)
        config = store.read_config(folder) if folder else {}
        if config and (folder / "checkpoint.pt").is_file():
            damaged = (folder / "summary.json").exists() and not store.read_summary(folder)
            if not damaged and store.has_current_demos(config) and work.has_current_reward(cell):
                return resume_command(cell, work.grid, folder, config["args"].get("total_timesteps") or 0)
        for unusable in [path.parent for path in self.folder.glob("*/config.json")]:
            work.set_aside(unusable)
        if reward_run:
            work.note_reward(cell, reward_run)
        return start_command(cell, work.grid, self.folder, reward_run)

    def has_ended(self) -> bool:
        return self.popen.poll() is not None if self.popen else not self.work.is_running(self.cell)

    def stop(self) -> None:
        """Ask the script to save and stop, unless another command started it."""
        if self.popen and self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)

    def progress(self) -> dict[str, float]:
        folder = self.work.run_folder(self.cell)
        if folder and (self.events is None or self.events.folder != folder):
            self.events = store.Events(folder)
        return self.events.reload().progress() if self.events else dict.fromkeys(("done", "nss", "left"), math.nan)


class Display:
    """A table of what runs, redrawn in a terminal; elsewhere one line per event and a table every five minutes."""

    def __init__(self):
        self.lines, self.terminal = 0, sys.stdout.isatty()
        self.pause, self.last = 5.0 if self.terminal else 300.0, time.time()

    def event(self, text: str) -> None:
        self.erase()
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def is_due(self) -> bool:
        return time.time() - self.last >= self.pause

    def table(self, processes: list[Process], footer: str) -> None:
        self.last = time.time()
        self.erase()
        lines = [f"{process.cell.run_id:<72}{progress_text(process.progress())}" for process in processes]
        width = shutil.get_terminal_size().columns if self.terminal else 1000
        print("\n".join(line[: width - 1] for line in [*lines, footer]), flush=True)
        self.lines = len(lines) + 1 if self.terminal else 0

    def erase(self) -> None:
        if self.lines:
            print(f"\033[{self.lines}F\033[J", end="")
            self.lines = 0


def progress_text(progress: dict[str, float]) -> str:
    if math.isnan(progress["done"]):
        return f"{'starting':>15}"
    left = "" if math.isnan(progress["left"]) else f"{as_hours(progress['left'])} left"
    return f"{progress['done']:>6.0%}  NSS {progress['nss']:>6.3f}  {left:>12}"


class Scheduler:
    """What is still to run, what has failed and what can start now, for both launchers."""

    def __init__(self, work: Workspace, todo: list[Cell], display: Display):
        self.work, self.display, self.waiting = work, display, list(todo)
        self.failures: dict[Cell, int] = {}
        self.failed: list[Cell] = []
        self.total, self.ended = len(todo), 0

    def next(self) -> Cell | None:
        """A run whose imitation, if it needs one, has ended."""
        for cell in self.waiting:
            if cell.stage == "imitate" or self.work.summary(cell.imitation):
                self.waiting.remove(cell)
                self.work.failure_note(cell).unlink(missing_ok=True)
                return cell
        return None

    def succeed(self, cell: Cell) -> None:
        row = self.work.record(cell)
        self.ended += 1
        self.display.event(f"ended    {cell.run_id}: NSS {row.nss:.3f} in {as_hours(row.seconds)}")

    def fail(self, cell: Cell, reason: str, log: str = "", again: bool = True) -> None:
        """Report a failure and try once more; then give up the run, and the retrainings that need it."""
        self.failures[cell] = self.failures.get(cell, 0) + 1
        again = again and self.failures[cell] < 2
        self.display.event(f"FAILED   {cell.run_id}: {reason}{'; trying once more' if again else ''}\n{log}".rstrip())
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
        """Nothing runs and nothing can start."""
        for cell in self.waiting[:]:
            self.fail(cell, "the imitation that recovers its reward is gone", again=False)
        self.waiting = []

    def footer(self, running: list[Cell], workers: int) -> str:
        left = store.total_time(self.waiting + running, self.work, workers)
        return f"{self.ended} of {self.total} ended, {len(self.failed)} failed, time left: {left}"

    def finish(self) -> int:
        """Print how it went and return the exit code."""
        for cell in self.failed:
            print(f"failed: {cell.run_id}, log: {self.work.folder(cell) / 'log.txt'}", file=sys.stderr)
        print(f"{self.ended} runs ended, {len(self.failed)} failed; rows: {self.work.results / 'runs.csv'}")
        return 1 if self.failed else 0


def run_locally(work: Workspace, scheduler: Scheduler, workers: int) -> int:
    display, running, stopping = scheduler.display, [], []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopping.append(True))
    for cell in [cell for cell in scheduler.waiting if work.is_running(cell)]:
        scheduler.waiting.remove(cell)
        running.append(Process(cell, work))
        display.event(f"found    {cell.run_id}, still running")
    while (running or scheduler.waiting) and not stopping:
        while len(running) < workers and (cell := scheduler.next()):
            try:
                if work.summary(cell):  # an earlier command was killed before it wrote the row
                    scheduler.succeed(cell)
                    continue
                running.append(Process(cell, work))
                display.event(f"started  {cell.run_id}")
            except (UserError, OSError) as error:  # the other runs go on
                scheduler.fail(cell, f"cannot be started: {error}", again=False)
        if not running and scheduler.waiting:
            scheduler.fail_waiting()
        for process in [process for process in running if process.has_ended()]:
            running.remove(process)
            if work.summary(process.cell):
                scheduler.succeed(process.cell)
                continue
            code = process.popen.returncode if process.popen else None
            reason = "ended without a result" if code is None else f"exit code {code}"
            log = last_lines(process.folder / "log.txt")
            scheduler.fail(process.cell, reason, log, again=code != 2)  # 2: a mistake in the arguments
        if display.is_due():
            display.table(running, scheduler.footer([process.cell for process in running], workers))
        time.sleep(0.3)
    return stop_all(running) if stopping else scheduler.finish()


def stop_all(running: list[Process]) -> int:
    print("stopping: the scripts save their checkpoints", flush=True)
    for process in running:
        process.stop()
    while not all(process.has_ended() for process in running if process.popen):
        time.sleep(0.2)
    others = sum(process.popen is None for process in running)
    note = f"; {others} runs that another command started go on" if others else ""
    print(f"stopped{note}; the same command continues from here", file=sys.stderr)
    return 130
