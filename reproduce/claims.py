"""The claims of the paper and what the rows say about them: every verdict is computed."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from reproduce.grid import ALGORITHMS, DEMOS, DISCRIMINATORS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.parameters import total_parameters
from reproduce.stats import MIN_RUNS, Data, Value, compare, over_runs
from reproduce.tables import GOALS, cell

BASELINES = ("magail", "mairl")


class Comparison(NamedTuple):
    """One comparison behind a claim. `holds` is None if there are too few runs."""

    text: str
    holds: bool | None


class Claim(NamedTuple):
    title: str
    rule: str
    """How the claim is tested."""
    tests: Callable[[Data, str], list[Comparison]]
    """The comparisons, for one of the two variants of MA-DAAC."""


def verdict(comparisons: list[Comparison]) -> str:
    results = {comparison.holds for comparison in comparisons}
    return "does not hold" if False in results else "holds" if results == {True} else "not enough runs"


def compared(where: str, values: dict[str, Value], accept: Callable[[int], bool], digits: int = 3) -> Comparison:
    """Compare the first value with each of the others; all comparisons must be accepted."""
    text = f"{where}: " + ", ".join(f"{name} {cell(value, digits)}" for name, value in values.items())
    first, *others = values.values()
    signs = [compare(first, other) for other in others]
    return Comparison(text, None if None in signs else all(accept(sign) for sign in signs))


def nss_tests(stage: str, tasks, demos, kind: str, rivals, accept: Callable[[int], bool]) -> Callable:
    """Compare the NSS of MA-DAAC with its rivals' in each setting."""

    def tests(data: Data, own: str) -> list[Comparison]:
        found = []
        for task, n in itertools.product(tasks, demos):
            values = {ALGORITHMS[name].title: data.nss(stage, task, name, kind, n) for name in (own, *rivals)}
            found.append(compared(f"{TASKS[task]}, {n} demonstrations", values, accept))
        return found

    return tests


def discriminator_tests(tasks, accept: Callable[[int], bool]) -> Callable:
    """Compare decentralized with centralized discriminators."""

    def tests(data: Data, own: str) -> list[Comparison]:
        found = []
        for task, name in itertools.product(tasks, (*BASELINES, own)):
            values = {kind: data.nss("imitate", task, name, kind, 50) for kind in DISCRIMINATORS}
            found.append(compared(f"{TASKS[task]}, {ALGORITHMS[name].title}", values, accept))
        return found

    return tests


def higher(sign: int) -> bool:
    return sign > 0


def lower(sign: int) -> bool:
    return sign < 0


def episodes_to_goal(data: Data, task: str, algorithm: str) -> list[float]:
    """A run that does not reach the goal counts with all its episodes, which is the least that it would need."""
    rows = data.get("imitate", task, algorithm, "decentralized", 50)
    return [min(value, rows[0].episodes) for value in data.to_goal(rows, "episodes")]


def speed_tests(data: Data, own: str) -> list[Comparison]:
    found = []
    for task in HEADLINE_TASKS:
        values = {ALGORITHMS[name].title: over_runs(episodes_to_goal(data, task, name)) for name in (own, *BASELINES)}
        found.append(compared(TASKS[task], values, lower, digits=0))
        rows = data.get("imitate", task, own, "decentralized", 50)
        if found[-1].holds and math.inf in data.to_goal(rows, "episodes"):
            found[-1] = Comparison(f"{found[-1].text}, but MA-DAAC does not always reach the goal", False)
    return found


def slowdown_tests(data: Data, own: str) -> list[Comparison]:
    values = {}
    for name in (own, *BASELINES):
        many, few = (over_runs(np.log(episodes_to_goal(data, f"rover_tower_{agents}", name))) for agents in (16, 8))
        values[ALGORITHMS[name].title] = many.minus(few)
    return [compared("Logarithm of episodes with 16 agents / episodes with 8 agents", values, lower)]


def gain_tests(data: Data, own: str) -> list[Comparison]:
    found = []
    for task in LARGE_TASKS:
        gains = {}
        for n in (50, 200):
            ours, magail = (data.nss("imitate", task, name, "decentralized", n) for name in (own, "magail"))
            gains[f"{n} demonstrations"] = ours.minus(magail)
        found.append(compared(TASKS[task], gains, higher))
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


