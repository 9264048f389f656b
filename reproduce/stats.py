"""From rows to numbers: which rows count, means over runs with intervals, and mean curves."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from madaac_utils.files import UserError
from reproduce.grid import ALGORITHMS, DEMOS, EPISODE_LENGTH, LARGE_TASKS, TASKS, Grid, make_cell
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

    def minus(self, other: "Value") -> "Value":
        """The difference of two independent values, with Welch's interval."""
        half = math.nan
        if min(self.runs, other.runs) > 1:
            variances = [(value.half / student(value.runs - 1)) ** 2 for value in (self, other)]  # of the means
            spread = sum(variance**2 / (value.runs - 1) for variance, value in zip(variances, (self, other)))
            half = student(sum(variances) ** 2 / spread) * math.sqrt(sum(variances)) if spread else 0.0
        return Value(self.mean - other.mean, half, min(self.runs, other.runs))


MISSING = Value(math.nan, math.nan, 0)


def student(degrees: float) -> float:
    """The number of standard errors in half a 95 % interval."""
    return stats.t.ppf(0.975, degrees)


def over_runs(values) -> Value:
    """Mean over the first axis with its interval."""
    values = np.asarray(values, dtype=float)
    runs = len(values)
    if runs == 0:
        return MISSING
    spread = values.std(axis=0, ddof=1) if runs > 1 else np.full(values.shape[1:], np.nan)
    half = student(max(1, runs - 1)) * spread / math.sqrt(runs)
    return Value(values.mean(axis=0), half, runs)


def over_episodes(values: list[float]) -> Value:
    """The same for numbers of episodes; the interval is at least as wide as the curves are coarse."""
    value = over_runs(values)
    return value._replace(half=max(value.half, CURVE_STEP / 2)) if value.mean else value


def compare(one: Value, other: Value, common_error: float = 0.0) -> int | None:
    """1 if the interval of the difference lies above 0, -1 if below, 0 if it contains 0; None with fewer than 3 runs.

    The common error is one that all runs of a side share, so that their spread does not show it.
    """
    difference = one.minus(other)
    if difference.runs < MIN_RUNS:
        return None
    if abs(difference.mean) <= math.hypot(difference.half, common_error):
        return 0
    return 1 if difference.mean > 0 else -1


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
    variants: dict[tuple, dict[str, list[Row]]]  # rows with other arguments, by setting and arguments of the imitation
    curves: dict[str, dict[str, np.ndarray]]
    paper: dict[tuple[str, ...], tuple[float, float]]
    left_out: str

    def get(self, stage: str, task: str, algorithm: str, discriminator: str, n_demos: int) -> list[Row]:
        kind = discriminator if ALGORITHMS[algorithm].adversarial else "none"
        return self.runs.get((stage, task, algorithm, kind, n_demos), [])

    def nss(self, *place) -> Value:
        return over_runs([row.nss for row in self.get(*place)])

    def paper_score(self, stage: str, column: Column, who: str, discriminator="", n_demos="") -> Value:
        """The paper's score of MA-GAIL, MA-AIRL or MA-DAAC, or of the expert or random play."""
        key = (stage, column.task, column.agent, who, discriminator, str(n_demos))
        return Value(*self.paper[key], PAPER_RUNS) if key in self.paper else MISSING

    def values(self, stage: str, column: Column, name: str, *place) -> list[Value]:
        """Score, paper's score, NSS and paper's NSS, which is by the paper's own expert and random scores."""
        rows = self.get(stage, column.task, name, *place)
        score, nss = (over_runs([measure(row) for row in rows]) for measure in (column.score, column.nss))
        paper = self.paper_score(stage, column, PAPER_TITLES.get(name, ""), *place)
        expert, random = (self.paper_score(stage, column, who).mean for who in ("expert", "random"))
        paper_nss = Value((paper.mean - random) / (expert - random), paper.half / abs(expert - random), paper.runs)
        return [score, paper, nss, paper_nss]

    def reference_error(self, column: Column, nss: float, paper_nss: float) -> float:
        """The error of our NSS minus the paper's that comes from both sides' scores of the expert and random play."""
        ours, paper = [], []
        for who in ("expert", "random"):
            scores = [column.pick(expert_scores(column.task, who, what)) for what in ("mean", "interval_95")]
            ours.append(Value(*scores, runs=1))
            paper.append(self.paper_score("imitate", column, who))
        errors = []
        for value, (expert, random) in ((nss, ours), (paper_nss, paper)):
            error = math.hypot(value * expert.half, (1 - value) * random.half)
            errors.append(error / (expert.mean - random.mean))
        return math.hypot(*errors)

    def task_nss(self, stage: str, task: str, *setting) -> tuple[Value, Value]:
        """NSS of a whole task, ours and the paper's. Where agents compete, 1 - |NSS - 1|: above 1 is no better."""
        columns = [column for column in COLUMNS if column.task == task]
        ours = [np.mean([column.nss(row) for column in columns]) for row in self.get(stage, task, *setting)]
        papers = [self.values(stage, column, *setting)[-1] for column in columns]
        mean, half = (np.mean([value[k] for value in papers]) for k in (0, 1))
        if len(columns) > 1:
            ours, mean = [1 - abs(nss - 1) for nss in ours], 1 - abs(mean - 1)
        return over_runs(ours), Value(mean, half, papers[0].runs)

    def nss_after(self, rows: list[Row], episodes: int) -> list[float]:
        """NSS of the training curves after so many episodes; empty if a curve begins later or ends before."""
        curves = [self.curves[row.run_id] for row in rows]
        points = [curve["episodes"] for curve in curves]
        if not all(len(point) and point[0] <= episodes <= point[-1] for point in points):
            return []
        return [float(np.interp(episodes, curve["episodes"], curve["nss"])) for curve in curves]

    def to_goal(self, rows: list[Row], unit: str) -> list[float]:
        """Episodes or seconds until each curve, read every CURVE_STEP episodes, is at the goal; inf if it never is."""
        found = []
        for curve in [self.curves[row.run_id] for row in rows if len(self.curves[row.run_id]["nss"])]:
            episodes = curve["episodes"]
            first = math.ceil(episodes[0] / CURVE_STEP) * CURVE_STEP
            grid = np.append(np.arange(first, episodes[-1], CURVE_STEP), episodes[-1])
            there = np.flatnonzero(np.interp(grid, episodes, curve["nss"]) >= NSS_GOALS[rows[0].task])
            found.append(float(np.interp(grid[there[0]], episodes, curve[unit])) if len(there) else math.inf)
        return found


