"""Runs on disk: the state of each cell, its row and its curve.

<runs>/<run id>/ holds the run folder that the script made, log.txt with the script's output, and a lock that is held
while the script runs.
"""

import fcntl
import functools
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from madaac_utils.files import EXPERTS, UserError, read_json, sha256
from reproduce.grid import Cell, Grid, episodes_of
from reproduce.rows import CURVE_COLUMNS, Row, read_rows, write_rows, write_table

CURVE_POINTS = 300  # at most so many points per curve on disk


@functools.cache
def warn(text: str) -> None:
    """Print a warning on stderr, once."""
    print(f"warning: {text}", file=sys.stderr)


def expert_scores(task: str, who: str = "expert", what: str = "mean") -> dict[str, float]:
    """Scores by agent of today's expert, or of random play, or their "interval_95"; empty if there is no expert."""
    path = EXPERTS / task / "card.json"
    card = read_json(path, "the card of an expert")["scores"] if path.is_file() else {}
    return {agent: score[what] for agent, score in card.get(who, {}).items()}


def is_current_expert(run: Cell | Row, scores: tuple[float, ...]) -> bool:
    """Whether these are the scores of the expert that the task has today, or of demonstrations of the user's own."""
    today = expert_scores(run.task).values()
    if not today or "--demos" in f"{run.arguments} {run.reward_arguments}":
        return True
    same = [math.isclose(one, other, abs_tol=1e-3) for one, other in zip(today, scores)]
    return len(today) == len(scores) and all(same)


def read_run_file(folder: Path, name: str, parse: Callable[[dict], dict]) -> dict:
    """What `parse` makes of a JSON file of a run; empty if there is none or if it is damaged, which is reported."""
    if not (folder / name).is_file():
        return {}
    try:
        return parse(read_json(folder / name, "a file of a run"))
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        warn(f"{folder / name} is damaged, so that this run does not count ({error!r})")
        return {}


def read_config(folder: Path) -> dict:
    return read_run_file(folder, "config.json", lambda config: config | {"args": dict(config["args"])})


def summary_columns(summary: dict) -> dict:
    """The columns of a row that summary.json holds."""
    agents = tuple(summary["expert"])

    def scores(policies: str, what: str) -> tuple[float, ...]:
        return tuple(float(summary[policies]["scores"][agent][what]) for agent in agents)

    last, pcc = (summary.get(name) for name in ("nss_last_500_training_episodes", "pcc"))
    return {
        "episodes": int(summary["episodes"]),
        "rl": summary.get("rl", ""),
        "agents": agents,
        "scores": scores("stochastic", "mean"),
        "score_intervals": scores("stochastic", "interval_95"),
        "greedy_scores": scores("greedy", "mean"),
        "expert_scores": tuple(float(summary["expert"][agent]) for agent in agents),
        "random_scores": tuple(float(summary["random"][agent]) for agent in agents),
        "nss": float(summary["stochastic"]["nss"]),
        "nss_greedy": float(summary["greedy"]["nss"]),
        "nss_last_500": math.nan if last is None else float(last),
        "pcc": math.nan if pcc is None else float(pcc),
        "seconds": float(summary["seconds"]),
    }


def is_unchanged(path: Path, digest: str | None) -> bool:
    """Whether a file is the one that a run began with, as far as the run has noted it."""
    return not digest or (path.is_file() and sha256(path) == digest)


def curve_of(folder: Path) -> list[dict]:
    """NSS, PCC and seconds against episodes, from the TensorBoard events of a run folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    charts = {name: {} for name in CURVE_COLUMNS}
    for name in CURVE_COLUMNS:
        if f"charts/{name}" in events.Tags()["scalars"]:
            charts[name] = {point.step: point.value for point in events.Scalars(f"charts/{name}")}
    found = {}
    for step, nss in sorted(charts["nss"].items()):
        episodes, seconds = (round(charts[name][step]) for name in ("episodes", "seconds"))
        pcc = charts["pcc"].get(step, math.nan)
        found[episodes] = {"episodes": episodes, "seconds": seconds, "nss": nss, "pcc": pcc}
    return list(found.values())


def lock_run(folder: Path):
    """The open and locked lock file of a cell, to be handed to its script; None if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    except BlockingIOError:
        lock.close()
        return None


