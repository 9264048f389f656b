"""From rows to numbers: which rows count, means over runs with intervals, and interquartile means."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from madaac_utils.files import UserError
from reproduce.grid import ALGORITHMS, DEMOS, LARGE_TASKS, TASKS, Grid, make_cell
from reproduce.rows import Row, read_curve, read_paper, read_rows
from reproduce.store import is_current_expert, warn

MIN_RUNS = 3  # fewer runs get no mark and no verdict
PAPER_RUNS = 10
PAPER_TITLES = {"magail": "MA-GAIL", "mairl": "MA-AIRL", "madaac": "MA-DAAC", "madaac_paper": "MA-DAAC"}
NSS_GOALS = dict.fromkeys(TASKS, 0.9) | {"cooperative_communication": 0.7}  # for sample efficiency
GOALS = "NSS 0.9 (Cooperative Communication: 0.7)"
BOOTSTRAP_SAMPLES = 2000


class Value(NamedTuple):
    """A mean over runs with the half width of its 95 % t interval, nan for a single run."""

    mean: float
    half: float
    runs: int

    def minus(self, other: "Value") -> "Value":
        """The difference of two independent values."""
        return Value(self.mean - other.mean, math.hypot(self.half, other.half), min(self.runs, other.runs))


def mean_and_t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis and the half width of its 95 % t interval, nan for a single run."""
    runs = len(values)
    if runs < 2:
        return values.mean(axis=0), np.full(values.shape[1:], np.nan)
    half = stats.t.ppf(0.975, runs - 1) * values.std(axis=0, ddof=1) / math.sqrt(runs)
    return values.mean(axis=0), half


def over_runs(values: list[float]) -> Value:
    """Mean and interval; nan without values."""
    if not values:
        return Value(math.nan, math.nan, 0)
    mean, half = mean_and_t_interval(np.array(values, dtype=float))
    return Value(float(mean), float(half), len(values))


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

    def pick(self, scores: dict[str, float]) -> float:
        return scores[self.agent] if self.agent in scores else float(np.mean(list(scores.values())))

    def score(self, row: Row) -> float:
        return self.pick(dict(zip(row.agents, row.scores)))

    def nss(self, row: Row) -> float:
        expert, random = (self.pick(dict(zip(row.agents, s))) for s in (row.expert_scores, row.random_scores))
        return (self.score(row) - random) / (expert - random)


COLUMNS = (
    Column("Keep Away, pusher", "keep_away", "pusher_0"),
    Column("Keep Away, reacher", "keep_away", "reacher_0"),
    Column("Cooperative Communication", "cooperative_communication", "all"),
    Column("Cooperative Navigation", "cooperative_navigation", "all"),
    *(Column(title, task, "mean") for task, title in LARGE_TASKS.items()),
)


@dataclass
class Data:
    """The rows that count, by setting, with their curves by run id, and the paper's numbers."""

    runs: dict[tuple, list[Row]]
    curves: dict[str, dict[str, np.ndarray]]
    paper: dict[tuple[str, ...], tuple[float, float]]
    left_out: str

    def get(self, stage: str, task: str, algorithm: str, discriminator: str, n_demos: int) -> list[Row]:
        kind = discriminator if ALGORITHMS[algorithm].adversarial else "none"
        return self.runs.get((stage, task, algorithm, kind, n_demos), [])

    def nss(self, *place) -> Value:
        return over_runs([row.nss for row in self.get(*place)])

    def algorithms(self, stage: str) -> list[str]:
        """The paper's three and behavioural cloning, and others if there are runs."""
        measured = {place[2] for place in self.runs if place[0] == stage}
        always = {"magail", "mairl", "madaac"} | ({"bc"} if stage == "imitate" else set())
        return [name for name in ALGORITHMS if name in measured | always]

    def paper_score(self, stage: str, column: Column, algorithm: str, discriminator="", n_demos="") -> Value:
        """The paper's score of MA-GAIL, MA-AIRL or MA-DAAC, or of the expert or random play."""
        key = (stage, column.task, column.agent, algorithm, discriminator, str(n_demos))
        return Value(*self.paper[key], PAPER_RUNS)

    def paper_nss(self, stage: str, column: Column, *place) -> Value:
        """By the paper's own expert and random scores."""
        score = self.paper_score(stage, column, *place)
        expert, random = (self.paper_score(stage, column, name).mean for name in ("expert", "random"))
        return Value((score.mean - random) / (expert - random), score.half / abs(expert - random), PAPER_RUNS)

    def to_goal(self, rows: list[Row], unit: str) -> list[float]:
        """Episodes or seconds until the first point of each curve at the goal, inf if there is none."""
        found = []
        for curve in [self.curves[row.run_id] for row in rows if len(self.curves[row.run_id]["nss"])]:
            there = np.flatnonzero(curve["nss"] >= NSS_GOALS[rows[0].task])
            found.append(float(curve[unit][there[0]]) if len(there) else math.inf)
        return found


