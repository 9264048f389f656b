"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from reproduce.grid import ALGORITHMS, DEMOS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.rows import Row
from reproduce.stats import CURVE_STEP, GOALS, MIN_RUNS, Data, Value, likeness, over_runs, paired, welch
from reproduce.tables import NOTHING, cell, goal_cell, markdown, number

MARGIN = 0.05  # of NSS, within which two algorithms count as equally good
NOT_WORSE, EQUAL = f"at most {MARGIN} below", f"within {MARGIN} of"
YES, NO, UNDECIDED, NOT_ENOUGH, NOT_MEASURED = "yes", "no", "undecided", "not enough runs", "not measured"
INTRO = f"""\
Each claim is a set of comparisons of A with B, two algorithms or settings. The difference A − B is the mean over runs
with the same seed, which are judged on the same episodes, with its 95 % t interval (number of pairs).

- A comparison holds if the whole interval is where it should be, and is refuted if all of it is where it should not
  be: *above* is above 0, *below* is below 0, *{NOT_WORSE}* is above −{MARGIN}, and *{EQUAL}* is between
  −{MARGIN} and {MARGIN}. Everything else is undecided. Fewer than {MIN_RUNS} pairs are not enough. Intervals are not
  corrected for the number of comparisons.
- A claim holds if all its comparisons do, and does not hold if one is refuted. Otherwise it is undecided.
- NSS is the mean over agents. The agents of Keep Away compete, so that an NSS above 1 is no better than one below:
  there, ours is the mean of 1 − |NSS − 1|.
- The last column has the results of the same comparisons of the means in the paper's own tables, by Welch's interval
  and by plain NSS, also in Keep Away.
- These are claims about the paper's algorithms, and the runs are of this repository's: MA-DAAC makes 40 updates per
  1,000 steps and has 10,000 episodes; the baselines make one and have the paper's episodes, and their discriminators
  learn from all past play. With four updates per 1,000 steps MA-AIRL is faster ([settings.md](settings.md),
  `--num-envs 10`).
- All runs of a setting learn from the same demonstrations, so that intervals do not cover the choice of demonstrations.
"""


class Comparison(NamedTuple):
    """One comparison behind a claim."""

    setting: str
    first: str
    relation: str
    second: str
    difference: str
    result: str


def holds(difference: Value, relation: str) -> str:
    if difference.runs < MIN_RUNS:
        return NOT_ENOUGH
    low, high = difference.low, difference.high
    yes, no = {
        "above": (low > 0, high < 0),
        "below": (high < 0, low > 0),
        NOT_WORSE: (low > -MARGIN, high < -MARGIN),
        EQUAL: (low > -MARGIN and high < MARGIN, low > MARGIN or high < -MARGIN),
    }[relation]
    return YES if yes else NO if no else UNDECIDED


def final_nss(data: Data, rows: list[Row]) -> dict[int, float]:
    return {row.seed: likeness(row) for row in rows}


def early_nss(data: Data, rows: list[Row]) -> dict[int, float]:
    return data.nss_after(rows, 10_000)


def episodes_to_goal(data: Data, rows: list[Row]) -> dict[int, float]:
    return data.to_goal(rows, "episodes")


class Side(NamedTuple):
    """What is compared: the runs of an algorithm with one kind of discriminator and a number of demonstrations."""

    algorithm: str
    discriminator: str
    n_demos: int

    def label(self, other: "Side") -> str:
        """Its algorithm, and what else differs from the other side."""
        words = [ALGORITHMS[self.algorithm].title]
        if self.discriminator != other.discriminator:
            words.append(self.discriminator)
        if self.n_demos != other.n_demos:
            words.append(f"{self.n_demos} demonstrations")
        return ", ".join(words)


