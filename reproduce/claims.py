"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from reproduce.grid import ALGORITHMS, DEMOS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.stats import COLUMNS, GOALS, MIN_RUNS, PAPER_TITLES, Column, Data, Value, compare, over_episodes
from reproduce.tables import NOTHING, cell, markdown

MARGIN = 0.05  # of NSS, within which two algorithms count as equally good
YES, NO, UNDECIDED, NOT_ENOUGH = "yes", "no", "undecided", "not enough runs"
INTRO = (
    "Each claim is a set of comparisons of NSS (or of episodes) by 95 % t intervals over runs. *Above* and *below* "
    "hold if the intervals do not overlap in this order, and are refuted if they do not overlap in the opposite order. "
    f"*Not below* and *as good as* hold if the interval of the difference lies above −{MARGIN}, or within ±{MARGIN}; "
    "otherwise they are refuted if the intervals do not overlap. Everything else is undecided. A claim holds if all "
    f"comparisons do and does not hold if one is refuted. A comparison needs {MIN_RUNS} runs on both sides; if a "
    "side has no run, it is not listed. The last column has the same comparisons of the numbers in the paper's own "
    "tables. MA-DAAC has 10,000 episodes, the baselines have the paper's 50,000 (Rover Tower: 100,000), and BC needs "
    "none. A baseline's run that does not reach the goal counts with all its episodes, the least that it would "
    "need. All runs of a setting learn from the same demonstrations, so the intervals do not "
    "cover the choice of demonstrations."
)


class Comparison(NamedTuple):
    """One comparison behind a claim."""

    setting: str
    first: str
    relation: str
    second: str
    holds: str


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


def episodes_to_goal(data: Data, task: str, name: str, kind: str, n_demos: int, is_rival: bool) -> Value:
    """A rival's run that misses the goal counts with all its episodes, the least that it would need."""
    rows = data.get("imitate", task, name, kind, n_demos)
    episodes = data.to_goal(rows, "episodes")
    if is_rival:
        episodes = [min(number, rows[0].episodes) for number in episodes]
    return Value(math.inf, 0.0, len(episodes)) if math.inf in episodes else over_episodes(episodes)


class Claim(NamedTuple):
    """In all settings, the first of each pair of (algorithm, discriminator) stands in this relation to the second."""

    relation: str
    tasks: Iterable[str]
    pairs: list[tuple]
    demos: tuple[int, ...] = (50,)
    stage: str = "imitate"
    of_episodes: bool = False  # to the goal, instead of NSS

    @property
    def columns(self) -> list[Column]:
        return [column for column in COLUMNS if column.task in self.tasks]

    def comparisons(self, data: Data) -> list[Comparison]:
        # The NSS of each agent with a reward of its own, as in the paper's tables; episodes count for the whole task.
        places = {TASKS[task]: task for task in self.tasks}
        if not self.of_episodes:
            places = {column.title: column for column in self.columns}
        found = []
        for (title, place), n_demos, pair in itertools.product(places.items(), self.demos, self.pairs):
            values, texts = [], []
            for name, kind in pair:
                if self.of_episodes:
                    value = episodes_to_goal(data, place, name, kind, n_demos, is_rival=bool(values))
                else:
                    _, _, value, _ = data.values(self.stage, place, name, kind, n_demos)
                text = cell(value, 0 if self.of_episodes else 3)
                if self.of_episodes and values and (missed := data.missed_goal(place, name, kind, n_demos)):
                    text += f", {missed} of them not at the goal"
                text = "goal not always reached" if math.isinf(value.mean) else text
                values.append(value)
                label = ALGORITHMS[name].title if kind == "none" else f"{ALGORITHMS[name].title}, {kind}"
                texts.append(f"{label}: {text}" if value.runs else NOTHING)
            result = holds(values[0], self.relation, values[1])
            found.append(Comparison(f"{title}, {n_demos} demonstrations", texts[0], self.relation, texts[1], result))
        return found

    def in_paper(self, data: Data) -> str:
        """The results of the same comparisons of the numbers in the paper's own tables."""
        names = {name for pair in self.pairs for name, _ in pair}
        if self.of_episodes or not names <= PAPER_TITLES.keys():
            return NOTHING
        results = []
        for column, n_demos, pair in itertools.product(self.columns, self.demos, self.pairs):
            paper_nss = [data.values(self.stage, column, name, kind, n_demos)[-1] for name, kind in pair]
            results.append(holds(paper_nss[0], self.relation, paper_nss[1]))
        return ", ".join(f"{results.count(result)} {result}" for result in (YES, NO, UNDECIDED) if result in results)


