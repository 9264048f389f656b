"""Tables and figures from the rows of results/runs.csv, beside the paper's numbers: python reproduce.py report

`write_report` reads runs.csv (a row a run), curves/<run_id>.csv (a curve a run) and paper.csv, and writes tables/*.md,
tables/*.tex, figures/*.png and tables/index.md, which shows them all. It trains and evaluates nothing, and the same
rows give the same bytes.
"""

import contextlib
import csv
import importlib.util
import itertools
import math
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from PIL import Image
from scipy import stats

import env_utils
from env_utils import UserError

STAGES = {"imitate": "imitation", "retrain": "retraining"}
SMALL = {
    "keep_away": "Keep Away",
    "cooperative_communication": "Cooperative Communication",
    "cooperative_navigation": "Cooperative Navigation",
}
LARGE = {f"rover_tower_{n}": f"Rover Tower, {n} agents" for n in (8, 12, 16)}
PAPER_TASKS = SMALL | LARGE
TASKS = SMALL | LARGE
ALGORITHMS = {"magail": "MA-GAIL", "mairl": "MA-AIRL", "madaac": "MA-DAAC"}  # in the paper's order
DISCRIMINATORS = ("decentralized", "centralized")
DEMOS = (50, 100, 200)
Words = tuple[str, str, str]  # for a number above the paper's, about the same, below
SCORE_MARKS: Words = ("better", "equal", "worse")
RELATIVE_MARKS: Words = ("larger", "equal", "smaller")
MIN_RUNS = 3  # of a mark in bold, and of a setting for a bootstrap interval
MIN_VALUES = 4  # of an interquartile mean, which leaves out a quarter at each end

COLOURS = {"magail": "#009E73", "mairl": "#D55E00", "madaac": "#0072B2"}
LINES = {"decentralized": "-", "centralized": "--"}
NSS_GOAL = 0.9  # of sample efficiency
PARAMETER_AGENTS = (8, 12, 16, 24, 32, 48, 64)
BOOTSTRAP_SAMPLES = 2000
BOOTSTRAP_SEED = 1
TITLE_WIDTH = 66  # characters of a line above a panel


# Reading


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def number_or_nan(text: str) -> float:
    return number(text) if text else math.nan


def whole_or_zero(text: str) -> int:
    return int(text) if text else 0


def numbers(text: str) -> np.ndarray:
    return np.array([number(part) for part in text.split(";")])


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(map(repr, choices))}")
        return text

    return parse


RUN_COLUMNS = {
    "run_id": str,
    "stage": one_of(*STAGES),
    "task": one_of(*TASKS),
    "algorithm": one_of(*ALGORITHMS),
    "discriminator": one_of(*DISCRIMINATORS),
    "n_demos": int,
    "seed": int,
    "episodes": int,
    "arguments": str.strip,
    "rl": one_of("", "mack", "maac"),
    "agents": lambda text: text.split(";"),
    "scores": numbers,
    "score_intervals": numbers,
    "greedy_scores": numbers,
    "expert_scores": numbers,
    "random_scores": numbers,
    "nss": number,
    "nss_greedy": number_or_nan,
    "nss_last_500": number_or_nan,
    "pcc": number_or_nan,
    "seconds": number,
    "commit": str,
    "reward_episodes": whole_or_zero,
    "reward_arguments": str.strip,
}
CURVE_COLUMNS = {"episodes": number, "seconds": number, "nss": number, "pcc": number_or_nan}
PAPER_COLUMNS = {
    "table": str,
    "stage": one_of(*STAGES),
    "task": one_of(*TASKS),
    "agent": str,
    "algorithm": one_of("random", "expert", *ALGORITHMS.values()),
    "discriminator": one_of("", *DISCRIMINATORS),
    "n_demos": whole_or_zero,
    "mean": number,
    "interval_95": number,
}