class Claim(NamedTuple):
    """On all tasks, the first side of each pair stands in this relation to the second."""

    where: str  # in the paper
    relation: str
    tasks: Iterable[str]
    pairs: list[tuple[Side, Side]]
    stage: str = "imitate"
    measure: Callable[[Data, list[Row]], dict[int, float]] = final_nss

    def comparisons(self, data: Data) -> list[Comparison]:
        return [self.compare(data, task, *pair) for task, pair in itertools.product(self.tasks, self.pairs)]

    def compare(self, data: Data, task: str, one: Side, other: Side) -> Comparison:
        same_demos = one.n_demos == other.n_demos
        setting = f"{TASKS[task]}, {one.n_demos} demonstrations" if same_demos else TASKS[task]
        groups = [data.get(self.stage, task, *side) for side in (one, other)]
        values = [self.measure(data, rows) for rows in groups]
        if not all(values):
            texts, shown, result = [NOTHING, NOTHING], NOTHING, NOT_MEASURED
        elif self.measure is episodes_to_goal:
            texts, shown, result = compare_episodes(groups, values, self.relation)
        else:
            difference = paired(*values)
            texts = [cell(over_runs(group.values()), 3) for group in values]
            shown, result = cell(difference, 3), holds(difference, self.relation)
        first, second = f"{one.label(other)}: {texts[0]}", f"{other.label(one)}: {texts[1]}"
        return Comparison(setting, first, self.relation, second, shown, result)

    def in_paper(self, data: Data) -> str:
        """The results of the same comparisons of final NSS in the paper's own tables."""
        if self.measure is not final_nss or any(side.algorithm == "bc" for pair in self.pairs for side in pair):
            return NOTHING
        results = []
        for task, pair in itertools.product(self.tasks, self.pairs):
            one, other = (data.paper_task_nss(self.stage, task, *side) for side in pair)
            results.append(holds(welch(one, other), self.relation))
        return count(results)


def compare_episodes(groups: list[list[Row]], values: list[dict[int, float]], relation: str) -> tuple:
    """A run that misses the goal counts with all its episodes, which are fewer than it would need."""
    missed = [math.inf in group.values() for group in values]
    bounds = [{seed: min(x, rows[0].episodes) for seed, x in group.items()} for rows, group in zip(groups, values)]
    difference = paired(*bounds)
    difference = difference._replace(half=max(difference.half, CURVE_STEP))  # no finer than the curves are read
    result = holds(difference, relation)
    if result == YES and missed[0]:  # A might need any number of episodes
        result = UNDECIDED
    texts = [goal_cell(group, CURVE_STEP / 2) for group in values]
    return texts, NOTHING if any(missed) else cell(difference, 0), result


def against(rivals: Iterable[str], n_demos: Iterable[int] = (50,), kind="decentralized") -> list[tuple[Side, Side]]:
    """MA-DAAC and each of these algorithms."""
    return [(Side("madaac", kind, n), Side(name, kind, n)) for n in n_demos for name in rivals]


def all_algorithms(one: tuple[str, int], other: tuple[str, int]) -> list[tuple[Side, Side]]:
    """Each algorithm with one discriminator and number of demonstrations, and with another."""
    return [(Side(name, *one), Side(name, *other)) for name in (*BASELINES, "madaac")]


BASELINES = ("magail", "mairl")
KINDS = all_algorithms(("decentralized", 50), ("centralized", 50))
MORE_DEMOS = all_algorithms(("decentralized", 200), ("decentralized", 50))
MAIRL_AND_MAGAIL = [(Side("mairl", "decentralized", n), Side("magail", "decentralized", n)) for n in DEMOS]
CLAIMS = {
    f"MA-DAAC reaches {GOALS} in fewer episodes than the baselines on the small tasks and on Rover Tower with 8 "
    "agents, from 50 demonstrations.": Claim(
        "sections 5.2 and 5.3", "below", HEADLINE_TASKS, against(BASELINES), measure=episodes_to_goal
    ),
    "On Rover Tower MA-DAAC is ahead of the baselines after the same 10,000 episodes, from 50 demonstrations.": Claim(
        "section 5.3 and figure 2", "above", LARGE_TASKS, against(BASELINES), measure=early_nss
    ),
    f"On the small tasks MA-DAAC imitates as well as the baselines or better, up to a margin of {MARGIN}.": Claim(
        "caption of figure 1, which says best", NOT_WORSE, SMALL_TASKS, against(BASELINES, DEMOS)
    ),
    "On Rover Tower MA-DAAC imitates better than the baselines, from 50 demonstrations.": Claim(
        "sections 5.3 and 5.4", "above", LARGE_TASKS, against(BASELINES)
    ),
    "On the small tasks MA-DAAC's rewards lead to better policies than the baselines'.": Claim(
        "caption of figure 1", "above", SMALL_TASKS, against(BASELINES, DEMOS), "retrain"
    ),
    "On the small tasks MA-DAAC's and MA-AIRL's rewards lead to better policies than MA-GAIL's.": Claim(
        "section 5.2", "above", SMALL_TASKS, against(["magail"], DEMOS) + MAIRL_AND_MAGAIL, "retrain"
    ),
    "On Rover Tower MA-DAAC's rewards lead to better policies than the baselines'.": Claim(
        "section 5.3", "above", LARGE_TASKS, against(BASELINES, DEMOS), "retrain"
    ),
    "With centralized discriminators, MA-DAAC's rewards are better than MA-AIRL's on the small tasks.": Claim(
        "section 5.2", "above", SMALL_TASKS, against(["mairl"], DEMOS, "centralized"), "retrain"
    ),
    "On the small tasks the kind of discriminator makes a negligible difference to imitation.": Claim(
        "section 5.2", EQUAL, SMALL_TASKS, KINDS
    ),
    "On Rover Tower decentralized discriminators imitate better than centralized ones.": Claim(
        "section 5.3, of sample efficiency", "above", LARGE_TASKS, KINDS
    ),
    "On the small tasks the number of demonstrations makes a negligible difference to imitation.": Claim(
        "section 5.4", EQUAL, SMALL_TASKS, MORE_DEMOS
    ),
    "On Rover Tower more demonstrations lead to better imitation.": Claim(
        "section 5.4", "above", LARGE_TASKS, MORE_DEMOS
    ),
    "MA-DAAC imitates better than behavioural cloning, from 50 demonstrations.": Claim(
        "not in the paper", "above", HEADLINE_TASKS, against(["bc"])
    ),
}


