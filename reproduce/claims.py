"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from reproduce.grid import ALGORITHMS, DEMOS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.stats import COLUMNS, GOALS, MIN_RUNS, PAPER_TITLES, Data, Value, compare, over_runs
from reproduce.tables import NOTHING, cell, markdown

VARIANTS = ("madaac", "madaac_paper")
RELATIONS = {"above": {1}, "below": {-1}, "not below": {0, 1}, "as good as": {0}}  # of intervals over runs
NOT_ENOUGH = "not enough runs"
INTRO = (
    "Each claim is a set of comparisons of NSS (or of episodes) by 95 % t intervals over runs. An interval lies above "
    "or below another one, or they overlap (as good as). A claim holds if all comparisons do and does not hold if one "
    f"does not. A comparison needs {MIN_RUNS} runs on both sides; if a side has no run at all, it is not listed. "
    "The last column says how many of the same comparisons hold for the numbers of the paper's own tables, where the "
    "two agents of Keep Away are compared one by one."
)


class Comparison(NamedTuple):
    """One comparison behind a claim. `holds` is None if there are too few runs."""

    setting: str
    first: str
    relation: str
    second: str
    holds: bool | None


def episodes_to_goal(data: Data, *place, is_rival: bool) -> Value:
    """A rival's run that misses the goal counts with all its episodes, the least that it would need."""
    rows = data.get(*place)
    episodes = data.to_goal(rows, "episodes")
    if is_rival:
        episodes = [min(number, rows[0].episodes) for number in episodes]
    return Value(math.inf, 0.0, len(episodes)) if math.inf in episodes else over_runs(episodes)


class Claim(NamedTuple):
    """In all settings, the first of each pair of (algorithm, discriminator) is so related to the second."""

    relation: str
    tasks: Iterable[str]
    pairs: list[tuple]  # "own" stands for a variant of MA-DAAC
    demos: tuple[int, ...] = (50,)
    stage: str = "imitate"
    of_episodes: bool = False  # to the goal, instead of NSS

    def comparisons(self, data: Data, own: str) -> list[Comparison]:
        found = []
        for task, n_demos, pair in itertools.product(self.tasks, self.demos, self.pairs):
            values, texts = [], []
            for name, kind in pair:
                name = own if name == "own" else name
                place = (self.stage, task, name, kind, n_demos)
                value = episodes_to_goal(data, *place, is_rival=bool(values)) if self.of_episodes else data.nss(*place)
                text = cell(value, 0 if self.of_episodes else 3)
                text = "goal not always reached" if math.isinf(value.mean) else text
                values.append(value)
                texts.append(f"{ALGORITHMS[name].title}, {kind}: {text}" if value.runs else NOTHING)
            sign, setting = compare(*values), f"{TASKS[task]}, {n_demos} demonstrations"
            holds = None if sign is None else sign in RELATIONS[self.relation]
            found.append(Comparison(setting, texts[0], self.relation, texts[1], holds))
        return found

    def in_paper(self, data: Data) -> str:
        """How many of the comparisons hold for the numbers of the paper's own tables."""
        names = {name for pair in self.pairs for name, _ in pair} - {"own"}
        if self.of_episodes or not names <= PAPER_TITLES.keys():
            return NOTHING
        results = []
        columns = [column for column in COLUMNS if column.task in self.tasks]
        for column, n_demos, pair in itertools.product(columns, self.demos, self.pairs):
            sides = [("madaac" if name == "own" else name, kind) for name, kind in pair]
            paper_nss = [data.values(self.stage, column, name, kind, n_demos)[-1] for name, kind in sides]
            results.append(compare(*paper_nss) in RELATIONS[self.relation])
        return f"{sum(results)} of {len(results)}"


def parameter_comparisons() -> list[Comparison]:
    found = []
    for name, relation in (("madaac", "below"), ("mairl", "above")):
        counts = total_parameters(name)
        growth = counts[64] / counts[8]
        holds = growth < 10 if relation == "below" else growth > 10
        text = f"{ALGORITHMS[name].title}: {growth:.1f}"
        found.append(Comparison("factor from 8 to 64 agents", text, relation, "10 (linear: 8)", holds))
    return found


BASELINES = [(("own", "decentralized"), (name, "decentralized")) for name in ("magail", "mairl")]
CENTRALIZED = [(("own", "centralized"), ("mairl", "centralized"))]
KINDS = [((name, "decentralized"), (name, "centralized")) for name in ("magail", "mairl", "own")]
CLONING = [(("own", "decentralized"), ("bc", "none"))]
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
PARAMETER_CLAIM = "MA-DAAC's parameters grow linearly with the number of agents, those of MA-AIRL faster."


def verdict(comparisons: list[Comparison]) -> str:
    results = [comparison.holds for comparison in comparisons]
    if False in results:
        return "does not hold"
    if None not in results:
        return "holds"
    if True not in results:
        return NOT_ENOUGH
    return f"so far: holds in {results.count(True)} of {len(results)}, {results.count(None)} {NOT_ENOUGH}"


def claims_page(data: Data) -> str:
    claims = {title: [claim.comparisons(data, own) for own in VARIANTS] for title, claim in CLAIMS.items()}
    claims[PARAMETER_CLAIM] = [parameter_comparisons()] * len(VARIANTS)
    verdicts, sections = [], []
    for number, (title, by_variant) in enumerate(claims.items(), start=1):
        in_paper = CLAIMS[title].in_paper(data) if title in CLAIMS else NOTHING
        verdicts.append([str(number), title, *map(verdict, by_variant), in_paper])
        rows = []
        for one in dict.fromkeys(itertools.chain(*by_variant)):  # both variants share some
            if NOTHING not in (one.first, one.second):
                rows.append([*one[:4], {True: "yes", False: "no", None: NOT_ENOUGH}[one.holds]])
        table = markdown(["setting", "first", "should be", "second", "holds"], rows)
        sections.append(f"## {number}. {title}\n\n{table}")
    header = ["", "claim", *(ALGORITHMS[name].title for name in VARIANTS), "holds in the paper's tables"]
    summary = markdown(header, verdicts)
    return "\n".join(["# The paper's claims and what was measured\n", f"{INTRO}\n", summary, *sections])
