"""The claims of the paper and what the rows say about them: every verdict is computed."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from reproduce.grid import ALGORITHMS, DEMOS, HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS
from reproduce.stats import MIN_RUNS, Data, Value, compare, over_runs
from reproduce.tables import GOALS, cell

BASELINES = ("magail", "mairl")


class Test(NamedTuple):
    """One comparison behind a claim. `holds` is None if there are too few runs."""

    text: str
    holds: bool | None


class Claim(NamedTuple):
    title: str
    rule: str
    """How the claim is tested."""
    tests: Callable[[Data, str], list[Test]]
    """The comparisons, for one of the two variants of MA-DAAC."""


def verdict(tests: list[Test]) -> str:
    if any(test.holds is False for test in tests):
        return "does not hold"
    return "holds" if tests and all(test.holds for test in tests) else "not enough runs"


def test(where: str, values: dict[str, Value | None], accept: Callable[[int], bool], digits: int = 3) -> Test:
    """Compare the first value with each of the others; all comparisons must be accepted."""
    text = f"{where}: " + ", ".join(f"{name} {cell(value, digits)}" for name, value in values.items())
    if None in values.values():
        return Test(text, None)
    first, *others = values.values()
    signs = [compare(first, other) for other in others]
    return Test(text, None if None in signs else all(accept(sign) for sign in signs))


def nss_tests(stage: str, tasks, demos, kind: str, rivals, accept: Callable[[int], bool]) -> Callable:
    """Compare the NSS of MA-DAAC with its rivals' in each setting."""

    def tests(data: Data, own: str) -> list[Test]:
        return [
            test(
                f"{TASKS[task]}, {n} demonstrations",
                {ALGORITHMS[name].title: data.nss(stage, task, name, kind, n) for name in (own, *rivals)},
                accept,
            )
            for task in tasks
            for n in demos
        ]

    return tests


def higher(sign: int) -> bool:
    return sign > 0


def not_lower(sign: int) -> bool:
    return sign >= 0


def episodes_to_goal(data: Data, task: str, algorithm: str) -> Value | None:
    """A run that does not reach the goal counts with all its episodes, which is the least it would need."""
    rows = data.get("imitate", task, algorithm, "decentralized", 50)
    found = [min(value, row.episodes) for row, value in zip(rows, data.to_goal(rows, "episodes"))]
    return over_runs(found) if found else None


def reaches_goal(data: Data, task: str, algorithm: str) -> bool:
    return all(map(math.isfinite, data.to_goal(data.get("imitate", task, algorithm, "decentralized", 50), "episodes")))


def speed_tests(data: Data, own: str) -> list[Test]:
    tests = []
    for task in HEADLINE_TASKS:
        values = {ALGORITHMS[name].title: episodes_to_goal(data, task, name) for name in (own, *BASELINES)}
        found = test(TASKS[task], values, lambda sign: sign < 0, digits=0)
        missed = found.holds is not None and not reaches_goal(data, task, own)
        tests.append(Test(f"{found.text}; MA-DAAC does not always reach the goal", False) if missed else found)
    return tests


def slowdown_tests(data: Data, own: str) -> list[Test]:
    """log(episodes to the goal with 16 agents) - log(... with 8 agents)"""
    values = {}
    for name in (own, *BASELINES):
        logs = []
        for task in ("rover_tower_16", "rover_tower_8"):
            rows = data.get("imitate", task, name, "decentralized", 50)
            found = [min(value, row.episodes) for row, value in zip(rows, data.to_goal(rows, "episodes"))]
            logs.append(over_runs(np.log(found)) if found else None)
        values[ALGORITHMS[name].title] = logs[0].minus(logs[1]) if None not in logs else None
    return [test("Logarithm of the ratio, 16 to 8 agents", values, lambda sign: sign < 0)]


def gain_tests(data: Data, own: str) -> list[Test]:
    tests = []
    for task in LARGE_TASKS:
        gains = {}
        for n in (50, 200):
            pair = [data.nss("imitate", task, name, "decentralized", n) for name in (own, "magail")]
            gains[f"{n} demonstrations"] = None if None in pair else pair[0].minus(pair[1])
        tests.append(test(TASKS[task], gains, higher))
    return tests


