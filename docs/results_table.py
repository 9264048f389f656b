"""The tables of docs/results.md, and of scores in docs/retrain.md, from results/runs.csv and results/paper.csv:

python docs/results_table.py
"""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import of_todays_expert

RESULTS = Path(__file__).resolve().parent.parent / "results"
ALGORITHMS = {"magail": "MA-GAIL", "mairl": "MA-AIRL", "madaac": "MA-DAAC"}
TASKS = ("keep_away", "cooperative_communication", "cooperative_navigation")


def read(name: str) -> list[dict]:
    with open(RESULTS / name, newline="") as file:
        return list(csv.DictReader(file))


RUNS, PAPER = read("runs.csv"), read("paper.csv")


def number(value, digits: int = 3) -> str:
    return f"{float(value):.{digits}f}".replace("-", "−")


def our_runs(stage: str, task: str, algorithm: str, kind: str, demos: str) -> list[dict]:
    """The rows of a cell, one a seed."""
    wanted = (stage, task, algorithm, kind, demos)
    names = ("stage", "task", "algorithm", "discriminator", "n_demos")
    return [run for run in RUNS if tuple(run[name] for name in names) == wanted]


def mean(runs: list[dict], column: str, digits: int = 3) -> str:
    """Over seeds; of a column with a value an agent, the first agent's."""
    values = [float(run[column].split(";")[0]) for run in runs]
    return number(sum(values) / len(values), digits)


def papers_means(stage: str, task: str) -> dict[tuple[str, str, str, str], float]:
    """The paper's scores by algorithm (or expert, random), discriminator, number of demonstrations and agent."""
    rows = [row for row in PAPER if (row["stage"], row["task"]) == (stage, task)]
    return {(r["algorithm"], r["discriminator"], r["n_demos"], r["agent"]): float(r["mean"]) for r in rows}


def papers_nss(stage: str, task: str, algorithm: str, kind: str, demos: str) -> float:
    """By the paper's own expert and random scores, averaged over the agents that it lists."""
    means = papers_means(stage, task)
    values = []
    for agent in sorted({agent for *_, agent in means}):
        random, expert = (means[name, "", "", agent] for name in ("random", "expert"))
        values.append((means[ALGORITHMS[algorithm], kind, demos, agent] - random) / (expert - random))
    return sum(values) / len(values)


def table(stage: str, correlation: bool = False) -> str:
    """A row a task, number of demonstrations and kind of discriminator that any algorithm was run with."""
    titles = [title for name in ALGORITHMS.values() for title in ((name,) if correlation else (name, "the paper's"))]
    lines = ["| task, demonstrations | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for kind in ("decentralized", "centralized"):
        for demos in ("50", "100", "200"):
            for task in TASKS:
                runs = {name: our_runs(stage, task, name, kind, demos) for name in ALGORITHMS}
                if not any(runs.values()):
                    continue
                cells = []
                for name, found in runs.items():
                    if correlation:
                        cells.append(f"{mean(found, 'pcc', 2)} → {mean(found, 'nss', 2)}" if found else "")
                    else:
                        marks = ["α"] if any("alpha" in run["run_id"] for run in found) else []
                        marks += [f"{len(found)} seeds"] if len(found) > 1 else []
                        cells.append(mean(found, "nss") + (f" ({', '.join(marks)})" if marks else "") if found else "")
                        cells.append(number(papers_nss(stage, task, name, kind, demos)))
                centralized = ", centralized" if kind == "centralized" else ""
                lines.append(f"| `{task}`, {demos}{centralized} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def score_table(stage: str) -> str:
    """Scores of the tasks in which all agents are paid the same, decentralized, beside the paper's."""
    counts = ("50", "100", "200")
    titles = [title for demos in counts for title in (f"{demos} demonstrations", "the paper's")]
    lines = ["| task, reward of | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for task in ("cooperative_navigation", "cooperative_communication"):
        for name, title in ALGORITHMS.items():
            cells = []
            for demos in counts:
                found = our_runs(stage, task, name, "decentralized", demos)
                cells.append(mean(found, "scores", 1) if found else "")
                cells.append(number(papers_means(stage, task)[title, "decentralized", demos, "all"], 1))
            lines.append(f"| `{task}`, {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def large_table() -> str:
    """Rover Tower, decentralized: scores averaged over agents, beside the paper's."""
    titles = [title for name in ALGORITHMS.values() for title in (name, "the paper's")]
    lines = ["| Rover Tower, demonstrations | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for stage, what in (("imitate", "imitation"), ("retrain", "retraining")):
        for task in ("rover_tower_8", "rover_tower_12", "rover_tower_16"):
            for demos in ("50", "100", "200"):
                cells = []
                for name, title in ALGORITHMS.items():
                    ours = ""
                    if found := our_runs(stage, task, name, "decentralized", demos):
                        scores = [
                            sum(values := [float(v) for v in r["scores"].split(";")]) / len(values) for r in found
                        ]
                        budgets = sorted({int(run["episodes"]) for run in found} - {100_000})
                        seeds = [f"{len(found)} seeds"] if len(found) > 1 else []
                        marks = [f"{budget:,} episodes" for budget in budgets] + seeds
                        todays = [
                            of_todays_expert(task, [*map(float, r["expert_scores"].split(";"))], "") for r in found
                        ]
                        marks += [] if all(todays) else ["earlier expert"]
                        ours = number(sum(scores) / len(scores), 1) + (f" ({', '.join(marks)})" if marks else "")
                    cells += [ours, number(papers_means(stage, task)[title, "decentralized", demos, "mean"], 1)]
                if any(cells[::2]):
                    agents = task.removeprefix("rover_tower_")
                    lines.append(f"| {what}, {agents} agents, {demos} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    tables = (table("imitate"), table("retrain"), table("retrain", correlation=True), score_table("retrain"))
    print(*tables, large_table(), sep="\n\n")