def load(grid: Grid, paper: Path) -> Data:
    """Read the rows that count, which does not depend on their scores, and their curves."""
    path = grid.results_folder / "runs.csv"
    if not path.exists():
        raise UserError(f"there is no {path}: `python -m reproduce run` writes it")
    left_out, runs, variants = Counter(), defaultdict(list), defaultdict(lambda: defaultdict(list))
    for row in sorted(read_rows(path).values(), key=lambda row: row.seed):
        place = (row.stage, row.task, row.algorithm, row.discriminator, row.n_demos)
        if not is_current_expert(row, row.expert_scores):
            left_out["a replaced expert"] += 1
        elif row.run_id != make_cell(grid, *place, row.seed).run_id or row.n_demos not in DEMOS:
            retrain = row.stage == "retrain"
            arguments = row.reward_arguments if retrain else row.arguments
            if row.budget == "paper":
                steps = EPISODE_LENGTH * (row.reward_episodes if retrain else row.episodes)
                arguments = f"{arguments} --total-timesteps {steps}".strip()
            other_learner = retrain and row.arguments
            if arguments and not other_learner and place[3:] == ("decentralized", 50):
                variants[place][arguments].append(row)
            else:
                left_out["another learner, or another discriminator or number of demonstrations"] += 1
        else:
            runs[place].append(row)
    for place, rows in runs.items():
        # The number of episodes (and of the reward's episodes) that most runs have; the larger one if tied
        counts = Counter((row.episodes, row.reward_episodes) for row in rows)
        kept = max(counts, key=lambda episodes: (counts[episodes], episodes))
        runs[place] = [row for row in rows if (row.episodes, row.reward_episodes) == kept]
        left_out["another number of episodes than most runs of the setting"] += len(rows) - len(runs[place])
    used = [row for group in (runs, *variants.values()) for rows in group.values() for row in rows]
    curves = {row.run_id: load_curve(path.parent, row.run_id) for row in used}
    text = "; ".join(f"{count} with {reason}" for reason, count in left_out.items() if count) or "none"
    return Data(dict(runs), dict(variants), curves, read_paper(paper), f"Rows left out: {text}.")


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
