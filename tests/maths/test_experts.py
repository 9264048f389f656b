"""How an expert is chosen and scored: competition, intervals, and episodes that are not used twice."""

import math

import numpy as np
import pytest

from env_utils import make_envs
from madaac_utils.demos import RANDOM_SEED
from madaac_utils.evaluation import EVALUATION_SEED
from madaac_utils.experts import RECORDING_SEED, SELECTION_SEED, agents_compete
from madaac_utils.scores import scores_with_intervals

COMPETITIVE = ("keep_away", "simple_tag", "simple_adversary", "simple_push")
COOPERATIVE = ("cooperative_navigation", "rover_tower_8", "rover_tower_16", "simple_spread")


@pytest.mark.parametrize(
    "task, competitive", [*((task, True) for task in COMPETITIVE), *((task, False) for task in COOPERATIVE)]
)
def test_competition_is_told_from_cooperation(task, competitive):
    assert agents_compete(task, make_envs(task, 1).num_actions) == competitive


def test_episodes_that_choose_score_and_judge_a_policy_are_different_ones():
    """Seeds of training are small, and every 500 episodes take the next seed."""
    seeds = sorted([SELECTION_SEED, RECORDING_SEED, RANDOM_SEED, EVALUATION_SEED])
    assert seeds[0] > 1_000_000
    assert np.diff(seeds).min() > 1_000_000


def test_the_mean_over_agents_has_the_interval_of_episodes():
    """Scores of agents in the same episode are not independent, so their intervals cannot be combined."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 1))
    returns = shared + 0.5 * rng.normal(size=(40, 3))
    found = scores_with_intervals(returns)
    by_episode = returns.mean(1)
    assert found["score_mean"] == pytest.approx(by_episode.mean())
    assert found["score_mean_interval_95"] == pytest.approx(1.96 * by_episode.std(ddof=1) / math.sqrt(40))
    assert found["score"] == pytest.approx(returns.mean(0))
    assert found["interval_95"] == pytest.approx(1.96 * returns.std(0, ddof=1) / math.sqrt(40))
