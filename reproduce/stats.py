"""From rows to numbers: which rows count, means over runs with intervals, and mean curves."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from madaac_utils.files import UserError
from reproduce.grid import ALGORITHMS, DEMOS, LARGE_TASKS, TASKS, Cell, Grid, episodes_of, make_cell
from reproduce.rows import CURVE_COLUMNS, Row, read_curve, read_paper, read_rows
from reproduce.store import expert_scores, is_current_expert, warn

MIN_RUNS = 3  # fewer runs get no interval, no mark and no verdict
PAPER_RUNS = 10
PAPER_TITLES = {"magail": "MA-GAIL", "mairl": "MA-AIRL", "madaac": "MA-DAAC", "madaac_paper": "MA-DAAC"}
NSS_GOALS = dict.fromkeys(TASKS, 0.9) | {"cooperative_communication": 0.7}  # for sample efficiency
GOALS = "NSS 0.9 (Cooperative Communication: 0.7)"
CURVE_STEP = 400  # episodes between the points at which all curves are read, as far apart as most baselines log


class Value(NamedTuple):
    """A mean over runs, or an array of means, with the half width of its 95 % t interval, nan for a single run."""

    mean: float
    half: float
    runs: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


MISSING = Value(math.nan, math.nan, 0)


def student(degrees: float) -> float:
    """The number of standard errors in half a 95 % interval."""
    return stats.t.ppf(0.975, degrees)


def over_runs(values) -> Value:
    """Mean over the first axis with its interval."""
    values = np.asarray(list(values), dtype=float)
    runs = len(values)
    if runs == 0:
        return MISSING
    spread = values.std(axis=0, ddof=1) if runs > 1 else np.full(values.shape[1:], np.nan)
    half = student(max(1, runs - 1)) * spread / math.sqrt(runs)
    return Value(values.mean(axis=0), half, runs)


def paired(one: dict[int, float], other: dict[int, float]) -> Value:
    """The difference over the seeds that both have. Runs of one seed are judged on the same evaluation episodes."""
    return over_runs(one[seed] - other[seed] for seed in sorted(one.keys() & other.keys()))


def welch(one: Value, other: Value) -> Value:
    """The difference of two independent values, such as ours and the paper's."""
    half = math.nan
    if min(one.runs, other.runs) > 1:
        variances = [(value.half / student(value.runs - 1)) ** 2 for value in (one, other)]  # of the means
        spread = sum(variance**2 / (value.runs - 1) for variance, value in zip(variances, (one, other)))
        half = student(sum(variances) ** 2 / spread) * math.sqrt(sum(variances)) if spread else 0.0
    return Value(one.mean - other.mean, half, min(one.runs, other.runs))


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

    def mean_error(self, half: float) -> float:
        """The half width for this column, from that of one agent. The pairs of a Rover Tower are independent."""
        return half / math.sqrt(int(self.task.split("_")[2]) / 2) if self.agent == "mean" else half


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

    grid: Grid
    runs: dict[tuple, list[Row]]
    # Rows with other arguments or episodes: by setting, and by arguments and episodes of the imitation
    variants: dict[tuple, dict[tuple[str, int], list[Row]]]
    curves: dict[str, dict[str, np.ndarray]]
    paper: dict[tuple[str, ...], tuple[float, float]]
    left_out: str

    def get(self, stage: str, task: str, algorithm: str, discriminator: str, n_demos: int) -> list[Row]:
        kind = discriminator if ALGORITHMS[algorithm].adversarial else "none"
        return self.runs.get((stage, task, algorithm, kind, n_demos), [])

    def paper_score(self, stage: str, column: Column, name: str, discriminator="", n_demos="") -> Value:
        """The paper's score of an algorithm, of the expert or of random play."""
        key = (stage, column.task, column.agent, PAPER_TITLES.get(name, name), discriminator, str(n_demos))
        return Value(*self.paper[key], PAPER_RUNS) if key in self.paper else MISSING

    def references(self, column: Column, of_paper: bool) -> tuple[Value, Value]:
        """Scores of the expert and of random play."""
        values = []
        for who in ("expert", "random"):
            if of_paper:
                value = self.paper_score("imitate", column, who)
            else:
                value = Value(
                    *(column.pick(expert_scores(column.task, who, what)) for what in ("mean", "interval_95")), 1
                )
            values.append(value._replace(half=column.mean_error(value.half)))
        return tuple(values)

    def paper_nss(self, stage: str, column: Column, name: str, *place) -> Value:
        """By the paper's own expert and random scores."""
        score = self.paper_score(stage, column, name, *place)
        expert, random = self.references(column, of_paper=True)
        gap = expert.mean - random.mean
        return Value((score.mean - random.mean) / gap, score.half / abs(gap), score.runs)

    def paper_task_nss(self, stage: str, task: str, *setting) -> Value:
        """The mean over agents; their errors are taken to be the same."""
        values = [self.paper_nss(stage, column, *setting) for column in COLUMNS if column.task == task]
        mean, half = (float(np.mean([value[k] for value in values])) for k in (0, 1))
        return Value(mean, half, values[0].runs)

    def minus_paper(self, stage: str, column: Column, name: str, *place) -> Value:
        """Our NSS minus the paper's, with the errors of runs and of both sides' scores of expert and random play."""
        ours = over_runs(column.nss(row) for row in self.get(stage, column.task, name, *place))
        paper = self.paper_nss(stage, column, name, *place)
        difference, errors = welch(ours, paper), []
        for nss, of_paper in ((ours.mean, False), (paper.mean, True)):
            expert, random = self.references(column, of_paper)
            errors.append(math.hypot(nss * expert.half, (1 - nss) * random.half) / (expert.mean - random.mean))
        return difference._replace(half=math.hypot(difference.half, *errors))

    def nss_after(self, rows: list[Row], episodes: int) -> dict[int, float]:
        """NSS of the training curves after so many episodes, by seed; without curves that begin later or end before."""
        found = {}
        for row in rows:
            curve = self.curves[row.run_id]
            if len(curve["nss"]) and curve["episodes"][0] <= episodes <= curve["episodes"][-1]:
                found[row.seed] = float(np.interp(episodes, curve["episodes"], curve["nss"]))
        return found

    def to_goal(self, rows: list[Row], unit: str, goal: float | None = None) -> dict[int, float]:
        """Episodes or seconds until a curve, read every CURVE_STEP episodes, is at the goal, by seed; inf if never."""
        found = {}
        for row in rows:
            curve = self.curves[row.run_id]
            if len(episodes := curve["episodes"]):
                first = math.ceil(episodes[0] / CURVE_STEP) * CURVE_STEP
                grid = np.append(np.arange(first, episodes[-1], CURVE_STEP), episodes[-1])
                there = np.flatnonzero(np.interp(grid, episodes, curve["nss"]) >= (goal or NSS_GOALS[row.task]))
                found[row.seed] = float(np.interp(grid[there[0]], episodes, curve[unit])) if len(there) else math.inf
        return found


