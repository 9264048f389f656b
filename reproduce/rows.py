"""The schema of results/runs.csv (one row per run), of the curves beside it, and of the paper's numbers."""

import csv
import io
import itertools
import math
from dataclasses import dataclass, fields
from pathlib import Path

from madaac_utils.files import UserError, writing
from reproduce.grid import ALGORITHMS, DISCRIMINATORS, STAGES, TASKS, Cell


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

    def __post_init__(self):
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"column {name}: expected one of {', '.join(map(repr, known))}")
        for name in ("scores", "score_intervals", "greedy_scores", "expert_scores", "random_scores"):
            if len(getattr(self, name)) != len(self.agents):
                raise ValueError(f"column {name}: expected {len(self.agents)} values, one per agent")
        place = {name: getattr(self, name) for name in Cell.__dataclass_fields__}
        if self.run_id != Cell(**place).run_id:
            raise ValueError(f"column run_id: the other columns say {Cell(**place).run_id!r}")
        if any(expert == random for expert, random in zip(self.expert_scores, self.random_scores)):
            raise ValueError("column expert_scores: one equals the random score, so that NSS is undefined")


CHOICES = {
    "stage": STAGES,
    "task": TASKS,
    "algorithm": ALGORITHMS,
    "discriminator": ("none", *DISCRIMINATORS),
    "budget": ("default", "paper"),
    "rl": ("", "mack", "maac"),
}
MAY_BE_EMPTY = ("nss_last_500", "pcc", "seconds")  # read as nan
# The columns of each kind of file with their types
ROW_COLUMNS = {field.name: field.type for field in fields(Row)}
CURVE_COLUMNS = dict.fromkeys(("episodes", "seconds", "nss", "pcc"), float)
PAPER_KEY = ("stage", "task", "agent", "algorithm", "discriminator", "n_demos")
PAPER_COLUMNS = dict.fromkeys(("table", *PAPER_KEY), str) | dict.fromkeys(("mean", "interval_95"), float)


def parse(text: str, kind: type):
    if kind == tuple[str, ...]:
        return tuple(text.split(";"))
    if kind == tuple[float, ...]:
        return tuple(parse(part, float) for part in text.split(";"))
    value = kind(text)
    if kind is float and not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def parse_column(name: str, kind: type, text: str):
    if name in MAY_BE_EMPTY and not text:
        return math.nan
    try:
        return parse(text, kind)
    except ValueError as error:
        raise ValueError(f"column {name}: cannot read {text!r} ({error})") from None


def as_text(value) -> str:
    if isinstance(value, tuple):
        return ";".join(map(as_text, value))
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return str(value)


def read_table(path: Path, columns: dict[str, type], make: type = dict) -> list:
    """What `make` makes of each line of a CSV file with these columns."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets put a mark at the beginning
        header, *lines = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if header != list(columns):
        raise UserError(f"{path}, line 1: expected the columns {','.join(columns)}; found {','.join(header)}")
    if not text.endswith("\n"):
        raise UserError(f"{path}, line {len(lines) + 1}: the file ends in the middle of a line, so it was cut off")
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            if len(line) != len(header):
                raise ValueError(f"{len(line)} fields, but the header has {len(header)}")
            values = {name: parse_column(name, columns[name], value) for name, value in zip(header, line)}
            rows.append(make(**values))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return rows


def write_table(path: Path, columns: dict[str, type], rows: list[dict]) -> None:
    with writing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_text(row[name]) for name in columns} for row in rows)


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of runs.csv by run id; no rows if there is no file."""
    rows = {}
    for number, row in enumerate(read_table(path, ROW_COLUMNS, Row) if path.exists() else [], start=2):
        if row.run_id in rows:
            raise UserError(f"{path}, line {number}: a second row with the run_id {row.run_id!r}")
        rows[row.run_id] = row
    return rows


def write_rows(path: Path, rows: dict[str, Row]) -> None:
    write_table(path, ROW_COLUMNS, [vars(rows[run_id]) for run_id in sorted(rows)])


def read_curve(path: Path) -> list[dict]:
    """The points of a curve: episodes (increasing), seconds, nss and pcc (nan if unknown)."""
    points = read_table(path, CURVE_COLUMNS)
    for number, (before, after) in enumerate(itertools.pairwise(points), start=3):
        if after["episodes"] <= before["episodes"]:
            raise UserError(f"{path}, line {number}, column episodes: expected more than {before['episodes']:g}")
    return points


def read_paper(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """The paper's mean and half width by PAPER_KEY."""
    rows = read_table(path, PAPER_COLUMNS)
    return {tuple(row[name] for name in PAPER_KEY): (row["mean"], row["interval_95"]) for row in rows}