def discriminator_tests(tasks, accept: Callable[[int], bool]) -> Callable:
    def tests(data: Data, own: str) -> list[Test]:
        return [
            test(
                f"{TASKS[task]}, {ALGORITHMS[name].title}",
                {kind: data.nss("imitate", task, name, kind, 50) for kind in ("decentralized", "centralized")},
                accept,
            )
            for task in tasks
            for name in (*BASELINES, own)
        ]

    return tests


def correlation_tests(data: Data, own: str) -> list[Test]:
    """The cell with the lowest PCC among those whose policies act like the expert."""
    found = []
    for place, rows in data.runs.items():
        pcc, nss = over_runs([row.pcc for row in rows]), over_runs([row.nss for row in rows])
        if place.stage == "retrain" and len(rows) >= MIN_RUNS and nss.mean >= 0.9 and not math.isnan(pcc.mean):
            where = f"{TASKS[place.task]}, {ALGORITHMS[place.algorithm].title}, {place.discriminator}, {place.n_demos}"
            found.append((pcc.mean, f"{where}: PCC {cell(pcc, 2)}, NSS {cell(nss, 3)}", pcc.mean + pcc.half < 0.5))
    return [Test(*min(found)[1:])] if found else []


def parameter_tests(data: Data, own: str) -> list[Test]:
    from reproduce.parameters import AGENTS, total_parameters

    totals = {name: total_parameters(name) for name in ("madaac", "mairl")}
    first, last = AGENTS[0], AGENTS[-1]
    growth = {name: counts[last] / counts[first] for name, counts in totals.items()}
    agents = last / first
    tests = [
        Test(
            f"From {first} to {last} agents ({agents:g} times as many), MA-DAAC's parameters grow by a factor of "
            f"{growth['madaac']:.1f} and MA-AIRL's by {growth['mairl']:.1f}",
            growth["madaac"] < 1.25 * agents < growth["mairl"],
        )
    ]
    for number in (12, 16):
        counts = [totals[name][number] for name in ("madaac", "mairl")]
        tests.append(Test(f"{number} agents: MA-DAAC {counts[0]:,}, MA-AIRL {counts[1]:,}", counts[0] < counts[1]))
    return tests


CLAIMS = (
    Claim(
        "MA-DAAC needs fewer episodes than the baselines.",
        f"Episodes to {GOALS}, 50 demonstrations, decentralized: MA-DAAC's interval lies below both baselines'.",
        speed_tests,
    ),
    Claim(
        "On the small tasks MA-DAAC imitates at least as well as the baselines.",
        "Final NSS, decentralized: no baseline's interval lies above MA-DAAC's.",
        nss_tests("imitate", SMALL_TASKS, DEMOS, "decentralized", BASELINES, not_lower),
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
        "Rover Tower, decentralized: growth within 25 % of linear, MA-AIRL's beyond, and fewer parameters at 12 and 16.",
        parameter_tests,
    ),
    Claim(
        "A reward can lead to the expert's behaviour although its correlation with the true reward is low.",
        "Among retrainings with a mean NSS of at least 0.9, the lowest PCC: its interval lies below 0.5.",
        correlation_tests,
    ),
)


def claims_page(data: Data) -> str:
    variants = ("madaac", "madaac_paper")
    titles = [ALGORITHMS[name].title for name in variants]
    found = [(claim, [claim.tests(data, name) for name in variants]) for claim in CLAIMS]
    lines = [
        "# The paper's claims and what was measured",
        "",
        f"Each claim is a set of comparisons of 95 % t intervals over runs. It holds if all of them do, it does not hold "
        f"if one of them does not, and a comparison needs at least {MIN_RUNS} runs on both sides.",
        "",
        f"| | claim | {' | '.join(titles)} |",
        "|---|---|---|---|",
    ]
    for number, (claim, both) in enumerate(found, start=1):
        lines.append(f"| {number} | {claim.title} | {' | '.join(f'**{verdict(tests)}**' for tests in both)} |")
    words = {True: "yes", False: "no", None: "not enough runs"}
    for number, (claim, both) in enumerate(found, start=1):
        lines += ["", f"## {number}. {claim.title}", "", claim.rule]
        for title, tests in zip(titles, both):
            if tests == both[0] and title != titles[0]:
                continue  # no runs of MA-DAAC are compared
            lines += ["", f"{title}: **{verdict(tests)}**", ""]
            lines += [f"- {one.text}: {words[one.holds]}" for one in tests] or ["- no runs"]
    return "\n".join(lines) + "\n"
