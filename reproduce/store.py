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
from pathlib import Path

from madaac_utils.files import EXPERTS, UserError, read_json, sha256
from madaac_utils.paper import paper_episodes
from reproduce.grid import EPISODE_LENGTH, Cell, Grid, episodes_of
from reproduce.rows import CURVE_COLUMNS, Row, read_rows, write_rows, write_table

CURVE_POINTS = 300  # at most so many points per curve on disk


@functools.cache
def warn(text: str) -> None:
    """Print a warning on stderr, once."""
    print(f"warning: {text}", file=sys.stderr)


def expert_scores(task: str, who: str = "expert") -> dict[str, float]:
    """Scores by agent of today's expert, or of random play; empty if the task has no expert."""
    path = EXPERTS / task / "card.json"
    card = read_json(path, "the card of an expert")["scores"] if path.is_file() else {}
    return {agent: score["mean"] for agent, score in card.get(who, {}).items()}


def is_current_expert(run: Cell | Row, scores: tuple[float, ...]) -> bool:
    """Whether these are the scores of the expert that the task has today, or of demonstrations of the user's own."""
    today = expert_scores(run.task)
    if "--demos" in f"{run.arguments} {run.reward_arguments}" or not today:
        return True
    same = [math.isclose(one, other, abs_tol=1e-3) for one, other in zip(today.values(), scores)]
    return len(today) == len(scores) and all(same)


def read_config(folder: Path) -> dict:
    """config.json of a run; empty if it is damaged, which is reported."""
    try:
        config = read_json(folder / "config.json", "the configuration of a run")
        return config | {"args": dict(config["args"])}
    except (UserError, KeyError, TypeError, ValueError) as error:
        warn(f"{folder / 'config.json'} is not the configuration of a run ({error})")
        return {}


def read_summary(folder: Path | None) -> dict | None:
    """Columns of the row of a run that has ended; None if it has not, or if a file is damaged, which is reported."""
    if folder is None or not (folder / "summary.json").exists() or not (config := read_config(folder)):
        return None
    try:
        summary = read_json(folder / "summary.json", "the summary of a run")
        stochastic, greedy, agents = summary["stochastic"], summary["greedy"], tuple(summary["expert"])
        last, pcc = (summary.get(name) for name in ("nss_last_500_training_episodes", "pcc"))
        return {
            "episodes": int(summary["episodes"]),
            "rl": summary.get("rl", ""),
            "agents": agents,
            "scores": tuple(float(stochastic["scores"][agent]["mean"]) for agent in agents),
            "score_intervals": tuple(float(stochastic["scores"][agent]["interval_95"]) for agent in agents),
            "greedy_scores": tuple(float(greedy["scores"][agent]["mean"]) for agent in agents),
            "expert_scores": tuple(float(summary["expert"][agent]) for agent in agents),
            "random_scores": tuple(float(summary["random"][agent]) for agent in agents),
            "nss": float(stochastic["nss"]),
            "nss_greedy": float(greedy["nss"]),
            "nss_last_500": math.nan if last is None else float(last),
            "pcc": math.nan if pcc is None else float(pcc),
            "seconds": float(summary["seconds"]),
            "commit": str(config.get("commit", "unknown")),
        }
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        warn(f"{folder / 'summary.json'} is not the summary of a run that has ended ({error!r})")
        return None


