"""From rows to numbers: which runs are compared, means over runs with intervals, and interquartile means."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from reproduce import UserError
from reproduce.grid import ALGORITHMS, DEMOS, LARGE_TASKS, NSS_GOALS, TASKS, Grid
from reproduce.rows import Row, read_curve, read_paper, read_rows
from reproduce.store import is_current_expert, warn

MIN_RUNS = 3  # fewer runs get no mark and no verdict
PAPER_RUNS = 10
PAPER_TITLES = {"magail": "MA-GAIL", "mairl": "MA-AIRL", "madaac": "MA-DAAC", "madaac_paper": "MA-DAAC"}
BOOTSTRAP_SAMPLES = 2000


class Place(NamedTuple):
    """What runs are averaged over seeds for."""

    stage: str
    task: str
    algorithm: str
    discriminator: str
    n_demos: int


class Value(NamedTuple):
    """A mean over runs with the half width of its 95 % interval, nan for a single run."""

    mean: float
    half: float
    runs: int

    def minus(self, other: "Value") -> "Value":
        """The difference of two independent values."""
        return Value(self.mean - other.mean, math.hypot(self.half, other.half), min(self.runs, other.runs))


def over_runs(values) -> Value:
    """Mean and t interval; nan without values."""
    if not len(values):
        return Value(math.nan, math.nan, 0)
    mean, half = mean_and_t_interval(np.asarray(values, dtype=float))
    return Value(float(mean), float(half), len(values))


def mean_and_t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis and the half width of its 95 % t interval, nan for a single run."""
    runs = len(values)
    if runs < 2:
        return values.mean(axis=0), np.full(values.shape[1:], np.nan)
    half = stats.t.ppf(0.975, runs - 1) * values.std(axis=0, ddof=1) / math.sqrt(runs)
    return values.mean(axis=0), half


def compare(one: Value, other: Value) -> int | None:
    """1 if the first interval lies above the second, -1 if below, 0 if they overlap; None with fewer than 3 runs."""
    if min(one.runs, other.runs) < MIN_RUNS:
        return None
    if abs(one.mean - other.mean) <= one.half + other.half:
        return 0
    return 1 if one.mean > other.mean else -1


class Column(NamedTuple):
    """A column of the paper's tables: the score of one agent, of all who share a reward, or the mean over agents."""

    title: str
    task: str
    agent: str

    def pick(self, row: Row, values: tuple[float, ...]) -> float:
        return values[row.agents.index(self.agent)] if self.agent in row.agents else float(np.mean(values))

    def score(self, row: Row) -> float:
        return self.pick(row, row.scores)

    def nss(self, row: Row) -> float:
        random = self.pick(row, row.random_scores)
        return (self.score(row) - random) / (self.pick(row, row.expert_scores) - random)


COLUMNS = (
    Column("Keep Away, pusher", "keep_away", "pusher_0"),
    Column("Keep Away, reacher", "keep_away", "reacher_0"),
    Column("Cooperative Communication", "cooperative_communication", "all"),
    Column("Cooperative Navigation", "cooperative_navigation", "all"),
    *(Column(title, task, "mean") for task, title in LARGE_TASKS.items()),
)


@dataclass
class Data:
    """The selected runs by place, their curves by run id, the paper's numbers, and what was left out."""

    runs: dict[Place, list[Row]]
    long_runs: dict[Place, list[Row]]
    """runs at the paper's number of episodes of algorithms whose default is another one"""
    curves: dict[str, dict[str, np.ndarray]]
    paper: dict[tuple, tuple[float, float]]
    left_out: list[str]

    def get(self, stage: str, task: str, algorithm: str, discriminator: str, n_demos: int) -> list[Row]:
        kind = discriminator if ALGORITHMS[algorithm].adversarial else "none"
        return self.runs.get(Place(stage, task, algorithm, kind, n_demos), [])

    def nss(self, *place) -> Value:
        return over_runs([row.nss for row in self.get(*place)])

    def algorithms(self, stage: str) -> list[str]:
        """The paper's three and behavioural cloning, and others if there are runs."""
        measured = {place.algorithm for place in self.runs if place.stage == stage}
        always = {"magail", "mairl", "madaac"} | ({"bc"} if stage == "imitate" else set())
        return [name for name in ALGORITHMS if name in measured | always]

    def paper_score(self, stage: str, column: Column, algorithm: str, discriminator: str, n_demos: int) -> Value:
        key = (stage, column.task, column.agent, algorithm, discriminator, n_demos)
        if key not in self.paper:
            raise UserError(f"results/paper.csv has no line for {', '.join(map(str, key))}")
        return Value(*self.paper[key], PAPER_RUNS)

    def paper_nss(self, stage: str, columns: list[Column], *place) -> Value:
        """By the paper's own expert and random scores, averaged over the columns of a task."""
        means, halves = [], []
        for column in columns:
            score = self.paper_score(stage, column, *place)
            expert, random = (self.paper_score(stage, column, name, "", 0).mean for name in ("expert", "random"))
            means.append((score.mean - random) / (expert - random))
            halves.append(score.half / abs(expert - random))
        return Value(float(np.mean(means)), float(np.mean(halves)), PAPER_RUNS)

    def to_goal(self, rows: list[Row], unit: str) -> list[float]:
        """Episodes or seconds until the first point of each curve at the goal, inf if there is none."""
        found = []
        for curve in [self.curves[row.run_id] for row in rows if len(self.curves[row.run_id]["nss"])]:
            there = np.flatnonzero(curve["nss"] >= NSS_GOALS[rows[0].task])
            found.append(float(curve[unit][there[0]]) if len(there) else math.inf)
        return found