def read_table(path: Path, columns: dict[str, Callable]) -> list[tuple[int, dict]]:
    """Line numbers and parsed rows of a CSV file that has exactly these columns, in any order."""
    rows = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if sorted(header) != sorted(columns):
                problems = [f"{name!r} is unknown or twice" for name in Counter(header) - Counter(list(columns))]
                problems += [f"{name!r} is missing" for name in columns if name not in header]
                raise UserError(f"{path}, line 1: wrong columns: {'; '.join(problems)}")
            for fields in reader:
                where = f"{path}, line {reader.line_num}"
                if len(fields) != len(header):
                    raise UserError(f"{where}: {len(fields)} fields, the header has {len(header)}")
                row = {}
                for name, text in zip(header, fields):
                    try:
                        row[name] = columns[name](text)
                    except ValueError as error:
                        raise UserError(f"{where}, column {name}: {error}") from None
                rows.append((reader.line_num, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return rows


class Cell(NamedTuple):
    """What runs are averaged over seeds for."""

    stage: str
    task: str
    algorithm: str
    discriminator: str
    n_demos: int


@dataclass(frozen=True, eq=False)
class Run:
    """A row of runs.csv; scores are per agent, and what is of the reward is of the imitation that it was learned by."""

    run_id: str
    stage: str
    task: str
    algorithm: str
    discriminator: str
    n_demos: int
    seed: int
    episodes: int
    arguments: str
    rl: str
    agents: list[str]
    scores: np.ndarray
    score_intervals: np.ndarray
    greedy_scores: np.ndarray
    expert_scores: np.ndarray
    random_scores: np.ndarray
    nss: float
    nss_greedy: float
    nss_last_500: float
    pcc: float
    seconds: float
    commit: str
    reward_episodes: int
    """0 for imitation"""
    reward_arguments: str

    @property
    def cell(self) -> Cell:
        return Cell(self.stage, self.task, self.algorithm, self.discriminator, self.n_demos)

    @property
    def all_arguments(self) -> tuple[str, str]:
        """Extra arguments, its own and those of its reward."""
        return self.arguments, self.reward_arguments


def check_run(run: Run, where: str) -> None:
    """Raises a UserError for a row whose columns do not go together."""
    agents = list(env_utils.load_card(run.task)["scores"]["expert"])
    if run.agents != agents:
        raise UserError(f"{where}, column agents: {run.task} has {';'.join(agents)}, got {';'.join(run.agents)}")
    for name in ("scores", "score_intervals", "greedy_scores", "expert_scores", "random_scores"):
        if len(getattr(run, name)) != len(agents):
            raise UserError(f"{where}, column {name}: {len(getattr(run, name))} values for {len(agents)} agents")
    if (run.expert_scores == run.random_scores).any():
        raise UserError(f"{where}: an expert score is equal to the random one, so that there is no NSS")
    retrained = run.stage == "retrain"
    if bool(run.rl) != retrained:
        raise UserError(f"{where}, column rl: mack or maac for retrain, empty for imitate; got {run.rl!r}")
    if (run.reward_episodes > 0) != retrained:
        raise UserError(f"{where}, column reward_episodes: above 0 for retrain, empty for imitate")
    if run.reward_arguments and not retrained:
        raise UserError(f"{where}, column reward_arguments: empty for imitate, got {run.reward_arguments!r}")


def read_runs(path: Path) -> list[Run]:
    if not path.is_file():
        raise UserError(f"there is no {path}: `python reproduce.py run` makes runs and writes their rows there")
    runs, lines = [], {}
    for line, row in read_table(path, RUN_COLUMNS):
        run, where = Run(**row), f"{path}, line {line}"
        if run.run_id in lines:
            raise UserError(f"{where}: run_id {run.run_id!r} is that of line {lines[run.run_id]} too")
        lines[run.run_id] = line
        check_run(run, where)
        runs.append(run)
    return runs


def read_curve(path: Path) -> dict[str, np.ndarray]:
    """Columns of a run's curve as arrays; nan where a value is empty."""
    if not path.is_file():
        raise UserError(f"there is no {path}: runs.csv has a row of this run, and its curve belongs there")
    rows = read_table(path, CURVE_COLUMNS)
    if not rows:
        raise UserError(f"{path}, line 1: a header, and no points of the curve after it")
    for (_, before), (line, after) in itertools.pairwise(rows):
        if after["episodes"] <= before["episodes"]:
            raise UserError(f"{path}, line {line}, column episodes: {after['episodes']:g} is not above the one before")
    return {name: np.array([row[name] for _, row in rows]) for name in CURVE_COLUMNS}


Paper = dict[tuple, tuple[float, float]]


def read_paper(path: Path) -> Paper:
    """Mean and half width of the 95 % interval by (stage, task, agent, algorithm, discriminator, n_demos)."""
    if not path.is_file():
        raise UserError(f"there is no {path}: it has the paper's numbers and comes with this repository")
    names = ("stage", "task", "agent", "algorithm", "discriminator", "n_demos")
    rows = (row for _, row in read_table(path, PAPER_COLUMNS))
    return {tuple(row[name] for name in names): (row["mean"], row["interval_95"]) for row in rows}


# Which runs are averaged


def paper_episodes(task: str) -> int:
    return 100_000 if task in LARGE else 50_000


def paper_rl(task: str) -> str:
    return "maac" if task in LARGE else "mack"


def of_one_budget(runs: list[Run], name: str) -> list[Run]:
    """Those with exactly the paper's number of episodes, if there are any; else those with the most."""
    found, wanted = {getattr(run, name) for run in runs}, paper_episodes(runs[0].task)
    kept = wanted if wanted in found else max(found)
    return [run for run in runs if getattr(run, name) == kept]


def comparable(runs: list[Run]) -> list[Run]:
    """Of all runs of a cell, those that may be averaged: none of the rules looks at a score.

    Retraining by the algorithm that the paper used for the task, if there is any; the paper's number of episodes, or
    else the most, and the same of the imitations that rewards are of; of different extra arguments (with those of the
    rewards) those with the most seeds, none at all if that is a draw; the last row of a seed.
    """
    runs = [run for run in runs if run.rl == paper_rl(run.task)] or runs
    runs = of_one_budget(of_one_budget(runs, "episodes"), "reward_episodes")
    by_arguments = defaultdict(dict)
    for run in runs:
        by_arguments[run.all_arguments][run.seed] = run
    _, kept = min(by_arguments.items(), key=lambda item: (-len(item[1]), item[0]))  # "" comes first
    return [kept[seed] for seed in sorted(kept)]


def of_todays_expert(run: Run) -> bool:
    return env_utils.of_todays_expert(run.task, run.expert_scores, " ".join(run.all_arguments))


def select(runs: list[Run]) -> dict[Cell, list[Run]]:
    """Runs by cell, of today's experts and of numbers of demonstrations that the paper has."""
    cells = defaultdict(list)
    for run in runs:
        if run.n_demos in DEMOS and of_todays_expert(run):
            cells[run.cell].append(run)
    return {cell: comparable(group) for cell, group in cells.items()}


# Numbers of a cell


class Column(NamedTuple):
    """A column of a table: `agent` is one agent, "all" for a shared reward or "mean" over agents, as in paper.csv."""

    title: str
    task: str
    agent: str

    def of(self, agents: list[str], values: np.ndarray) -> float:
        """The column's value of values per agent.

        That is also done with half widths of intervals: agents share episodes, and the mean of half widths is the most
        that the one of the mean can be.
        """
        return float(values[agents.index(self.agent)] if self.agent in agents else np.mean(values))


SMALL_COLUMNS = (
    Column("Keep Away, pusher", "keep_away", "pusher_0"),
    Column("Keep Away, reacher", "keep_away", "reacher_0"),
    Column("Cooperative Communication", "cooperative_communication", "all"),
    Column("Cooperative Navigation", "cooperative_navigation", "all"),
)
LARGE_COLUMNS = tuple(Column(title, task, "mean") for task, title in LARGE.items())


class Value(NamedTuple):
    """A score and its NSS, with half widths of their 95 % intervals."""

    score: float
    half: float
    nss: float
    nss_half: float

    def minus(self, other: "Value") -> "Value":
        """The difference of two independent values."""
        half, nss_half = math.hypot(self.half, other.half), math.hypot(self.nss_half, other.nss_half)
        return Value(self.score - other.score, half, self.nss - other.nss, nss_half)


def t_interval(values: np.ndarray) -> np.ndarray:
    """Half width of the 95 % interval of the mean over runs, the first axis; nan for one run."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return stats.t.ppf(0.975, len(values) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(values))


def our_value(runs: list[Run], column: Column) -> Value:
    """Mean over runs, by their own references; the interval of a single run is over its evaluation episodes."""
    scores, halves, nss, nss_halves = [], [], [], []
    for run in runs:
        names = ("scores", "score_intervals", "expert_scores", "random_scores")
        score, half, expert, random = (column.of(run.agents, getattr(run, name)) for name in names)
        scores.append(score)
        halves.append(half)
        nss.append((score - random) / (expert - random))
        nss_halves.append(half / abs(expert - random))
    if len(runs) > 1:
        halves, nss_halves = [t_interval(np.array(scores))], [t_interval(np.array(nss))]
    return Value(float(np.mean(scores)), float(halves[0]), float(np.mean(nss)), float(nss_halves[0]))


def paper_value(paper: Paper, stage: str, column: Column, algorithm: str, discriminator: str, n_demos: int) -> Value:
    """The paper's value, and its NSS by the paper's own random and expert rows."""

    def look_up(*key) -> tuple[float, float]:
        task = column.task
        if (stage, task, column.agent, *key) not in paper:
            raise UserError(f"the paper's numbers have no {stage} {task} {column.agent} {key}")
        return paper[(stage, task, column.agent, *key)]

    (expert, _), (random, _) = look_up("expert", "", 0), look_up("random", "", 0)
    score, half = look_up(algorithm, discriminator, n_demos)
    return Value(score, half, (score - random) / (expert - random), half / abs(expert - random))


def mark(ours: Value, paper: Value, words: Words) -> str:
    """The first word if our NSS is above the paper's, the last if it is below, the second if the intervals overlap."""
    if abs(ours.nss - paper.nss) <= ours.nss_half + paper.nss_half:
        return words[1]
    return words[0] if ours.nss > paper.nss else words[2]


# Tables


@dataclass
class Table:
    """A table that can be written as Markdown and as LaTeX; a cell is a list of lines, bold between two asterisks."""

    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[list[str]]]
    notes: list[str]
    group: int = 0
    """number of rows between horizontal lines, counted from the end; 0 is none"""
    latex: bool = True


def plain(value: float, digits: int = 2, sign: str = "") -> str:
    """The number with a minus sign, and without one for what rounds to zero."""
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}".replace("-", "−")


