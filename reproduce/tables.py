"""Tables as Markdown: the paper's, the headline, experts, correlations, sample efficiency, other arguments."""

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

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
from reproduce.rows import Row
from reproduce.stats import COLUMNS, CURVE_STEP, GOALS, MIN_RUNS, Data, Value, over_runs, paired, welch

NOTHING = "–"
PAPER_ALGORITHMS = ("magail", "mairl", "madaac")
EARLY = (2000, 10_000)  # episodes at which curves are compared
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of NSS, at which speed is compared
PLACE = ["task", "demonstrations", "discriminator"]
LEGEND = f"""\
- **Cells** are mean ± half width of the 95 % t interval over runs (number of runs). Fewer than {MIN_RUNS} runs have no
  interval. {NOTHING} is not measured.
- **NSS** = (score − random) / (expert − random): 0 is random play and 1 is the expert ([scores of both](experts.md)).
  The final NSS is that of the policies after training, over 500 fresh episodes, in which they draw their actions at
  random. The NSS at a number of episodes is that of the last 500 training episodes, while the policies change.
- **MA-DAAC** has the defaults of `madaac_discrete.py`: 10,000 episodes, 4 updates of 125 transitions per 100 steps.
  *MA-DAAC, 1 × 1,000* has one update of 1,000 transitions, the paper's step sizes and target rates, and 50,000
  episodes.
- **MA-GAIL and MA-AIRL** have the paper's 50,000 episodes (Rover Tower: 100,000) and one update per 1,000 steps.
- **BC** is behavioural cloning. It plays no episodes to learn and has no discriminator.
- **Retraining** has 50,000 episodes of MACK, and on Rover Tower 20,000 of MAAC (paper: 100,000).
- **Paper** columns are the paper's numbers; its NSS is by its own scores of the expert and random play.
- **Goal**: {GOALS}. A run is there when the NSS of its last 500 training episodes, read every {CURVE_STEP} episodes, is
  at the goal for the first time, even if it falls again. Readings are rounded up by less than {CURVE_STEP} episodes, so
  that intervals of episodes are at least ± {CURVE_STEP // 2}, and those of differences at least ± {CURVE_STEP}.
- **Seconds** are processor seconds of one core of a server (AMD EPYC). They vary with what else the machine does, and
  some runs were not timed.
"""
HOW_TO_READ = "[How to read the tables](index.md#how-to-read-the-tables)."


class Table(NamedTuple):
    page: str  # the name of a file; tables of the same page follow each other
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    def text(self) -> str:
        return f"## {self.title}\n\n{self.caption}\n\n{markdown(self.header, self.rows)}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines) + "\n"


def number(value: float, digits: int) -> str:
    """With a minus sign, and without one for what rounds to zero."""
    return f"{round(float(value), digits) + 0.0:,.{digits}f}".replace("-", "−")


def interval(value: Value, digits: int) -> str:
    if math.isnan(value.mean):
        return NOTHING
    half = f" ± {number(value.half, digits)}" if value.runs >= MIN_RUNS else ""
    return number(value.mean, digits) + half


def cell(value: Value, digits: int = 2) -> str:
    return f"{interval(value, digits)} ({value.runs})" if value.runs else NOTHING


def goal_cell(values: dict[int, float], least_half: float = 0.0) -> str:
    """Episodes or seconds until a goal, by seed; the single values if a run misses it. Unknown seconds are nan."""
    reached = sorted(value for value in values.values() if math.isfinite(value))
    if missed := list(values.values()).count(math.inf):
        return "; ".join([*(number(value, 0) for value in reached), f"missed by {missed} of {len(values)}"])
    value = over_runs(reached)
    return cell(value._replace(half=max(value.half, least_half)), 0)