class Workspace:
    """The runs and results of a grid."""

    def __init__(self, grid: Grid):
        self.grid, self.results = grid, grid.results_folder
        self.rows = read_rows(self.results / "runs.csv")

    def folder(self, cell: Cell) -> Path:
        return self.grid.runs_folder / cell.run_id

    def failure_note(self, cell: Cell) -> Path:
        """Holds the reason why a run was given up, until it is tried again."""
        return self.folder(cell) / "failed.txt"

    def run_folder(self, cell: Cell) -> Path | None:
        """The folder that the script has made, if it can be used today."""
        folders = [path.parent for path in self.folder(cell).glob("*/config.json")]
        return next((folder for folder in folders if self.is_usable(cell, read_config(folder))), None)

    def is_usable(self, cell: Cell, config: dict) -> bool:
        """Whether a run began with the reward that its imitation has now, or with its task's demonstrations."""
        if not config:
            return False
        args = config["args"]
        if cell.stage == "retrain":
            folder = self.run_folder(cell.imitation)
            return folder is not None and is_unchanged(folder / "reward.safetensors", args.get("reward_sha256"))
        own_demos = bool(args.get("demos"))
        return own_demos or is_unchanged(EXPERTS / cell.task / "demos.npz", config.get("demos_sha256"))

    def summary(self, cell: Cell) -> dict:
        """Columns of the row of a run that has ended with today's expert and the episodes that are wanted."""
        folder = self.run_folder(cell)
        columns = read_run_file(folder, "summary.json", summary_columns) if folder else {}
        if not columns or columns["episodes"] < episodes_of(cell, self.grid):
            return {}
        return columns if is_current_expert(cell, columns["expert_scores"]) else {}

    def current_row(self, cell: Cell) -> Row | None:
        """The row of a cell, unless it was measured with an expert that has been replaced."""
        row = self.rows.get(cell.run_id)
        return row if row and is_current_expert(row, row.expert_scores) else None

    def is_done(self, cell: Cell) -> bool:
        """Whether there is a row with today's expert and at least the episodes that are wanted."""
        row = self.current_row(cell)
        if row is None or row.episodes < episodes_of(cell, self.grid):
            return False
        return cell.stage == "imitate" or row.reward_episodes >= episodes_of(cell.imitation, self.grid)

    def is_running(self, cell: Cell) -> bool:
        """Whether a process holds the cell's lock; a script inherits it and holds it as long as it lives."""
        if not (self.folder(cell) / "lock").exists():
            return False
        lock = lock_run(self.folder(cell))
        if lock:
            lock.close()
        return lock is None

    def state(self, cell: Cell) -> str:
        """done, ended (has no row yet), running, failed, interrupted or waiting"""
        if self.is_done(cell):
            return "done"
        if self.summary(cell):
            return "ended"
        if self.is_running(cell):
            return "running"
        if self.failure_note(cell).is_file():
            return "failed"
        return "interrupted" if list(self.folder(cell).glob("*/checkpoint.pt")) else "waiting"

    def missing(self, cells: list[Cell]) -> list[Cell]:
        """What has to be run, in order, with the imitations that retrainings need a reward from."""
        todo = {}
        for cell in cells:
            if self.is_done(cell):
                continue
            if cell.stage == "retrain" and not self.summary(cell.imitation):  # a row alone holds no reward
                todo[cell.imitation] = None
            todo[cell] = None
        return list(todo)

    def set_aside(self, cell: Cell) -> None:
        """Move run folders that can no longer be used out of the way; nothing is deleted."""
        aside = self.grid.runs_folder / "set_aside"
        aside.mkdir(parents=True, exist_ok=True)
        for config in list(self.folder(cell).glob("*/config.json")):
            config.parent.rename(aside / f"{cell.run_id}__{config.parent.name}__{time.time_ns()}")

    def record(self, cell: Cell) -> Row:
        """Write the row and the curve of a run that has ended."""
        folder, columns = self.run_folder(cell), self.summary(cell)
        columns["commit"] = str(read_config(folder).get("commit", "unknown"))
        reward = self.summary(cell.imitation) if cell.stage == "retrain" else {}
        row = Row(run_id=cell.run_id, **vars(cell), **columns, reward_episodes=reward.get("episodes", 0))
        before = self.current_row(cell)
        if before and before.episodes > row.episodes:  # it was run again for its reward only
            return before
        curve = curve_of(folder)
        step = max(1, math.ceil(len(curve) / CURVE_POINTS))
        curve = curve[::-step][::-1]  # from the end, so that the last point stays
        write_table(self.results / "curves" / f"{cell.run_id}.csv", CURVE_COLUMNS, curve)
        descriptor = os.open(self.results, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # several commands may run at once
        try:
            self.rows = read_rows(self.results / "runs.csv") | {cell.run_id: row}
            write_rows(self.results / "runs.csv", self.rows)
        finally:
            os.close(descriptor)
        if not self.grid.episodes:
            (folder / "checkpoint.pt").unlink(missing_ok=True)  # the run has its full budget
        return row

    def estimate_seconds(self, cell: Cell) -> float:
        """How long a run takes, from rows of the same algorithm and task, with the same arguments if there are any."""
        wanted, place = episodes_of(cell, self.grid), (cell.stage, cell.task, cell.algorithm)
        rows = [row for row in self.rows.values() if (row.stage, row.task, row.algorithm) == place and row.seconds > 0]
        rows = [row for row in rows if row.arguments == cell.arguments] or rows
        times = [row.seconds * (wanted / row.episodes if wanted else 1) for row in rows]
        return sum(times) / len(times) if times else math.nan
