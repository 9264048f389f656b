"""Tables as Markdown and LaTeX: the paper's six, the headline, NSS, PCC, sample efficiency and others."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reproduce import EXPERTS, read_json, stats
from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, STAGES, TASKS
from reproduce.rows import Row
from reproduce.stats import COLUMNS, MIN_RUNS, PAPER_TITLES, Column, Data, Value, over_runs

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


def cell(value: Value, digits: int = 2, with_runs: bool = True) -> str:
    if math.isnan(value.mean):
        return NOTHING
    half = "" if math.isnan(value.half) else f" ± {number(value.half, digits)}"
    return number(value.mean, digits) + half + (f" ({value.runs})" if with_runs else "")


def mark(ours: Value, paper: Value) -> str:
    sign = stats.compare(ours, paper)
    return "" if sign is None else " " + {1: "↑", 0: "=", -1: "↓"}[sign]


def grid_table(data: Data, name: str, title: str, stage: str, lines: dict, show: Callable, paper, digits: int):
    """One row per line, number of demonstrations and discriminator; one column per algorithm, beside the paper's.

    A line is a title and the columns of the paper's tables that it covers. `show(row, columns)` is the value of a run
    that is shown, and `paper(stage, columns, algorithm, discriminator, n_demos)` the paper's (None leaves it out).
    """
    algorithms = data.algorithms(stage)
    titles = {algorithm: PAPER_TITLES.get(algorithm) if paper else None for algorithm in algorithms}
    last = {title: algorithm for algorithm, title in titles.items() if title}  # the paper's column stands behind these
    header, rows, used = ["task", "demonstrations", "discriminator"], [], []
    for algorithm, title_of_paper in titles.items():
        header.append(ALGORITHMS[algorithm].title)
        header += [f"paper's {title_of_paper}"] if last.get(title_of_paper) == algorithm else []
    for (line, columns), n_demos, kind in itertools.product(lines.items(), DEMOS, DISCRIMINATORS):
        cells = []
        for algorithm, title_of_paper in titles.items():
            runs, place = data.get(stage, columns[0].task, algorithm, kind, n_demos), (title_of_paper, kind, n_demos)
            used += runs
            cells.append(cell(over_runs([show(row, columns) for row in runs]), digits))
            if title_of_paper:
                nss = over_runs([sum(column.nss(row) for column in columns) / len(columns) for row in runs])
                cells[-1] += mark(nss, data.paper_nss(stage, columns, *place))
            if last.get(title_of_paper) == algorithm:
                cells.append(cell(paper(stage, columns, *place), 3, with_runs=False))
        if paper or set(cells) != {NOTHING}:
            rows.append([line, str(n_demos), kind, *cells])
    notes = [MARKS] if paper else []
    notes += ["BC has no discriminator; its value stands in both rows."] if "bc" in algorithms else []
    return Table(name, title, INTERVALS, header, rows, [*notes, *episodes_notes(used)])


def episodes_notes(rows: list[Row]) -> list[str]:
    """How long the runs of a table were, by algorithm, and those that recovered the rewards."""
    notes = []
    for name, text in (("episodes", "Episodes per run"), ("reward_episodes", "Episodes of the rewards' imitations")):
        counts = {key: sorted({getattr(row, name) for row in rows if row.algorithm == key}) for key in ALGORITHMS}
        texts = {key: " or ".join(f"{count:,}" for count in found) for key, found in counts.items() if any(found)}
        parts = [f"{ALGORITHMS[key].title} {text}" for key, text in texts.items()]
        notes += [f"{text}: {'; '.join(parts)}."] if parts else []
    return notes


def paper_tables(data: Data) -> list[Table]:
    """The paper's four tables of scores."""

    def paper(stage: str, columns: list[Column], *place) -> Value:
        return data.paper_score(stage, columns[0], *place)

    found = []
    for scale, tasks in (("small", SMALL_TASKS), ("large", LARGE_TASKS)):
        lines = {column.title: [column] for column in COLUMNS if column.task in tasks}
        for stage, title in STAGES.items():
            name, heading = f"{scale}_scale_{title}", f"{scale.capitalize()}-scale {title}: scores"
            found.append(grid_table(data, name, heading, stage, lines, lambda row, c: c[0].score(row), paper, 2))
    return found


