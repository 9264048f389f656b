"""The scheduler, which both launchers share, and scripts as processes on this machine."""

import math
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from madaac_utils.files import writing
from reproduce.grid import EPISODE_LENGTH, Cell, resume_command, start_command
from reproduce.store import Workspace, curve_of, lock_run, read_config


def as_hours(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def estimate_text(work: Workspace, cells: list[Cell], workers: int) -> str:
    """How long these runs take with so many workers."""
    times = [work.estimate_seconds(cell) for cell in cells]
    known = [seconds for seconds in times if not math.isnan(seconds)]
    if len(known) == len(times):
        return as_hours(sum(known) / workers)
    text = f"{len(times) - len(known)} of {len(times)} runs have no estimate"
    return f"{as_hours(sum(known) / workers)}, but {text}" if known else f"unknown, {text}"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}\n", end="", flush=True)  # in one piece, also from several threads


def progress_text(folder: Path | None) -> str:
    """How far a run is, its last NSS and the time that is left, from its run folder; empty if unknown."""
    total = read_config(folder).get("args", {}).get("total_timesteps") if folder else 0
    curve = curve_of(folder) if total else []
    if not curve:
        return ""
    done = min(1.0, curve[-1]["episodes"] * EPISODE_LENGTH / total)
    left = curve[-1]["seconds"] * (1 - done) / done
    return f"{done:>6.0%}  NSS {curve[-1]['nss']:>6.3f}  {as_hours(left):>7} left"


class Scheduler:
    """Runs what is missing: an imitation and the retraining that needs its reward are a chain, one after the other.

    Each worker is a thread that waits for one script at a time. A launcher has `workers`, `run(cell, lock)`, which
    returns the exit code of the script, and `stop()`.
    """

    def __init__(self, work: Workspace, cells: list[Cell], launcher):
        self.work, self.launcher, self.todo = work, launcher, work.missing(cells)
        chains = {}
        for cell in self.todo:
            chains.setdefault(cell.imitation if cell.stage == "retrain" else cell, []).append(cell)
        self.chains = queue.SimpleQueue()
        for chain in chains.values():
            self.chains.put(chain)
        self.ended: list[Cell] = []
        self.failed: list[Cell] = []
        self.stopping, self.error = threading.Event(), None

    def run(self) -> int:
        """Run everything and return the exit code."""
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: self.stopping.set())
        say(f"{len(self.todo)} runs to do")
        threads = [threading.Thread(target=self.work_off, daemon=True) for _ in range(self.launcher.workers)]
        for thread in threads:
            thread.start()
        shown_at = time.time()
        while any(thread.is_alive() for thread in threads) and not self.stopping.wait(0.2):
            if time.time() - shown_at > (10 if sys.stdout.isatty() else 300):
                shown_at = time.time()
                self.show_progress()
        if self.stopping.is_set():
            self.launcher.stop()
            if self.error:
                raise self.error
            print("stopped; the same command continues from here", file=sys.stderr)
            return 130
        for cell in self.failed:
            print(f"failed: {cell.run_id}, log: {self.work.folder(cell) / 'log.txt'}", file=sys.stderr)
        print(f"{len(self.ended)} runs ended, {len(self.failed)} failed; rows: {self.work.results / 'runs.csv'}")
        return 1 if self.failed else 0

    def work_off(self) -> None:
        """In a thread: take chains until none is left."""
        try:
            while not self.stopping.is_set():
                self.run_chain(self.chains.get_nowait())
        except queue.Empty:
            return
        except Exception as error:  # such as a full disk; raised again in the main thread
            self.error = error
            self.stopping.set()

    def run_chain(self, chain: list[Cell]) -> None:
        cell, *others = chain
        lock = lock_run(self.work.folder(cell))
        if lock is None:  # another command is at work on it, or has left its script behind when it was killed
            self.chains.put(chain)
            time.sleep(0.2)
            return
        with lock:
            has_ended = self.run_cell(cell, lock)
        if others and has_ended:
            self.run_chain(others)
        elif cell in self.failed:
            for other in others:
                self.give_up(other, f"no reward to train on, because {cell.run_id} failed")

    def run_cell(self, cell: Cell, lock) -> bool:
        """Run a script, twice if it fails, and write the row; False if it failed or was stopped."""
        self.work.failure_note(cell).unlink(missing_ok=True)
        for is_last in (False, True):
            code = 0
            if not self.work.summary(cell):  # else a command that was killed has not written the row
                say(f"started  {cell.run_id}")
                code = self.launcher.run(cell, lock)
            if self.work.summary(cell):
                row = self.work.record(cell)
                self.ended.append(cell)
                say(f"ended    {cell.run_id}: NSS {row.nss:.3f} in {as_hours(row.seconds)}")
                return True
            if self.stopping.is_set():
                return False
            log = (self.work.folder(cell) / "log.txt").read_text(errors="replace")
            print(*log.splitlines()[-15:], sep="\n")
            if is_last or code == 2:  # 2 is a mistake in the arguments
                break
            say(f"FAILED   {cell.run_id}: exit code {code}; trying once more")
        self.give_up(cell, f"exit code {code}")
        return False

    def give_up(self, cell: Cell, reason: str) -> None:
        say(f"FAILED   {cell.run_id}: {reason}")
        self.failed.append(cell)
        with writing(self.work.failure_note(cell)) as temporary:
            temporary.write_text(reason + "\n")

    def show_progress(self) -> None:
        left = [cell for cell in self.todo if cell not in self.ended + self.failed]
        for cell in filter(self.work.is_running, left):
            say(f"running  {cell.run_id:<72}{progress_text(self.work.run_folder(cell))}")
        time_left = estimate_text(self.work, left, self.launcher.workers)
        say(f"{len(self.ended)} of {len(self.todo)} ended, {len(self.failed)} failed, time left: {time_left}")


class LocalLauncher:
    """Scripts as processes on this machine."""

    def __init__(self, work: Workspace, workers: int):
        self.work, self.workers, self.processes = work, workers, set()

    def run(self, cell: Cell, lock) -> int:
        command = self.command(cell)
        with open(self.work.folder(cell) / "log.txt", "a") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            # The script gets a session of its own, so that Ctrl-C reaches this process only, which passes it on.
            # It inherits the lock, which is free again when the script has ended, however that happens.
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        self.processes.add(process)
        return process.wait()

    def command(self, cell: Cell) -> list[str]:
        """Continue the run that is there if that is possible, else start a new one."""
        grid, folder = self.work.grid, self.work.run_folder(cell)
        if folder and (folder / "checkpoint.pt").is_file():
            return resume_command(cell, grid, folder, read_config(folder)["args"].get("total_timesteps") or 0)
        self.work.set_aside(cell)
        reward_run = self.work.run_folder(cell.imitation) if cell.stage == "retrain" else None
        return start_command(cell, grid, self.work.folder(cell), reward_run)

    def stop(self) -> None:
        """Let the scripts save their checkpoints."""
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
