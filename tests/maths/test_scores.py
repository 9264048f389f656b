"""NSS, its intervals, and which agents it can judge."""

import json

import numpy as np
import pytest

from env_utils import make_envs, play_episodes, random_actions
from madaac_utils.evaluation import EVALUATION_SEED, among_experts, load_expert, score_policy
from madaac_utils.files import EXPERTS, UserError, write_json
from madaac_utils.scores import (
    judged_agents,
    mean_nss,
    nss_with_intervals,
    paired_nss,
    reference_warnings,
    too_close,
)

SHIPPED = sorted(path.parent.name for path in EXPERTS.glob("*/card.json"))
REFERENCES = {
    "expert": (np.array([-40.0, 4.0]), np.array([1.0, 0.1])),
    "random": (np.array([-80.0, 0.0]), np.array([2.0, 0.2])),
}


def test_nss_and_its_interval_equal_plain_formulas():
    rng = np.random.default_rng(0)
    returns = rng.normal([-50.0, 3.0], [5.0, 1.0], size=(400, 2))
    found = nss_with_intervals(returns, REFERENCES)
    for i in range(2):
        expert, random = REFERENCES["expert"][0][i], REFERENCES["random"][0][i]
        score = returns[:, i].mean()
        assert found["nss"][i] == pytest.approx((score - random) / (expert - random))
        # The interval of a ratio of independent normal scores, by simulation
        halves = 1.96 * returns[:, i].std(ddof=1) / 20, REFERENCES["expert"][1][i], REFERENCES["random"][1][i]
        a, e, r = (rng.normal(mean, half / 1.96, 200_000) for mean, half in zip((score, expert, random), halves))
        assert found["nss_interval_95"][i] == pytest.approx(1.96 * ((a - r) / (e - r)).std(), rel=0.03)


def test_the_interval_of_the_mean_treats_agents_as_dependent():
    """The returns of the agents of an episode vary together; the references err together, which is the worst case."""
    rng = np.random.default_rng(0)
    returns = np.array([-50.0, 3.0]) + rng.normal(size=(400, 1)) * [5.0, 1.0] + rng.normal(size=(400, 2)) * [2.0, 0.1]
    returns += np.array([-50.0, 3.0]) - returns.mean(0)
    found = nss_with_intervals(returns, REFERENCES)
    assert found["nss_mean"] == pytest.approx(0.75)
    scores = rng.multivariate_normal(returns.mean(0), np.cov(returns.T) / 400, 200_000)
    expert, random = (mean + half / 1.96 * rng.normal(size=(200_000, 1)) for mean, half in REFERENCES.values())
    simulated = ((scores - random) / (expert - random)).mean(1)
    assert found["nss_mean_interval_95"] == pytest.approx(1.96 * simulated.std(), rel=0.03)


def test_paired_nss_and_its_interval_equal_a_bootstrap_over_episodes():
    rng = np.random.default_rng(0)
    layout = rng.normal(size=(300, 1)) * 4  # the part of an episode's return that is common to all three
    random, expert, learner = (layout + rng.normal([a, b], 1.0, size=(300, 2)) for a, b in ((0, 5), (10, 0), (7, 1)))
    found = paired_nss(learner, expert, random)
    rows = rng.integers(300, size=(20_000, 300))
    a, e, r = (returns[rows].mean(1) for returns in (learner, expert, random))  # [20,000, agents]
    assert found["nss"] == pytest.approx((learner.mean(0) - random.mean(0)) / (expert.mean(0) - random.mean(0)))
    assert found["nss"] == pytest.approx([0.7, 0.8], abs=0.03)
    assert found["nss_interval_95"] == pytest.approx(1.96 * ((a - r) / (e - r)).std(0), rel=0.05)
    assert np.isnan(paired_nss(learner, random, random)["nss"]).all()