def load(grid: Grid, paper: Path) -> Data:
    """Read the rows that count, which does not depend on their scores, and their curves."""
    path = grid.results_folder / "runs.csv"
    if not path.exists():
        raise UserError(f"there is no {path}: `python -m reproduce run` writes it")
    left_out, runs = Counter(), defaultdict(list)
    for row in sorted(read_rows(path).values(), key=lambda row: row.seed):
        place = (row.stage, row.task, row.algorithm, row.discriminator, row.n_demos)
        if not is_current_expert(row, row.expert_scores):
            left_out["a replaced expert"] += 1
        elif row.run_id != make_cell(grid, *place, row.seed).run_id or row.n_demos not in DEMOS:
            left_out["other arguments, another budget or another number of demonstrations"] += 1
        else:
            runs[place].append(row)
    for place, rows in runs.items():
        # The number of episodes (and of the reward's episodes) that most runs have; the larger one if tied
        counts = Counter((row.episodes, row.reward_episodes) for row in rows)
        kept = max(counts, key=lambda episodes: (counts[episodes], episodes))
        runs[place] = [row for row in rows if (row.episodes, row.reward_episodes) == kept]
        left_out["another number of episodes than most runs of the setting"] += len(rows) - len(runs[place])
    curves = {row.run_id: load_curve(path.parent, row.run_id) for rows in runs.values() for row in rows}
    text = "; ".join(f"{count} with {reason}" for reason, count in left_out.items() if count) or "none"
    return Data(dict(runs), curves, read_paper(paper), f"Rows left out: {text}.")


def load_curve(results: Path, run_id: str) -> dict[str, np.ndarray]:
    """The columns of a curve as arrays; a damaged or missing file is reported and counts as empty."""
    try:
        points = read_curve(results / "curves" / f"{run_id}.csv")
    except UserError as error:
        warn(f"{error}; figures and times do without this run")
        points = []
    return {name: np.array([point[name] for point in points]) for name in ("episodes", "seconds", "nss", "pcc")}


def mean_curve(curves: list[dict[str, np.ndarray]], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The axis, the mean over runs and the half width of its 95 % interval, where all runs have values.

    Runs are averaged at equal episodes; the axis of seconds has their mean seconds at those episodes.
    """
    known = [~(np.isnan(curve[x]) | np.isnan(curve[y])) for curve in curves]
    curves = [{name: curve[name][there] for name in curve} for curve, there in zip(curves, known) if there.any()]
    if not curves:
        return np.empty(0), np.empty(0), np.empty(0)
    episodes = np.unique(np.concatenate([curve["episodes"] for curve in curves]))
    first, last = max(curve["episodes"][0] for curve in curves), min(curve["episodes"][-1] for curve in curves)
    episodes = episodes[(episodes >= first) & (episodes <= last)]
    axes, values = (
        np.stack([np.interp(episodes, curve["episodes"], curve[name]) for curve in curves]) for name in (x, y)
    )
    return axes.mean(axis=0), *mean_and_t_interval(values)


def interquartile_mean(scores: np.ndarray) -> float:
    """Mean without the lowest and the highest quarter of all values."""
    return float(stats.trim_mean(scores, 0.25, axis=None))


def bootstrap_interval(scores: np.ndarray) -> tuple[float, float]:
    """95 % interval of the interquartile mean of [runs, settings]: runs are drawn anew within each setting."""
    runs, settings = scores.shape
    drawn = np.random.default_rng(1).integers(runs, size=(BOOTSTRAP_SAMPLES, runs, settings))
    resampled = np.take_along_axis(scores[None], drawn, axis=1).reshape(BOOTSTRAP_SAMPLES, -1)
    low, high = np.percentile(stats.trim_mean(resampled, 0.25, axis=1), [2.5, 97.5])
    return float(low), float(high)


def shared_scores(data: Data, stage: str) -> dict[str, np.ndarray]:
    """Decentralized NSS [runs, settings] by algorithm, where the paper's three algorithms all have runs."""

    def nss(name: str, task: str, n_demos: int) -> list[float]:
        return [row.nss for row in data.get(stage, task, name, "decentralized", n_demos)]

    paper = ("magail", "mairl", "madaac")
    settings = [(task, n) for task in TASKS for n in DEMOS if all(nss(name, task, n) for name in paper)]
    runs = min((len(nss(name, *place)) for name in paper for place in settings), default=0)
    complete = [name for name in ALGORITHMS if runs and all(len(nss(name, *place)) >= runs for place in settings)]
    return {name: np.array([nss(name, *place)[:runs] for place in settings]).T for name in complete}
