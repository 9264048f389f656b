"""Runs on disk: the state of each cell, its row and its curve.

<runs>/<run id>/ holds the run folder that the script made, log.txt with the script's output, and a lock that is held
while the script runs. A retraining also has reward.json, which names the reward that it was started with.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from reproduce import EXPERTS, UserError, read_json, writing
from reproduce.grid import NUM_AGENTS, PAPER_EPISODES, PAPER_LEARNER, Cell, Grid, episodes_of
from reproduce.rows import CURVE_COLUMNS, Row, read_rows, write_rows, write_table

CURVE_POINTS = 300  # at most so many points per curve on disk
warnings: set[str] = set()


def warn(text: str) -> None:
    """Print a warning on stderr, once."""
    if text not in warnings:
        warnings.add(text)
        print(f"warning: {text}", file=sys.stderr)


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_current_expert(run: Cell | Row, expert_scores: tuple[float, ...]) -> bool:
    """Whether these are the scores of the expert that the task has today, or of demonstrations of the user's own."""
    path = EXPERTS / run.task / "card.json"
    if "--demos" in f"{run.arguments} {run.reward_arguments}" or not path.is_file():
        return True
    card = read_json(path, "the card of an expert")
    scores = [score["mean"] for score in card["scores"]["expert"].values()]
    same = [math.isclose(one, other, abs_tol=1e-3) for one, other in zip(scores, expert_scores)]
    return len(scores) == len(expert_scores) and all(same)


def read_or_warn(path: Path, what: str) -> dict:
    """A JSON object; empty if there is no such file, or if it is damaged, which is reported."""
    try:
        return read_json(path, what) if path.exists() else {}
    except UserError as error:
        warn(str(error))
        return {}


def read_config(folder: Path) -> dict:
    """config.json of a run; empty if it is damaged."""
    path = folder / "config.json"
    config = read_or_warn(path, "the configuration of a run")
    if isinstance(config.get("args"), dict):
        return config
    warn(f"{path} holds no arguments of a run")
    return {}