def nss_tables(data: Data) -> list[Table]:
    """NSS of both stages, and the correlation of rewards."""
    lines = {title: [column for column in COLUMNS if column.task == task] for task, title in TASKS.items()}
    found = []
    for stage, title in STAGES.items():
        name, heading = f"nss_{title}", f"NSS after {title}"
        found.append(grid_table(data, name, heading, stage, lines, lambda row, _: row.nss, data.paper_nss, 3))
    title = "Correlation (PCC) of learned with true rewards in retraining"
    return [*found, grid_table(data, "pcc", title, "retrain", lines, lambda row, _: row.pcc, None, 2)]


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized."""
    rows, used = [], []
    columns = [column for column in COLUMNS if column.task in LARGE_TASKS]
    algorithms = [name for name in data.algorithms(stage) if name != "magail"]
    for column, algorithm in itertools.product(columns, algorithms):
        cells = []
        for n_demos in DEMOS:
            pair = [data.get(stage, column.task, name, "decentralized", n_demos) for name in (algorithm, "magail")]
            used += pair[0] + pair[1] if all(pair) else []
            score, nss = (difference(pair, measure) for measure in (column.score, column.nss))
            cells += [cell(score), NOTHING]
            if algorithm in PAPER_TITLES:
                places = [(title, "decentralized", n_demos) for title in (PAPER_TITLES[algorithm], "MA-GAIL")]
                ours, magail = (data.paper_score(stage, column, *place) for place in places)
                cells[-1] = cell(ours.minus(magail), 3, with_runs=False)
                ours, magail = (data.paper_nss(stage, [column], *place) for place in places)
                cells[-2] += mark(nss, ours.minus(magail))
        rows.append([column.title, ALGORITHMS[algorithm].title, *cells])
    header = ["task", "algorithm", *(text for n in DEMOS for text in (f"{n} demonstrations", f"paper's, {n}"))]
    caption = f"Score after {STAGES[stage]} minus MA-GAIL's, decentralized. {INTERVALS}"
    notes = [f"{MARKS} Here differences are compared; n is the smaller number of runs.", *episodes_notes(used)]
    return Table(f"relative_{STAGES[stage]}", f"Relative to MA-GAIL, {STAGES[stage]}", caption, header, rows, notes)


def difference(pair: list[list[Row]], measure: Callable[[Row], float]) -> Value:
    first, second = (over_runs([measure(row) for row in runs]) for runs in pair)
    return first.minus(second)


def goal_cell(values: list[float]) -> str:
    """Mean episodes or seconds to the goal, or how many runs do not get there."""
    missed = values.count(math.inf)
    return f"not reached by {missed} of {len(values)}" if missed else cell(over_runs(values), 0)


GOALS = "NSS 0.9 (Cooperative Communication: 0.7)"


def efficiency_table(data: Data, name: str, title: str, tasks, demos, kinds) -> Table:
    """What imitation reaches and how fast."""
    rows = []
    for task, n_demos, kind, algorithm in itertools.product(tasks, demos, kinds, data.algorithms("imitate")):
        runs = data.get("imitate", task, algorithm, kind, n_demos)
        if runs and (kind == kinds[0] or ALGORITHMS[algorithm].adversarial):
            cells = [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
            cells += [goal_cell(data.to_goal(runs, unit)) for unit in ("episodes", "seconds")]
            cells.append(cell(over_runs([row.seconds for row in runs]), 0))
            rows.append([TASKS[task], str(n_demos), runs[0].discriminator, ALGORITHMS[algorithm].title, *cells])
    header = ["task", "demonstrations", "discriminator", "algorithm", "NSS", "episodes"]
    header += ["episodes to the goal", "seconds to the goal", "seconds"]
    caption = f"Imitation. The goal is the first point of the training curve at {GOALS}. {INTERVALS}"
    return Table(name, title, caption, header, rows, ["Seconds are those of one CPU core of a busy machine."])


def aggregate_table(data: Data) -> Table:
    rows = []
    for stage, title in STAGES.items():
        for demos in (*((n,) for n in DEMOS), DEMOS):
            for algorithm, scores in stats.aggregate(data, stage, demos).items():
                runs, settings = scores.shape
                ends = [number(end, 3) for end in stats.bootstrap_interval(scores)] if runs >= MIN_RUNS else []
                mean = number(stats.interquartile_mean(scores), 3) if scores.size >= 4 else "too few values"
                size = f"{settings} settings × {runs} runs"
                number_of = "all" if len(demos) > 1 else str(demos[0])
                rows.append([title, number_of, ALGORITHMS[algorithm].title, mean, " to ".join(ends) or NOTHING, size])
    caption = (
        "Interquartile mean of the final NSS over settings (task and number of demonstrations, decentralized) that all "
        "three algorithms of the paper have, with the same number of runs. 95 % intervals: stratified bootstrap over "
        f"runs with {stats.BOOTSTRAP_SAMPLES:,} samples, for {MIN_RUNS} runs or more."
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
        cells = []
        for runs in (data.runs.get(place, []), long):
            cells += [f"{runs[0].episodes:,}" if runs else NOTHING, cell(over_runs([row.nss for row in runs]), 3)]
        setting = [STAGES[place.stage], TASKS[place.task], ALGORITHMS[place.algorithm].title]
        rows.append([*setting, place.discriminator, str(place.n_demos), *cells])
    header = ["stage", "task", "algorithm", "discriminator", "demonstrations", "episodes", "NSS", "episodes", "NSS"]
    caption = f"Final NSS at the script's default budget and at the paper's. {INTERVALS}"
    return Table("budgets", "Longer runs", caption, header, rows) if rows else None


def all_tables(data: Data) -> list[Table]:
    headline = efficiency_table(data, "headline", "Headline", HEADLINE_TASKS, (50,), ("decentralized",))
    efficiency = efficiency_table(data, "efficiency", "Sample efficiency", TASKS, DEMOS, DISCRIMINATORS)
    tables = [headline, *paper_tables(data), *(relative_table(data, stage) for stage in STAGES), *nss_tables(data)]
    tables += [efficiency, aggregate_table(data), references_table(data)]
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
    lines = ["% needs \\usepackage{booktabs,adjustbox}", r"\begin{table*}[t]", rf"\caption{{{escape(table.caption)}}}"]
    lines += [rf"\label{{table:{table.name}}}", r"\centering"]
    lines += [r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.8\textheight}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.header)}}}", r"\toprule", rows[0], r"\midrule", *rows[1:]]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"]
    lines += [rf"\par\smallskip\raggedright\footnotesize {escape(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table*}"]) + "\n"
