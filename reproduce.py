"""The paper's grid by one command: plan it, run it, see how it stands, make its tables and figures, docs/reproduce.md.

The grid of Jeon et al. 2020 (arXiv 2002.10525): 3 algorithms x 2 kinds of discriminators x 3 numbers of demonstrations
x 6 tasks x 10 seeds, imitation and retraining on the recovered rewards. Each run is one of the scripts beside this
file, started as a person would start it. Any part of the grid can be chosen.

    python reproduce.py plan
    python reproduce.py run --tasks small --discriminators decentralized --workers 2
    python reproduce.py status
    python reproduce.py report

`run` can be stopped or killed at any moment; the same command goes on where it stopped. What has ended is a row of
results/runs.csv and a thinned curve in results/curves/, from which `report` makes results/tables and results/figures.
"""

import contextlib
import csv
import ctypes
import fcntl
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

import env_utils
from env_utils import ROOT, UserError

SCRIPTS = {"madaac": "madaac_discrete.py", "mairl": "mairl_mack.py", "magail": "magail_mack.py"}
SMALL_TASKS = ("keep_away", "cooperative_communication", "cooperative_navigation")
LARGE_TASKS = ("rover_tower_8", "rover_tower_12", "rover_tower_16")
AGENTS = {"keep_away": 2, "cooperative_communication": 2, "cooperative_navigation": 3} | {
    task: int(task.rsplit("_", 1)[1]) for task in LARGE_TASKS
}
EPISODE_LENGTH = 25
SHIPPED_DEMOS = 200
SMOKE_EPISODES = 120  # whole rollouts of every script, a few updates of each
CURVE_POINTS = 300  # a curve on disk has at most so many
IDENTITY = ["stage", "task", "algorithm", "discriminator", "n_demos", "seed"]
COLUMNS = [
    *("run_id", *IDENTITY, "episodes", "arguments", "rl", "agents"),
    *("scores", "score_intervals", "greedy_scores", "expert_scores", "random_scores"),  # a value an agent: "1.5;-2"
    *("nss", "nss_greedy", "nss_last_500", "pcc", "seconds", "commit"),
    *("reward_episodes", "reward_arguments"),  # of the imitation that a retraining has its reward from
]
TAKEN = {"--env-id", "--n-demos", "--discriminator", "--seed", "--runs", "--run", "--exp-name", "--total-timesteps"}
TAKEN |= {"--resume", "--torch-threads"}  # what extra arguments must not set


# Command line: a dataclass a command.


@dataclass
class Grid:
    """Which part of the grid, and where things are."""

    tasks: str = ""
    """tasks, separated by commas, or small, large or all; default: all, for --scale smoke the first two small ones"""
    algorithms: str = "magail,mairl,madaac"
    """algorithms, separated by commas"""
    discriminators: str = "decentralized,centralized"
    """kinds of discriminators, separated by commas"""
    n_demos: str = "50,100,200"
    """numbers of demonstrations, separated by commas"""
    seeds: str = "1"
    """seeds, separated by commas, or a range: 1-10"""
    stages: str = "imitate,retrain"
    """imitate, retrain or both, separated by a comma"""
    scale: Literal["smoke", "quick", "paper"] = "paper"
    """the paper's 50,000 episodes a run (rover_tower: 100,000), a fifth of them, or just enough to see it work"""
    episodes: int = 0
    """another number of episodes instead; a run that ended with fewer is gone on with"""
    madaac_args: str = ""
    """more arguments for madaac_discrete.py, in quotes: "--alpha 0.001" """
    mairl_args: str = ""
    """more arguments for mairl_mack.py"""
    magail_args: str = ""
    """more arguments for magail_mack.py"""
    retrain_args: str = ""
    """more arguments for retrain.py"""
    runs: str = "runs/reproduce"
    """where run folders go, in a folder named after the scale"""
    results: str = ""
    """where rows, curves, tables and figures go; default: results (at other scales <runs>/<scale>/results)"""


@dataclass
class Plan(Grid):
    """Print what would run, with the hours it takes by the speed of the runs there are."""

    workers: int = 2
    """how many runs at a time to reckon with"""


@dataclass
class Run(Grid):
    """Run what has not been run."""

    workers: int = 0
    """runs at a time, one torch thread each; 0 is one for each core"""
    launcher: Literal["local", "ray"] = "local"
    """processes on this machine, or tasks of a Ray cluster (needs `pip install -r requirements-ray.txt`)"""
    address: str = "auto"
    """of the Ray cluster; auto is the one this machine is part of"""
    cpus_per_run: float = 1.0
    """CPUs that a run asks Ray for"""
    memory_per_run: float = 0.0
    """GB of memory that a run asks Ray for; 0 does not ask"""


@dataclass
class Status(Grid):
    """Show how each run of the grid stands."""


@dataclass
class Report(Grid):
    """Make tables and figures of all rows there are (of the whole grid, whatever part is chosen)."""


