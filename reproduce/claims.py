"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from reproduce.grid import ALGORITHMS, DEMOS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.stats import GOALS, MIN_RUNS, PAPER_TITLES, Data, Value, compare, over_episodes
from reproduce.tables import NOTHING, cell, markdown, signed

MARGIN = 0.05  # of NSS, within which two algorithms count as equally good
YES, NO, UNDECIDED, NOT_ENOUGH = "yes", "no", "undecided", "not enough runs"
INTRO = f"""\
Each claim is a set of comparisons of A with B by the 95 % interval of the difference A − B (Welch's t interval over
runs, without a correction for the number of comparisons).

- *Above* holds if the interval lies above 0 and is refuted if it lies below 0; *below* is the reverse.
- *Not below* holds if the interval lies above −{MARGIN}; if it does not, it is refuted if the interval lies below 0.
  *As good as* holds if the interval lies within ±{MARGIN}; if it does not, it is refuted if the interval excludes 0.
- Everything else is undecided. A comparison needs {MIN_RUNS} runs on both sides, and is not listed if a side has none.
- A claim holds if all its comparisons do, and does not hold if one is refuted. If some hold and none is refuted, it
  holds in part.
- In Keep Away the agents compete, so that an NSS above 1 is no better than one below: 1 − |NSS − 1| is compared there.
- The last column of the first table has the same comparisons of the numbers in the paper's own tables.
- These are claims about the paper's algorithms, and the runs are of this repository's: MA-DAAC makes more updates than
  one per 100 steps and has 10,000 episodes, and the baselines' discriminators learn from all past play.
- All runs of a setting learn from the same demonstrations, so the intervals do not cover the choice of demonstrations.
"""


class Comparison(NamedTuple):
    """One comparison behind a claim."""

    setting: str
    first: str
    relation: str
    second: str
    difference: str
    result: str


def holds(one: Value, relation: str, other: Value) -> str:
    """Whether two means over runs stand in this relation."""
    sign, difference = compare(one, other), one.minus(other)
    if sign is None:
        return NOT_ENOUGH
    if relation in ("above", "below"):
        wanted = 1 if relation == "above" else -1
        return {wanted: YES, -wanted: NO, 0: UNDECIDED}[sign]
    low, high = difference.mean - difference.half, difference.mean + difference.half
    if low > -MARGIN and (relation == "not below" or high < MARGIN):
        return YES
    return NO if sign == -1 or (sign == 1 and relation == "as good as") else UNDECIDED


class Side(NamedTuple):
    """What is compared: the runs of an algorithm with one kind of discriminator and a number of demonstrations."""

    algorithm: str
    discriminator: str
    n_demos: int