def with_half(value: float, half: float, digits: int = 2, sign: str = "") -> str:
    return f"{plain(value, digits, sign)} ± {plain(half, digits)}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def episodes_mark(task: str, *groups: list[Run]) -> str:
    """† and the episodes of the runs, and of their rewards, where they are not the paper's."""
    marks = ""
    for name, words in (("episodes", ""), ("reward_episodes", "reward of ")):
        counts = dict.fromkeys(getattr(group[0], name) for group in groups)
        if set(counts) - {0, paper_episodes(task)}:
            marks += f", †{words}" + " against ".join(f"{count:,}" for count in counts)
    return marks


def rl_mark(*groups: list[Run]) -> str:
    """‡ and what policies were retrained by, if it is not what the paper used."""
    other = {group[0].rl for group in groups if group[0].rl not in ("", paper_rl(group[0].task))}
    return f", ‡{other.pop().upper()}" if other else ""


def cell_lines(
    task: str, ours: Value | None, paper: Value, groups: list[list[Run]], words: Words = SCORE_MARKS
) -> list[str]:
    """Our score, the paper's, both NSS and the mark; `groups` are the runs behind ours (two for a difference)."""
    sign = "+" if words is RELATIVE_MARKS else ""
    paper_score, paper_nss = with_half(paper.score, paper.half, 3, sign), with_half(paper.nss, paper.nss_half, 3, sign)
    if ours is None:
        return ["not measured", f"paper {paper_score}", f"paper's NSS {paper_nss}"]
    counts = list(dict.fromkeys(len(group) for group in groups))
    runs = counted(counts[0], "run") if len(counts) == 1 else " against ".join(map(str, counts)) + " runs"
    bold = "**" if min(counts) >= MIN_RUNS else ""
    return [
        f"{with_half(ours.score, ours.half, 2, sign)} ({runs}{episodes_mark(task, *groups)}{rl_mark(*groups)})",
        f"paper {paper_score}",
        f"NSS {with_half(ours.nss, ours.nss_half, 3, sign)}, paper {paper_nss}",
        f"{bold}{mark(ours, paper, words)}{bold}",
    ]


def reference_lines(paper: Paper, stage: str, column: Column, name: str) -> list[str]:
    """Our score of random play or of the expert, from the expert's card, and the paper's."""
    agents = list(env_utils.load_card(column.task)["scores"]["expert"])
    mean, half = env_utils.references_with_intervals(column.task)[name]
    theirs = paper_value(paper, stage, column, name, "", 0)
    ours = with_half(column.of(agents, mean), column.of(agents, half))
    return [ours, f"paper {with_half(theirs.score, theirs.half, 3)}"]


INTERVALS = (
    "Ours (mean ± 95 % interval, number of runs), the paper's (of 10 runs), and both NSS. Intervals of two runs or "
    "more are t-intervals over runs; that of a single run is over its own evaluation episodes, and says nothing about "
    "other seeds."
)
RULE = (
    "Marks compare NSS = (score − random) / (expert − random) of the column's score, by each side's own random and "
    f"expert scores, and not raw scores, since experts are not the paper's{{}}. Random and expert scores are taken as "
    "exact: the intervals are of scores alone. equal: the two intervals overlap; better, worse: they do not, and our "
    f"NSS is higher, lower. Marks in bold rest on {MIN_RUNS} runs or more."
)
RELATIVE_RULE = (
    "Marks compare differences of NSS = (score − random) / (expert − random), by each side's own random and expert "
    "scores, and not raw scores, since experts are not the paper's. Random and expert scores are taken as exact: the "
    "intervals are of scores alone. equal: the two intervals overlap; larger, smaller: they do not, and our difference "
    "is above, below the paper's. A larger difference is not better in itself: a lower score of MA-GAIL makes it as "
    f"well as a higher one of the algorithm. Marks in bold rest on {MIN_RUNS} runs or more of both."
)
PUSHER_NOTE = ", and the pusher's expert scores below random play"
LARGE_NOTE = "Scores are means over agents; the interval of a single run is the mean of its agents' intervals."


def score_table(stage: str, scale: str, cells: dict[Cell, list[Run]], paper: Paper) -> Table:
    """One of the paper's four tables of scores."""
    columns = {"small": SMALL_COLUMNS, "large": LARGE_COLUMNS}[scale]
    rows = [
        [[], [who.capitalize()], [], *(reference_lines(paper, stage, column, who) for column in columns)]
        for who in ("random", "expert")
    ]
    used = {}
    for n_demos in DEMOS:
        for algorithm, title in ALGORITHMS.items():
            for kind in DISCRIMINATORS:
                row = [[str(n_demos)], [title], [kind]]
                for column in columns:
                    cell = Cell(stage, column.task, algorithm, kind, n_demos)
                    theirs = paper_value(paper, stage, column, title, kind, n_demos)
                    runs = cells.get(cell)
                    row.append(
                        cell_lines(column.task, runs and our_value(runs, column), theirs, [runs] if runs else [])
                    )
                    used |= {cell: runs} if runs else {}
                rows.append(row)
    return Table(
        f"{scale}_scale_{STAGES[stage]}",
        f"{scale.capitalize()}-scale {STAGES[stage]}",
        f"Scores after {STAGES[stage]}, {scale}-scale tasks. {INTERVALS}",
        ["demonstrations", "algorithm", "discriminator", *(column.title for column in columns)],
        rows,
        [
            RULE.format("" if scale == "large" else PUSHER_NOTE),
            *([LARGE_NOTE] if scale == "large" else []),
            *footnotes(used, rows, SCORE_MARKS),
        ],
        group=len(ALGORITHMS) * len(DISCRIMINATORS),
    )


def relative_table(stage: str, cells: dict[Cell, list[Run]], paper: Paper) -> Table:
    """The paper's tables of differences to MA-GAIL's scores, decentralized discriminators."""
    kind, rows, used = "decentralized", [], {}
    for column in LARGE_COLUMNS:
        for algorithm in ("mairl", "madaac"):
            row = [[column.task.removeprefix("rover_tower_")], [ALGORITHMS[algorithm]]]
            for n_demos in DEMOS:
                pair = [Cell(stage, column.task, name, kind, n_demos) for name in (algorithm, "magail")]
                theirs = [paper_value(paper, stage, column, ALGORITHMS[c.algorithm], kind, n_demos) for c in pair]
                groups, ours = [cells[c] for c in pair if c in cells], None
                if len(groups) == 2:
                    ours = our_value(groups[0], column).minus(our_value(groups[1], column))
                    used |= dict(zip(pair, groups))
                row.append(cell_lines(column.task, ours, theirs[0].minus(theirs[1]), groups, RELATIVE_MARKS))
            rows.append(row)
    return Table(
        f"relative_{STAGES[stage]}",
        f"Relative to MA-GAIL, {STAGES[stage]}",
        f"Score after {STAGES[stage]} minus MA-GAIL's, Rover Tower, decentralized discriminators. {INTERVALS} "
        "Half widths of differences are the root of the sum of both squares.",
        ["agents", "algorithm", *(f"{n_demos} demonstrations" for n_demos in DEMOS)],
        rows,
        [RELATIVE_RULE, LARGE_NOTE, *footnotes(used, rows, RELATIVE_MARKS)],
        group=2,
    )