def parameter_comparisons() -> list[Comparison]:
    counts, found = {name: total_parameters(name) for name in ("madaac", "mairl")}, []
    for agents in (12, 16):
        first, second = (f"{ALGORITHMS[one].title}: {counts[one][agents]:,}" for one in counts)
        result = YES if counts["madaac"][agents] < counts["mairl"][agents] else NO
        found.append(Comparison(f"parameters, {agents} agents", first, "below", second, result))
    for name, relation in (("madaac", "below"), ("mairl", "above")):
        growth = counts[name][64] / counts[name][8]
        result = YES if (growth < 10) == (relation == "below") else NO
        limit = "10 (linear growth: 8, and observations grow too)"
        text = f"{ALGORITHMS[name].title}: {growth:.1f}"
        found.append(Comparison("factor from 8 to 64 agents", text, relation, limit, result))
    return found


BASELINES = [(("madaac", "decentralized"), (name, "decentralized")) for name in ("magail", "mairl")]
CENTRALIZED = [(("madaac", "centralized"), ("mairl", "centralized"))]
KINDS = [((name, "decentralized"), (name, "centralized")) for name in ("magail", "mairl", "madaac")]
CLONING = [(("madaac", "decentralized"), ("bc", "none"))]
CLAIMS = {
    f"MA-DAAC needs fewer episodes than the baselines to reach {GOALS}, with 50 demonstrations.": Claim(
        "below", HEADLINE_TASKS, BASELINES, of_episodes=True
    ),
    "On the small tasks MA-DAAC imitates at least as well as the baselines.": Claim(
        "not below", SMALL_TASKS, BASELINES, DEMOS
    ),
    "On Rover Tower MA-DAAC imitates better than the baselines with 50 demonstrations.": Claim(
        "above", LARGE_TASKS, BASELINES
    ),
    "On the small tasks MA-DAAC's rewards lead to better policies than the baselines' (caption of a figure).": Claim(
        "above", SMALL_TASKS, BASELINES, DEMOS, "retrain"
    ),
    "On Rover Tower MA-DAAC's rewards lead to better policies than the baselines'.": Claim(
        "above", LARGE_TASKS, BASELINES, DEMOS, "retrain"
    ),
    "With centralized discriminators, MA-DAAC's rewards are better than MA-AIRL's on the small tasks.": Claim(
        "above", SMALL_TASKS, CENTRALIZED, DEMOS, "retrain"
    ),
    "On the small tasks the kind of discriminator makes a negligible difference to imitation.": Claim(
        "as good as", SMALL_TASKS, KINDS
    ),
    "On Rover Tower decentralized discriminators imitate better than centralized ones.": Claim(
        "above", LARGE_TASKS, KINDS
    ),
    "MA-DAAC imitates better than behavioural cloning with 50 demonstrations (cited from other work).": Claim(
        "above", HEADLINE_TASKS, CLONING
    ),
}
PARAMETER_CLAIM = (
    "On Rover Tower with 12 or 16 agents and decentralized discriminators MA-DAAC has fewer parameters than MA-AIRL; "
    "its parameters grow linearly with the number of agents, those of MA-AIRL faster."
)


def verdict(comparisons: list[Comparison]) -> str:
    results = [comparison.holds for comparison in comparisons]
    if NO in results:
        return "does not hold"
    if set(results) <= {YES}:
        return "holds"
    if YES not in results:
        return UNDECIDED if UNDECIDED in results else NOT_ENOUGH
    counts = [f"{results.count(other)} {other}" for other in (UNDECIDED, NOT_ENOUGH) if other in results]
    return f"so far: holds in {results.count(YES)} of {len(results)}, {', '.join(counts)}"


def claims_page(data: Data) -> str:
    claims = {title: claim.comparisons(data) for title, claim in CLAIMS.items()}
    claims[PARAMETER_CLAIM] = parameter_comparisons()
    verdicts, sections = [], []
    for number, (title, comparisons) in enumerate(claims.items(), start=1):
        in_paper = CLAIMS[title].in_paper(data) if title in CLAIMS else NOTHING
        verdicts.append([str(number), title, verdict(comparisons), in_paper])
        rows = [list(one) for one in comparisons if NOTHING not in (one.first, one.second)]
        table = markdown(["setting", "first", "should be", "second", "holds"], rows)
        sections.append(f"## {number}. {title}\n\n{table}")
    summary = markdown(["", "claim", "verdict", "in the paper's tables"], verdicts)
    return "\n".join(["# The paper's claims and what was measured\n", f"{INTRO}\n", summary, *sections])