class ParameterClaim(NamedTuple):
    """MA-DAAC's trainable parameters are fewer than these rivals', or grow by a smaller factor from 8 to 64 agents."""

    where: str
    rivals: tuple[str, ...]
    growth: bool

    def comparisons(self, data: Data) -> list[Comparison]:
        found = []
        for rival, agents in itertools.product(self.rivals, (64,) if self.growth else (12, 16)):
            counts = [total_parameters(name) for name in ("madaac", rival)]
            values = [count[agents] / count[8] if self.growth else count[agents] for count in counts]
            one, other, difference = (number(value, int(self.growth)) for value in (*values, values[0] - values[1]))
            setting = "64 agents : 8 agents (linear growth: 8)" if self.growth else f"{agents} agents"
            result = YES if values[0] < values[1] else NO
            first, second = f"MA-DAAC: {one}", f"{ALGORITHMS[rival].title}: {other}"
            found.append(Comparison(setting, first, "below", second, difference, result))
        return found

    def in_paper(self, data: Data) -> str:
        return NOTHING


CLAIMS["With 12 and 16 agents and decentralized discriminators, MA-DAAC has fewer parameters than MA-AIRL."] = (
    ParameterClaim("caption of figure 3", ("mairl",), growth=False)
)
CLAIMS["MA-DAAC's parameters grow more slowly with the number of agents than the baselines'."] = ParameterClaim(
    "section 5.3: linearly instead of exponentially", BASELINES, growth=True
)


def count(results: list[str]) -> str:
    kinds = (YES, NO, UNDECIDED, NOT_ENOUGH, NOT_MEASURED)
    return ", ".join(f"{results.count(kind)} {kind}" for kind in kinds if kind in results)


def verdict(comparisons: list[Comparison]) -> str:
    results = {comparison.result for comparison in comparisons}
    if NO in results:
        return "does not hold"
    if results == {YES}:
        return "holds"
    return UNDECIDED if results & {YES, UNDECIDED} else NOT_ENOUGH


def claims_page(data: Data) -> str:
    verdicts, sections = [], []
    for position, (title, claim) in enumerate(CLAIMS.items(), start=1):
        comparisons = claim.comparisons(data)
        results = count([comparison.result for comparison in comparisons])
        verdicts.append([str(position), title, claim.where, verdict(comparisons), results, claim.in_paper(data)])
        rows = [list(one) for one in comparisons if one.result != NOT_MEASURED]
        table = markdown(["setting", "A", "should be", "B", "A − B", "result"], rows) if rows else "Not measured.\n"
        sections.append(f"## {position}. {title}\n\n{table}")
    header = ["", "claim", "in the paper", "verdict", "comparisons", "in the paper's tables"]
    return "\n".join(["# The paper's claims and what was measured\n", INTRO, markdown(header, verdicts), *sections])