def arguments_text(cell: Cell, arguments: str, reward_arguments: str) -> str:
    title = ALGORITHMS[cell.algorithm]
    if cell.stage == "imitate":
        return f"Extra arguments of {title}: `{arguments}`"
    own, of_reward = (f"`{text}`" if text else "none" for text in (arguments, reward_arguments))
    return f"Extra arguments of retraining on {title}'s rewards: {own}; of the imitation that they are of: {of_reward}"


def argument_notes(used: dict[Cell, list[Run]]) -> list[str]:
    """The extra arguments behind a table's cells, all of one stage, by algorithm."""
    found = []
    for algorithm in ALGORITHMS:
        cells = {cell: runs[0].all_arguments for cell, runs in used.items() if cell.algorithm == algorithm}
        for arguments in sorted(set(cells.values()) - {("", "")}):
            those = [cell for cell, value in cells.items() if value == arguments]
            places = "; ".join(f"{cell.task}, {cell.n_demos}, {cell.discriminator}" for cell in those)
            where = "all its runs here" if len(those) == len(cells) else places
            found.append(f"{arguments_text(those[0], *arguments)} ({where}).")
    return found


def reference_notes(used: dict[Cell, list[Run]]) -> list[str]:
    """Tasks with runs whose random or expert scores are not those of the table's first rows."""
    found = []
    for task in dict.fromkeys(cell.task for cell in used):
        card = env_utils.references_with_intervals(task)
        runs = [run for cell, group in used.items() if cell.task == task for run in group]
        if not all(
            np.allclose(getattr(run, f"{name}_scores"), card[name][0], rtol=0, atol=0.01)
            for run in runs
            for name in ("expert", "random")
        ):
            found.append(
                f"Some runs of {task} have other random or expert scores than its card, which their NSS is by."
            )
    return found


def tally(rows: list[list[list[str]]], words: Words) -> str:
    """How many cells have which mark, and how many marks are of few runs: those that are not bold."""
    lines = Counter(line for row in rows for cell in row for line in cell)
    counts = [f"{lines[word] + lines[f'**{word}**']} {word}" for word in words]
    text = "Cells: " + ", ".join([*counts, f"{lines['not measured']} not measured"])
    few = sum(lines[word] for word in words)
    if few:
        text += f"; {few} of these marks rest{'s' if few == 1 else ''} on fewer than {MIN_RUNS} runs, whose intervals "
        text += "say little or nothing about other seeds"
    return f"{text}."


def footnotes(used: dict[Cell, list[Run]], rows: list[list[list[str]]], words: Words) -> list[str]:
    """What a reader has to know about the runs behind a table's cells, and how many cells have which mark."""
    text = "\n".join(line for row in rows for cell in row for line in cell)
    budget = "where they are not the paper's: 50,000, and 100,000 for Rover Tower."
    found = []
    if re.search(r"†\d", text):
        found.append(f"† episodes of the runs, {budget}")
    if "†reward" in text:
        found.append(f"†reward of: episodes of the imitation that the runs have their rewards from, {budget}")
    if "‡" in text:
        found.append("‡ retrained by this, where the paper used MACK for the small tasks and MAAC for Rover Tower.")
    return [*found, *argument_notes(used), *reference_notes(used), tally(rows, words)]


def markdown(table: Table) -> str:
    """Caption, table and notes, without a heading."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    lines = [table.caption, "", line(table.header), "|" + "---|" * len(table.header)]
    for row in table.rows:
        lines.append(line(["<br>".join(cell) for cell in row]))
    if not table.rows:
        lines.append(line(["not measured", *[""] * (len(table.header) - 1)]))
    return "\n".join([*lines, *(part for note in table.notes for part in ("", note))]) + "\n"


ESCAPES = {character: f"\\{character}" for character in "&%#_${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
}


def escaped(text: str) -> str:
    """Plain text, with code between backticks and bold between two asterisks, as LaTeX; two hyphens stay two."""
    text = text.translate(str.maketrans(ESCAPES)).replace("--", "-{}-")
    return re.sub(r"\*\*(\w+)\*\*", r"\\textbf{\1}", re.sub("`([^`]*)`", r"\\texttt{\1}", text))


def latex(table: Table) -> str:
    """A table* that needs booktabs, and adjustbox to fit a page."""
    stacked = r"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{}\end{{tabular}}"

    def cell_text(cell: list[str]) -> str:
        parts = [escaped(part) for part in cell]
        # A table in the table stands with its first line beside the row's name, where \shortstack has its last.
        return "".join(parts) if len(parts) < 2 else stacked.format(r" \\ ".join(parts))

    lines = [
        "% needs \\usepackage{booktabs,adjustbox}",
        r"\begin{table*}[t]",
        rf"\caption{{{escaped(table.caption)}}}",
        rf"\label{{table:{table.name}}}",
        r"\centering",
        r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.8\textheight}",
        rf"\begin{{tabular}}{{{'l' * len(table.header)}}}",
        r"\toprule",
        " & ".join(map(escaped, table.header)) + r" \\",
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        if i and table.group and (len(table.rows) - i) % table.group == 0:
            lines.append(r"\midrule")
        elif i:
            lines.append(r"\addlinespace")
        lines.append(" & ".join(map(cell_text, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"]
    lines += [rf"\par\smallskip\raggedright\footnotesize {escaped(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


# Sample efficiency


def first_reached(curve: dict[str, np.ndarray]) -> tuple[float, float]:
    """Episodes and seconds at the first point of the curve with NSS of at least the goal; infinite if there is none."""
    there = np.flatnonzero(curve["nss"] >= NSS_GOAL)
    if not len(there):
        return math.inf, math.inf
    return float(curve["episodes"][there[0]]), float(curve["seconds"][there[0]])


def efficiency_table(cells: dict[Cell, list[Run]], curves: dict[str, dict]) -> Table:
    rows, used = [], {}
    for task, n_demos, algorithm, kind in (
        (task, n_demos, algorithm, kind)
        for task in TASKS
        for n_demos in DEMOS
        for algorithm in ALGORITHMS
        for kind in DISCRIMINATORS
    ):
        cell = Cell("imitate", task, algorithm, kind, n_demos)
        if cell not in cells:
            continue
        runs = used[cell] = cells[cell]
        reached = np.array([first_reached(curves[run.run_id]) for run in runs])
        # The lower of two middle ones, so that there is no mean of a number and "not reached".
        middle = np.sort(reached, axis=0)[(len(runs) - 1) // 2]
        texts = [plain(value, 0) if math.isfinite(value) else "not reached" for value in middle]
        count = f"{int(np.isfinite(reached[:, 0]).sum())} of {len(runs)}"
        names = [TASKS[task], str(n_demos), ALGORITHMS[algorithm], kind]
        rows.append([[text] for text in (*names, f"{runs[0].episodes:,}", count, *texts)])
    return Table(
        "efficiency",
        f"Sample efficiency: the way to NSS {NSS_GOAL}",
        f"Episodes and seconds of imitation until the first point of a run's curve with NSS of {NSS_GOAL} or more: "
        "medians over runs, the lower of two middle ones; a run that does not get there counts as the slowest. Rows "
        "that were not measured are left out.",
        [
            "task",
            "demonstrations",
            "algorithm",
            "discriminator",
            "episodes of a run",
            "reached by",
            "episodes",
            "seconds",
        ],
        rows,
        ["Seconds are those of the machine and of the load that the runs were made with.", *argument_notes(used)],
        latex=False,
    )


# Aggregates over tasks


Setting = tuple[str, int]  # a task and a number of demonstrations


@dataclass
class Aggregate:
    """Final NSS [runs, settings] by algorithm; the seeds, and episodes by algorithm, behind each setting."""

    scores: dict[str, np.ndarray]
    seeds: dict[Setting, list[int]]
    episodes: dict[Setting, dict[str, int]]
    reward_episodes: dict[Setting, dict[str, int]]

    @property
    def size(self) -> str:
        runs, settings = next(iter(self.scores.values())).shape
        return f"{counted(settings, 'setting')} × {counted(runs, 'run')}"

    @property
    def runs(self) -> int:
        return len(next(iter(self.scores.values())))

    @property
    def enough(self) -> bool:
        """Whether there are enough values of an algorithm for an interquartile mean."""
        return next(iter(self.scores.values())).size >= MIN_VALUES

    @property
    def missing(self) -> list[str]:
        return [title for name, title in ALGORITHMS.items() if name not in self.scores]


def measured_algorithms(cells: dict[Cell, list[Run]], stage: str, demos: tuple[int, ...]) -> list[str]:
    """Algorithms with any run of decentralized discriminators on the paper's tasks."""
    kind = "decentralized"
    found = {
        cell.algorithm
        for cell in cells
        if (cell.stage, cell.discriminator) == (stage, kind) and cell.n_demos in demos and cell.task in PAPER_TASKS
    }
    return [name for name in ALGORITHMS if name in found]


