"""Run scripts as from the command line, each in a process of its own.

Importing torch takes seconds. A server process imports it once, and every run is a fork of that server.
"""

import contextlib
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent

server = multiprocessing.get_context("forkserver")
# torch's optimizers import torch._dynamo when the first of them is made.
server.set_forkserver_preload(["torch._dynamo", "madaac_utils.run", "madaac_utils.experts", "mairl_mack", "mpe2"])


class Finished(NamedTuple):
    code: int  # negative: the signal that ended the process
    out: str
    err: str


class Started:
    """A script that is running."""

    def __init__(
        self, script: str, *arguments, cwd: Path = ROOT, path: str = "", largest_file: int = 0, terminal: bool = False
    ):
        """`path` is added to Python's; `largest_file` limits the bytes of a file; `terminal` shows progress bars."""
        self.outputs = Path(tempfile.mkdtemp())
        for name in ("out", "err"):
            (self.outputs / name).touch()
        words = [str(word) for word in (ROOT / script, *arguments)]
        self.process = server.Process(target=_run, args=(words, cwd, path, largest_file, terminal, self.outputs))
        self.process.start()

    def wait(self, timeout: float = 120) -> Finished:
        """Wait for the end of the script."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        out, err = ((self.outputs / name).read_bytes().decode() for name in ("out", "err"))
        found = Finished(self.process.exitcode, out, err)
        shutil.rmtree(self.outputs)
        return found

    def stop(self, number: int) -> Finished:
        """Send a signal and wait for the end."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)
        return self.wait()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60) -> bool:
        """Wait until a condition holds; False if the script ended before."""
        end = time.time() + timeout
        while not condition():
            if not self.process.is_alive() or time.time() > end:
                return False
            time.sleep(0.001)
        return True


def kill_after(started: Started, folder: Path, checkpoints: int) -> Finished:
    """Kill a script when it has written so many checkpoints, or let it end before."""
    for _ in range(checkpoints):
        before = last_save(folder)
        started.wait_for(lambda before=before: last_save(folder) > before)
    return started.stop(signal.SIGKILL)


def last_save(folder: Path) -> int:
    """When the newest checkpoint in a folder of runs was written, in nanoseconds; 0 if there is none."""
    with contextlib.suppress(FileNotFoundError):  # it is being replaced
        return max((path.stat().st_mtime_ns for path in folder.glob("*/checkpoint.pt")), default=0)
    return 0


def run(script: str, *arguments, **settings) -> Finished:
    """Run a script to its end. A relative path of the script is one in the repository."""
    return Started(script, *arguments, **settings).wait()


def _run(words: list[str], cwd: Path, path: str, largest_file: int, terminal: bool, outputs: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(outputs / name, os.O_WRONLY), number)
    os.chdir(cwd)
    sys.argv = words
    tqdm.set_lock(threading.RLock())  # the default one is shared between processes and left behind by those killed
    sys.path[:0] = [str(Path(words[0]).parent), str(ROOT), *path.split(os.pathsep)]
    if largest_file:  # writing more fails with an error, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    if terminal:
        sys.stderr.isatty = lambda: True
    runpy.run_path(words[0], run_name="__main__")


def measure_memory(function: Callable, *arguments) -> tuple[object, float]:
    """Call a function in a process of its own; returns its result, or its error, and the megabytes that it took."""
    receiver, sender = server.Pipe(duplex=False)
    process = server.Process(target=_measure, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _measure(sender, function: Callable, arguments: tuple) -> None:
    before = _peak_memory()
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    sender.send((result, _peak_memory() - before))


def _peak_memory() -> float:
    """Megabytes. The peak of a forked process begins with the memory of its parent."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
