"""Tables as Markdown: the paper's six, the headline, experts, correlations, sample efficiency, other arguments."""

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

from reproduce import stats
from reproduce.grid import (
    ALGORITHMS,
    DEMOS,
    DISCRIMINATORS,
    HEADLINE_TASKS,
    LARGE_TASKS,
    PAPER_DISCRIMINATORS,
    SMALL_TASKS,
    STAGES,
    TASKS,
)
from reproduce.stats import COLUMNS, CURVE_STEP, GOALS, MIN_RUNS, Data, Value, over_episodes, over_runs
from reproduce.store import expert_scores

NOTHING = "–"
PAPER_ALGORITHMS = ("magail", "mairl", "madaac")
EARLY = (2000, 10_000)  # episodes at which curves are compared
PLACE = ["task", "demonstrations", "discriminator"]
CELLS = (
    f"Cells: mean ± half width of the 95 % t interval over runs (number of runs); fewer than {MIN_RUNS} runs have no "
    "interval."
)
VARIANTS = (
    "*MA-DAAC* has the defaults of `madaac_discrete.py`, 4 updates of 125 transitions per 100 steps; *MA-DAAC, "
    "1 × 1,000* has one update of 1,000 transitions, and the paper's step sizes and target rates; *BC* is "
    "behavioural cloning, which needs no episodes."
)
BUDGETS = (
    "MA-DAAC has the defaults of its script and 10,000 episodes, the baselines have the paper's 50,000 (Rover Tower: "
    "100,000), retraining has 50,000 (Rover Tower: 20,000), and BC is behavioural cloning, which needs none."
)
NSS = (
    "NSS = (score − random) / (expert − random), by each side's own scores of [experts.md](experts.md), because the "
    "experts are not the same. The mark compares it with the paper's: ↑ our interval over runs lies above the paper's "
    f"(10 runs), ↓ below, = they overlap. Fewer than {MIN_RUNS} runs get no mark."
)


class Table(NamedTuple):
    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    def page(self) -> str:
        return f"# {self.title}\n\n{self.caption}\n\n{markdown(self.header, self.rows)}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines) + "\n"


def number(value: float, digits: int) -> str:
    """With a minus sign, and without one for what rounds to zero."""
    return f"{round(float(value), digits) + 0.0:,.{digits}f}".replace("-", "−")


def cell(value: Value, digits: int = 2) -> str:
    if math.isnan(value.mean):
        return NOTHING
    half = f" ± {number(value.half, digits)}" if value.runs >= MIN_RUNS else ""
    return f"{number(value.mean, digits)}{half} ({value.runs})"


def paper_cell(value: Value) -> str:
    return cell(value, 3).removesuffix(f" ({stats.PAPER_RUNS})")


def nss_cells(nss: Value, paper_nss: Value) -> list[str]:
    mark = {None: "", 1: " ↑", 0: " =", -1: " ↓"}[stats.compare(nss, paper_nss)]
    return [cell(nss, 3) + mark, paper_cell(paper_nss)]