def shared_seeds(groups: dict[Setting, dict[str, dict[int, Run]]]) -> dict[Setting, list[int]]:
    """Settings and first seeds that all algorithms have: as many seeds a setting as keep the most runs in all."""
    seeds = {setting: sorted(set.intersection(*map(set, group.values()))) for setting, group in groups.items()}
    sizes = [len(found) for found in seeds.values() if found]
    if not sizes:
        return {}
    runs = max(sorted(set(sizes)), key=lambda size: size * sum(other >= size for other in sizes))
    return {setting: found[:runs] for setting, found in seeds.items() if len(found) >= runs}


def aggregate(cells: dict[Cell, list[Run]], stage: str, demos: tuple[int, ...]) -> Aggregate | None:
    """What all algorithms with any runs have, decentralized discriminators; None if that is nothing."""
    algorithms, groups = measured_algorithms(cells, stage, demos), {}
    for task, n_demos in itertools.product(PAPER_TASKS, demos if algorithms else ()):
        runs = {name: cells.get(Cell(stage, task, name, "decentralized", n_demos), []) for name in algorithms}
        groups[task, n_demos] = {name: {run.seed: run for run in group} for name, group in runs.items()}
    seeds = shared_seeds(groups)
    if not seeds:
        return None

    def first(setting: Setting, field: str) -> dict[str, int]:
        return {name: getattr(groups[setting][name][seeds[setting][0]], field) for name in algorithms}

    return Aggregate(
        {name: np.array([[groups[s][name][seed].nss for seed in seeds[s]] for s in seeds]).T for name in algorithms},
        seeds,
        {setting: first(setting, "episodes") for setting in seeds},
        {setting: first(setting, "reward_episodes") for setting in seeds},
    )


@contextlib.contextmanager
def seeded_bootstrap():
    """rliable, with its draws from numpy's global generator made the same every time; the generator is put back."""
    try:
        from rliable import library, metrics
    except ImportError:
        raise UserError("the report needs rliable: pip install rliable==1.2.0") from None
    state = np.random.get_state()
    np.random.seed(BOOTSTRAP_SEED)
    try:
        yield library, metrics
    finally:
        np.random.set_state(state)


def interquartile_means(found: Aggregate) -> dict[str, tuple[float, float, float]]:
    """Interquartile mean and ends of its 95 % interval (stratified bootstrap over runs); nan for what has too few."""
    if not found.enough:
        return dict.fromkeys(found.scores, (math.nan, math.nan, math.nan))
    with seeded_bootstrap() as (library, metrics):
        means = {name: float(metrics.aggregate_iqm(scores)) for name, scores in found.scores.items()}
        if found.runs < MIN_RUNS:
            return {name: (mean, math.nan, math.nan) for name, mean in means.items()}
        _, ends = library.get_interval_estimates(
            found.scores, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=BOOTSTRAP_SAMPLES
        )
    return {name: (mean, float(ends[name][0, 0]), float(ends[name][1, 0])) for name, mean in means.items()}


def fraction_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """rliable's run-score distribution, all thresholds at once, which is many times as fast."""
    return (scores.ravel()[:, None] > thresholds).mean(axis=0)


def performance_profiles(found: Aggregate, thresholds: np.ndarray) -> dict[str, np.ndarray]:
    """Fraction of runs above each NSS, and the ends of its 95 % interval [3, thresholds]; nan ends for few runs."""
    if found.runs < MIN_RUNS:
        unknown = np.full((2, len(thresholds)), np.nan)
        return {name: np.vstack([fraction_above(scores, thresholds), unknown]) for name, scores in found.scores.items()}
    with seeded_bootstrap() as (library, _):
        profiles, ends = library.create_performance_profile(
            found.scores, thresholds, custom_profile_func=fraction_above, reps=BOOTSTRAP_SAMPLES
        )
    return {name: np.stack([profiles[name], *ends[name]]) for name in profiles}


Aggregates = dict[tuple[str, str], tuple[Aggregate, dict[str, tuple[float, float, float]]]]
DEMO_CHOICES = {str(n_demos): (n_demos,) for n_demos in DEMOS} | {"all": DEMOS}


def all_aggregates(cells: dict[Cell, list[Run]]) -> Aggregates:
    """By stage and number of demonstrations ("50", "100", "200", "all"), with interquartile means."""
    found = {}
    for stage in STAGES:
        for name, demos in DEMO_CHOICES.items():
            one = aggregate(cells, stage, demos)
            found |= {(stage, name): (one, interquartile_means(one))} if one else {}
    return found