def beside_paper(
    data: Data, stage: str, tasks, cells_of, algorithms=PAPER_ALGORITHMS, kinds=DISCRIMINATORS
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with two columns per algorithm, ours and the paper's, and one for each of the others.

    The rows are all settings of the paper, and others that have runs. cells_of(column, algorithm, discriminator,
    number of demonstrations) returns the two cells.
    """
    measured = {(task, name) for run_stage, task, name, *_ in data.runs if run_stage == stage}
    others = [name for name in ALGORITHMS if name not in PAPER_ALGORITHMS]
    others = [name for name in others if any((task, name) in measured for task in tasks)]
    header, rows = list(PLACE), []
    for name in algorithms:
        header += [ALGORITHMS[name].title, f"{ALGORITHMS[name].title}, paper"]
    header += [ALGORITHMS[name].title for name in others]
    for column, n_demos, kind in itertools.product(COLUMNS, DEMOS, kinds):
        has_runs = any((stage, column.task, name, kind, n_demos) in data.runs for name in ALGORITHMS)
        if column.task in tasks and (kind in PAPER_DISCRIMINATORS or has_runs):
            cells = [text for name in algorithms for text in cells_of(column, name, kind, n_demos)]
            for name in others:  # behavioural cloning, which has no discriminator, stands beside the decentralized ones
                applies = ALGORITHMS[name].adversarial or kind == "decentralized"
                cells.append(cells_of(column, name, kind, n_demos)[0] if applies else "")
            rows.append([column.title, str(n_demos), kind, *cells])
    return header, rows


def paper_tables(data: Data, scale: str, tasks, stage: str) -> list[Table]:
    """One of the paper's four tables of scores, as NSS and as scores."""
    page, title = f"{scale}_scale_{STAGES[stage]}", f"{scale.capitalize()}-scale {STAGES[stage]}"

    def nss(column, name, *setting) -> list[str]:
        ours = over_runs(column.nss(row) for row in data.get(stage, column.task, name, *setting))
        difference, mark = data.minus_paper(stage, column, name, *setting), ""
        if difference.runs >= MIN_RUNS:
            mark = " ↑" if difference.low > 0 else " ↓" if difference.high < 0 else " ≈"
        return [cell(ours, 3) + mark, interval(data.paper_nss(stage, column, name, *setting), 3)]

    def scores(column, name, *setting) -> list[str]:
        ours = over_runs(column.score(row) for row in data.get(stage, column.task, name, *setting))
        return [cell(ours), interval(data.paper_score(stage, column, name, *setting), 3)]

    marks = (
        "The mark after our value says whether it is above (↑) or below (↓) the paper's by the 95 % interval of the "
        "difference, which contains the errors of the expert and random scores; ≈ is neither. Fewer than "
        f"{MIN_RUNS} runs get no mark."
    )
    if tasks is LARGE_TASKS:
        marks += " NSS is that of the mean score over agents, because the paper has no other."
    return [
        Table(page, f"{title}, NSS", f"{marks} {HOW_TO_READ}", *beside_paper(data, stage, tasks, nss)),
        Table(page, f"{title}, scores", "Mean returns of an episode.", *beside_paper(data, stage, tasks, scores)),
    ]


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized."""

    def cells_of(column, name, *setting) -> list[str]:
        ours, magail = (
            {row.seed: column.score(row) for row in data.get(stage, column.task, one, *setting)}
            for one in (name, "magail")
        )
        paper = welch(*(data.paper_score(stage, column, one, *setting) for one in (name, "magail")))
        return [cell(paired(ours, magail)), interval(paper, 3)]

    title = f"Large-scale {STAGES[stage]}, scores minus those of MA-GAIL"
    caption = f"Differences of runs with the same seed, and the interval of their mean (number of pairs). {HOW_TO_READ}"
    parts = beside_paper(data, stage, LARGE_TASKS, cells_of, ("mairl", "madaac"), ("decentralized",))
    return Table(f"relative_{STAGES[stage]}", title, caption, *parts)


def experts_table(data: Data) -> Table:
    rows = []
    for column in COLUMNS:
        cells = []
        for of_paper in (False, True):
            cells += [interval(value._replace(runs=MIN_RUNS), 2) for value in data.references(column, of_paper)]
        rows.append([column.title, *cells])
    caption = (
        "Mean returns of an episode, of the expert with its most probable actions and of random play, with 95 % "
        "intervals over 500 episodes. On Rover Tower they are means over agents, and both intervals are computed from "
        "those of single agents: a rover and its tower have the same reward, and the pairs are independent."
    )
    header = ["task", "expert", "random", "expert, paper", "random, paper"]
    return Table("experts", "Experts and random play", caption, header, rows)


def pcc_table(data: Data) -> Table:
    rows = []
    names = (*PAPER_ALGORITHMS, "madaac_paper")
    for task, n_demos, kind in itertools.product(TASKS, DEMOS, DISCRIMINATORS):
        runs = [data.get("retrain", task, name, kind, n_demos) for name in names]
        if any(runs):
            cells = []
            for group in runs:
                cells += [cell(over_runs(row.pcc for row in group)), cell(over_runs(row.nss for row in group))]
            rows.append([TASKS[task], str(n_demos), kind, *cells])
    caption = (
        "PCC is the Pearson correlation of learned with true rewards of single steps at the end of retraining, mean "
        "over agents, and NSS is that of the retrained policies. In Keep Away the PCC of the two agents can have "
        f"opposite signs. {HOW_TO_READ}"
    )
    header = list(PLACE)
    for name in names:
        header += [f"{ALGORITHMS[name].title}, PCC", "NSS"]
    return Table("pcc", "Correlation of rewards", caption, header, rows)


def efficiency_cells(data: Data, rows: list[Row]) -> dict[str, str]:
    """What imitation reaches and how fast, by column."""
    cells = {
        f"NSS during training, at {episodes:,} episodes": cell(over_runs(data.nss_after(rows, episodes).values()))
        for episodes in EARLY
    }
    goals = {"episodes to the goal": NOTHING, "seconds to the goal": NOTHING}
    if ALGORITHMS[rows[0].algorithm].adversarial:
        goals["episodes to the goal"] = goal_cell(data.to_goal(rows, "episodes"), CURVE_STEP / 2)
        goals["seconds to the goal"] = goal_cell(data.to_goal(rows, "seconds"))
    final = {"final NSS": cell(over_runs(row.nss for row in rows), 3), "trained for episodes": f"{rows[0].episodes:,}"}
    seconds = [row.seconds for row in rows if not math.isnan(row.seconds)]
    return goals | cells | final | {"seconds in all": cell(over_runs(seconds), 0)}


def efficiency_table(data: Data) -> Table:
    rows, header = [], []
    for task, n_demos, kind, name in itertools.product(TASKS, DEMOS, (*DISCRIMINATORS, "none"), ALGORITHMS):
        if runs := data.runs.get(("imitate", task, name, kind, n_demos)):
            cells = efficiency_cells(data, runs)
            header = [*PLACE, "algorithm", *cells]
            rows.append([TASKS[task], str(n_demos), kind, ALGORITHMS[name].title, *cells.values()])
    return Table("efficiency", "Sample efficiency of imitation", HOW_TO_READ, header, rows)


def headline_runs(data: Data, names) -> list[tuple[str, str, list[Row]]]:
    """Task, algorithm and rows of 50 demonstrations, decentralized discriminators."""
    places = itertools.product(HEADLINE_TASKS, names)
    found = [(task, name, data.get("imitate", task, name, "decentralized", 50)) for task, name in places]
    return [(task, name, runs) for task, name, runs in found if runs]


def headline_table(data: Data) -> Table:
    columns = ["episodes to the goal", "seconds to the goal", "NSS during training, at 10,000 episodes"]
    columns += ["final NSS", "trained for episodes"]
    rows = []
    for task, name, runs in headline_runs(data, (*PAPER_ALGORITHMS, "bc")):
        cells = efficiency_cells(data, runs)
        rows.append([TASKS[task], ALGORITHMS[name].title, *(cells[column] for column in columns)])
    title = "Imitation of 50 demonstrations, decentralized discriminators"
    return Table("headline", title, HOW_TO_READ, ["task", "algorithm", *columns], rows)


def thresholds_table(data: Data) -> Table:
    rows = []
    for task, name, runs in headline_runs(data, (*PAPER_ALGORITHMS, "madaac_paper")):
        goals = [goal_cell(data.to_goal(runs, "episodes", goal), CURVE_STEP / 2) for goal in THRESHOLDS]
        rows.append([TASKS[task], ALGORITHMS[name].title, f"{runs[0].episodes:,}", *goals])
    caption = (
        "Episodes until NSS is at each of these values for the first time: 50 demonstrations, decentralized "
        "discriminators. MA-DAAC has fewer episodes in all than the others, and may miss a value for that reason. "
        f"{HOW_TO_READ}"
    )
    header = ["task", "algorithm", "trained for episodes", *(f"NSS {goal}" for goal in THRESHOLDS)]
    return Table("thresholds", "Episodes to several values of NSS", caption, header, rows)


def settings_table(data: Data) -> Table:
    """Runs with extra arguments beside runs of the same seeds without them, 50 demonstrations, decentralized."""
    points, rows = (800, 2000, 4000, 10_000, 20_000), []
    for task, name in itertools.product(TASKS, ALGORITHMS):
        place = (task, name, "decentralized", 50)
        defaults, retrained_defaults = (data.runs.get((stage, *place), []) for stage in STAGES)
        variants, retrained_variants = (data.variants.get((stage, *place), {}) for stage in STAGES)
        groups = defaultdict(dict)  # by seeds
        own_arguments = getattr(data.grid, f"{name.split('_')[0]}_args")
        for variant, runs in sorted(variants.items()):
            groups[tuple(row.seed for row in runs)][variant] = runs, retrained_variants.get(variant, [])
        for seeds, group in sorted(groups.items()):
            without = tuple([row for row in runs if row.seed in seeds] for runs in (defaults, retrained_defaults))
            for (arguments, _), (runs, retrained) in {(own_arguments, 0): without, **group}.items():
                if runs:
                    cells = [f"{runs[0].episodes:,}"]
                    cells += [cell(over_runs(data.nss_after(runs, episodes).values())) for episodes in points]
                    cells.append(cell(over_runs(row.nss for row in runs), 3))
                    cells.append(goal_cell(data.to_goal(runs, "episodes"), CURVE_STEP / 2))
                    seconds = [1000 * row.seconds / row.episodes for row in runs if not math.isnan(row.seconds)]
                    cells.append(cell(over_runs(seconds), 0))
                    cells.append(cell(over_runs(row.nss for row in retrained), 3))
                    label = f"`{arguments}`" if arguments else "none"
                    rows.append([TASKS[task], ALGORITHMS[name].title, ", ".join(map(str, seeds)), label, *cells])
    caption = (
        "Runs with extra arguments, or with another number of episodes, beside runs of the same seeds without: 50 "
        "demonstrations, decentralized discriminators. The columns *at … episodes* are NSS during training. A "
        "shorter run that does not reach the goal might do so later. The last column is the NSS of new policies that "
        f"were trained on the recovered reward, as far as that was done. {HOW_TO_READ}"
    )
    header = ["task", "algorithm", "seeds", "arguments", "trained for episodes"]
    header += [*(f"at {episodes:,} episodes" for episodes in points), "final NSS"]
    header += ["episodes to the goal", "seconds per 1,000 episodes", "retrained NSS"]
    return Table("settings", "Other settings", caption, header, rows)


def all_tables(data: Data) -> list[Table]:
    scales = {"small": SMALL_TASKS, "large": LARGE_TASKS}.items()
    return [
        headline_table(data),
        thresholds_table(data),
        *(table for scale, tasks in scales for stage in STAGES for table in paper_tables(data, scale, tasks, stage)),
        *(relative_table(data, stage) for stage in STAGES),
        experts_table(data),
        pcc_table(data),
        efficiency_table(data),
        settings_table(data),
    ]


def pages(tables: list[Table]) -> dict[str, str]:
    """The text of each page, by the name of its file."""
    names = dict.fromkeys(table.page for table in tables)
    texts = {name: "\n".join(table.text() for table in tables if table.page == name) for name in names}
    return {f"{name}.md": text[1:] for name, text in texts.items()}  # the first title of a page is its heading