def most_common_episodes(rows: list[Row]) -> list[Row]:
    """Runs with the number of episodes (and of the reward's episodes) that most have; the larger one if tied."""
    counts = Counter((row.episodes, row.reward_episodes) for row in rows)
    kept = max(counts, key=lambda episodes: (counts[episodes], episodes))
    return [row for row in rows if (row.episodes, row.reward_episodes) == kept]


def load(grid: Grid, paper: Path) -> Data:
    """Read all rows and curves. No rule of the selection looks at a score."""
    results = grid.results_folder
    if not (results / "runs.csv").exists():
        raise UserError(f"there is no {results / 'runs.csv'}: `python -m reproduce run` writes it")
    reasons, groups = defaultdict(list), defaultdict(list)
    for row in read_rows(results / "runs.csv").values():
        if not is_current_expert(row, row.expert_scores):
            reasons["their expert has been replaced"].append(row)
        elif (row.arguments, row.reward_arguments) != grid.extra_arguments(row.stage, row.algorithm):
            reasons["they have other extra arguments"].append(row)
        elif row.n_demos not in DEMOS:
            reasons["the paper has no such number of demonstrations"].append(row)
        else:
            place = Place(row.stage, row.task, row.algorithm, row.discriminator, row.n_demos)
            groups[row.budget, place].append(row)
    selected: dict[str, dict] = {"default": {}, "paper": {}}
    for (budget, place), rows in groups.items():
        kept = most_common_episodes(rows)
        selected[budget][place] = sorted(kept, key=lambda row: row.seed)
        reasons["other runs of the same setting have another number of episodes"] += [r for r in rows if r not in kept]
    left_out = []
    for reason, rows in reasons.items():
        tasks = Counter(row.task for row in rows)
        which = ", ".join(f"{task} {tasks[task]}" for task in TASKS if tasks[task])
        left_out += [f"{len(rows)} rows are left out because {reason}: {which}."] if rows else []
    used = [row for places in selected.values() for rows in places.values() for row in rows]
    curves = {row.run_id: load_curve(results / "curves" / f"{row.run_id}.csv") for row in used}
    return Data(selected["default"], selected["paper"], curves, read_paper(paper), left_out)


def load_curve(path: Path) -> dict[str, np.ndarray]:
    """The columns of a curve as arrays; a damaged or missing file is reported and counts as empty."""
    try:
        points = read_curve(path)
    except UserError as error:
        warn(f"{error}; figures and times do without this run")
        points = []
    return {name: np.array([point[name] for point in points]) for name in ("episodes", "seconds", "nss", "pcc")}


def mean_curve(curves: list[dict[str, np.ndarray]], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A common axis, the mean over runs and the half width of its 95 % interval, where all runs have values."""
    lines = [(curve[x][there], curve[y][there]) for curve in curves if (there := ~np.isnan(curve[y])).any()]
    if not lines:
        return np.empty(0), np.empty(0), np.empty(0)
    axis = np.unique(np.concatenate([places for places, _ in lines]))
    first, last = max(places[0] for places, _ in lines), min(places[-1] for places, _ in lines)
    axis = axis[(axis >= first) & (axis <= last)]
    return axis, *mean_and_t_interval(np.stack([np.interp(axis, *line) for line in lines]))


def interquartile_mean(scores: np.ndarray) -> float:
    """Mean without the lowest and the highest quarter of all values."""
    return float(stats.trim_mean(scores, 0.25, axis=None))


def bootstrap_interval(scores: np.ndarray, samples: int = BOOTSTRAP_SAMPLES) -> tuple[float, float]:
    """95 % interval of the interquartile mean of [runs, settings]: runs are drawn anew within each setting."""
    runs, settings = scores.shape
    drawn = np.random.default_rng(1).integers(runs, size=(samples, runs, settings))
    resampled = np.take_along_axis(scores[None], drawn, axis=1).reshape(samples, -1)
    means = stats.trim_mean(resampled, 0.25, axis=1)
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def aggregate(data: Data, stage: str, demos: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Final NSS [runs, settings] by algorithm, decentralized.

    Settings are those that the paper's three algorithms all have, each with as many runs as the smallest has. Another
    algorithm takes part if it has as many runs of all these settings.
    """
    paper = ("magail", "mairl", "madaac")
    settings = [(task, n) for task in TASKS for n in demos]
    found = {
        name: {place: data.get(stage, place[0], name, "decentralized", place[1]) for place in settings}
        for name in ALGORITHMS
    }
    settings = [place for place in settings if all(found[name][place] for name in paper)]
    if not settings:
        return {}
    runs = min(len(found[name][place]) for name in paper for place in settings)
    return {
        name: np.array([[row.nss for row in places[place][:runs]] for place in settings]).T
        for name, places in found.items()
        if all(len(places[place]) >= runs for place in settings)
    }