class Claim(NamedTuple):
    """On all tasks, the first side of each pair stands in this relation to the second."""

    where: str  # in the paper
    relation: str
    tasks: Iterable[str]
    pairs: list[tuple[Side, Side]]
    stage: str = "imitate"
    of_episodes: bool = False  # to the goal, instead of NSS

    def comparisons(self, data: Data) -> list[Comparison]:
        compare_sides = self.compare_episodes if self.of_episodes else self.compare_nss
        found = []
        for task, pair in itertools.product(self.tasks, self.pairs):
            same = [one == other for one, other in zip(*pair)]  # algorithm, discriminator, demonstrations
            setting = f"{TASKS[task]}, {pair[0].n_demos} demonstrations" if same[2] else TASKS[task]
            labels = []
            for side in pair:
                words = [ALGORITHMS[side.algorithm].title]
                words += [side.discriminator] if not same[1] and side.discriminator != "none" else []
                words += [f"{side.n_demos} demonstrations"] if not same[2] else []
                labels.append(", ".join(words))
            texts, difference, result = compare_sides(data, task, pair)
            texts = [f"{label}: {text}" if text else "" for label, text in zip(labels, texts)]
            found.append(Comparison(setting, texts[0], self.relation, texts[1], difference, result))
        return found

    def compare_nss(self, data: Data, task: str, pair) -> tuple[list[str], str, str]:
        """Two texts, empty without runs, the difference, and the result."""
        one, other = (data.task_nss(self.stage, task, *side)[0] for side in pair)
        texts = [cell(value, 3) if value.runs else "" for value in (one, other)]
        return texts, signed(one.minus(other), 3), holds(one, self.relation, other)

    def compare_episodes(self, data: Data, task: str, pair) -> tuple[list[str], str, str]:
        """The same for episodes to the goal. A run that misses it needs more episodes than it had."""
        values, texts, missed = [], [], []
        for side in pair:
            rows = data.get("imitate", task, *side)
            episodes = data.to_goal(rows, "episodes")
            missed.append(episodes.count(math.inf))
            values.append(over_episodes([min(number, rows[0].episodes) for number in episodes]))
            text = cell(values[-1], 0) if rows else ""
            if missed[-1]:
                text = f"more than {values[-1].mean:,.0f}; {missed[-1]} of {len(rows)} runs miss the goal"
            texts.append(text)
        result = holds(values[0], self.relation, values[1])
        if missed[0] and result == YES:
            result = UNDECIDED  # A may need any number; B's is a lower bound, which is enough for "below"
        return texts, NOTHING if any(missed) else signed(values[0].minus(values[1]), 0), result

    def in_paper(self, data: Data) -> str:
        """The results of the same comparisons of the numbers in the paper's own tables."""
        if self.of_episodes or not {side.algorithm for pair in self.pairs for side in pair} <= PAPER_TITLES.keys():
            return NOTHING
        results = []
        for task, pair in itertools.product(self.tasks, self.pairs):
            one, other = (data.task_nss(self.stage, task, *side)[1] for side in pair)
            results.append(holds(one, self.relation, other))
        return count(results)


def against(algorithms: Iterable[str], demos=(50,), kind="decentralized") -> list[tuple[Side, Side]]:
    """MA-DAAC and each of these algorithms."""
    return [(Side("madaac", kind, n), Side(name, kind, n)) for n in demos for name in algorithms]


BASELINES = ("magail", "mairl")
KINDS = [(Side(name, "decentralized", 50), Side(name, "centralized", 50)) for name in ("magail", "mairl", "madaac")]
MORE_DEMOS = [
    (Side(name, "decentralized", 200), Side(name, "decentralized", 50)) for name in ("magail", "mairl", "madaac")
]
IRL_AND_MAGAIL = [
    (Side(name, "decentralized", n), Side("magail", "decentralized", n)) for n in DEMOS for name in ("madaac", "mairl")
]
CLAIMS = {
    f"MA-DAAC needs fewer episodes than the baselines to reach {GOALS}, with 50 demonstrations.": Claim(
        "sections 5.2 and 5.3", "below", HEADLINE_TASKS, against(BASELINES), of_episodes=True
    ),
    "On the small tasks MA-DAAC imitates at least as well as the baselines.": Claim(
        "caption of figure 1", "not below", SMALL_TASKS, against(BASELINES, DEMOS)
    ),
    "On Rover Tower MA-DAAC imitates better than the baselines with 50 demonstrations.": Claim(
        "sections 5.3 and 5.4", "above", LARGE_TASKS, against(BASELINES)
    ),
    "On the small tasks MA-DAAC's rewards lead to better policies than the baselines'.": Claim(
        "caption of figure 1", "above", SMALL_TASKS, against(BASELINES, DEMOS), "retrain"
    ),
    "On the small tasks MA-DAAC's and MA-AIRL's rewards lead to better policies than MA-GAIL's.": Claim(
        "section 5.2", "above", SMALL_TASKS, IRL_AND_MAGAIL, "retrain"
    ),
    "On Rover Tower MA-DAAC's rewards lead to better policies than the baselines'.": Claim(
        "section 5.3", "above", LARGE_TASKS, against(BASELINES, DEMOS), "retrain"
    ),
    "With centralized discriminators, MA-DAAC's rewards are better than MA-AIRL's on the small tasks.": Claim(
        "section 5.2", "above", SMALL_TASKS, against(["mairl"], DEMOS, "centralized"), "retrain"
    ),
    "On the small tasks the kind of discriminator makes a negligible difference to imitation.": Claim(
        "section 5.2", "as good as", SMALL_TASKS, KINDS
    ),
    "On Rover Tower decentralized discriminators imitate better than centralized ones.": Claim(
        "section 5.3", "above", LARGE_TASKS, KINDS
    ),
    "On the small tasks the number of demonstrations makes a negligible difference to imitation.": Claim(
        "section 5.4", "as good as", SMALL_TASKS, MORE_DEMOS
    ),
    "On Rover Tower more demonstrations lead to better imitation.": Claim(
        "section 5.4", "above", LARGE_TASKS, MORE_DEMOS
    ),
    "MA-DAAC imitates better than behavioural cloning with 50 demonstrations.": Claim(
        "not in the paper", "above", HEADLINE_TASKS, [(Side("madaac", "decentralized", 50), Side("bc", "none", 50))]
    ),
}
PARAMETER_CLAIM = (
    "On Rover Tower with decentralized discriminators, MA-DAAC has fewer parameters than the baselines with 12 and 16 "
    "agents, and their number grows more slowly."
)