def read_summary(folder: Path) -> dict | None:
    """Columns of the row of a run that has ended; None if it has not, or if a file is damaged."""
    path = folder / "summary.json"
    config, summary = read_config(folder), read_or_warn(path, "the summary of a run")
    if not config or not path.exists():
        return None
    try:
        agents, stochastic, greedy = tuple(summary["expert"]), summary["stochastic"], summary["greedy"]
        optional = [summary.get(name) for name in ("nss_last_500_training_episodes", "pcc")]
        last, pcc = (math.nan if value is None else float(value) for value in optional)
        return {
            "episodes": int(summary["episodes"]),
            "rl": summary.get("rl", ""),
            "agents": agents,
            "scores": tuple(float(stochastic["scores"][agent]["mean"]) for agent in agents),
            "score_intervals": tuple(float(stochastic["scores"][agent]["interval_95"]) for agent in agents),
            "greedy_scores": tuple(float(greedy["scores"][agent]["mean"]) for agent in agents),
            "expert_scores": tuple(float(summary["expert"][agent]) for agent in agents),
            "random_scores": tuple(float(summary["random"][agent]) for agent in agents),
            **{"nss": float(stochastic["nss"]), "nss_greedy": float(greedy["nss"]), "nss_last_500": last, "pcc": pcc},
            **{"seconds": round(summary["seconds"]), "commit": str(config.get("commit", "unknown"))},
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        warn(f"{path} is not the summary of a run that has ended ({error!r})")
        return None


def has_current_demos(config: dict) -> bool:
    """Whether a run learns from the demonstrations that its task has today, or from a file of the user's own."""
    demos = EXPERTS / config["args"].get("env_id", "") / "demos.npz"
    if config["args"].get("demos") or "demos_sha256" not in config or not demos.is_file():
        return True
    return config["demos_sha256"] == file_sha256(demos)


class Events:
    """The TensorBoard scalars of a run folder; `reload` reads what has been added."""

    def __init__(self, folder: Path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.folder, self.accumulator = folder, EventAccumulator(str(folder), {"scalars": 0})

    def reload(self) -> "Events":
        self.accumulator.Reload()
        return self

    def scalars(self, name: str) -> dict[int, float]:
        """Values by step."""
        if name not in self.accumulator.Tags()["scalars"]:
            return {}
        return {point.step: point.value for point in self.accumulator.Scalars(name)}

    def progress(self) -> dict[str, float]:
        """The fraction of the steps that are done, the last NSS and the seconds that are left; nan if unknown."""
        nss, seconds = self.scalars("charts/nss"), self.scalars("charts/seconds")
        total = read_config(self.folder).get("args", {}).get("total_timesteps")
        if not nss or not total:
            return dict.fromkeys(("done", "nss", "left"), math.nan)
        step = max(nss)
        done = min(1.0, step / total)
        return {"done": done, "nss": nss[step], "left": seconds.get(step, math.nan) * (1 - done) / done}

    def curve(self) -> list[dict]:
        """NSS, PCC and seconds against episodes, thinned; the last point is always there."""
        nss, pcc, seconds, episodes = (self.scalars(f"charts/{name}") for name in ("nss", "pcc", "seconds", "episodes"))
        points = {}
        for step in sorted(nss.keys() & episodes.keys()):
            values = {"seconds": round(seconds.get(step, 0)), "nss": nss[step], "pcc": pcc.get(step, math.nan)}
            points[round(episodes[step])] = {"episodes": round(episodes[step]), **values}
        rows = list(points.values())
        stride = -(-len(rows) // CURVE_POINTS) or 1
        return rows[::-1][::stride][::-1]


def lock_run(folder: Path, patience: float = 0.5):
    """The open and locked lock file of a cell, to be handed to its script; None if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "a")  # noqa: SIM115
    give_up = time.time() + patience  # `status` holds it for an instant
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.time() > give_up:
                lock.close()
                return None
            time.sleep(0.05)


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
        folder = self.run_folder(cell)
        columns = read_summary(folder) if folder else None
        if not columns or columns["episodes"] < (episodes_of(cell, self.grid) or 0):
            return None
        current = is_current_expert(cell, columns["expert_scores"]) and self.has_current_reward(cell)
        return columns if current else None

    def reward(self, cell: Cell) -> dict:
        """The hash and the episodes of the reward that a retraining was started with."""
        return read_or_warn(self.folder(cell) / "reward.json", "the record of a reward")

    def has_current_reward(self, cell: Cell) -> bool:
        """Whether a retraining was started with the reward that its imitation has today."""
        imitation = self.run_folder(cell.imitation) if cell.stage == "retrain" else None
        if not imitation or not (imitation / "reward.safetensors").is_file():
            return True
        return self.reward(cell).get("sha256") == file_sha256(imitation / "reward.safetensors")

    def note_reward(self, cell: Cell, imitation: Path) -> None:
        """Write down which reward a retraining starts with."""
        content = {"sha256": file_sha256(imitation / "reward.safetensors"), "run": imitation.name}
        content["episodes"] = (read_summary(imitation) or {"episodes": 0})["episodes"]
        with writing(self.folder(cell) / "reward.json") as temporary:
            temporary.write_text(json.dumps(content) + "\n")

    def current_row(self, cell: Cell) -> Row | None:
        """The row of a cell, unless it was measured with an expert that is no longer there."""
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
        with contextlib.suppress(FileNotFoundError), open(self.folder(cell) / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

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

    def set_aside(self, folder: Path) -> None:
        """Move a run folder that can no longer be used out of the way; nothing is deleted."""
        aside = self.grid.runs_folder / "set_aside"
        aside.mkdir(parents=True, exist_ok=True)
        folder.rename(aside / f"{folder.parent.name}__{folder.name}__{time.time_ns()}")

    def record(self, cell: Cell) -> Row:
        """Write the row and the curve of a run that has ended."""
        folder, columns = self.run_folder(cell), self.summary(cell)
        reward_episodes = self.reward(cell).get("episodes", 0) if cell.stage == "retrain" else 0
        row = Row(run_id=cell.run_id, **vars(cell), **columns, reward_episodes=reward_episodes)
        before = self.current_row(cell)
        if before and before.episodes > row.episodes:  # it was run again for its reward only
            return before
        curve = self.results / "curves" / f"{cell.run_id}.csv"
        write_table(curve, list(CURVE_COLUMNS), Events(folder).reload().curve())
        with locked(self.results):  # several commands may run at once
            self.rows = read_rows(self.results / "runs.csv") | {cell.run_id: row}
            write_rows(self.results / "runs.csv", self.rows)
        wanted = episodes_of(cell, self.grid)
        if wanted is None or self.grid.scale == "smoke" or row.episodes >= PAPER_EPISODES[cell.task]:
            (folder / "checkpoint.pt").unlink(missing_ok=True)  # nobody will continue this run
        return row

    def estimate_seconds(self, cell: Cell) -> float:
        """From rows of the same learner, on the same task or on one with a similar number of agents; nan if none."""
        learner = PAPER_LEARNER[cell.task] if cell.stage == "retrain" else cell.algorithm
        wanted, agents = episodes_of(cell, self.grid), NUM_AGENTS[cell.task]
        found = defaultdict(list)
        for row in self.rows.values():
            if (row.stage, row.rl or row.algorithm) == (cell.stage, learner) and (wanted or row.budget == "default"):
                share = wanted / max(row.episodes, 1) if wanted else 1.0
                distance = (row.task != cell.task, abs(NUM_AGENTS[row.task] - agents))
                found[distance].append(row.seconds * share * agents / NUM_AGENTS[row.task])
        nearest = found[min(found)] if found else [math.nan]
        return sum(nearest) / len(nearest)


@contextlib.contextmanager
def locked(folder: Path):
    """Let one process at a time into this block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def as_hours(seconds: float) -> str:
    if math.isnan(seconds) or seconds < 100:
        return "?" if math.isnan(seconds) else f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def total_time(cells: list[Cell], work: Workspace, workers: int) -> str:
    """An estimate for all cells together, in words."""
    estimates = [work.estimate_seconds(cell) for cell in cells]
    known = [seconds for seconds in estimates if not math.isnan(seconds)]
    unknown = f"{len(estimates) - len(known)} runs of unknown length" if len(known) < len(estimates) else ""
    total = f"about {as_hours(sum(known) / workers)}" if known or not cells else ""
    return " plus ".join(filter(None, (total, unknown)))