def aggregate_table(aggregates: Aggregates, cells: dict[Cell, list[Run]]) -> Table:
    rows, notes = [], [note for stage in STAGES for note in coverage_notes(aggregates, cells, stage)]
    for (stage, demos), (found, means) in aggregates.items():
        scope = "; ".join(filter(None, (found.size, different_episodes(found))))
        for name, (mean, low, high) in means.items():
            middle = "too few" if math.isnan(mean) else plain(mean, 3)
            ends = "none" if math.isnan(low) else f"{plain(low, 3)} to {plain(high, 3)}"
            texts = (STAGES[stage], demos, ALGORITHMS[name], middle, ends, scope)
            rows.append([[text] for text in texts])
        if demos == "all":
            notes.append(f"Settings of {STAGES[stage]}, all demonstrations: {settings_text(found)}.")
            settings = [Cell(stage, task, name, "decentralized", n) for task, n in found.seeds for name in found.scores]
            notes += argument_notes({cell: cells[cell] for cell in settings})
    return Table(
        "aggregate",
        "Interquartile means of final NSS",
        "Interquartile mean of the final NSS (stochastic policy, evaluation episodes) over settings and runs, "
        "decentralized discriminators. A setting is a task and a number of demonstrations that all algorithms with any "
        f"runs have, with as many seeds. Fewer than {MIN_VALUES} values of an algorithm are too few. 95 % intervals: "
        f"stratified bootstrap over runs, {BOOTSTRAP_SAMPLES:,} samples, with {MIN_RUNS} runs a setting or more.",
        ["stage", "demonstrations", "algorithm", "interquartile mean", "95 % interval", "of each algorithm"],
        rows,
        notes,
        latex=False,
    )


def coverage_notes(aggregates: Aggregates, cells: dict[Cell, list[Run]], stage: str) -> list[str]:
    """Which algorithms the numbers are of and which are missing, a note for numbers of demonstrations that agree."""
    found = defaultdict(list)
    for name, demos in DEMO_CHOICES.items():
        titles = [ALGORITHMS[algorithm] for algorithm in measured_algorithms(cells, stage, demos)]
        missing = [title for title in ALGORITHMS.values() if title not in titles]
        text = ", ".join(titles) + (f"; missing: {', '.join(missing)}" if missing else "; none is missing")
        if (stage, name) not in aggregates:
            text = f"no number, as there is no setting that all of {', '.join(titles)} have"
        if titles:
            found[text].append(name)
    return [f"Algorithms of {STAGES[stage]} ({', '.join(names)}): {text}." for text, names in found.items()]


def by_algorithm(counts: dict[str, int]) -> str:
    """One number if all algorithms have the same."""
    if len(set(counts.values())) == 1:
        return f"{next(iter(counts.values())):,}"
    return ", ".join(f"{ALGORITHMS[name]} {count:,}" for name, count in counts.items())


def settings_text(found: Aggregate) -> str:
    """Which runs were compared: tasks, seeds, and episodes; those of rewards if they are not the paper's."""
    texts = []
    for (task, n_demos), seeds in found.seeds.items():
        which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        episodes, rewards = found.episodes[task, n_demos], found.reward_episodes[task, n_demos]
        of_rewards = (
            f"; rewards of {by_algorithm(rewards)}" if set(rewards.values()) - {0, paper_episodes(task)} else ""
        )
        texts.append(f"{task} {n_demos} ({which}; {by_algorithm(episodes)} episodes{of_rewards})")
    return "; ".join(texts)


def different_episodes(found: Aggregate) -> str:
    """Episodes by algorithm, from the fewest to the most of its settings; empty if no setting's differ."""
    if all(len(set(counts.values())) == 1 for counts in found.episodes.values()):
        return ""
    texts = []
    for name in found.scores:
        counts = {counts[name] for counts in found.episodes.values()}
        texts.append(f"{ALGORITHMS[name]} {' to '.join(f'{count:,}' for count in sorted({min(counts), max(counts)}))}")
    return f"episodes: {', '.join(texts)}"


def scope_text(found: Aggregate | None) -> str:
    """What a figure's numbers are of: settings, runs, algorithms that are missing, and episodes if they differ."""
    if not found:
        return "not measured"
    missing = f"without {', '.join(found.missing)}" if found.missing else ""
    return "; ".join(filter(None, (found.size, missing, "" if found.enough else "too few", different_episodes(found))))


# Figures


def panels(rows: int, columns: int, size: tuple[float, float], **share) -> tuple[Figure, np.ndarray]:
    """Not by pyplot, so that neither a window system nor another module's settings matter."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **share)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def blank(axis, text: str = "not measured") -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="0.5")


def legend(figure: Figure, kinds: tuple[str, ...] = DISCRIMINATORS, marker: str = "") -> None:
    """Algorithms by colour and discriminators by line, or by filled and open markers, under the panels."""
    handles = []
    for algorithm, title in ALGORITHMS.items():
        for kind in kinds:
            style = {"linestyle": LINES[kind]}
            if marker:
                style = {"linestyle": "", "marker": marker, "markerfacecolor": face(algorithm, kind)}
            label = f"{title}, {kind}" if len(kinds) > 1 else title
            handles.append(Line2D([], [], color=COLOURS[algorithm], label=label, **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def face(algorithm: str, kind: str) -> str:
    return COLOURS[algorithm] if kind == "decentralized" else "white"


def mean_curve(curves: list[dict[str, np.ndarray]], field: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes, mean over runs and half width of its 95 % interval, where all runs have values."""
    known = [~np.isnan(curve[field]) for curve in curves]
    lines = [(curve["episodes"][there], curve[field][there]) for curve, there in zip(curves, known) if there.any()]
    if not lines:
        return np.empty(0), np.empty(0), np.empty(0)
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.unique(np.concatenate([x for x, _ in lines]))
    grid = grid[(grid >= first) & (grid <= last)]
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    return grid, values.mean(axis=0), t_interval(values)


def draw_curves(axis, cells: dict, curves: dict, stage: str, task: str, n_demos: int, field: str) -> bool:
    """A line an algorithm and kind of discriminator; whether there was any."""
    drawn = False
    for algorithm in ALGORITHMS:
        for kind in DISCRIMINATORS:
            runs = cells.get(Cell(stage, task, algorithm, kind, n_demos), [])
            x, mean, half = mean_curve([curves[run.run_id] for run in runs], field)
            if not len(x):
                continue
            drawn = True
            marker = "." if len(x) == 1 else ""
            axis.plot(x, mean, color=COLOURS[algorithm], linestyle=LINES[kind], linewidth=1.2, marker=marker)
            if not np.isnan(half).any():
                axis.fill_between(x, mean - half, mean + half, color=COLOURS[algorithm], alpha=0.15, linewidth=0)
    if not drawn:
        blank(axis)
    return drawn


def frame_nss(axis) -> None:
    """Lines for random play and for the expert, and limits that a single bad curve cannot stretch."""
    for level in (0, 1):
        axis.axhline(level, color="0.4", linewidth=0.7, linestyle=":")
    low, high = axis.get_ylim()
    axis.set_ylim(min(max(low, -1.0), -0.05), max(min(high, 1.5), 1.05))


def thousands(axis) -> None:
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")