# The grid


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    stage: str
    task: str
    algorithm: str
    discriminator: str
    n_demos: int
    seed: int
    arguments: str = ""  # more than its place in the grid gives
    reward_arguments: str = ""  # the same of the imitation, if this is a retraining

    @property
    def run_id(self) -> str:
        """Its name; runs with other extra arguments are other runs."""
        parts = [str(getattr(self, name)) for name in IDENTITY]
        for text in (self.reward_arguments, self.arguments):
            parts += [re.sub(r"[^\w.]+", "_", text).strip("_")] if text else []
        return "__".join(parts)

    @property
    def imitation(self) -> "Cell":
        """The run whose reward a retraining needs."""
        place = (self.task, self.algorithm, self.discriminator, self.n_demos, self.seed)
        return Cell("imitate", *place, arguments=self.reward_arguments)


def choices(text: str, known: tuple, flag: str, kind: type = str) -> list:
    """The values of a comma-separated list, each one of the known."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = kind(part)
        except ValueError:
            raise UserError(f"{flag} takes numbers separated by commas, got {part!r}") from None
        if known and value not in known:
            raise UserError(f"{flag} knows {', '.join(map(str, known))}; got {part!r}")
        if value not in found:
            found.append(value)
    if not found:
        raise UserError(f"{flag} is empty")
    return found


def parse_seeds(text: str) -> list[int]:
    seeds = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise UserError(f"--seeds takes numbers separated by commas, or a range such as 1-10; got {part!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"--seeds {part.strip()} is a range that ends before it starts")
        seeds += [seed for seed in range(first, last + 1) if seed not in seeds]
    return seeds


def cells_of(grid: Grid) -> list[Cell]:
    """The chosen runs in the order in which they start: a seed after the other, decentralized and small ones first."""
    named = {"small": SMALL_TASKS, "large": LARGE_TASKS, "all": SMALL_TASKS + LARGE_TASKS}
    default = SMALL_TASKS[:2] if grid.scale == "smoke" else named["all"]
    tasks = choices(grid.tasks, (*named["all"], *named), "--tasks") if grid.tasks else default
    tasks = list(dict.fromkeys(one for task in tasks for one in named.get(task, (task,))))
    algorithms = choices(grid.algorithms, tuple(SCRIPTS), "--algorithms")
    discriminators = choices(grid.discriminators, ("decentralized", "centralized"), "--discriminators")
    n_demos = choices(grid.n_demos, (), "--n-demos", int)
    stages = choices(grid.stages, ("imitate", "retrain"), "--stages")
    if min(n_demos) < 1 or max(n_demos) > SHIPPED_DEMOS:
        raise UserError(f"--n-demos must be at least 1 and at most {SHIPPED_DEMOS}, which is what each task has")
    if grid.episodes < 0:
        raise UserError("--episodes must not be negative")
    for name in (*(f"{algorithm}_args" for algorithm in SCRIPTS), "retrain_args"):
        check_extra(getattr(grid, name), f"--{name.replace('_', '-')}")

    def extra(stage: str, algorithm: str) -> tuple[str, str]:
        """The arguments of a run, and of the one that its reward is from"""
        imitation = getattr(grid, f"{algorithm}_args").strip()
        return (grid.retrain_args.strip(), imitation) if stage == "retrain" else (imitation, "")

    cells = [
        Cell(stage, task, algorithm, discriminator, number, seed, *extra(stage, algorithm))
        for seed in parse_seeds(grid.seeds)
        for discriminator in ("decentralized", "centralized")
        if discriminator in discriminators
        for large in (False, True)
        for number in n_demos
        for task in tasks
        if (task in LARGE_TASKS) == large
        for algorithm in algorithms
        for stage in ("imitate", "retrain")
        if stage in stages
    ]
    return cells


def check_extra(text: str, flag: str) -> None:
    """Extra arguments have to be split like a shell's, and must leave alone what makes a run the cell it is."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag} {text!r} cannot be read: {error}") from None
    for word in words:
        name = word.split("=")[0].replace("_", "-")
        if name in TAKEN:
            raise UserError(f"{flag} must not set {name}: the grid does")


def paper_episodes(cell: Cell) -> int:
    return 100_000 if cell.task in LARGE_TASKS else 50_000