CLAIMS = (
    Claim(
        "MA-DAAC needs fewer episodes than the baselines.",
        f"Episodes to {GOALS}, 50 demonstrations, decentralized: MA-DAAC's interval lies below both baselines'.",
        speed_tests,
    ),
    Claim(
        "On the small tasks MA-DAAC imitates at least as well as the baselines.",
        "Final NSS, decentralized: no baseline's interval lies above MA-DAAC's.",
        nss_tests("imitate", SMALL_TASKS, DEMOS, "decentralized", BASELINES, lambda sign: sign >= 0),
    ),
    Claim(
        "On Rover Tower MA-DAAC imitates better than the baselines with few demonstrations.",
        "Final NSS with 50 demonstrations, decentralized: MA-DAAC's interval lies above both baselines'.",
        nss_tests("imitate", LARGE_TASKS, (50,), "decentralized", BASELINES, higher),
    ),
    Claim(
        "The gain over MA-GAIL on Rover Tower is larger with fewer demonstrations.",
        "NSS minus MA-GAIL's, decentralized: the interval with 50 demonstrations lies above that with 200.",
        gain_tests,
    ),
    Claim(
        "More agents slow MA-DAAC down less than the baselines.",
        "Growth of the episodes to NSS 0.9 from 8 to 16 agents, 50 demonstrations: MA-DAAC's interval lies below.",
        slowdown_tests,
    ),
    Claim(
        "On the small tasks MA-DAAC's rewards lead to better policies than the baselines'.",
        "NSS after retraining, decentralized: MA-DAAC's interval lies above both baselines'.",
        nss_tests("retrain", SMALL_TASKS, DEMOS, "decentralized", BASELINES, higher),
    ),
    Claim(
        "On Rover Tower MA-DAAC's rewards lead to better policies than the baselines'.",
        "NSS after retraining, decentralized: MA-DAAC's interval lies above both baselines'.",
        nss_tests("retrain", LARGE_TASKS, DEMOS, "decentralized", BASELINES, higher),
    ),
    Claim(
        "With centralized discriminators, MA-DAAC's rewards are better than MA-AIRL's on the small tasks.",
        "NSS after retraining, centralized: MA-DAAC's interval lies above MA-AIRL's.",
        nss_tests("retrain", SMALL_TASKS, DEMOS, "centralized", ("mairl",), higher),
    ),
    Claim(
        "On the small tasks the kind of discriminator makes a negligible difference to imitation.",
        "Final NSS, 50 demonstrations: the intervals of both kinds overlap.",
        discriminator_tests(SMALL_TASKS, lambda sign: sign == 0),
    ),
    Claim(
        "On Rover Tower decentralized discriminators imitate better than centralized ones.",
        "Final NSS, 50 demonstrations: the decentralized interval lies above the centralized one.",
        discriminator_tests(LARGE_TASKS, higher),
    ),
    Claim(
        "Behavioural cloning performs poorly with few demonstrations.",
        "Final NSS with 50 demonstrations, decentralized: MA-DAAC's interval lies above that of BC.",
        nss_tests("imitate", HEADLINE_TASKS, (50,), "decentralized", ("bc",), higher),
    ),
    Claim(
        "MA-DAAC's parameters grow linearly with the number of agents, those of MA-AIRL faster.",
        "Rover Tower, decentralized: growth within 25 % of linear, MA-AIRL's above; fewer parameters with 12 and 16.",
        parameter_tests,
    ),
)


def claims_page(data: Data) -> str:
    titles = {name: ALGORITHMS[name].title for name in ("madaac", "madaac_paper")}
    words = {True: "yes", False: "no", None: "not enough runs"}
    summary, sections = [f"| | claim | {' | '.join(titles.values())} |", "|---|---|---|---|"], []
    for number, claim in enumerate(CLAIMS, start=1):
        found = {title: claim.tests(data, name) for name, title in titles.items()}
        verdicts = [f"**{verdict(comparisons)}**" for comparisons in found.values()]
        summary.append(f"| {number} | {claim.title} | {' | '.join(verdicts)} |")
        sections += ["", f"## {number}. {claim.title}", "", claim.rule]
        for title, comparisons in found.items():
            sections += ["", f"{title}: **{verdict(comparisons)}**", ""]
            sections += [f"- {one.text}: {words[one.holds]}" for one in comparisons]
    intro = (
        "Each claim is a set of comparisons of 95 % t intervals over runs. It holds if all of them do and does not "
        f"hold if one of them does not. A comparison needs at least {MIN_RUNS} runs on both sides."
    )
    return "\n".join(["# The paper's claims and what was measured", "", intro, "", *summary, *sections]) + "\n"