def curve_of(folder: Path) -> list[dict]:
    """NSS, PCC and seconds against episodes, from the TensorBoard events of a run folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    tags, charts = events.Tags()["scalars"], {}
    for name in CURVE_COLUMNS:
        points = events.Scalars(f"charts/{name}") if f"charts/{name}" in tags else []
        charts[name] = {point.step: point.value for point in points}
    found = {}
    for step, nss in sorted(charts["nss"].items()):
        episodes, seconds = (round(charts[name][step]) for name in ("episodes", "seconds"))
        pcc = charts["pcc"].get(step, math.nan)
        found[episodes] = {"episodes": episodes, "seconds": seconds, "nss": nss, "pcc": pcc}
    return list(found.values())


def read_progress(folder: Path | None) -> dict[str, float]:
    """The fraction of the steps that are done, the last NSS and the seconds that are left; empty if unknown."""
    config = read_config(folder) if folder else {}
    total = config["args"].get("total_timesteps") if config else 0
    curve = curve_of(folder) if total else []
    if not curve:
        return {}
    done = min(1.0, curve[-1]["episodes"] * EPISODE_LENGTH / total)
    return {"done": done, "nss": curve[-1]["nss"], "left": curve[-1]["seconds"] * (1 - done) / done}


def lock_run(folder: Path, tries: int = 10):
    """The open and locked lock file of a cell, to be handed to its script; None if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "a")  # noqa: SIM115
    for _ in range(tries):  # `is_running` holds it for an instant
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(0.05)
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
        """The newest folder that the script has made."""
        found = [path.parent for path in self.folder(cell).glob("*/config.json")]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def summary(self, cell: Cell) -> dict | None:
        """Columns of the row of a run that has ended with the episodes, expert and reward that are wanted today."""
        columns = read_summary(self.run_folder(cell))
        if not columns or columns["episodes"] < (episodes_of(cell, self.grid) or 0):
            return None
        current = is_current_expert(cell, columns["expert_scores"]) and self.has_current_inputs(cell)
        return columns if current else None

    def has_current_inputs(self, cell: Cell) -> bool:
        """Whether a run began with the reward that its imitation has now, or with its task's demonstrations."""
        config = read_config(self.run_folder(cell))
        args = config.get("args", {})
        if cell.stage == "retrain":
            imitation = self.run_folder(cell.imitation)
            path, digest = imitation and imitation / "reward.safetensors", args.get("reward_sha256")
        else:
            path, digest = EXPERTS / cell.task / "demos.npz", not args.get("demos") and config.get("demos_sha256")
        return not digest or not path or not path.is_file() or sha256(path) == digest

    def current_row(self, cell: Cell) -> Row | None:
        """The row of a cell, unless it was measured with an expert that has been replaced."""
        row = self.rows.get(cell.run_id)
        return row if row and is_current_expert(row, row.expert_scores) else None

    def is_done(self, cell: Cell) -> bool:
        """Whether there is a row with today's expert and at least the episodes that are wanted."""
        row = self.current_row(cell)
        if row is None or row.episodes < (episodes_of(cell, self.grid) or 0):
            return False
        return cell.stage == "imitate" or row.reward_episodes >= (episodes_of(cell.imitation, self.grid) or 0)

    def is_running(self, cell: Cell) -> bool:
        """Whether a process holds the cell's lock; a script inherits it and holds it as long as it lives."""
        if not (self.folder(cell) / "lock").exists():
            return False
        lock = lock_run(self.folder(cell), tries=1)
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
        folder = self.run_folder(cell)
        return "interrupted" if folder and (folder / "checkpoint.pt").is_file() else "waiting"

    def missing(self, cells: list[Cell]) -> list[Cell]:
        """What has to be run, in order, with the imitations that retrainings need a reward from."""
        todo: dict[Cell, None] = {}
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
        reward = read_summary(self.run_folder(cell.imitation)) if cell.stage == "retrain" else None
        row = Row(run_id=cell.run_id, **vars(cell), **columns, reward_episodes=reward["episodes"] if reward else 0)
        before = self.current_row(cell)
        if before and before.episodes > row.episodes:  # it was run again for its reward only
            return before
        curve = curve_of(folder)
        curve = curve[:: -(math.ceil(len(curve) / CURVE_POINTS) or 1)][::-1]  # thinned; the last point stays
        write_table(self.results / "curves" / f"{cell.run_id}.csv", CURVE_COLUMNS, curve)
        descriptor = os.open(self.results, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # several commands may run at once
        try:
            self.rows = read_rows(self.results / "runs.csv") | {cell.run_id: row}
            write_rows(self.results / "runs.csv", self.rows)
        finally:
            os.close(descriptor)
        wanted = episodes_of(cell, self.grid)
        if wanted is None or self.grid.scale == "smoke" or row.episodes >= paper_episodes(cell.task):
            (folder / "checkpoint.pt").unlink(missing_ok=True)  # nobody will continue this run
        return row

    def estimate_seconds(self, cells: list[Cell]) -> float:
        """How long these runs take, from rows of the same algorithm and task; nan if a cell has no such row."""
        total = 0.0
        for cell in cells:
            place, wanted = (cell.stage, cell.task, cell.algorithm), episodes_of(cell, self.grid)
            rows = [row for row in self.rows.values() if (row.stage, row.task, row.algorithm) == place]
            times = [row.seconds * (wanted / row.episodes if wanted else 1) for row in rows if row.seconds > 0]
            total += sum(times) / len(times) if times else math.nan
        return total