def curves_figure(stage: str, tasks: dict[str, str], cells: dict, curves: dict) -> Figure | None:
    """NSS against episodes, rows of tasks and columns of numbers of demonstrations."""
    if not any(cell.stage == stage and cell.task in tasks for cell in cells):
        return None
    figure, axes = panels(len(tasks), len(DEMOS), (3.1, 1.95), sharex="row", sharey="row")
    for row, (task, title) in zip(axes, tasks.items()):
        measured = [draw_curves(axis, cells, curves, stage, task, n, "nss") for axis, n in zip(row, DEMOS)]
        if not any(measured):
            row[0].set_xlim(0, 1.04 * paper_episodes(task))
        for axis in row:
            frame_nss(axis)
            thousands(axis)
        broken = title.replace(", ", "\n").replace("ve ", "ve\n").replace(" of ", "\nof ")
        row[0].set_ylabel(f"{broken}\nNSS", fontsize=8)
    for axis, n_demos in zip(axes[0], DEMOS):
        axis.set_title(f"{n_demos} demonstrations", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("episodes", fontsize=8)
    legend(figure)
    return figure


def pcc_figure(cells: dict, curves: dict) -> Figure | None:
    """PCC and NSS while retraining, of tasks that have any PCC: at the number of demonstrations with the most runs."""
    chosen = {}
    for task in TASKS:
        counts = Counter()
        for cell, runs in cells.items():
            if (cell.stage, cell.task) == ("retrain", task):
                counts[cell.n_demos] += sum(not np.isnan(curves[run.run_id]["pcc"]).all() for run in runs)
        if counts.total():
            chosen[task] = max(sorted(counts), key=counts.get)
    if not chosen:
        return None
    figure, axes = panels(len(chosen), 2, (4.4, 2.3), sharex="row")
    for row, (task, n_demos) in zip(axes, chosen.items()):
        for axis, field in zip(row, ("pcc", "nss")):
            draw_curves(axis, cells, curves, "retrain", task, n_demos, field)
            axis.set_ylabel(field.upper(), fontsize=8)
            axis.set_title(f"{TASKS[task]}, {n_demos} demonstrations", fontsize=9)
        row[0].axhline(0, color="0.4", linewidth=0.7, linestyle=":")
        frame_nss(row[1])
        thousands(row[0])
    for axis in axes[-1]:
        axis.set_xlabel("episodes of retraining", fontsize=8)
    legend(figure)
    return figure


def parameters_figure() -> Figure:
    """Trainable parameters on Rover Tower, decentralized, as docs/parameter_table.py counts them."""
    path = env_utils.ROOT / "docs" / "parameter_table.py"
    spec = importlib.util.spec_from_file_location("parameter_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counts = defaultdict(list)
    for agents in PARAMETER_AGENTS:
        task = module.make_task(f"rover_tower_{agents}", 1)
        for script, title in module.NAMES.items():
            found = module.parameters(script, task.obs_sizes, task.num_actions, "decentralized")
            counts[title].append(sum(found.values()) / 1e6)
    figure, axes = panels(1, 1, (5.5, 3.5))
    for algorithm, title in ALGORITHMS.items():
        axes[0, 0].plot(
            PARAMETER_AGENTS, counts[title], color=COLOURS[algorithm], marker="o", markersize=4, label=title
        )
    axes[0, 0].set(xlabel="agents in Rover Tower", ylabel="trainable parameters, millions", ylim=(0, None))
    axes[0, 0].set_xticks(PARAMETER_AGENTS)
    axes[0, 0].legend(frameon=False, fontsize=9)
    return figure


def enough_values(aggregates: Aggregates, demos: Collection[str]) -> bool:
    return any(found.enough for (_, name), (found, _) in aggregates.items() if name in demos)


def draw_means(axis, y: int, means: dict[str, tuple[float, float, float]]) -> None:
    """A point an algorithm, with a bar where there is an interval."""
    for name, (mean, low, high) in means.items():
        height = y + 0.22 * (list(ALGORITHMS).index(name) - 1)
        axis.plot([low, high], [height, height], color=COLOURS[name], linewidth=5, alpha=0.35)
        axis.plot(mean, height, color=COLOURS[name], marker="o", markersize=5)


def iqm_figure(aggregates: Aggregates) -> Figure | None:
    """Interquartile means with intervals, a group of algorithms a number of demonstrations."""
    names = list(DEMO_CHOICES)
    if not enough_values(aggregates, names):
        return None
    figure, axes = panels(1, 2, (4.4, 3.7), sharex="row", sharey="row")
    for axis, (stage, title) in zip(axes[0], STAGES.items()):
        lines = [title]
        for y, demos in enumerate(names):
            found, means = aggregates.get((stage, demos), (None, {}))
            lines.append(textwrap.fill(f"{demos}: {scope_text(found)}", TITLE_WIDTH, break_on_hyphens=False))
            if found and found.enough:
                draw_means(axis, y, means)
                continue
            where = {"transform": axis.get_yaxis_transform(), "ha": "center", "va": "center"}
            axis.text(0.5, y, "too few" if found else "not measured", color="0.5", **where)
        axis.set_title("\n".join(lines), fontsize=7)
        axis.set_xlabel("interquartile mean of final NSS", fontsize=8)
        axis.axvline(1, color="0.4", linewidth=0.7, linestyle=":")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    axes[0, 0].set_ylabel("demonstrations", fontsize=8)
    legend(figure, ("decentralized",), "o")
    return figure


def profile_figure(aggregates: Aggregates) -> Figure | None:
    """Fraction of runs above each NSS, all numbers of demonstrations together."""
    if not enough_values(aggregates, ("all",)):
        return None
    thresholds = np.linspace(-0.2, 1.2, 71)
    figure, axes = panels(1, 2, (4.4, 3.3), sharey="row")
    for axis, (stage, title) in zip(axes[0], STAGES.items()):
        found, _ = aggregates.get((stage, "all"), (None, {}))
        axis.set_title(f"{title}\n{textwrap.fill(scope_text(found), TITLE_WIDTH, break_on_hyphens=False)}", fontsize=7)
        axis.set_xlabel("NSS τ", fontsize=8)
        if not found or not found.enough:
            blank(axis, "too few" if found else "not measured")
            continue
        for name, (profile, low, high) in performance_profiles(found, thresholds).items():
            axis.step(thresholds, profile, where="post", color=COLOURS[name], linewidth=1.4)
            if found.runs >= MIN_RUNS:
                axis.fill_between(thresholds, low, high, step="post", color=COLOURS[name], alpha=0.15, linewidth=0)
    axes[0, 0].set_ylabel("fraction of runs with NSS > τ", fontsize=8)
    axes[0, 0].set_ylim(-0.02, 1.02)
    legend(figure, ("decentralized",))
    return figure


def draw_point(axis, x: float, value: float, algorithm: str, kind: str) -> None:
    """A circle, or a cross above the panel for what was not reached."""
    style = {"color": COLOURS[algorithm], "markerfacecolor": face(algorithm, kind), "linestyle": "", "markersize": 4.5}
    if math.isfinite(value):
        axis.plot(x, value, marker="o", **style)
    else:
        axis.plot(x, 1.05, marker="X", transform=axis.get_xaxis_transform(), clip_on=False, **style)


def efficiency_figure(cells: dict, curves: dict) -> Figure | None:
    """A point a run: episodes, and seconds, to the goal; a cross above for runs that do not reach it."""
    if not any(cell.stage == "imitate" for cell in cells):
        return None
    figure, axes = panels(2, len(DEMOS), (3.5, 2.7), sharex="all", sharey="row")
    kinds, anywhere = list(itertools.product(ALGORITHMS, DISCRIMINATORS)), False
    for (column, n_demos), (x, task) in itertools.product(enumerate(DEMOS), enumerate(TASKS)):
        measured = False
        for place, (algorithm, kind) in enumerate(kinds):
            for run in cells.get(Cell("imitate", task, algorithm, kind, n_demos), []):
                measured = True
                for axis, value in zip(axes[:, column], first_reached(curves[run.run_id])):
                    draw_point(axis, x + 0.13 * (place - 2.5), max(value, 1.0), algorithm, kind)  # 0 has no logarithm
                    anywhere |= math.isfinite(value)
        for axis in axes[:, column] if not measured else []:
            where = {"transform": axis.get_xaxis_transform(), "rotation": 90, "ha": "center", "va": "center"}
            axis.text(x, 0.5, "not measured", fontsize=7, color="0.5", **where)
    for axis, n_demos in zip(axes[0], DEMOS):
        axis.set_title(f"{n_demos} demonstrations", fontsize=9, pad=14)
    for axis in axes.flat:
        axis.set_yscale("log")
        if not anywhere:  # no run reached it: nothing to find limits from
            axis.set_ylim(1, 100)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.minorticks_off()
        axis.set_xlim(-0.6, len(TASKS) - 0.4)
    short = [
        "keep\naway",
        "commu-\nnication",
        "navi-\ngation",
        *(task.replace("r_", "r\n").replace("_", " ") for task in LARGE),
    ]
    axes[0, 0].set_xticks(range(len(TASKS)), short)
    for axis in axes[-1]:
        axis.tick_params(axis="x", labelsize=7)
    axes[0, 0].set_ylabel(f"episodes to NSS {NSS_GOAL}", fontsize=8)
    axes[1, 0].set_ylabel(f"seconds to NSS {NSS_GOAL}", fontsize=8)
    figure.suptitle("crosses above a panel: not reached", fontsize=8, color="0.3")
    legend(figure, marker="o")
    return figure


# All of it


CAPTIONS = {
    "imitation_small": "NSS while imitating, small-scale tasks. Mean over runs, with "
    "95 % t-intervals where there are two runs or more.",
    "imitation_large": "NSS while imitating, Rover Tower. Mean over runs, with 95 % t-intervals where there are two "
    "runs or more.",
    "retraining": "NSS while retraining with the learned rewards, all tasks. Mean over runs, with 95 % t-intervals "
    "where there are two runs or more.",
    "parameters": "Trainable parameters in Rover Tower, decentralized discriminators.",
    "pcc": "Correlation of learned with true rewards (left) and NSS (right) while retraining.",
    "interquartile_mean": "Interquartile mean of the final NSS, decentralized discriminators, of "
    f"{MIN_VALUES} values an algorithm or more; bars are 95 % intervals of a stratified bootstrap, where there are "
    f"{MIN_RUNS} runs a setting or more. Titles say which algorithms are missing.",
    "performance_profile": "Fraction of runs above each NSS, all numbers of demonstrations, decentralized "
    f"discriminators, of {MIN_VALUES} values an algorithm or more; 95 % bands of a stratified bootstrap, where there "
    f"are {MIN_RUNS} runs a setting or more. Titles say which algorithms are missing.",
    "sample_efficiency": f"Episodes and seconds of imitation until NSS {NSS_GOAL}, a point a run.",
}


def make_figures(cells: dict, curves: dict, aggregates: Aggregates) -> dict[str, Figure | None]:
    """By name; None for a figure that has no data."""
    return {
        "imitation_small": curves_figure("imitate", SMALL, cells, curves),
        "imitation_large": curves_figure("imitate", LARGE, cells, curves),
        "retraining": curves_figure("retrain", TASKS, cells, curves),
        "parameters": parameters_figure(),
        "pcc": pcc_figure(cells, curves),
        "interquartile_mean": iqm_figure(aggregates),
        "performance_profile": profile_figure(aggregates),
        "sample_efficiency": efficiency_figure(cells, curves),
    }


def make_index(tables: list[Table], figures: list[str], runs: list[Run], used: int) -> str:
    parts = ["# Results beside the paper's\n"]
    left_out = f"; {len(runs) - used:,} left out" if len(runs) > used else ""
    if former := Counter(run.task for run in runs if not of_todays_expert(run)):
        named = ", ".join(f"{task} {count:,}" for task, count in former.items())
        share = "" if former.total() == len(runs) - used else f" {former.total():,} of them"
        left_out += f",{share} because their experts have been replaced since ({named})"
    parts.append(
        f"`runs.csv` has {counted(len(runs), 'row')}: {used:,} in the tables and figures below{left_out}. A cell is "
        "the mean of its runs over seeds. Of a cell's runs these count:\n\n"
        "- those with the paper's number of episodes, or with the most if none has it;\n"
        "- of retrainings those by the paper's algorithm, on rewards of imitations of the paper's length, if there "
        "are any;\n"
        "- those with the same extra arguments: the ones with the most seeds, without any if that is a draw.\n\n"
        "The first six tables are the paper's, with ours beside them; those after them are ours alone.\n"
    )
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in tables]
    parts += [f"## Figure: {name}\n\n{CAPTIONS[name]}\n\n![{name}](../figures/{name}.png)\n" for name in figures]
    return "\n".join(parts)


def write_text(path: Path, text: str) -> Path:
    with env_utils.writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_png(path: Path, figure: Figure) -> None:
    """With 256 colours, a third of the size, and without metadata, which would differ between versions."""
    figure.set_dpi(110)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    with env_utils.writing(path) as temporary:
        image.save(temporary, format="png", optimize=True)


def write_report(results: Path, paper: Path) -> list[Path]:
    """All tables and figures, into results/tables and results/figures; the files that were written."""
    results = Path(results)
    runs, numbers_of_paper = read_runs(results / "runs.csv"), read_paper(Path(paper))
    cells = select(runs)
    used = [run for group in cells.values() for run in group]
    curves = {run.run_id: read_curve(results / "curves" / f"{run.run_id}.csv") for run in used}
    aggregates = all_aggregates(cells)
    tables = [score_table(stage, scale, cells, numbers_of_paper) for scale in ("small", "large") for stage in STAGES]
    tables += [relative_table(stage, cells, numbers_of_paper) for stage in STAGES]
    tables += [efficiency_table(cells, curves), aggregate_table(aggregates, cells)]
    written, drawn = [], []
    for table in tables:
        written.append(write_text(results / "tables" / f"{table.name}.md", f"# {table.title}\n\n{markdown(table)}"))
        if table.latex:
            written.append(write_text(results / "tables" / f"{table.name}.tex", latex(table)))
    for name, figure in make_figures(cells, curves, aggregates).items():
        path = results / "figures" / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # of other rows
            continue
        write_png(path, figure)
        drawn.append(name)
        written.append(path)
    return [*written, write_text(results / "tables" / "index.md", make_index(tables, drawn, runs, len(used)))]