def beside_paper(
    data: Data, stage: str, tasks, cells_of, algorithms=PAPER_ALGORITHMS, kinds=DISCRIMINATORS
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with two columns per algorithm, ours and the paper's, and one for BC.

    The rows are all settings of the paper, and others that have runs. cells_of(column, algorithm, discriminator,
    number of demonstrations) returns the two cells.
    """
    header, rows = list(PLACE), []
    for algorithm in algorithms:
        header += [ALGORITHMS[algorithm].title, f"{ALGORITHMS[algorithm].title}, paper"]
    header += ["BC"] * (stage == "imitate")
    for column, n_demos, kind in itertools.product(COLUMNS, DEMOS, kinds):
        in_paper, has_runs = kind in PAPER_DISCRIMINATORS, data.get(stage, column.task, "madaac", kind, n_demos)
        if column.task in tasks and (in_paper or has_runs):
            cells = [text for algorithm in algorithms for text in cells_of(column, algorithm, kind, n_demos)]
            cells += cells_of(column, "bc", kind, n_demos)[: stage == "imitate"]
            rows.append([column.title, str(n_demos), kind, *cells])
    return header, rows


def paper_tables(data: Data, scale: str, tasks, stage: str) -> list[Table]:
    """One of the paper's four tables of scores, as NSS and as scores."""
    name, title = f"{scale}_scale_{STAGES[stage]}", f"{scale.capitalize()}-scale {STAGES[stage]}"

    def nss(column, *setting) -> list[str]:
        return nss_cells(*data.values(stage, column, *setting)[2:])

    def scores(column, *setting) -> list[str]:
        score, paper_score, _, _ = data.values(stage, column, *setting)
        return [cell(score), paper_cell(paper_score)]

    return [
        Table(name, f"{title}, NSS", f"{NSS} {CELLS} {BUDGETS}", *beside_paper(data, stage, tasks, nss)),
        Table(f"{name}_scores", f"{title}, scores", f"{CELLS} {BUDGETS}", *beside_paper(data, stage, tasks, scores)),
    ]


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized; as NSS."""

    def cells_of(column, name, *setting) -> list[str]:
        ours, magail = (data.values(stage, column, one, *setting)[2:] for one in (name, "magail"))
        return nss_cells(*(one.minus(other) for one, other in zip(ours, magail)))

    name, title = f"relative_{STAGES[stage]}", f"Large-scale {STAGES[stage]}, NSS minus that of MA-GAIL"
    caption = f"The number of runs is the smaller one of the two algorithms. {NSS} {CELLS} {BUDGETS}"
    parts = beside_paper(data, stage, LARGE_TASKS, cells_of, ("mairl", "madaac"), ("decentralized",))
    return Table(name, title, caption, *parts)


def experts_table(data: Data) -> Table:
    rows = []
    for column in COLUMNS:
        cells = []
        for who in ("random", "expert"):
            ours, paper = column.pick(expert_scores(column.task, who)), data.paper_score("imitate", column, who)
            cells += [number(ours, 2), paper_cell(paper)]
        rows.append([column.title, *cells])
    caption = "Mean returns of an episode: of random play, and of the expert that takes its most probable actions."
    return Table(
        "experts",
        "Experts and random play",
        caption,
        ["task", "random", "random, paper", "expert", "expert, paper"],
        rows,
    )


def pcc_table(data: Data) -> Table:
    rows = []
    for task, n_demos, kind in itertools.product(TASKS, DEMOS, DISCRIMINATORS):
        runs = [data.get("retrain", task, name, kind, n_demos) for name in PAPER_ALGORITHMS]
        if any(runs):
            cells = [cell(over_runs([row.pcc for row in group])) for group in runs]
            rows.append([TASKS[task], str(n_demos), kind, *cells])
    caption = f"Pearson correlation of learned with true rewards of single steps at the end of retraining. {CELLS}"
    header = [*PLACE, *(ALGORITHMS[name].title for name in PAPER_ALGORITHMS)]
    return Table("pcc", "Correlation of rewards", caption, header, rows)


def goal_cells(data: Data, runs: list) -> list[str]:
    """Mean episodes and seconds to the goal, or how many runs do not get there."""
    episodes, seconds = (data.to_goal(runs, unit) for unit in ("episodes", "seconds"))
    if missed := episodes.count(math.inf):
        return [f"not reached by {missed} of {len(episodes)}"] * 2
    return [cell(over_episodes(episodes), 0), cell(over_runs(seconds), 0)]


def efficiency_table(data: Data) -> Table:
    """What imitation reaches and how fast."""
    rows = []
    everything = itertools.product(TASKS, DEMOS, (*DISCRIMINATORS, "none"), ALGORITHMS)
    for task, n_demos, kind, name in everything:
        if runs := data.runs.get(("imitate", task, name, kind, n_demos)):
            cells = [cell(over_runs(data.nss_after(runs, episodes)), 2) for episodes in EARLY]
            cells += [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
            cells += goal_cells(data, runs)
            cells.append(cell(over_runs([row.seconds for row in runs]), 0))
            rows.append([TASKS[task], str(n_demos), kind, ALGORITHMS[name].title, *cells])
    header = [*PLACE, "algorithm", *(f"NSS after {episodes:,}" for episodes in EARLY), "final NSS", "episodes"]
    header += ["episodes to the goal", "seconds to the goal", "seconds"]
    caption = (
        "NSS after a number of episodes is that of the last 500 training episodes. "
        f"The goal is the first point of the training curve, read every {CURVE_STEP} episodes, at {GOALS}. "
        f"Seconds are processor seconds of one core. {CELLS} {VARIANTS}"
    )
    return Table("efficiency", "Sample efficiency", f"Imitation. {caption}", header, rows)


def headline_table(efficiency: Table) -> Table:
    """What README.md shows of the table of efficiency: 50 demonstrations, decentralized discriminators."""
    titles = [TASKS[task] for task in HEADLINE_TASKS]
    header = ["task", "algorithm", "episodes to the goal", "seconds to the goal"]
    header += ["NSS after 10,000", "final NSS", "episodes"]
    rows = []
    for row in efficiency.rows:
        cells = dict(zip(efficiency.header, row))
        shown = cells["task"] in titles and cells["algorithm"] != ALGORITHMS["madaac_paper"].title
        if shown and cells["demonstrations"] == "50" and cells["discriminator"] in ("decentralized", "none"):
            rows.append([cells[name] for name in header])
    caption = (
        "Imitation of 50 demonstrations, decentralized discriminators. The goal is the first point of the training "
        f"curve, read every {CURVE_STEP} episodes, at {GOALS}. Seconds are processor seconds of one core. The NSS "
        "after 10,000 episodes is that of the last 500 training episodes, and the final one that of 500 fresh "
        "episodes. Cells: mean ± half width of the 95 % t interval over runs (number of runs)."
    )
    return Table("headline", "Headline", caption, header, rows)


def settings_table(data: Data) -> Table:
    """Runs with extra arguments beside runs of the same seeds without them, 50 demonstrations, decentralized."""
    points, rows = (800, 2000, 4000, 10_000, 20_000), []
    for task, name in itertools.product(TASKS, ALGORITHMS):
        place = (task, name, "decentralized", 50)
        defaults, retrained_defaults = (data.runs.get((stage, *place), []) for stage in STAGES)
        variants, retrained_variants = (data.variants.get((stage, *place), {}) for stage in STAGES)
        groups = defaultdict(dict)  # by seeds
        for arguments, runs in sorted(variants.items()):
            groups[tuple(row.seed for row in runs)][arguments] = runs, retrained_variants.get(arguments, [])
        for seeds, group in sorted(groups.items()):
            without = tuple([row for row in runs if row.seed in seeds] for runs in (defaults, retrained_defaults))
            for arguments, (runs, retrained) in {"": without, **group}.items():
                if runs:
                    cells = [cell(over_runs(data.nss_after(runs, episodes))) for episodes in points]
                    cells += [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
                    cells += [goal_cells(data, runs)[0], per_thousand(runs)]
                    cells.append(cell(over_runs([row.nss for row in retrained]), 3))
                    label = f"`{arguments}`" if arguments else "none"
                    rows.append([TASKS[task], ALGORITHMS[name].title, ", ".join(map(str, seeds)), label, *cells])
    caption = (
        "Runs with extra arguments beside runs of the same seeds without them: 50 demonstrations, decentralized "
        "discriminators. NSS after a number of episodes is that of the last 500 training episodes. The goal is the "
        f"first point of the training curve, read every {CURVE_STEP} episodes, at {GOALS}; a shorter run that does not "
        "reach it might do so later. Seconds are processor seconds of one core. The final NSS is that of 500 fresh "
        "episodes, and the last column that of new policies that were trained on the recovered reward. "
        f"{CELLS} {VARIANTS}"
    )
    header = ["task", "algorithm", "seeds", "arguments", *(f"NSS after {episodes:,}" for episodes in points)]
    header += ["final NSS", "episodes", "episodes to the goal", "seconds per 1,000 episodes", "retrained NSS"]
    return Table("settings", "Other settings", caption, header, rows)


def per_thousand(runs: list) -> str:
    return cell(over_runs([1000 * row.seconds / row.episodes for row in runs]), 0)


def all_tables(data: Data) -> list[Table]:
    scales, efficiency = {"small": SMALL_TASKS, "large": LARGE_TASKS}.items(), efficiency_table(data)
    return [
        headline_table(efficiency),
        *(table for scale, tasks in scales for stage in STAGES for table in paper_tables(data, scale, tasks, stage)),
        *(relative_table(data, stage) for stage in STAGES),
        experts_table(data),
        pcc_table(data),
        efficiency,
        settings_table(data),
    ]
