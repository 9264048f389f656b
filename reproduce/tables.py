"""Tables as Markdown and LaTeX: the paper's six, the headline, NSS, PCC, sample efficiency and others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reproduce import EXPERTS, read_json
from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, NSS_GOALS, STAGES, TASKS
from reproduce.rows import Row
from reproduce.stats import (
    BOOTSTRAP_SAMPLES,
    COLUMNS,
    MIN_RUNS,
    PAPER_TITLES,
    Column,
    Data,
    Value,
    aggregate,
    bootstrap_interval,
    compare,
    interquartile_mean,
    over_runs,
)

NOTHING = "–"
INTERVALS = "Cells: mean ± half width of the 95 % t interval over runs (number of runs); a single run has no interval."
MARKS = (
    "Marks compare NSS = (score − random) / (expert − random) with the paper's, by each side's own expert and random "
    "scores, because the experts are not the same: ↑ our interval over runs lies above the paper's (10 runs), "
    f"↓ below, = they overlap. Cells with fewer than {MIN_RUNS} runs get no mark."
)


@dataclass
class Table:
    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def number(value: float, digits: int) -> str:
    """With a minus sign, and without one for what rounds to zero."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def cell(value: Value | None, digits: int = 2, with_runs: bool = True) -> str:
    if value is None:
        return NOTHING
    half = "" if math.isnan(value.half) else f" ± {number(value.half, digits)}"
    return number(value.mean, digits) + half + (f" ({value.runs})" if with_runs else "")


def mark(ours: Value, paper: Value) -> str:
    sign = compare(ours, paper)
    return "" if sign is None else " " + {1: "↑", 0: "=", -1: "↓"}[sign]


def grid_table(
    data: Data,
    name: str,
    title: str,
    stage: str,
    lines: dict[str, list[Column]],
    show: Callable[[Row, list[Column]], float],
    paper: Callable | None,
    digits: int,
) -> Table:
    """One row per line, number of demonstrations and discriminator; one column per algorithm, beside the paper's.

    A line is a title and the columns of the paper's tables that it covers. `show` gives the value of a run that is
    shown, and `paper` the paper's value of that kind.
    """
    algorithms = data.algorithms(stage)
    header, rows, used = ["task", "demonstrations", "discriminator"], [], []
    for algorithm in algorithms:
        header.append(ALGORITHMS[algorithm].title)
        header += [f"paper's {PAPER_TITLES[algorithm]}"] if paper and is_last_of_paper(algorithm, algorithms) else []
    for line, columns in lines.items():
        for n_demos in DEMOS:
            for kind in DISCRIMINATORS:
                cells = []
                for algorithm in algorithms:
                    runs = data.get(stage, columns[0].task, algorithm, kind, n_demos)
                    used += runs
                    text = cell(over_runs([show(row, columns) for row in runs]) if runs else None, digits)
                    if paper and algorithm in PAPER_TITLES:
                        place = (PAPER_TITLES[algorithm], kind, n_demos)
                        if runs:
                            ours = over_runs([sum(c.nss(row) for c in columns) / len(columns) for row in runs])
                            text += mark(ours, data.paper_nss(stage, columns, *place))
                        if is_last_of_paper(algorithm, algorithms):
                            cells += [text, cell(paper(stage, columns, *place), 3, with_runs=False)]
                            continue
                    cells.append(text)
                if paper or set(cells) != {NOTHING}:
                    rows.append([line, str(n_demos), kind, *cells])
    notes = [MARKS] if paper else []
    notes += ["BC has no discriminator; its value stands in both rows."] if "bc" in algorithms else []
    return Table(name, title, INTERVALS, header, rows, [*notes, *episodes_notes(used)])


def is_last_of_paper(algorithm: str, algorithms: list[str]) -> bool:
    """Whether the paper's column follows: both MA-DAACs share one."""
    same = [name for name in algorithms if PAPER_TITLES.get(name) == PAPER_TITLES.get(algorithm, "")]
    return bool(same) and same[-1] == algorithm


def episodes_notes(rows: list[Row]) -> list[str]:
    """How long the runs of a table were, by algorithm, and those that recovered the rewards."""
    notes = []
    for name, text in (("episodes", "Episodes per run"), ("reward_episodes", "Episodes of the rewards' imitations")):
        counts = {key: sorted({getattr(row, name) for row in rows if row.algorithm == key}) for key in ALGORITHMS}
        parts = [
            f"{ALGORITHMS[key].title} {' or '.join(f'{count:,}' for count in found)}"
            for key, found in counts.items()
            if any(found)
        ]
        notes += [f"{text}: {'; '.join(parts)}."] if parts else []
    return notes


def task_columns(task: str) -> list[Column]:
    return [column for column in COLUMNS if column.task == task]


