"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from functools import partial
from typing import NamedTuple

from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.stats import GOALS, MIN_RUNS, Data, Value, compare, over_runs
from reproduce.tables import cell

BASELINES = ("magail", "mairl")
RELATIONS = {"above": {1}, "below": {-1}, "not below": {0, 1}, "as good as": {0}}  # of intervals over runs


class Comparison(NamedTuple):
    """One comparison behind a claim. `holds` is None if there are too few runs."""

    text: str
    holds: bool | None


def verdict(comparisons: list[Comparison]) -> str:
    results = {comparison.holds for comparison in comparisons}
    return "does not hold" if False in results else "holds" if results == {True} else "not enough runs"


def compared(where: str, values: dict[str, Value], wanted: str, digits: int = 3) -> Comparison:
    """Whether the first interval lies where it should (a key of RELATIONS) relative to all the others."""
    (first, own), *others = ((f"{name} {cell(value, digits)}", value) for name, value in values.items())
    signs = [compare(own, value) for _, value in others]
    text = f"{where}: {first} {wanted} {', '.join(text for text, _ in others)}"
    return Comparison(text, None if None in signs else all(sign in RELATIONS[wanted] for sign in signs))


def nss_tests(
    data: Data, own: str, stage, tasks, demos=(50,), kind="decentralized", rivals=BASELINES, wanted="above"
) -> list[Comparison]:
    """Compare the NSS of MA-DAAC with its rivals' in each setting."""
    found = []
    for task, n in itertools.product(tasks, demos):
        values = {ALGORITHMS[name].title: data.nss(stage, task, name, kind, n) for name in (own, *rivals)}
        found.append(compared(f"{TASKS[task]}, {n} demonstrations", values, wanted))
    return found


def discriminator_tests(data: Data, own: str, tasks, wanted) -> list[Comparison]:
    """Compare decentralized with centralized discriminators, with 50 demonstrations."""
    found = []
    for task, name in itertools.product(tasks, (*BASELINES, own)):
        values = {kind: data.nss("imitate", task, name, kind, 50) for kind in DISCRIMINATORS}
        found.append(compared(f"{TASKS[task]}, {ALGORITHMS[name].title}", values, wanted))
    return found


def speed_tests(data: Data, own: str) -> list[Comparison]:
    """Compare episodes to the goal. A run that misses it counts with all its episodes, the least that it would need."""
    found = []
    for task in HEADLINE_TASKS:
        values, missed = {}, {}
        for name in (own, *BASELINES):
            rows = data.get("imitate", task, name, "decentralized", 50)
            episodes = data.to_goal(rows, "episodes")
            missed[name] = math.inf in episodes
            values[ALGORITHMS[name].title] = over_runs([min(number, rows[0].episodes) for number in episodes])
        found.append(compared(TASKS[task], values, "below", digits=0))
        if found[-1].holds and missed[own]:
            found[-1] = Comparison(f"{found[-1].text}, but MA-DAAC does not always reach the goal", False)
    return found


def parameter_tests(data: Data, own: str) -> list[Comparison]:
    ours, theirs = total_parameters("madaac"), total_parameters("mairl")
    growth = [counts[64] / counts[8] for counts in (ours, theirs)]
    text = f"From 8 to 64 agents, MA-DAAC's grow by a factor of {growth[0]:.1f}, MA-AIRL's of {growth[1]:.1f}"
    found = [Comparison(text, growth[0] < 1.25 * 8 < growth[1])]
    for agents in (12, 16):
        text = f"{agents} agents: MA-DAAC {ours[agents]:,}, MA-AIRL {theirs[agents]:,}"
        found.append(Comparison(text, ours[agents] < theirs[agents]))
    return found


RETRAINED = partial(nss_tests, stage="retrain", demos=DEMOS)
CLAIMS = {
    f"MA-DAAC needs fewer episodes than the baselines to reach {GOALS}, with 50 demonstrations.": speed_tests,
    "On the small tasks MA-DAAC imitates at least as well as the baselines.": partial(
        nss_tests, stage="imitate", tasks=SMALL_TASKS, demos=DEMOS, wanted="not below"
    ),
    "On Rover Tower MA-DAAC imitates better than the baselines with 50 demonstrations.": partial(
        nss_tests, stage="imitate", tasks=LARGE_TASKS
    ),
    "On the small tasks MA-DAAC's rewards lead to better policies than the baselines'.": partial(
        RETRAINED, tasks=SMALL_TASKS
    ),
    "On Rover Tower MA-DAAC's rewards lead to better policies than the baselines'.": partial(
        RETRAINED, tasks=LARGE_TASKS
    ),
    "With centralized discriminators, MA-DAAC's rewards are better than MA-AIRL's on the small tasks.": partial(
        RETRAINED, tasks=SMALL_TASKS, kind="centralized", rivals=("mairl",)
    ),
    "On the small tasks the kind of discriminator makes a negligible difference to imitation.": partial(
        discriminator_tests, tasks=SMALL_TASKS, wanted="as good as"
    ),
    "On Rover Tower decentralized discriminators imitate better than centralized ones.": partial(
        discriminator_tests, tasks=LARGE_TASKS, wanted="above"
    ),
    "Behavioural cloning imitates worse than MA-DAAC with 50 demonstrations.": partial(
        nss_tests, stage="imitate", tasks=HEADLINE_TASKS, rivals=("bc",)
    ),
    "MA-DAAC's parameters grow linearly with the number of agents, those of MA-AIRL faster.": parameter_tests,
}


def claims_page(data: Data) -> str:
    variants, words = ("madaac", "madaac_paper"), {True: "yes", False: "no", None: "not enough runs"}
    summary = [f"| | claim | {' | '.join(ALGORITHMS[name].title for name in variants)} |", "|---|---|---|---|"]
    sections = []
    for number, (title, tests) in enumerate(CLAIMS.items(), start=1):
        summary.append(f"| {number} | {title} |")
        sections += ["", f"## {number}. {title}"]
        for name in variants:
            comparisons = tests(data, name)
            summary[-1] += f" **{verdict(comparisons)}** |"
            sections += ["", f"{ALGORITHMS[name].title}: **{verdict(comparisons)}**", ""]
            sections += [f"- {one.text}: {words[one.holds]}" for one in comparisons]
    intro = (
        "Each claim is a set of comparisons of NSS (or of episodes) by 95 % t intervals over runs, decentralized "
        "unless the claim says otherwise. An interval lies above or below another one, or they overlap (as good as). "
        "A claim holds if all comparisons do and does not hold if one does not. "
        f"A comparison needs {MIN_RUNS} runs on both sides."
    )
    return "\n".join(["# The paper's claims and what was measured", "", intro, "", *summary, *sections]) + "\n"
