"""The schema of results/runs.csv (one row per run), of the curves beside it, and of the paper's numbers."""

import csv
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from madaac_utils.files import UserError, writing
from reproduce.grid import ALGORITHMS, DISCRIMINATORS, STAGES, TASKS


@dataclass(frozen=True)
class Row:
    """One finished run. Scores are mean episode returns of the final policies, one value per agent."""

    run_id: str
    stage: str
    task: str
    algorithm: str
    discriminator: str  # none for behavioural cloning
    n_demos: int
    seed: int
    budget: str  # paper: run at the paper's number of episodes although the algorithm's default is another one
    episodes: int
    arguments: str  # extra arguments of the script
    rl: str  # the learner of a retraining, mack or maac; empty for imitation
    agents: tuple[str, ...]
    scores: tuple[float, ...]
    score_intervals: tuple[float, ...]  # half widths of 95 % intervals over evaluation episodes
    greedy_scores: tuple[float, ...]
    expert_scores: tuple[float, ...]
    random_scores: tuple[float, ...]
    nss: float
    nss_greedy: float
    nss_last_500: float  # over the last 500 training episodes
    pcc: float  # correlation of learned and true rewards in retraining, nan for imitation
    seconds: float  # of processor time; nan for rows that were measured by the clock of a busy machine
    commit: str
    reward_episodes: int  # episodes of the imitation that recovered the reward; 0 for imitation
    reward_arguments: str


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def number_or_nan(text: str) -> float:
    return number(text) if text else math.nan


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(map(repr, choices))}")
        return text

    return parse


# Functions that parse the text of a column, by its name or by its type
BY_NAME = {"stage": one_of(*STAGES), "task": one_of(*TASKS), "algorithm": one_of(*ALGORITHMS)}
BY_NAME |= {"discriminator": one_of("none", *DISCRIMINATORS), "budget": one_of("default", "paper")}
BY_NAME |= {"rl": one_of("", "mack", "maac"), "nss_last_500": number_or_nan, "pcc": number_or_nan}
BY_NAME |= {"seconds": number_or_nan}
BY_TYPE = {int: int, str: str, float: number, tuple[str, ...]: lambda text: tuple(text.split(";"))}
BY_TYPE[tuple[float, ...]] = lambda text: tuple(map(number, text.split(";")))
ROW_COLUMNS = {field.name: BY_NAME.get(field.name) or BY_TYPE[field.type] for field in fields(Row)}
CURVE_COLUMNS = {"episodes": number, "seconds": number_or_nan, "nss": number, "pcc": number_or_nan}
PAPER_KEY = ("stage", "task", "agent", "algorithm", "discriminator", "n_demos")
PAPER_COLUMNS = dict.fromkeys(("table", *PAPER_KEY), str) | dict.fromkeys(("mean", "interval_95"), number)


def as_text(value) -> str:
    if isinstance(value, tuple):
        return ";".join(map(as_text, value))
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return str(value)


def read_table(path: Path, columns: dict[str, Callable]) -> list[tuple[str, dict]]:
    """The parsed rows of a CSV file with exactly these columns, each with its place for error messages."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        header = next(reader, [])
        if sorted(header) != sorted(columns):
            raise UserError(f"{path}, line 1: expected the columns {','.join(columns)}; found {','.join(header)}")
        for line in reader:
            where = f"{path}, line {reader.line_num}"
            if len(line) != len(header):
                raise UserError(f"{where}: {len(line)} fields, but the header has {len(header)}")
            rows.append((where, {}))
            for name, value in zip(header, line):
                try:
                    rows[-1][1][name] = columns[name](value)
                except ValueError as error:
                    raise UserError(f"{where}, column {name}: {error}") from None
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None
    if not text.endswith("\n"):
        raise UserError(f"{path}, line {reader.line_num}: the file ends in the middle of a line, so it was cut off")
    return rows


def write_table(path: Path, columns: dict[str, Callable], rows: list[dict]) -> None:
    with writing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_text(row[name]) for name in columns} for row in rows)


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of runs.csv by run id; no rows if there is no file."""
    rows = {}
    for where, content in read_table(path, ROW_COLUMNS) if path.exists() else []:
        row = Row(**content)
        for name in ("scores", "score_intervals", "greedy_scores", "expert_scores", "random_scores"):
            if len(getattr(row, name)) != len(row.agents):
                raise UserError(f"{where}, column {name}: expected {len(row.agents)} values, one per agent")
        if any(expert == random for expert, random in zip(row.expert_scores, row.random_scores)):
            raise UserError(f"{where}: an expert score equals the random score, so that NSS is undefined")
        if row.run_id in rows:
            raise UserError(f"{where}: a second row with the run_id {row.run_id!r}")
        rows[row.run_id] = row
    return rows


def write_rows(path: Path, rows: dict[str, Row]) -> None:
    write_table(path, ROW_COLUMNS, [vars(rows[run_id]) for run_id in sorted(rows)])


def read_curve(path: Path) -> list[dict]:
    """The points of a curve: episodes (increasing), seconds, nss and pcc (nan if unknown)."""
    points = read_table(path, CURVE_COLUMNS)
    for (_, before), (where, after) in itertools.pairwise(points):
        if after["episodes"] <= before["episodes"]:
            raise UserError(f"{where}, column episodes: expected more than {before['episodes']:g}")
    return [point for _, point in points]


def read_paper(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """The paper's mean and half width by PAPER_KEY."""
    rows = [row for _, row in read_table(path, PAPER_COLUMNS)]
    return {tuple(row[name] for name in PAPER_KEY): (row["mean"], row["interval_95"]) for row in rows}