def paper_tables(data: Data) -> list[Table]:
    """The paper's four tables of scores."""
    tables = []
    for scale in ("small", "large"):
        columns = [column for column in COLUMNS if (column.task in LARGE_TASKS) == (scale == "large")]
        lines = {column.title: [column] for column in columns}
        for stage, title in STAGES.items():
            name, heading = f"{scale}_scale_{title}", f"{scale.capitalize()}-scale {title}: scores"

            def paper(stage: str, columns: list[Column], *place) -> Value:
                return data.paper_score(stage, columns[0], *place)

            tables.append(grid_table(data, name, heading, stage, lines, lambda r, c: c[0].score(r), paper, 2))
    return tables


def nss_tables(data: Data) -> list[Table]:
    lines = {title: task_columns(task) for task, title in TASKS.items()}
    tables = [
        grid_table(data, f"nss_{title}", f"NSS after {title}", stage, lines, lambda r, _: r.nss, data.paper_nss, 3)
        for stage, title in STAGES.items()
    ]
    title = "Correlation (PCC) of learned with true rewards in retraining"
    return [*tables, grid_table(data, "pcc", title, "retrain", lines, lambda r, _: r.pcc, None, 2)]


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized."""
    kind, rows, used = "decentralized", [], []
    for column in [column for column in COLUMNS if column.task in LARGE_TASKS]:
        for algorithm in [name for name in data.algorithms(stage) if name != "magail"]:
            cells = []
            for n_demos in DEMOS:
                pair = [data.get(stage, column.task, name, kind, n_demos) for name in (algorithm, "magail")]
                text, paper = NOTHING, NOTHING
                if all(pair):
                    used += pair[0] + pair[1]
                    scores, nss = (
                        [over_runs([measure(row) for row in runs]) for runs in pair]
                        for measure in (column.score, column.nss)
                    )
                    text = cell(scores[0].minus(scores[1]))
                if algorithm in PAPER_TITLES:
                    titles = [(PAPER_TITLES[algorithm], kind, n_demos), ("MA-GAIL", kind, n_demos)]
                    theirs = [data.paper_score(stage, column, *title) for title in titles]
                    paper = cell(theirs[0].minus(theirs[1]), 3, with_runs=False)
                    if all(pair):
                        nss_paper = [data.paper_nss(stage, [column], *title) for title in titles]
                        text += mark(nss[0].minus(nss[1]), nss_paper[0].minus(nss_paper[1]))
                cells += [text, paper]
            rows.append([column.title, ALGORITHMS[algorithm].title, *cells])
    header = ["task", "algorithm", *(text for n in DEMOS for text in (f"{n} demonstrations", f"paper's, {n}"))]
    caption = f"Score after {STAGES[stage]} minus MA-GAIL's, decentralized. {INTERVALS}"
    notes = [f"{MARKS} Here differences are compared; n is the smaller number of runs.", *episodes_notes(used)]
    return Table(f"relative_{STAGES[stage]}", f"Relative to MA-GAIL, {STAGES[stage]}", caption, header, rows, notes)


def goal_cell(values: list[float]) -> str:
    """Mean episodes or seconds to the goal, or how many runs do not get there."""
    missed = sum(math.isinf(value) for value in values)
    return f"not reached by {missed} of {len(values)}" if missed else cell(over_runs(values), 0)


GOALS = "NSS 0.9 (Cooperative Communication: 0.7)"


def headline_table(data: Data) -> Table:
    rows = []
    for task in HEADLINE_TASKS:
        for algorithm in data.algorithms("imitate"):
            runs = data.get("imitate", task, algorithm, "decentralized", 50)
            if not runs:
                rows.append([TASKS[task], ALGORITHMS[algorithm].title, *[NOTHING] * 5])
                continue
            goals = [goal_cell(data.to_goal(runs, unit)) for unit in ("episodes", "seconds")]
            goals = goals if ALGORITHMS[algorithm].adversarial else [NOTHING] * 2
            numbers = [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
            seconds = cell(over_runs([row.seconds for row in runs]), 0)
            rows.append([TASKS[task], ALGORITHMS[algorithm].title, *numbers, *goals, seconds])
    caption = f"Imitation of 50 demonstrations, decentralized discriminators. The goal is {GOALS}. {INTERVALS}"
    header = ["task", "algorithm", "NSS", "episodes", "episodes to the goal", "seconds to the goal", "seconds"]
    return Table("headline", "Headline", caption, header, rows, ["Seconds are those of one CPU core under load."])


def efficiency_table(data: Data) -> Table:
    rows = []
    for task, title in TASKS.items():
        for n_demos in DEMOS:
            for kind in DISCRIMINATORS:
                for algorithm, info in ALGORITHMS.items():
                    runs = data.get("imitate", task, algorithm, kind, n_demos) if info.adversarial else []
                    if runs:
                        goals = [goal_cell(data.to_goal(runs, unit)) for unit in ("episodes", "seconds")]
                        setting = [title, str(n_demos), kind, info.title]
                        rows.append([*setting, f"{NSS_GOALS[task]:g}", f"{runs[0].episodes:,}", *goals])
    header = ["task", "demonstrations", "discriminator", "algorithm", "goal", "episodes", "to the goal", "seconds"]
    caption = f"Episodes and seconds of training until the curve first reaches {GOALS}. {INTERVALS}"
    return Table("efficiency", "Sample efficiency", caption, header, rows)


def aggregate_table(data: Data) -> Table:
    rows = []
    for stage, title in STAGES.items():
        for demos in (*((n,) for n in DEMOS), DEMOS):
            for algorithm, scores in aggregate(data, stage, demos).items():
                runs, settings = scores.shape
                ends = [number(end, 3) for end in bootstrap_interval(scores)] if runs >= MIN_RUNS else []
                mean = number(interquartile_mean(scores), 3) if scores.size >= 4 else "too few values"
                size = f"{settings} settings × {runs} runs"
                number_of = "all" if len(demos) > 1 else str(demos[0])
                rows.append([title, number_of, ALGORITHMS[algorithm].title, mean, " to ".join(ends) or NOTHING, size])
    caption = (
        "Interquartile mean of the final NSS over settings (task and number of demonstrations, decentralized) that all "
        "three algorithms of the paper have, with the same number of runs. 95 % intervals: stratified bootstrap over "
        f"runs with {BOOTSTRAP_SAMPLES:,} samples, for {MIN_RUNS} runs or more."
    )
    header = ["stage", "demonstrations", "algorithm", "interquartile mean", "95 % interval", "of"]
    return Table("aggregate", "Interquartile means", caption, header, rows)


def references_table(data: Data) -> Table:
    """Random and expert scores, ours from the experts' cards."""
    rows = []
    for column in COLUMNS:
        card = read_json(EXPERTS / column.task / "card.json", "the card of an expert")["scores"]
        row = [column.title]
        for name in ("random", "expert"):
            scores = [score for agent, score in card[name].items() if column.agent in (agent, "all", "mean")]
            mean, half = (sum(score[key] for score in scores) / len(scores) for key in ("mean", "interval_95"))
            paper = data.paper_score("imitate", column, name, "", 0)
            row += [f"{number(mean, 2)} ± {number(half, 2)}", cell(paper, 3, with_runs=False)]
        rows.append(row)
    caption = "Scores of random play and of the experts, with 95 % intervals over 500 episodes."
    header = ["task", "random", "paper's random", "expert", "paper's expert"]
    return Table("references", "Random play and experts", caption, header, rows)