def likeness(row: Row) -> float:
    """How much policies resemble the expert: NSS, or in Keep Away the mean of 1 - |NSS - 1| over agents.

    The agents of Keep Away compete, so that an NSS above 1 is as far from the expert as one below.
    """
    if row.task != "keep_away":
        return row.nss
    return float(np.mean([1 - abs(column.nss(row) - 1) for column in COLUMNS if column.task == row.task]))


def load(grid: Grid, paper: Path) -> Data:
    """Read the rows that count, which does not depend on their scores, and their curves."""
    path = grid.results_folder / "runs.csv"
    if not path.exists():
        raise UserError(f"there is no {path}: `python -m reproduce run` writes it")
    left_out, runs, variants = Counter(), defaultdict(list), defaultdict(lambda: defaultdict(list))
    for row in sorted(read_rows(path).values(), key=lambda row: (row.stage, row.seed)):  # imitation first
        place = (row.stage, row.task, row.algorithm, row.discriminator, row.n_demos)
        cell, other = make_cell(grid, *place, row.seed), variant_of(row)
        trained = has_episodes(row.episodes, cell, grid)
        rewarded = row.stage == "imitate" or has_episodes(row.reward_episodes, cell.imitation, grid)
        if not is_current_expert(row, row.expert_scores):
            left_out["a replaced expert"] += 1
        elif row.run_id == cell.run_id and row.n_demos in DEMOS and trained and rewarded:
            runs[place].append(row)
        elif (row.discriminator, row.n_demos) != ("decentralized", 50):
            left_out["other arguments or episodes than the settings table compares"] += 1
        elif row.stage == "retrain" and (row.arguments or not trained or other not in variants["imitate", *place[1:]]):
            left_out["another learner, or a reward of no run in the settings table"] += 1
        else:
            variants[place][other].append(row)
    used = [row for group in (runs, *variants.values()) for rows in group.values() for row in rows]
    curves = {row.run_id: load_curve(path.parent, row.run_id) for row in used}
    text = "; ".join(f"{count} with {reason}" for reason, count in left_out.items() if count) or "none"
    return Data(grid, dict(runs), dict(variants), curves, read_paper(paper), f"Rows left out: {text}.")


def has_episodes(episodes: int, cell: Cell, grid: Grid) -> bool:
    """Whether a run has the episodes that the grid wants; scripts train whole rounds of up to 100 copies."""
    return 0 <= episodes - episodes_of(cell, grid) < 100


def variant_of(row: Row) -> tuple[str, int]:
    """Arguments and episodes of an imitation, or of the one behind a retraining."""
    if row.stage == "retrain":
        return row.reward_arguments, row.reward_episodes
    return row.arguments, row.episodes


def load_curve(results: Path, run_id: str) -> dict[str, np.ndarray]:
    """The columns of a curve as arrays; a damaged or missing file is reported and counts as empty."""
    try:
        points = read_curve(results / "curves" / f"{run_id}.csv")
    except UserError as error:
        warn(f"{error}; figures and times do without this run")
        points = []
    return {name: np.array([point[name] for point in points]) for name in CURVE_COLUMNS}


def mean_curve(curves: list[dict[str, np.ndarray]], x: str, y: str) -> tuple[np.ndarray, Value]:
    """The axis and the mean over runs, where all runs have values.

    Runs are averaged at equal episodes; the axis of seconds has their mean seconds at those episodes.
    """
    known = [~(np.isnan(curve[x]) | np.isnan(curve[y])) for curve in curves]
    curves = [{name: curve[name][there] for name in curve} for curve, there in zip(curves, known) if there.any()]
    if not curves:
        return np.empty(0), MISSING
    episodes = np.unique(np.concatenate([curve["episodes"] for curve in curves]))
    first, last = max(curve["episodes"][0] for curve in curves), min(curve["episodes"][-1] for curve in curves)
    episodes = episodes[(episodes >= first) & (episodes <= last)]
    axes, values = ([np.interp(episodes, curve["episodes"], curve[name]) for curve in curves] for name in (x, y))
    return np.mean(axes, axis=0), over_runs(values)