def episodes_of(cell: Cell, grid: Grid) -> int:
    """The budget of a run."""
    if grid.episodes:
        return grid.episodes
    paper = paper_episodes(cell)
    return {"paper": paper, "quick": paper // 5, "smoke": SMOKE_EPISODES}[grid.scale]


def results_folder(grid: Grid) -> Path:
    default = "results" if grid.scale == "paper" else f"{grid.runs}/{grid.scale}/results"
    return Path(grid.results or default)


# A run on disk: <runs>/<scale>/<run id>/ has the script's own run folder, log.txt and a lock.


@dataclass
class Workspace:
    """Where the chosen grid keeps its runs and results."""

    grid: Grid
    rows: dict[str, dict] = field(default_factory=dict)

    def __post_init__(self):
        self.results = results_folder(self.grid)
        self.rows = read_rows(self.results / "runs.csv")

    def folder(self, cell: Cell) -> Path:
        return Path(self.grid.runs) / self.grid.scale / cell.run_id

    def failure_note(self, cell: Cell) -> Path:
        """Where it stands that a run was given up, and why, until it is tried again."""
        return self.folder(cell) / "failed.txt"

    def script_folder(self, cell: Cell) -> Path | None:
        """The newest run folder of the script that has a config."""
        found = [path.parent for path in self.folder(cell).glob("*/config.json")]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def summary(self, cell: Cell) -> dict | None:
        """What an ended run left, if it had as many episodes as are asked for and today's demonstrations."""
        folder = self.script_folder(cell)
        if not folder or not (folder / "summary.json").is_file():
            return None
        summary = json.loads((folder / "summary.json").read_text())
        enough = summary["episodes"] >= episodes_of(cell, self.grid)
        return summary if enough and of_todays_expert(cell, summary["expert"].values()) else None

    def has_row(self, cell: Cell) -> bool:
        """Whether it is done; a retraining on the reward of a shorter imitation than is asked for is not."""
        row, asked = self.rows.get(cell.run_id), episodes_of(cell, self.grid)
        if row is None or int(row["episodes"]) < asked or self.is_of_earlier_expert(cell):
            return False
        return cell.stage == "imitate" or int(row["reward_episodes"]) >= asked

    def is_of_earlier_expert(self, cell: Cell) -> bool:
        """Whether there is a row, but of an expert that has been replaced since."""
        row = self.rows.get(cell.run_id)
        return row is not None and not of_todays_expert(cell, row["expert_scores"].split(";"))

    def is_running(self, cell: Cell) -> bool:
        """Whether a process holds the lock of a run: it is inherited by the script and lives as long as that does."""
        with contextlib.suppress(FileNotFoundError), open(self.folder(cell) / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def state(self, cell: Cell) -> str:
        """done, ended (no row yet), running, failed, interrupted or waiting"""
        if self.has_row(cell):
            return "done"
        if self.summary(cell):
            return "ended"
        if self.is_running(cell):
            return "running"
        if self.failure_note(cell).is_file():
            return "failed"
        folder = self.script_folder(cell)
        return "interrupted" if folder and (folder / "checkpoint.pt").is_file() else "waiting"

    def missing(self, cells: list[Cell]) -> list[Cell]:
        """What has to be run, in order: imitation before the retraining that needs its reward."""
        todo: list[Cell] = []
        for cell in cells:
            if self.has_row(cell):
                continue
            needs = [cell]
            if cell.stage == "retrain" and not self.summary(cell.imitation):  # its row alone has no reward
                needs = [cell.imitation, cell]
            todo += [need for need in needs if need not in todo]
        return todo

    def reward_episodes(self, cell: Cell, folder: Path) -> int:
        """How long the imitation was that a retraining in this folder has its reward from."""
        imitation = self.script_folder(cell.imitation)
        if not imitation or not has_reward_of(folder, imitation):
            raise UserError(
                f"{cell.run_id}: the imitation of its reward is not in {self.folder(cell.imitation)} any more"
            )
        return json.loads((imitation / "summary.json").read_text())["episodes"]

    def record(self, cell: Cell) -> dict:
        """Write the row and the curve of an ended run. The same run gives the same row, so once more does no harm."""
        folder = self.script_folder(cell)
        row = make_row(cell, folder)
        if cell.stage == "retrain":
            row["reward_episodes"] = str(self.reward_episodes(cell, folder))
        longer = self.rows.get(cell.run_id)
        if longer and int(longer["episodes"]) > int(row["episodes"]) and not self.is_of_earlier_expert(cell):
            return longer  # run again with fewer, for its reward's sake
        self.results.mkdir(parents=True, exist_ok=True)
        write_csv(self.results / "curves" / f"{cell.run_id}.csv", ("episodes", "seconds", "nss", "pcc"), curve(folder))
        with locked(self.results):  # two commands may run at a time
            self.rows = read_rows(self.results / "runs.csv") | {cell.run_id: row}
            write_csv(self.results / "runs.csv", COLUMNS, [self.rows[key] for key in sorted(self.rows)])
        if int(row["episodes"]) >= paper_episodes(cell) or self.grid.scale == "smoke":  # no more to go on with
            (folder / "checkpoint.pt").unlink(missing_ok=True)
        return row


def has_reward_of(folder: Path, imitation: Path) -> bool:
    """Whether a retraining is on the reward of this imitation as it is now."""
    config = json.loads((folder / "config.json").read_text())["args"]
    reward = imitation / "reward.safetensors"
    return reward.is_file() and config.get("reward_sha256") == env_utils.sha256(reward)


def of_todays_expert(cell: Cell, expert_scores: Iterable) -> bool:
    scores, arguments = [float(score) for score in expert_scores], f"{cell.arguments} {cell.reward_arguments}"
    return env_utils.of_todays_expert(cell.task, scores, arguments)


def of_other_demonstrations(cell: Cell, folder: Path) -> bool:
    """Whether a run folder is of demonstrations that have been replaced since: no script would go on with it."""
    if (folder / "summary.json").is_file():
        expert = json.loads((folder / "summary.json").read_text())["expert"]
        return not of_todays_expert(cell, expert.values())
    if cell.stage == "retrain":
        return False  # known by its reward
    try:
        env_utils.demos_of_run(json.loads((folder / "config.json").read_text()))
    except UserError:
        return True
    return False


@contextlib.contextmanager
def locked(folder: Path):
    """Nobody else may be in here with the same folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> dict[str, dict]:
    """The rows of runs.csv by run id."""
    if not path.is_file():
        return {}
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise UserError(f"{path} has columns {reader.fieldnames}, expected {COLUMNS}")
        return {row["run_id"]: row for row in reader}


def write_csv(path: Path, columns: tuple | list, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with env_utils.writing(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def make_row(cell: Cell, folder: Path) -> dict:
    """A row of runs.csv, from what the script wrote."""
    summary = json.loads((folder / "summary.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    agents = list(summary["expert"])

    def over_agents(values) -> str:
        return ";".join(f"{value:.4f}" for value in values)

    pcc = summary.get("pcc")
    return {
        "run_id": cell.run_id,
        **{name: str(getattr(cell, name)) for name in IDENTITY},
        "episodes": str(summary["episodes"]),
        "arguments": cell.arguments,
        "rl": summary.get("rl", ""),
        "agents": ";".join(agents),
        "scores": over_agents(summary["stochastic"]["scores"][agent]["mean"] for agent in agents),
        "score_intervals": over_agents(summary["stochastic"]["scores"][agent]["interval_95"] for agent in agents),
        "greedy_scores": over_agents(summary["greedy"]["scores"][agent]["mean"] for agent in agents),
        "expert_scores": over_agents(summary["expert"].values()),
        "random_scores": over_agents(summary["random"].values()),
        "nss": f"{summary['stochastic']['nss']:.4f}",
        "nss_greedy": f"{summary['greedy']['nss']:.4f}",
        "nss_last_500": f"{summary['nss_last_500_training_episodes']:.4f}",
        "pcc": "" if pcc is None else f"{pcc:.4f}",
        "seconds": str(summary["seconds"]),
        "commit": config["commit"],
        "reward_episodes": "",
        "reward_arguments": cell.reward_arguments,
    }


def curve(folder: Path) -> list[dict]:
    """NSS, PCC and seconds of training so far, thinned to a few hundred points."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    nss, pcc, seconds = (found.get(f"charts/{name}", []) for name in ("nss", "pcc", "seconds"))
    pcc, seconds = ({point.step: point.value for point in points} for points in (pcc, seconds))
    rows = [
        {
            "episodes": point.step // EPISODE_LENGTH,
            "seconds": f"{seconds.get(point.step, point.wall_time - nss[0].wall_time):.0f}",
            "nss": f"{point.value:.4f}",
            "pcc": f"{pcc[point.step]:.4f}" if point.step in pcc else "",
        }
        for point in nss
    ]
    stride = -(-len(rows) // CURVE_POINTS) or 1
    return rows[::-1][::stride][::-1]  # the last one is always there


# Starting a script as a person would


def command_of(cell: Cell, work: Workspace, out: Path, reward_run: Path | None) -> list[str]:
    """The command line of a run whose folder is to be made in `out`."""
    steps = episodes_of(cell, work.grid) * EPISODE_LENGTH
    command = [sys.executable, str(ROOT / ("retrain.py" if cell.stage == "retrain" else SCRIPTS[cell.algorithm]))]
    if cell.stage == "retrain":
        command += ["--run", str(reward_run)]
    else:
        command += ["--env-id", cell.task, "--n-demos", str(cell.n_demos), "--discriminator", cell.discriminator]
    command += ["--seed", str(cell.seed), "--exp-name", cell.algorithm, "--runs", str(out), "--torch-threads", "1"]
    command += ["--total-timesteps", str(steps)]
    if work.grid.scale == "smoke":
        command += ["--eval-episodes", "20", "--log-every", "500"]
    return command + shlex.split(cell.arguments)


def resume_command(cell: Cell, work: Workspace, folder: Path) -> list[str]:
    """Go on with a run that was stopped, or that ended with fewer episodes than are now asked for."""
    config = json.loads((folder / "config.json").read_text())
    steps = episodes_of(cell, work.grid) * EPISODE_LENGTH
    if config["args"]["total_timesteps"] < steps:
        env_utils.lengthen_run(folder, steps)
    script = "retrain.py" if cell.stage == "retrain" else SCRIPTS[cell.algorithm]
    return [sys.executable, str(ROOT / script), "--resume", str(folder)]


def lock_of(folder: Path, patience: float = 0.5):
    """The open lock file of a run, locked, to be handed to its script; None if somebody else has it."""
    lock = open(make_folder(folder) / "lock", "a")  # noqa: SIM115
    give_up = time.time() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.time() > give_up:  # no mere look by `status`
                lock.close()
                return None
            time.sleep(0.05)


def put_aside(folder: Path) -> None:
    """Move a run folder that is no longer the run's out of its place; nothing that has ended is deleted."""
    aside = make_folder(folder.parent.parent / "put_aside")
    folder.rename(aside / f"{folder.parent.name}__{folder.name}__{time.time_ns()}")


class Process:
    """A script at work on one cell, started here or left over from a command that was killed."""

    def __init__(self, cell: Cell, work: Workspace):
        self.cell, self.work, self.folder = cell, work, work.folder(cell)
        self.popen = None
        lock = lock_of(self.folder)
        if not lock:  # it outlived the command that started it, or is another command's: let it, and watch
            return
        if work.summary(cell):  # ended in the meantime
            lock.close()
            return
        begun = work.script_folder(cell)
        reward_run = work.script_folder(cell.imitation) if cell.stage == "retrain" else None
        if begun and reward_run and not has_reward_of(begun, reward_run):
            put_aside(begun)  # on the reward of an imitation that has changed since
            begun = None
        if begun and of_other_demonstrations(cell, begun):
            put_aside(begun)
            begun = None
        if begun and (begun / "checkpoint.pt").is_file():
            command = resume_command(cell, work, begun)
        else:
            if begun and (begun / "summary.json").is_file():
                put_aside(begun)  # ended with fewer episodes, and without a checkpoint to go on from
            for leftover in self.folder.glob("*/config.json"):  # cut short before its first checkpoint
                shutil.rmtree(leftover.parent)
            command = command_of(cell, work, self.folder, reward_run)
        with open(self.folder / "log.txt", "a") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            # A session of its own: Ctrl-C reaches this process alone, which passes it on once (stop).
            # The lock goes along: it is free again when the script has ended, however that happened.
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

    def ended(self) -> bool:
        return self.popen.poll() is not None if self.popen else not self.work.is_running(self.cell)

    def went_well(self) -> bool:
        return self.work.summary(self.cell) is not None

    def stop(self) -> None:
        """Ask it to save and stop; one that another command started is left alone."""
        if self.popen and self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)

    def progress(self) -> dict[str, str]:
        return read_progress(self.folder / "log.txt")

    def exit_status(self) -> str:
        return f"exit code {self.popen.returncode}" if self.popen else "ended without a result"


def read_progress(log: Path) -> dict[str, str]:
    """What a script's progress bar says last."""
    found = dict.fromkeys(("percent", "nss", "left"), "")
    last = tail(log, 1)
    for key, pattern in {"percent": r"(\d+)%\|", "left": r"<([\d:]+),", "nss": r"NSS (-?[\d.]+)"}.items():
        if match := re.search(pattern, last):
            found[key] = match[1]
    return found


def tail(log: Path, lines: int) -> str:
    """The last lines of a log, of a progress bar only what it says last."""
    if not log.is_file():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        text = file.read().decode(errors="replace")
    whole = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join([line for line in whole if line.strip()][-lines:])


# How long it takes


def measured_speeds(rows: dict[str, dict]) -> dict[tuple, float]:
    """Seconds an episode by (stage, learner, task), averaged over the rows there are."""
    speeds: dict[tuple, list[float]] = {}
    for row in rows.values():
        learner = row["rl"] or row["algorithm"]
        speed = float(row["seconds"]) / int(row["episodes"])
        speeds.setdefault((row["stage"], learner, row["task"]), []).append(speed)
    return {key: sum(values) / len(values) for key, values in speeds.items()}


def estimated_seconds(cell: Cell, grid: Grid, speeds: dict[tuple, float]) -> float | None:
    """By the speed of the same script on the same task, else on the task with the nearest number of agents."""
    learner = cell.algorithm
    if cell.stage == "retrain":
        learner = "maac" if cell.task in LARGE_TASKS else "mack"
    agents = {task: AGENTS[task] for stage, name, task in speeds if (stage, name) == (cell.stage, learner)}
    if not agents:
        return None
    nearest = min(agents, key=lambda task: (task != cell.task, abs(agents[task] - AGENTS[cell.task])))
    speed = speeds[cell.stage, learner, nearest] * AGENTS[cell.task] / agents[nearest]
    return speed * episodes_of(cell, grid)


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def time_left(cells: list[Cell], grid: Grid, rows: dict, workers: int) -> str:
    speeds = measured_speeds(rows)
    known = [estimated_seconds(cell, grid, speeds) for cell in cells]
    if not cells:
        return "nothing"
    if None in known:
        guess = hours(sum(filter(None, known)) / workers) + " and " if any(known) else ""
        return f"{guess}unknown for {known.count(None)} runs, whose like has not been measured yet"
    return f"about {hours(sum(known) / workers)}"


# Commands


def plan(args: Plan) -> None:
    work = Workspace(args)
    if args.workers < 1:
        raise UserError("--workers must be at least 1")
    cells = cells_of(args)
    todo = work.missing(cells)
    speeds = measured_speeds(work.rows)
    print(f"{'run':<78}{'episodes':>10}  {'time':>8}")
    for cell in todo:
        seconds = estimated_seconds(cell, args, speeds)
        again = "  again, for its reward" if work.has_row(cell) else ""
        again = "  again, of a new expert" if work.is_of_earlier_expert(cell) else again
        print(f"{cell.run_id:<78}{episodes_of(cell, args):>10,}  {hours(seconds) if seconds else '?':>8}{again}")
    again = sum(map(work.has_row, todo))
    of_them = f", {again} of them again" if again else ""
    print(f"\n{len(cells)} runs chosen, {sum(map(work.has_row, cells))} done, {len(todo)} to run{of_them}")
    print(f"time with {args.workers} at once: {time_left(todo, args, work.rows, args.workers)}")


def status(args: Status) -> None:
    work = Workspace(args)
    counts: dict[str, int] = {}
    print(f"{'run':<78}{'state':<14}{'progress':>9}{'NSS':>8}")
    for cell in cells_of(args):
        state = work.state(cell)
        counts[state] = counts.get(state, 0) + 1
        progress = {"percent": "", "nss": ""}
        if state == "done":
            progress = {"percent": "100", "nss": work.rows[cell.run_id]["nss"]}
        elif state in ("running", "interrupted", "failed"):
            progress = read_progress(work.folder(cell) / "log.txt")
        percent = f"{progress['percent']}%" if progress["percent"] else ""
        why = f"  {work.failure_note(cell).read_text().strip()}" if state == "failed" else ""
        print(f"{cell.run_id:<78}{state:<14}{percent:>9}{progress['nss']:>8}{why}")
    print("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))


class Live:
    """A table of what runs, drawn anew in a terminal; elsewhere a line an event and a table every five minutes."""

    def __init__(self, quiet_seconds: float = 300.0):
        self.lines, self.terminal = 0, sys.stdout.isatty()
        self.quiet_seconds, self.last = quiet_seconds, time.time()

    def event(self, text: str) -> None:
        self._erase()
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def table(self, rows: list[tuple[str, dict[str, str]]], footer: str) -> None:
        if not self.terminal and time.time() - self.last < self.quiet_seconds:
            return
        self.last = time.time()
        self._erase()
        lines = [f"{name:<78}{p['percent'] or '0':>4}%{'NSS ' + p['nss']:>12}{p['left']:>10}" for name, p in rows]
        width = shutil.get_terminal_size().columns if self.terminal else 1000
        lines = [line[: width - 1] for line in [*lines, footer]]
        print("\n".join(lines), flush=True)
        self.lines = len(lines) if self.terminal else 0

    def _erase(self) -> None:
        if self.lines:
            print(f"\033[{self.lines}F\033[J", end="")
            self.lines = 0


class Scheduler:
    """What is still to run, what has failed, what can start now; common to both launchers."""

    def __init__(self, work: Workspace, todo: list[Cell], live: Live):
        self.work, self.live, self.waiting = work, live, list(todo)
        self.failures: dict[Cell, int] = {}
        self.failed: list[Cell] = []
        self.total, self.ended = len(todo), 0

    def ready(self) -> Cell | None:
        """The next run whose imitation, if it needs one, has ended."""
        for cell in self.waiting:
            if cell.stage == "imitate" or self.work.summary(cell.imitation):
                self.waiting.remove(cell)
                self.work.failure_note(cell).unlink(missing_ok=True)
                return cell
        return None

    def success(self, cell: Cell) -> None:
        row = self.work.record(cell)
        self.ended += 1
        self.live.event(f"ended    {cell.run_id}: NSS {row['nss']} in {hours(float(row['seconds']))}")

    def failure(self, cell: Cell, how: str, log: str, again: bool = True) -> None:
        """Report it, let it be tried once more; then give it up, and what needs it."""
        self.failures[cell] = self.failures.get(cell, 0) + 1
        again = again and self.failures[cell] < 2
        self.live.event(f"FAILED   {cell.run_id}: {how}{'; once more' if again else ''}\n{log}\n")
        if again:
            self.waiting.insert(0, cell)
            return
        self.give_up(cell, how)
        if cell.stage == "imitate":
            lost = [other for other in self.waiting if other.imitation == cell]
            self.waiting = [other for other in self.waiting if other not in lost]
            for other in lost:
                self.live.event(f"FAILED   {other.run_id}: has no reward to train on")
                self.give_up(other, f"has no reward to train on: {cell.run_id} failed")

    def give_up(self, cell: Cell, why: str) -> None:
        self.failed.append(cell)
        self.work.folder(cell).mkdir(parents=True, exist_ok=True)
        self.work.failure_note(cell).write_text(why + "\n")

    def give_up_waiting(self) -> None:
        """Nothing runs and nothing can start: say so instead of waiting for ever."""
        for cell in self.waiting:
            self.live.event(f"FAILED   {cell.run_id}: the imitation that it needs is gone")
            self.give_up(cell, "the imitation that it needs is gone")
        self.waiting = []

    def footer(self, running: list[Cell], workers: int) -> str:
        left = time_left(self.waiting + running, self.work.grid, self.work.rows, workers)
        return f"{self.ended} of {self.total} ended, {len(self.failed)} failed, time left: {left}"

    def finish(self) -> int:
        """Say how it went; the exit code."""
        for cell in self.failed:
            print(f"failed: {cell.run_id}, log: {self.work.folder(cell) / 'log.txt'}", file=sys.stderr)
        print(f"{self.ended} runs ended, {len(self.failed)} failed; rows: {self.work.results / 'runs.csv'}")
        return 1 if self.failed else 0


def run(args: Run) -> int:
    if args.workers < 0:
        raise UserError("--workers must be at least 1, or 0 for one a core")
    if args.launcher == "ray" and importlib.util.find_spec("ray") is None:
        raise UserError("--launcher ray needs Ray: pip install -r requirements-ray.txt")
    cells = cells_of(args)
    work = Workspace(args)
    env_utils.require_writable(work.results)
    env_utils.require_writable(Path(args.runs))
    todo = work.missing(cells)
    live = Live()
    scheduler = Scheduler(work, todo, live)
    live.event(f"{len(todo)} runs to do")
    if args.launcher == "ray":
        return run_on_ray(args, work, scheduler, live)
    return run_locally(args, work, scheduler, live)


def run_locally(args: Run, work: Workspace, scheduler: Scheduler, live: Live) -> int:
    workers = args.workers or os.cpu_count()
    running: list[Process] = []
    stopping = False

    def stop(*_) -> None:
        nonlocal stopping
        stopping = True

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)
    # What outlived a killed command holds its lock: it takes a worker's place before anything new starts.
    for cell in [cell for cell in scheduler.waiting if work.is_running(cell)]:
        scheduler.waiting.remove(cell)
        running.append(Process(cell, work))
        live.event(f"found    {cell.run_id}, still at work")
    while (running or scheduler.waiting) and not stopping:
        while len(running) < workers and (cell := scheduler.ready()):
            try:
                if work.summary(cell):  # ended, but its row was not written when the command was killed
                    scheduler.success(cell)
                    continue
                running.append(Process(cell, work))
                live.event(f"started  {cell.run_id}")
            except (UserError, OSError) as error:  # one run's trouble is not the grid's
                scheduler.failure(cell, "cannot be started", str(error), again=False)
        if not running and scheduler.waiting:
            scheduler.give_up_waiting()
        for process in [process for process in running if process.ended()]:
            running.remove(process)
            if process.went_well():
                scheduler.success(process.cell)
            else:  # exit code 2 is a mistake that another try does not mend
                mistake = process.popen is not None and process.popen.returncode == 2
                log = tail(process.folder / "log.txt", 15)
                scheduler.failure(process.cell, process.exit_status(), log, again=not mistake)
        rows = [(process.cell.run_id, process.progress()) for process in running]
        live.table(rows, scheduler.footer([process.cell for process in running], workers))
        time.sleep(0.2 if args.scale == "smoke" else 1.0)
    if stopping:
        live.event("stopping: runs save their checkpoints")
        for process in running:
            process.stop()
        while not all(process.ended() for process in running if process.popen):
            time.sleep(0.2)
        left = sum(process.popen is None for process in running)
        note = f"; {left} that another command had started go on" if left else ""
        print(f"stopped{note}; the same command goes on from here", file=sys.stderr)
        return 130
    return scheduler.finish()


# Ray: the same runs as tasks of a cluster. A task gets what it needs as values and gives back files, since nodes may
# share no disk. A task whose node is lost is started again on another one, by Ray, from its beginning.

BROUGHT_BACK = ("config.json", "summary.json", "policy.safetensors", "reward.safetensors")


def run_files(folder: Path) -> dict[str, bytes]:
    """What a run is worth keeping of: all but its checkpoint."""
    names = [folder / name for name in BROUGHT_BACK] + sorted(folder.glob("events.out.tfevents.*"))
    return {path.name: path.read_bytes() for path in names if path.is_file()}


def die_with_parent() -> None:
    """Linux: let the kernel kill this process if its Ray worker is killed, which cannot do it itself then."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def ray_task(command: list[str], reward_run: dict[str, bytes] | None, commit: str) -> dict:
    """On a node: run a script in a temporary folder. Gives its run folder's name and files, or how it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        place = {"PYTHON": sys.executable, "OUT": f"{scratch}/out", "REWARD_RUN": f"{scratch}/reward"}
        for name, content in (reward_run or {}).items():
            (make_folder(Path(place["REWARD_RUN"])) / name).write_bytes(content)
        with open(f"{scratch}/log.txt", "w") as log:
            code = subprocess.run(
                [place.get(part, part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MADAAC_COMMIT": commit},
                preexec_fn=die_with_parent,
            ).returncode
        found = list(Path(place["OUT"]).glob("*/summary.json"))
        log = tail(Path(scratch) / "log.txt", 15)
        if code or not found:
            return {"failed": f"exit code {code}", "log": log, "mistake": code == 2}
        return {"name": found[0].parent.name, "files": run_files(found[0].parent), "log": log}


def connect_to_ray(args: Run):
    """The module, connected to the cluster."""
    import ray

    try:
        if match := re.fullmatch(r"([\w.-]+):(\d+)", args.address):  # Ray itself would try for minutes
            socket.create_connection((match[1], int(match[2])), timeout=10).close()
        ray.init(
            address=args.address,
            # Nodes get this code, the demonstrations too; what runs leave behind stays here.
            runtime_env={"working_dir": str(ROOT), "excludes": ["/runs/", "/.git/", "/.venv/", "/results/", "/docs/"]},
            log_to_driver=False,
            logging_level="warning",
        )
    except OSError as error:
        raise UserError(f"no Ray cluster at --address {args.address}: {error}") from None
    except ValueError as error:
        raise UserError(f"Ray refuses: {error}") from None
    most = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if not 0 < args.cpus_per_run <= most or (args.cpus_per_run > 1 and args.cpus_per_run % 1):
        raise UserError(
            f"--cpus-per-run {args.cpus_per_run:g}: must be above 0, whole if above 1, and at most the {most:g} "
            "of the cluster's largest node"
        )
    return ray


def run_on_ray(args: Run, work: Workspace, scheduler: Scheduler, live: Live) -> int:
    ray = connect_to_ray(args)
    resources = {"num_cpus": args.cpus_per_run}
    if args.memory_per_run:
        resources["memory"] = int(args.memory_per_run * 1e9)
    # Ray itself retries a task whose worker or node has died; a script that fails is the scheduler's business.
    task = ray.remote(max_retries=5, **resources)(ray_task)
    running: dict = {}  # task -> its run, and the lock that keeps other commands from it
    most = args.workers or 10_000  # Ray queues what has no room yet
    commit = env_utils.commit()
    try:
        while running or scheduler.waiting:
            while len(running) < most and (cell := scheduler.ready()):
                if work.summary(cell):
                    scheduler.success(cell)
                    continue
                lock = lock_of(work.folder(cell))
                if not lock:
                    scheduler.failure(cell, "another command is at work on it", "", again=False)
                    continue
                for leftover in [path.parent for path in work.folder(cell).glob("*/config.json")]:
                    put_aside(leftover)  # nodes start from the beginning
                reward_run = run_files(work.script_folder(cell.imitation)) if cell.stage == "retrain" else None
                command = command_of(cell, work, Path("OUT"), Path("REWARD_RUN"))
                command[:2] = ["PYTHON", Path(command[1]).name]  # of the node, in its copy of this code
                command += ["--save-every", str(10**9)]  # a checkpoint on a node would help nobody
                running[task.remote(command, reward_run, commit)] = cell, lock
                live.event(f"started  {cell.run_id}")
            if not running and scheduler.waiting:
                scheduler.give_up_waiting()
                break
            ended, _ = ray.wait(list(running), timeout=1.0) if running else ([], [])
            for reference in ended:
                cell, lock = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    result = {"failed": type(error).__name__, "log": str(error)}
                (work.folder(cell) / "log.txt").write_text(result["log"] + "\n")
                if "failed" in result:
                    lock.close()
                    scheduler.failure(cell, result["failed"], result["log"], again=not result.get("mistake"))
                    continue
                bring_back(work.folder(cell) / result["name"], result["files"])
                lock.close()
                scheduler.success(cell)
            cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
            live.table([], scheduler.footer([cell for cell, _ in running.values()], cpus))
    except KeyboardInterrupt:
        print("stopped, and so are the runs on the cluster; the same command starts those anew", file=sys.stderr)
        return 130
    finally:
        ray.shutdown()
    return scheduler.finish()


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def bring_back(folder: Path, files: dict[str, bytes]) -> None:
    """A run folder out of its files; summary.json comes last, as in a run that was here."""
    make_folder(folder)
    for name in sorted(files, key=lambda name: name == "summary.json"):
        with env_utils.writing(folder / name) as temporary:
            Path(temporary).write_bytes(files[name])


def report(args: Report) -> None:
    import torch

    from reproduce_report import write_report

    torch.set_num_threads(1)  # it counts the parameters of networks: small work, threads would be in each other's way
    for path in write_report(results_folder(args), ROOT / "results" / "paper.csv"):
        print(path)


Command = (
    Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)

if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        command = tyro.cli(Command, description=__doc__)
        sys.exit({Plan: plan, Run: run, Status: status, Report: report}[type(command)](command))