def budget_table(data: Data) -> Table | None:
    """Runs at the paper's number of episodes beside those at the script's default."""
    rows = []
    for place, long in sorted(data.long_runs.items()):
        short = data.runs.get(place, [])
        pair = [[over_runs([row.nss for row in runs]) if runs else None, runs] for runs in (short, long)]
        texts = [
            text for value, runs in pair for text in (f"{runs[0].episodes:,}" if runs else NOTHING, cell(value, 3))
        ]
        setting = [STAGES[place.stage], TASKS[place.task], ALGORITHMS[place.algorithm].title]
        rows.append([*setting, place.discriminator, str(place.n_demos), *texts])
    header = ["stage", "task", "algorithm", "discriminator", "demonstrations", "episodes", "NSS", "episodes", "NSS"]
    caption = f"Final NSS at the script's default budget and at the paper's. {INTERVALS}"
    return Table("budgets", "Longer runs", caption, header, rows) if rows else None


def all_tables(data: Data) -> list[Table]:
    tables = [headline_table(data), *paper_tables(data), *(relative_table(data, stage) for stage in STAGES)]
    tables += [*nss_tables(data), efficiency_table(data), aggregate_table(data), references_table(data)]
    return [table for table in [*tables, budget_table(data)] if table]


def markdown(table: Table) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [table.header, *table.rows]]
    lines.insert(1, "|" + "---|" * len(table.header))
    return "\n".join([table.caption, "", *lines, *(part for note in table.notes for part in ("", note))]) + "\n"


LATEX = {character: f"\\{character}" for character in "&%#_${}"}
LATEX |= {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "–": "--"}
LATEX |= {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}


def latex(table: Table) -> str:
    """A table* that needs booktabs and adjustbox."""

    def escape(text: str) -> str:
        return "".join(LATEX.get(character, character) for character in text)

    rows = [" & ".join(map(escape, row)) + r" \\" for row in [table.header, *table.rows]]
    return (
        "\n".join(
            [
                "% needs \\usepackage{booktabs,adjustbox}",
                r"\begin{table*}[t]",
                rf"\caption{{{escape(table.caption)}}}",
                rf"\label{{table:{table.name}}}",
                r"\centering",
                r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.8\textheight}",
                rf"\begin{{tabular}}{{{'l' * len(table.header)}}}",
                *(r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"),
                *(r"\end{tabular}", r"\end{adjustbox}"),
                *(rf"\par\smallskip\raggedright\footnotesize {escape(note)}" for note in table.notes),
                r"\end{table*}",
            ]
        ).replace("\n\n", "\n")
        + "\n"
    )