def test_an_agent_whose_expert_equals_random_play_has_no_nss_and_the_mean_leaves_it_out(tmp_path):
    references = {"expert": (np.array([1.0, 5.0]), np.full(2, 0.1)), "random": (np.array([1.0, 0.0]), np.full(2, 0.1))}
    found = nss_with_intervals(np.array([[1.0, 2.0], [1.0, 3.0]]), references)
    assert np.isnan(found["nss"][0])
    assert found["nss_mean"] == pytest.approx(0.5) == mean_nss(np.array([1.0, 2.5]), references)
    write_json(tmp_path / "x.json", {"nss": found["nss"]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"nss": [None, 0.5]}


def test_the_mean_leaves_out_agents_that_it_cannot_judge_unless_none_would_remain():
    references = {"expert": (np.array([1.0, 5.0]), np.full(2, 0.5)), "random": (np.zeros(2), np.full(2, 0.5))}
    assert too_close(references).tolist() == [True, False]
    assert reference_warnings(["slow", "fast"], references).keys() == {"slow"}
    assert mean_nss(np.array([7.0, 2.5]), references) == pytest.approx(0.5)
    references["expert"][0][1] = 1.0
    assert judged_agents(references).tolist() == [True, True]
    assert mean_nss(np.array([7.0, 3.0]), references) == pytest.approx(5.0)


def test_an_expert_below_random_play_is_judged_but_gets_a_warning():
    references = {"expert": (np.array([1.0, 5.0]), np.full(2, 0.1)), "random": (np.array([9.0, 0.0]), np.full(2, 0.1))}
    assert reference_warnings(["pusher", "reacher"], references).keys() == {"pusher"}
    assert judged_agents(references).all()


def test_unknown_experts_give_no_warnings():
    unknown = {"expert": (np.full(2, np.nan), np.full(2, np.nan)), "random": REFERENCES["random"]}
    assert reference_warnings(["a", "b"], unknown) == {}
    assert np.isnan(mean_nss(np.zeros(2), unknown))


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_expert_has_an_nss_of_one_and_random_play_of_zero(env_id):
    """Within four standard errors, because there are many agents to compare."""
    random = random_actions(make_envs(env_id, 1).num_actions, 5)
    for act, expected in ((load_expert(env_id).greedy, 1.0), (random, 0.0)):
        found = score_policy(env_id, act, episodes=200)
        for nss, half in zip(found["nss"], found["nss_interval_95"]):
            assert abs(nss - expected) < 4 / 1.96 * half
        assert abs(found["nss_mean"] - expected) < 4 / 1.96 * found["nss_mean_interval_95"] < 0.9


def test_score_policy_needs_two_episodes():
    with pytest.raises(UserError):
        score_policy("cooperative_communication", lambda obs: np.zeros(obs.shape[:2], int), episodes=1)


def test_among_experts_an_agent_is_scored_in_the_company_of_experts():
    """The scores of a player are those of mixed play, one agent at a time; the expert has exactly 1."""
    expert = load_expert("simple_tag").greedy
    players = {"again": expert, "still": lambda obs: np.zeros(obs.shape[:2], dtype=np.int64)}
    found = among_experts("simple_tag", players, expert, 60, seed=0).players
    assert found["again"]["nss"] == [1.0] * 4 and found["again"]["nss_interval_95"] == [0.0] * 4
    for i in range(4):

        def act(obs, i=i):
            actions = expert(obs)
            actions[:, i] = 0
            return actions

        returns = play_episodes("simple_tag", act, 60, EVALUATION_SEED)[:, i]
        assert found["still"]["score"][i] == returns.mean()
    prey, predators = found["still"]["nss"][3], found["still"]["score"][:3]
    assert prey < 0.9 and len(set(predators)) == 3


def test_agents_are_too_close_among_experts_by_paired_differences():
    """Returns vary more over initial states than the expert and a random agent differ from the same state."""
    envs = make_envs("simple_spread", 1)
    random = random_actions(envs.num_actions, 5)
    found = among_experts("simple_spread", {"played": random}, load_expert("simple_spread").greedy, 60, seed=0)
    assert too_close(found.references).all() and not found.warnings
    for nss, half in zip(found.players["played"]["nss"], found.players["played"]["nss_interval_95"]):
        assert abs(nss) < 2 * half
