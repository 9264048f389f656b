"""Tables as Markdown and LaTeX: the paper's six, the headline, sample efficiency and interquartile means."""

import itertools
import math
from typing import NamedTuple

from reproduce import stats
from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, STAGES, TASKS
from reproduce.stats import COLUMNS, GOALS, MIN_RUNS, PAPER_TITLES, Column, Data, Value, over_runs
from reproduce.store import expert_scores

NOTHING = "–"
VALUES = ("score", "paper's score", "NSS", "paper's NSS")
INTERVALS = (
    "Cells: mean ± half width of the 95 % t interval over runs (number of runs); "
    "fewer than three runs have no interval."
)
MARKS = (
    "NSS = (score − random) / (expert − random), by each side's own expert and random scores, because the experts are "
    "not the same. The mark compares it with the paper's: ↑ our interval over runs lies above the paper's (10 runs), "
    f"↓ below, = they overlap. Fewer than {MIN_RUNS} runs get no mark."
)


class Table(NamedTuple):
    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]


def number(value: float, digits: int) -> str:
    """With a minus sign, and without one for what rounds to zero."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def cell(value: Value, digits: int = 2) -> str:
    if math.isnan(value.mean):
        return NOTHING
    half = "" if math.isnan(value.half) or value.runs in (1, 2) else f" ± {number(value.half, digits)}"
    return number(value.mean, digits) + half + (f" ({value.runs})" if value.runs else "")


def mark(ours: Value, paper: Value) -> str:
    return {None: "", 1: " ↑", 0: " =", -1: " ↓"}[stats.compare(ours, paper)]


def paper_cell(value: Value) -> str:
    return cell(value._replace(runs=0), 3)  # always of 10 runs


def settings_of(data: Data, stage: str) -> list[tuple[int, str, str]]:
    """Number of demonstrations, discriminator and algorithm of the rows of a table."""
    algorithms = data.algorithms(stage)
    kinds = {kind: [name for name in algorithms if ALGORITHMS[name].adversarial] for kind in DISCRIMINATORS}
    kinds["none"] = [name for name in algorithms if not ALGORITHMS[name].adversarial]
    return [(n, kind, name) for n in DEMOS for kind, names in kinds.items() for name in names]


def setting_values(data: Data, stage: str, column: Column, name: str, kind: str, n_demos: int) -> list[Value]:
    """Score, paper's score, NSS and paper's NSS; nan where there is none."""
    runs = data.get(stage, column.task, name, kind, n_demos)
    score, nss = (over_runs([*map(measure, runs)]) for measure in (column.score, column.nss))
    paper_score = paper_nss = over_runs([])
    if name in PAPER_TITLES:
        place = (stage, column, PAPER_TITLES[name], kind, n_demos)
        paper_score, paper_nss = data.paper_score(*place), data.paper_nss(*place)
    return [score, paper_score, nss, paper_nss]


def value_cells(score: Value, paper_score: Value, nss: Value, paper_nss: Value) -> list[str]:
    return [cell(score), paper_cell(paper_score), cell(nss, 3) + mark(nss, paper_nss), paper_cell(paper_nss)]


def score_table(data: Data, scale: str, tasks, stage: str) -> Table:
    """One of the paper's four tables of scores, with NSS beside them."""
    rows, retrain = [], stage == "retrain"
    for column in [column for column in COLUMNS if column.task in tasks]:
        for who, nss in (("random", "0"), ("expert", "1")):
            ours, paper = column.pick(expert_scores(column.task, who)), data.paper_score(stage, column, who)
            cells = [number(ours, 2), paper_cell(paper), nss, nss, NOTHING]
            rows.append([column.title, NOTHING, NOTHING, who, *cells, *[NOTHING] * retrain])
        for n_demos, kind, name in settings_of(data, stage):
            runs = data.get(stage, column.task, name, kind, n_demos)
            cells = value_cells(*setting_values(data, stage, column, name, kind, n_demos))
            cells.append(f"{runs[0].episodes:,}" if runs else NOTHING)
            cells += [cell(over_runs([row.pcc for row in runs]))] if retrain else []
            rows.append([column.title, str(n_demos), kind, ALGORITHMS[name].title, *cells])
    header = ["task", "demonstrations", "discriminator", "algorithm", *VALUES, "episodes", *["PCC"] * retrain]
    caption = f"{INTERVALS} {MARKS}" + " PCC is the correlation of learned with true rewards." * retrain
    name = f"{scale}_scale_{STAGES[stage]}"
    return Table(name, name.replace("_scale_", "-scale ").capitalize(), caption, header, rows)


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized."""
    rows = []
    columns = [column for column in COLUMNS if column.task in LARGE_TASKS]
    names = [name for name in data.algorithms(stage) if name != "magail"]
    for column, n_demos, name in itertools.product(columns, DEMOS, names):
        place = ("decentralized", n_demos)
        ours, magail = (setting_values(data, stage, column, one, *place) for one in (name, "magail"))
        cells = value_cells(*(one.minus(other) for one, other in zip(ours, magail)))
        rows.append([column.title, str(n_demos), ALGORITHMS[name].title, *cells])
    caption = f"After {STAGES[stage]}, decentralized, minus MA-GAIL's; n is the smaller number of runs."
    name, title = f"relative_{STAGES[stage]}", f"Relative to MA-GAIL, {STAGES[stage]}"
    return Table(name, title, f"{caption} {INTERVALS} {MARKS}", ["task", "demonstrations", "algorithm", *VALUES], rows)


def goal_cell(values: list[float]) -> str:
    """Mean episodes or seconds to the goal, or how many runs do not get there."""
    missed = values.count(math.inf)
    return f"not reached by {missed} of {len(values)}" if missed else cell(over_runs(values), 0)


def efficiency_table(data: Data, name: str, title: str, tasks, choose=lambda n_demos, kind: True) -> Table:
    """What imitation reaches and how fast, for the settings that are chosen."""
    rows = []
    for task, (n_demos, kind, algorithm) in itertools.product(tasks, settings_of(data, "imitate")):
        runs = data.get("imitate", task, algorithm, kind, n_demos)
        if runs and choose(n_demos, kind):
            cells = [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
            cells += [goal_cell(data.to_goal(runs, unit)) for unit in ("episodes", "seconds")]
            cells.append(cell(over_runs([row.seconds for row in runs]), 0))
            rows.append([TASKS[task], str(n_demos), kind, ALGORITHMS[algorithm].title, *cells])
    header = ["task", "demonstrations", "discriminator", "algorithm", "NSS", "episodes"]
    header += ["episodes to the goal", "seconds to the goal", "seconds"]
    caption = f"Imitation. The goal is the first point of the training curve at {GOALS}. {INTERVALS}"
    return Table(name, title, f"{caption} Seconds are processor time of one core.", header, rows)


def aggregate_table(data: Data) -> Table:
    rows = []
    for stage, title in STAGES.items():
        for algorithm, scores in stats.shared_scores(data, stage).items():
            runs, settings = scores.shape
            ends = [number(end, 3) for end in stats.bootstrap_interval(scores)] if runs >= MIN_RUNS else []
            mean, size = number(stats.interquartile_mean(scores), 3), f"{settings} settings × {runs} runs"
            rows.append([title, ALGORITHMS[algorithm].title, mean, " to ".join(ends) or NOTHING, size])
    caption = (
        "Interquartile mean of the final NSS over settings (task and number of demonstrations, decentralized) that all "
        "three algorithms of the paper have, with the same number of runs. 95 % intervals: stratified bootstrap over "
        f"runs with {stats.BOOTSTRAP_SAMPLES:,} samples, for {MIN_RUNS} runs or more."
    )
    header = ["stage", "algorithm", "interquartile mean", "95 % interval", "of"]
    return Table("aggregate", "Interquartile means", caption, header, rows)


def all_tables(data: Data) -> list[Table]:
    scales = {"small": SMALL_TASKS, "large": LARGE_TASKS}.items()

    def is_headline(n_demos: int, kind: str) -> bool:
        return n_demos == 50 and kind != "centralized"

    return [
        efficiency_table(data, "headline", "Headline", HEADLINE_TASKS, is_headline),
        *(score_table(data, scale, tasks, stage) for scale, tasks in scales for stage in STAGES),
        *(relative_table(data, stage) for stage in STAGES),
        efficiency_table(data, "efficiency", "Sample efficiency", TASKS),
        aggregate_table(data),
    ]


def markdown(table: Table) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [table.header, *table.rows]]
    lines.insert(1, "|" + "---|" * len(table.header))
    return f"{table.caption}\n\n" + "\n".join(lines) + "\n"


LATEX = {character: f"\\{character}" for character in "&%#_${}"}
LATEX |= {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}


def latex(table: Table) -> str:
    """A table* that needs booktabs and adjustbox."""

    def escape(text: str) -> str:
        return "".join(LATEX.get(character, character) for character in text)

    rows = [" & ".join(map(escape, row)) + r" \\" for row in [table.header, *table.rows]]
    lines = ["% needs \\usepackage{booktabs,adjustbox}", r"\begin{table*}[t]", rf"\caption{{{escape(table.caption)}}}"]
    lines += [rf"\label{{table:{table.name}}}", r"\centering"]
    lines += [r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.8\textheight}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.header)}}}", r"\toprule", rows[0], r"\midrule", *rows[1:]]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}", r"\end{table*}"]
    return "\n".join(lines) + "\n"
