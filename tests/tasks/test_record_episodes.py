"""RecordEpisodes: returns and ages of episodes that end at different times, and its state."""

import numpy as np
import pytest

from env_utils import RecordEpisodes, make_envs, random_actions


class CountingEnvs:
    """Copy k plays episodes of 2 + k steps and pays agent i the number 10 i + the steps of the episode so far."""

    num_envs, num_agents, agents = 3, 2, ("one", "other")

    def reset(self) -> np.ndarray:
        self.played = np.zeros(3, dtype=np.int64)
        return self.observe()

    def observe(self) -> np.ndarray:
        return np.tile(self.played[:, None, None], (1, 2, 1)).astype(np.float32)

    def get_state(self) -> dict:
        return {}

    def set_state(self, state: dict) -> np.ndarray:
        return self.reset()

    def step(self, actions):
        self.played = self.played + 1
        rewards = (self.played[:, None] + np.array([0, 10])).astype(np.float32)
        final_obs, over = self.observe(), self.played == np.array([2, 3, 4])
        self.played = np.where(over, 0, self.played)
        terminated = over & (np.arange(3) == 0)  # the first copy terminates, the others reach a time limit
        return self.observe(), rewards, terminated, over & ~terminated, final_obs


def test_returns_ages_and_true_successors():
    envs = RecordEpisodes(CountingEnvs())
    assert envs.mean_returns() is None
    assert envs.agents == ("one", "other"), "what it does not have is the batch's"
    expected, ages = [], np.zeros(3)
    for _ in range(12):
        before, actions = envs.obs.copy(), np.zeros((3, 2), dtype=np.int64)
        assert np.array_equal(envs.age, ages)
        step = envs.step(actions)
        assert np.array_equal(step.next_obs, before + 1)
        over = ages + 1 == [2, 3, 4]
        assert np.array_equal(step.done, over)
        assert np.array_equal(step.terminated, over & [True, False, False])
        for k in np.flatnonzero(over):
            steps = np.arange(1, 3 + k)
            expected.append([steps.sum(), (10 + steps).sum()])
        ages = np.where(over, 0, ages + 1)
        assert np.array_equal(envs.obs[:, 0, 0], ages)
        if expected:
            np.testing.assert_allclose(envs.mean_returns(), np.mean(expected, axis=0))
    assert envs.recent_returns == expected


def test_the_mean_is_over_the_last_500_episodes():
    envs = RecordEpisodes(make_envs("cooperative_communication", 60, seed=0))
    act, returns = random_actions(envs.num_actions, seed=0), []
    for _ in range(10):
        total = 0.0
        for _ in range(25):
            total = total + envs.step(act(envs.obs)).rewards.astype(np.float64)
        returns.append(total)
    last = np.concatenate(returns)[-500:]
    assert len(envs.recent_returns) == 500
    np.testing.assert_allclose(envs.mean_returns(), last.mean(0))


@pytest.mark.parametrize("steps", [10, 25, 40])
def test_a_restored_state_continues_in_the_middle_of_episodes(steps):
    envs, other = (RecordEpisodes(make_envs("cooperative_communication", 4, seed=seed)) for seed in (0, 1))
    act = random_actions(envs.num_actions, seed=0)
    for _ in range(steps):
        envs.step(act(envs.obs))
    state = envs.state_dict()
    actions = [act(envs.obs) for _ in range(60)]
    expected = [(envs.step(a), envs.obs, envs.age, envs.mean_returns()) for a in actions]
    for _ in range(2):  # twice, because a state that was used must not have changed
        other.load_state_dict(state)
        for a, (step, obs, age, returns) in zip(actions, expected):
            for found, wanted in zip(other.step(a), step):
                assert np.array_equal(found, wanted)
            assert np.array_equal(other.obs, obs) and np.array_equal(other.age, age)
            assert (returns is None) == (other.mean_returns() is None)
            assert returns is None or np.array_equal(other.mean_returns(), returns)


def test_a_task_that_cannot_be_restored_starts_new_episodes_without_old_rewards():
    envs, restored = RecordEpisodes(CountingEnvs()), RecordEpisodes(CountingEnvs())
    for _ in range(3):
        envs.step(np.zeros((3, 2), dtype=np.int64))
    restored.load_state_dict(envs.state_dict())
    assert restored.recent_returns == envs.recent_returns
    assert (envs.age > 0).any() and (restored.age == 0).all()
    assert (envs.episode_return > 0).any() and (restored.episode_return == 0).all()
