"""retrain.py: the correlation of rewards, and learners that compute what those of the other scripts compute."""

import numpy as np
import pytest
import torch

import retrain
from env_utils import make_envs
from madaac_utils.checkpoints import to_arrays, to_tensors
from madaac_utils.files import write_json
from madaac_utils.rewards import save_reward
from tests.maths.helpers import MACK, madaac, magail, mairl, scripts
from tests.maths.watched_run import record_arguments, run_iterations, seed_before

TASK = "cooperative_communication"
LEARNERS = pytest.mark.parametrize("learner", ["mack", "maac"])


def random_rewards(seed=0, shape=(300, 3)):
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)


def correlation_of(learned: np.ndarray, true: np.ndarray, parts: int = 1) -> retrain.Correlation:
    correlation = retrain.Correlation(learned.shape[-1])
    for pair in zip(np.array_split(learned, parts), np.array_split(true, parts)):
        correlation.add(*pair)
    return correlation


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_the_correlation_equals_numpys(parts, offset):
    learned, true = random_rewards()
    learned[:, 0] += true[:, 0] + offset
    true[:, 1] = 2 * learned[:, 1] + 5
    true[:, 2] = -3 * learned[:, 2]
    found = correlation_of(learned, true, parts).compute()
    expected = [np.corrcoef(learned[:, i].astype(float), true[:, i].astype(float))[0, 1] for i in range(3)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found[1:], [1, -1], atol=1e-6)


def test_rewards_of_rollouts_are_taken_agent_by_agent():
    learned, true = random_rewards(shape=(20, 15, 3))
    flat = correlation_of(learned.reshape(-1, 3), true.reshape(-1, 3))
    assert np.array_equal(correlation_of(learned, true).compute(), flat.compute())


def test_a_correlation_without_variance_is_undefined_and_left_out_of_the_log():
    learned, true = random_rewards()
    learned[:, 2] = 4.0
    correlation = correlation_of(learned, true)
    assert np.isnan(correlation.compute()).tolist() == [False, False, True]
    metrics = correlation.metrics(["a", "b", "c"])
    assert set(metrics) == {"charts/pcc", "charts/pcc-a", "charts/pcc-b"}
    assert metrics["charts/pcc"] == pytest.approx((metrics["charts/pcc-a"] + metrics["charts/pcc-b"]) / 2)
    assert correlation.mean() == metrics["charts/pcc"]

    learned[::2, 2] = np.nextafter(np.float32(4.0), np.float32(5.0))  # constant except for rounding
    assert np.isnan(correlation_of(learned, true).compute()[2])
    learned[:] = 0.0
    correlation = correlation_of(learned, true)
    assert correlation.metrics(["a", "b", "c"]) == {} and correlation.mean() is None
    assert retrain.Correlation(3).metrics(["a", "b", "c"]) == {}, "nothing was added"


def test_the_log_starts_anew_after_every_point():
    correlation = correlation_of(*random_rewards(0))
    correlation.metrics(["a", "b", "c"])
    correlation.add(*random_rewards(1))
    assert np.array_equal(correlation.compute(), correlation_of(*random_rewards(1)).compute())


def test_a_restored_correlation_continues():
    correlation, restored = correlation_of(*random_rewards(0)), retrain.Correlation(3)
    correlation.metrics(["a", "b", "c"])
    correlation.add(*random_rewards(1))
    restored.load_state_dict(to_arrays(to_tensors(correlation.state_dict())))
    assert restored.mean() == correlation.mean()
    for one in (correlation, restored):
        one.add(*random_rewards(2))
    assert np.array_equal(restored.compute(), correlation.compute())


def options(tmp_path, **changes) -> dict:
    return {"env_id": TASK, "hidden_size": 16, "total_timesteps": 100_000, "runs": str(tmp_path)} | changes


def assert_same_networks(one, other, *names):
    for name in names:
        a, b, start = (list(parts[name].parameters()) for parts in (one.parts, other.parts, one.initial))
        assert all(map(torch.equal, a, b))
        assert not any(map(torch.equal, a, start)), "it did not learn"


@MACK
def test_mack_computes_what_the_scripts_compute_on_the_true_reward(script, monkeypatch, tmp_path):
    """Rollouts of 25 steps from four copies; random numbers are the same from the start of each iteration."""
    same = options(tmp_path, num_envs=4, true_reward=True)
    original = run_iterations(script, script.Args(**same, disc_batch_size=100), 3, monkeypatch)
    again = run_iterations(retrain, retrain.Args(**same, rl="mack"), 3, monkeypatch)
    assert_same_networks(original, again, "policies", "values")


def test_maac_computes_what_madaac_discrete_computes_on_the_true_reward(monkeypatch, tmp_path):
    """100 copies make one update per iteration, from the tenth on."""
    # MA-DAAC also draws demonstrations before its losses draw actions.
    monkeypatch.setattr(madaac, "critic_loss", seed_before(madaac.critic_loss, 0))
    same = options(tmp_path, num_envs=100, batch_size=50, updates_per_period=1, true_reward=True)
    original = run_iterations(madaac, madaac.Args(**same, buffer_size=5000), 13, monkeypatch)
    again = run_iterations(retrain, retrain.Args(**same, rl="maac"), 13, monkeypatch)
    assert_same_networks(original, again, "policies", "critic", "target_policies", "target_critic")


@LEARNERS
@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
@scripts(madaac, mairl, magail)
def test_learners_are_paid_the_recovered_reward_of_each_step(script, kind, learner, monkeypatch, tmp_path):
    envs = make_envs(TASK, 1)
    torch.manual_seed(0)
    discriminators = script.Discriminators(envs, script.Args(hidden_size=16, discriminator=kind))
    save_reward(tmp_path / "source" / "reward.safetensors", discriminators, envs)
    write_json(tmp_path / "source" / "config.json", {"args": {"env_id": TASK, "demos": ""}})
    calls, correlated = [], []
    monkeypatch.setattr(retrain.mack, "advantages_and_returns", record_arguments(mairl.advantages_and_returns, calls))
    monkeypatch.setattr(retrain.Correlation, "add", record_arguments(retrain.Correlation.add, correlated))
    source = str(tmp_path / "source")
    args = retrain.Args(**options(tmp_path / "runs", env_id="", num_envs=4, run=source, rl=learner))
    if learner == "mack":
        run = run_iterations(retrain, args, 1, monkeypatch)
        rollout, rewards, *_ = calls[0]
        obs, actions, paid = (mairl.agents_first(part) for part in (rollout.obs, rollout.actions, rewards))
        assert torch.equal(rollout.done, (torch.arange(25) == 24)[:, None].expand(25, 4))
        true = rollout.rewards.numpy()
    else:
        run = run_iterations(retrain, args, 60, monkeypatch)
        store = run.parts["buffer"].store
        obs, actions, paid = (part[:240].transpose(0, 1) for part in (store.obs, store.actions, store.rewards))
        true = np.concatenate([arguments[2] for arguments in correlated])
    with torch.no_grad():
        expected = discriminators.reward(obs, actions)
    torch.testing.assert_close(paid, expected / 25, atol=1e-6, rtol=1e-4)
    learned, true = expected.T.numpy(), true.reshape(-1, 2)
    pcc = [np.corrcoef(learned[:, i], true[:, i])[0, 1] for i in range(2)]
    np.testing.assert_allclose(run.parts["correlation"].compute(), pcc, atol=1e-4)