def parameter_comparisons() -> list[Comparison]:
    counts, found = {name: total_parameters(name) for name in ("madaac", *BASELINES)}, []
    growth = {name: count[64] / count[8] for name, count in counts.items()}
    for rival in BASELINES:
        titles = [ALGORITHMS[name].title for name in ("madaac", rival)]
        for agents in (12, 16):
            one, other = counts["madaac"][agents], counts[rival][agents]
            texts = [f"{title}: {number:,}" for title, number in zip(titles, (one, other))]
            result = YES if one < other else NO
            found.append(Comparison(f"{agents} agents", texts[0], "below", texts[1], f"{one - other:+,}", result))
        one, other = growth["madaac"], growth[rival]
        texts = [f"{title}: {number:.1f}" for title, number in zip(titles, (one, other))]
        result = YES if one < other else NO
        setting = "64 agents / 8 agents (linear: 8)"
        found.append(Comparison(setting, texts[0], "below", texts[1], f"{one - other:+.1f}", result))
    return found


def count(results: list[str]) -> str:
    return ", ".join(f"{results.count(one)} {one}" for one in (YES, NO, UNDECIDED, NOT_ENOUGH) if one in results)


def verdict(comparisons: list[Comparison]) -> str:
    results = {comparison.result for comparison in comparisons}
    if NO in results:
        return "does not hold"
    if YES in results:
        return "holds" if results == {YES} else "holds in part"
    return UNDECIDED if UNDECIDED in results else NOT_ENOUGH


def claims_page(data: Data) -> str:
    claims = {title: claim.comparisons(data) for title, claim in CLAIMS.items()}
    claims[PARAMETER_CLAIM] = parameter_comparisons()
    verdicts, sections = [], []
    for number, (title, comparisons) in enumerate(claims.items(), start=1):
        where, in_paper = "section 5.3 and figure 3", NOTHING
        if title in CLAIMS:
            where, in_paper = CLAIMS[title].where, CLAIMS[title].in_paper(data)
        results = count([comparison.result for comparison in comparisons])
        verdicts.append([str(number), title, where, verdict(comparisons), results, in_paper])
        rows = [list(one) for one in comparisons if one.first and one.second]
        table = markdown(["setting", "A", "should be", "B", "A − B", "holds"], rows) if rows else "No runs yet.\n"
        sections.append(f"## {number}. {title}\n\n{table}")
    header = ["", "claim", "in the paper", "verdict", "comparisons", "in the paper's tables"]
    return "\n".join(["# The paper's claims and what was measured\n", INTRO, markdown(header, verdicts), *sections])
