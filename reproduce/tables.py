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
SETTINGS = list(itertools.product((*DISCRIMINATORS, "none"), DEMOS))
CELLS = (
    f"Cells: mean ± half width of the 95 % t interval over runs (number of runs); fewer than {MIN_RUNS} runs have no "
    f"interval. {NOTHING} is not measured."
)
FINAL = "of the policies after training, which draw their actions at random, over 500 fresh episodes"
GOAL = (
    f"A run reaches the goal when the NSS of its last 500 training episodes, read every {CURVE_STEP} episodes, is at "
    f"least {GOALS}. Intervals of episodes are at least ± {CURVE_STEP // 2}."
)
EFFICIENCY = (
    "NSS after a number of episodes is that of the last 500 training episodes, while the policies change; the final "
    f"NSS is that {FINAL}, mean over agents. {GOAL} Seconds are processor seconds of one core."
)
VARIANTS = (
    "*MA-DAAC* has the defaults of `madaac_discrete.py`, 4 updates of 125 transitions per 100 steps. *MA-DAAC, "
    "1 × 1,000* has one update of 1,000 transitions, and the paper's step sizes and target rates."
)
BUDGETS = {
    "imitate": f"{VARIANTS} MA-DAAC has 10,000 episodes and all others the paper's 50,000 (Rover Tower: 100,000). *BC* "
    "is behavioural cloning, which needs none and has no discriminator.",
    "retrain": f"{VARIANTS} Rewards of MA-DAAC are from 10,000 episodes and all others from the paper's 50,000 (Rover "
    "Tower: 100,000). Retraining has 50,000 episodes of MACK, on Rover Tower 20,000 of MAAC (paper: 100,000).",
}
NSS = (
    f"NSS = (score − random) / (expert − random) {FINAL}: 0 is random play and 1 is the expert. Columns with *paper* "
    "have the paper's scores in terms of the paper's own expert and random scores, and all others have ours in terms "
    "of ours ([experts.md](experts.md)). On Rover Tower it is the NSS of the mean score over agents, because the paper "
    "has no other. The mark after our value says whether it is above (↑) or below (↓) the paper's by the 95 % interval "
    "of the difference (Welch, over runs and with the errors of the expert and random scores; the paper has 10 runs); "
    f"≈ is neither. Fewer than {MIN_RUNS} runs get no mark."
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


def signed(value: Value, digits: int) -> str:
    """A difference."""
    if math.isnan(value.half):
        return NOTHING
    return f"{'+' if value.mean > 0 else ''}{number(value.mean, digits)} ± {number(value.half, digits)}"


def paper_cell(value: Value) -> str:
    return cell(value, 3).removesuffix(f" ({stats.PAPER_RUNS})")


def beside_paper(
    data: Data, stage: str, tasks, cells_of, algorithms=PAPER_ALGORITHMS, kinds=DISCRIMINATORS
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with two columns per algorithm, ours and the paper's, and one for each of the others.

    The rows are all settings of the paper, and others that have runs. cells_of(column, algorithm, discriminator,
    number of demonstrations) returns the two cells.
    """
    others = [name for name in ALGORITHMS if name not in PAPER_ALGORITHMS]
    others = [
        name for name in others if any(data.runs.get((stage, task, name, *k)) for task in tasks for k in SETTINGS)
    ]
    header, rows = list(PLACE), []
    for name in algorithms:
        header += [ALGORITHMS[name].title, f"{ALGORITHMS[name].title}, paper"]
    header += [ALGORITHMS[name].title for name in others]
    for column, n_demos, kind in itertools.product(COLUMNS, DEMOS, kinds):
        in_paper, has_runs = kind in PAPER_DISCRIMINATORS, data.get(stage, column.task, "madaac", kind, n_demos)
        if column.task in tasks and (in_paper or has_runs):
            cells = [text for name in algorithms for text in cells_of(column, name, kind, n_demos)]
            for name in others:  # behavioural cloning stands in the first row of its demonstrations only
                applies = ALGORITHMS[name].adversarial or kind == kinds[0]
                cells.append(cells_of(column, name, kind, n_demos)[0] if applies else "")
            rows.append([column.title, str(n_demos), kind, *cells])
    return header, rows


def paper_tables(data: Data, scale: str, tasks, stage: str) -> list[Table]:
    """One of the paper's four tables of scores, as NSS and as scores."""
    name, title = f"{scale}_scale_{STAGES[stage]}", f"{scale.capitalize()}-scale {STAGES[stage]}"

    def nss(column, *setting) -> list[str]:
        _, _, ours, paper = data.values(stage, column, *setting)
        error = data.reference_error(column, ours.mean, paper.mean)
        mark = {None: "", 1: " ↑", 0: " ≈", -1: " ↓"}[stats.compare(ours, paper, error)]
        return [cell(ours, 3) + mark, paper_cell(paper)]

    def scores(column, *setting) -> list[str]:
        score, paper_score, _, _ = data.values(stage, column, *setting)
        return [cell(score), paper_cell(paper_score)]

    score = f"Scores are mean returns of an episode {FINAL}; on Rover Tower, the mean over agents."
    captions = [f"{text} {CELLS} {BUDGETS[stage]}" for text in (NSS, score)]
    return [
        Table(name, f"{title}, NSS", captions[0], *beside_paper(data, stage, tasks, nss)),
        Table(f"{name}_scores", f"{title}, scores", captions[1], *beside_paper(data, stage, tasks, scores)),
    ]


def relative_table(data: Data, stage: str) -> Table:
    """The paper's table of differences to MA-GAIL, Rover Tower, decentralized."""

    def cells_of(column, name, *setting) -> list[str]:
        ours, magail = (data.values(stage, column, one, *setting)[:2] for one in (name, "magail"))
        difference, paper = (one.minus(other) for one, other in zip(ours, magail))
        return [cell(difference), paper_cell(paper)]

    name, title = f"relative_{STAGES[stage]}", f"Large-scale {STAGES[stage]}, scores minus those of MA-GAIL"
    caption = f"The interval is Welch's, and the number of runs the smaller one of the two. {CELLS} {BUDGETS[stage]}"
    parts = beside_paper(data, stage, LARGE_TASKS, cells_of, ("mairl", "madaac"), ("decentralized",))
    return Table(name, title, caption, *parts)


def experts_table(data: Data) -> Table:
    rows = []
    for column in COLUMNS:
        cells = []
        for who in ("random", "expert"):
            mean, half = (column.pick(expert_scores(column.task, who, what)) for what in ("mean", "interval_95"))
            cells.append(f"{number(mean, 2)} ± {number(half, 2)}")
            cells.append(paper_cell(data.paper_score("imitate", column, who)))
        rows.append([column.title, *cells])
    caption = (
        "Mean returns of an episode, of random play and of the expert with its most probable actions, with 95 % "
        "intervals over 500 episodes. On Rover Tower both are means over agents."
    )
    header = ["task", "random", "random, paper", "expert", "expert, paper"]
    return Table("experts", "Experts and random play", caption, header, rows)


def pcc_table(data: Data) -> Table:
    rows = []
    for task, n_demos, kind in itertools.product(TASKS, DEMOS, DISCRIMINATORS):
        runs = [data.get("retrain", task, name, kind, n_demos) for name in PAPER_ALGORITHMS]
        if any(runs):
            cells = [cell(over_runs([row.pcc for row in group])) for group in runs]
            rows.append([TASKS[task], str(n_demos), kind, *cells])
    caption = (
        "Pearson correlation of learned with true rewards of single steps at the end of retraining, mean over agents. "
        f"Where agents compete, theirs can have opposite signs. {CELLS}"
    )
    header = [*PLACE, *(ALGORITHMS[name].title for name in PAPER_ALGORITHMS)]
    return Table("pcc", "Correlation of rewards", caption, header, rows)


def goal_cells(data: Data, runs: list) -> list[str]:
    """Episodes and seconds to the goal, which do not exist for behavioural cloning."""
    if not ALGORITHMS[runs[0].algorithm].adversarial:
        return [NOTHING] * 2
    episodes, seconds = (data.to_goal(runs, unit) for unit in ("episodes", "seconds"))
    if missed := episodes.count(math.inf):
        return [f"not reached by {missed} of {len(episodes)}"] * 2
    return [cell(over_episodes(episodes), 0), cell(over_runs(seconds), 0)]


def efficiency_table(data: Data) -> Table:
    """What imitation reaches and how fast."""
    rows = []
    for task, n_demos, kind, name in itertools.product(TASKS, DEMOS, (*DISCRIMINATORS, "none"), ALGORITHMS):
        if runs := data.runs.get(("imitate", task, name, kind, n_demos)):
            cells = [cell(over_runs(data.nss_after(runs, episodes)), 2) for episodes in EARLY]
            cells += [cell(over_runs([row.nss for row in runs]), 3), f"{runs[0].episodes:,}"]
            cells += goal_cells(data, runs)
            cells.append(cell(over_runs([row.seconds for row in runs]), 0))
            rows.append([TASKS[task], str(n_demos), kind, ALGORITHMS[name].title, *cells])
    header = [*PLACE, "algorithm", *(f"NSS after {episodes:,}" for episodes in EARLY), "final NSS", "episodes"]
    header += ["episodes to the goal", "seconds to the goal", "seconds"]
    caption = f"{EFFICIENCY} {CELLS} {VARIANTS}"
    return Table("efficiency", "Sample efficiency of imitation", caption, header, rows)


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
    title = "Imitation of 50 demonstrations, decentralized discriminators"
    return Table("headline", title, f"{EFFICIENCY} {CELLS}", header, rows)


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
        f"discriminators. {EFFICIENCY} A shorter run that does not reach the goal might do so later. The last column "
        f"is the NSS of new policies that were trained on the recovered reward. {CELLS} {VARIANTS}"
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
