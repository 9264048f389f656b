"""Scores of policies on fresh episodes, and the table that all scripts print."""

import numpy as np

from env_utils import Policy, play_episodes
from madaac_utils.scores import Reference, judged_agents, mean_and_interval, nss_with_interval, reference_warnings

EVALUATION_SEED = 40_000_003  # far from the seeds of training


def evaluate(env_id: str, players: dict[str, Policy], references: dict, episodes: int, seed: int) -> dict[str, dict]:
    """Scores and NSS of each player on the same fresh episodes."""
    found = {}
    for name, act in players.items():
        returns = play_episodes(env_id, act, episodes, seed=EVALUATION_SEED + seed)
        found[name] = describe_scores(returns, nss_with_interval(returns, references))
    return found


def describe_scores(returns: np.ndarray, nss: dict) -> dict:
    """Means and half widths of 95 % intervals, per agent and of the mean over agents, as plain numbers."""
    mean, half = mean_and_interval(returns)
    over_agents, over_agents_half = mean_and_interval(returns.mean(1, keepdims=True))
    return {
        "score": mean.tolist(),
        "interval_95": half.tolist(),
        "score_mean": float(over_agents[0]),
        "score_mean_interval_95": float(over_agents_half[0]),
        "nss": nss["nss"].tolist(),
        "nss_interval_95": nss["interval"].tolist(),
        "nss_mean": float(nss["mean"]),
        "nss_mean_interval_95": float(nss["mean_interval"]),
    }


def score_table(agents: list[str], references: dict[str, Reference], players: dict[str, dict]) -> str:
    """One row per agent and one for their mean: random, expert, the players' scores, the players' NSS, remarks."""

    def cell(mean: float, half: float, digits: int) -> str:
        if np.isnan(mean):
            return "-"
        return f"{mean:.{digits}f}" + ("" if np.isnan(half) else f" ± {half:.{digits}f}")

    warnings = reference_warnings(agents, references) if not np.isnan(references["expert"][0]).any() else {}
    rows = [["agent", "random", "expert", *players, *(f"NSS {name}" for name in players)]]
    for i, agent in enumerate(agents):
        row = [agent, *(cell(mean[i], half[i], 2) for mean, half in (references["random"], references["expert"]))]
        row += [cell(player["score"][i], player["interval_95"][i], 2) for player in players.values()]
        row += [cell(player["nss"][i], player["nss_interval_95"][i], 3) for player in players.values()]
        rows.append(row)
    means = ["mean", *(cell(references[name][0].mean(), np.nan, 2) for name in ("random", "expert"))]
    means += [cell(player["score_mean"], player["score_mean_interval_95"], 2) for player in players.values()]
    means += [cell(player["nss_mean"], player["nss_mean_interval_95"], 3) for player in players.values()]
    rows.append(means)
    widths = [max(map(len, column)) for column in zip(*rows)]
    remarks = ["", *(warnings.get(agent, "") for agent in agents)]
    left_out = [agent for agent, judged in zip(agents, judged_agents(references)) if not judged] if warnings else []
    remarks.append(f"mean NSS without {', '.join(left_out)}" if left_out else "")
    lines = []
    for row, remark in zip(rows, remarks):
        line = "  ".join(text.rjust(width) for text, width in zip(row, widths))
        lines.append(line + (f"  <- {remark}" if remark else ""))
    return "\n".join(lines)
