"""Scores of policies on fresh episodes, and the table that all scripts print."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from env_utils import Policy, make_envs, play_episodes, random_actions, task_name
from madaac_utils.demos import load_card, load_demos, reference_scores
from madaac_utils.files import EXPERTS, UserError, sha256
from madaac_utils.policies import SavedPolicy, load_policy
from madaac_utils.scores import (
    Reference,
    judged_agents,
    mean_and_interval,
    nss_with_intervals,
    paired_nss,
    reference_warnings,
    scores_with_intervals,
)

EVALUATION_SEED = 40_000_003  # far from the seeds of training


def score_policy(env_id: str, act: Policy, episodes: int = 500, seed: int = 0) -> dict:
    """Scores and NSS of any policy: act(obs [B, agents, widest observation]) -> actions [B, agents].

    The NSS is `score_policy(...)["nss_mean"]`. Lists have one entry per agent, and ..._interval_95 are half widths.
    """
    if episodes < 2:
        raise UserError(f"episodes must be at least 2, got {episodes}")
    return evaluate(env_id, {"policy": act}, reference_scores(env_id), episodes, seed)["policy"]


def evaluate(env_id: str, players: dict[str, Policy], references: dict, episodes: int, seed: int) -> dict[str, dict]:
    """Scores and NSS of each player on the same fresh episodes."""
    results = {}
    for name, act in players.items():
        returns = play_episodes(env_id, act, episodes, seed=EVALUATION_SEED + seed)
        results[name] = scores_with_intervals(returns) | nss_with_intervals(returns, references)
    return results


class AmongExperts(NamedTuple):
    references: dict[str, Reference]
    players: dict[str, dict]
    warnings: dict[str, str]  # by agent


def among_experts(env_id: str, players: dict[str, Policy], expert: Policy, episodes: int, seed: int) -> AmongExperts:
    """Scores and NSS of each agent alone: it acts as the player, the expert or at random, all others as the expert.

    All episodes start from the same states, so that players and references are compared in pairs.
    """
    envs = make_envs(env_id, 1)

    def play(act: Policy) -> np.ndarray:
        return play_episodes(env_id, act, episodes, EVALUATION_SEED + seed)

    def play_alone(act: Policy) -> np.ndarray:
        """Returns [episodes, agents]; those of each agent are from episodes of its own."""
        returns = []
        for is_alone in np.eye(len(envs.agents), dtype=bool):
            returns.append(play(lambda obs, alone=is_alone: np.where(alone, act(obs), expert(obs)))[:, is_alone])
        return np.concatenate(returns, axis=1)

    returns = {"expert": play(expert), "random": play_alone(random_actions(envs.num_actions, seed))}
    gap, half = mean_and_interval(returns["expert"] - returns["random"])
    close = [agent for agent, is_close in zip(envs.agents, np.abs(gap) <= 3 * half) if is_close]
    results = {}
    for name, act in players.items():
        alone = play_alone(act)
        results[name] = scores_with_intervals(alone) | paired_nss(alone, **returns)
    return AmongExperts(
        {name: mean_and_interval(values) for name, values in returns.items()},
        results,
        dict.fromkeys(close, "expert and random play score too much alike in its place for its NSS to mean much"),
    )


def load_expert(env_id: str, demos: str = "", expert_folder: Path | None = None) -> SavedPolicy:
    """The policy behind demonstrations: the shipped expert, the one in a folder, or the one beside a file of demos."""
    folder = expert_folder or (Path(demos).parent if demos else EXPERTS / task_name(env_id))
    if demos:
        load_demos(Path(demos))  # raises an error if the file cannot be read
        if not (folder / "card.json").is_file():
            raise UserError(f"the expert behind {demos} is not known: there is no card.json beside it")
    card = load_card(env_id, folder)
    if demos and card.get("sha256", {}).get("demos.npz") != sha256(Path(demos)):
        raise UserError(f"the expert behind {demos} is not known: the card.json beside it is for another file")
    return load_policy(folder / "policy.safetensors", make_envs(env_id, 1))


def score_table(agents: list[str], references: dict, players: dict[str, dict], warnings: dict | None = None) -> str:
    """One row per agent and one for their mean: random, expert, the players' scores, the players' NSS, warnings."""

    def column(title: str, values, halves, mean: float, mean_half: float, digits: int) -> list[str]:
        cells = [title]
        for value, half in zip([*values, mean], [*halves, mean_half]):
            interval = "" if np.isnan(half) else f" ± {half:.{digits}f}"
            cells.append("-" if np.isnan(value) else f"{value:.{digits}f}{interval}")
        return cells

    def columns_of(prefix: str, score: str, interval: str, digits: int) -> list[list[str]]:
        names = [score, interval, f"{score}_mean", f"{score}_mean_interval_95"]
        return [column(prefix + title, *(player[name] for name in names), digits) for title, player in players.items()]

    columns = [["agent", *agents, "mean"]]
    columns += [column(name, *references[name], references[name][0].mean(), np.nan, 2) for name in ("random", "expert")]
    columns += columns_of("", "score", "interval_95", 2) + columns_of("NSS ", "nss", "nss_interval_95", 3)
    widths = [max(map(len, column)) for column in columns]
    warnings = reference_warnings(agents, references) if warnings is None else warnings
    left_out = [agent for agent, judged in zip(agents, judged_agents(references)) if not judged]
    has_mean = any(not np.isnan(player["nss_mean"]) for player in players.values())
    remarks = ["", *(warnings.get(agent, "") for agent in agents)]
    remarks.append(f"mean NSS without {', '.join(left_out)}" if left_out and has_mean else "")
    lines = []
    for row, remark in zip(zip(*columns), remarks):
        line = "  ".join(text.rjust(width) for text, width in zip(row, widths))
        lines.append(line + (f"  <- {remark}" if remark else ""))
    return "\n".join(lines)
