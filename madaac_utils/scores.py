"""Normalized score similarity (NSS) and intervals.

NSS of an agent is (A - R) / (E - R), where A, E and R are the mean returns of the learner, the expert and uniformly
random play. NSS of a task is the mean over its agents, without those whose expert hardly differs from random play.
"""

import numpy as np

Reference = tuple[np.ndarray, np.ndarray]  # mean and half width of the 95 % interval, [agents] each


def mean_and_interval(returns: np.ndarray) -> Reference:
    """Mean over episodes [episodes, agents] and half width of its 95 % interval (normal approximation)."""
    if len(returns) < 2:
        return returns.mean(axis=0), np.full(returns.shape[1], np.nan)
    return returns.mean(axis=0), 1.96 * returns.std(axis=0, ddof=1) / np.sqrt(len(returns))


def normalized_score_similarity(score: np.ndarray, expert: np.ndarray, random: np.ndarray) -> np.ndarray:
    """(A - R) / (E - R) per agent (last axis); nan for an agent whose expert scores exactly as random play does."""
    gap = np.asarray(expert, dtype=np.float64) - random
    return (np.asarray(score) - random) / np.where(gap == 0, np.nan, gap)


def too_close(references: dict[str, Reference]) -> np.ndarray:
    """[agents]: whether expert and random scores are so close that NSS divides by next to nothing."""
    (expert, expert_half), (random, random_half) = references["expert"], references["random"]
    apart = np.abs(expert - random) >= 3 * np.hypot(expert_half, random_half)  # False for nan
    return ~(apart & (expert != random))


def judged_agents(references: dict[str, Reference]) -> np.ndarray:
    """[agents]: which agents count in the mean NSS. Those whose NSS means nothing are left out if others remain."""
    close = too_close(references)
    return np.ones_like(close) if close.all() else ~close


def mean_nss(score: np.ndarray, references: dict[str, Reference]) -> float:
    """NSS, the mean over the agents that it can judge; `references` has "expert" and "random"."""
    nss = normalized_score_similarity(score, references["expert"][0], references["random"][0])
    nss = nss[judged_agents(references)]
    return float(np.nanmean(nss)) if not np.isnan(nss).all() else float("nan")


def scores_with_intervals(returns: np.ndarray) -> dict:
    """Score per agent and of their mean with half widths of 95 % intervals, as plain numbers; [episodes, agents]."""
    score, half = mean_and_interval(returns)
    # The agents of one episode are not independent: the interval of their mean is that of the means of episodes.
    (mean,), (mean_half,) = mean_and_interval(returns.mean(1, keepdims=True))
    scores = {"score": score.tolist(), "interval_95": half.tolist()}
    return scores | {"score_mean": float(mean), "score_mean_interval_95": float(mean_half)}


def nss_with_intervals(returns: np.ndarray, references: dict[str, Reference]) -> dict:
    """NSS per agent and of their mean with half widths of 95 % intervals, as plain numbers; returns [episodes, agents].

    The scores of learner, expert and random play all have errors. To first order, with d = E - R, they contribute
    A's error / d, NSS times E's error / d and (1 - NSS) times R's error / d. The agents of one episode are not
    independent. The learner's part of the error of the mean is therefore computed from the means of episodes, and the
    parts of the references are averaged over agents, which is the most that they can amount to.
    """
    (expert, expert_half), (random, random_half) = references["expert"], references["random"]
    by_episode = normalized_score_similarity(returns, expert, random)
    nss, learner_half = mean_and_interval(by_episode)
    gap = np.where(np.isnan(nss), np.nan, np.abs(expert - random))  # an agent without a gap or an expert has no NSS
    reference_half = np.hypot(nss * expert_half, (1 - nss) * random_half) / gap
    mean = mean_half = np.nan
    judged = judged_agents(references) & ~np.isnan(nss)
    if judged.any():
        (mean,), (learner_mean_half,) = mean_and_interval(by_episode[:, judged].mean(1, keepdims=True))
        mean_half = np.hypot(learner_mean_half, reference_half[judged].mean())
    by_agent = {"nss": nss.tolist(), "nss_interval_95": np.hypot(learner_half, reference_half).tolist()}
    return by_agent | {"nss_mean": float(mean), "nss_mean_interval_95": float(mean_half)}


def paired_nss(returns: np.ndarray, expert: np.ndarray, random: np.ndarray) -> dict:
    """NSS per agent where learner, expert and random play started from the same states; each [episodes, agents].

    With a, e and r the three returns of an episode, NSS = mean(a - r) / mean(e - r). To first order its error is that
    of the mean of ((a - r) - NSS (e - r)) / mean(e - r), so that what an initial state does to all three cancels.
    """
    gap = (expert - random).mean(0)
    gap = np.where(gap == 0, np.nan, gap)
    nss = (returns - random).mean(0) / gap
    errors = (returns - random - nss * (expert - random)) / gap  # [episodes, agents]
    by_agent = {"nss": nss.tolist(), "nss_interval_95": mean_and_interval(errors)[1].tolist()}
    # Each agent has its own zero (random play in its place among experts), so a mean over agents has no meaning.
    return by_agent | {"nss_mean": np.nan, "nss_mean_interval_95": np.nan}


def reference_warnings(agents: list[str], references: dict[str, Reference]) -> dict[str, str]:
    """By agent: why its NSS says little. An agent without an expert's score has no NSS to warn about."""
    warnings = {}
    expert, random = references["expert"][0], references["random"][0]
    for agent, close, below in zip(agents, too_close(references) & ~np.isnan(expert), expert < random):
        if close:
            warnings[agent] = "expert and random scores are too close for its NSS to mean much"
        elif below:
            warnings[agent] = "its expert scores less than random play: the agents compete, or the expert is bad"
    return warnings


def by_agent(agents: list[str], scores: dict) -> dict[str, dict[str, float]]:
    """The scores of scores_with_intervals, as the files hold them."""
    columns = zip(agents, scores["score"], scores["interval_95"])
    return {agent: {"mean": mean, "interval_95": half} for agent, mean, half in columns}
