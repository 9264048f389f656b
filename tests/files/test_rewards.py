"""Recovered rewards for other libraries: as functions of batches and as PettingZoo environments."""

import numpy as np
import pytest
import torch
from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec

import madaac_discrete as madaac
import magail_mack as magail
import mairl_mack as mairl
from env_utils import make_envs, random_actions
from madaac_utils.files import EXPERTS, UserError
from madaac_utils.rewards import learned_reward, learned_reward_env, save_reward
from particle_envs import TaskError, parallel_env

TASK = "cooperative_communication"  # its agents have observations and actions of unequal sizes
FORMS = {
    "g": lambda x: x,
    "logit": lambda x: x,
    "log_d": lambda x: np.log(1 / (1 + np.exp(-x))),
    "softplus": lambda x: -np.log(1 - 1 / (1 + np.exp(-x))),
    "centered": lambda x: 2 / (1 + np.exp(-x)) - 1,
}


def save_new_reward(folder, env_id, script=madaac, **arguments):
    """A folder with the reward of new discriminators."""
    torch.manual_seed(0)
    envs = make_envs(env_id, 1)
    discriminators = script.Discriminators(envs, script.Args(hidden_size=16, **arguments))
    save_reward(folder / "reward.safetensors", discriminators, envs)
    return discriminators


@pytest.fixture
def run(tmp_path):
    save_new_reward(tmp_path, TASK)
    return tmp_path


ALL_KINDS = [(script, kind) for script in (madaac, mairl, magail) for kind in ("decentralized", "centralized")]


@pytest.mark.parametrize("script, kind", ALL_KINDS)
def test_a_learned_reward_is_what_the_discriminator_computed(script, kind, tmp_path):
    envs = make_envs(TASK, 30, 0)
    obs, actions = envs.reset(), random_actions(envs.num_actions, 0)(np.zeros(30))
    discriminators = save_new_reward(tmp_path, TASK, script, discriminator=kind)
    reward = learned_reward(tmp_path, envs)
    with torch.no_grad():
        expected = discriminators.reward(torch.as_tensor(obs).transpose(0, 1), torch.as_tensor(actions).T).T
    np.testing.assert_allclose(reward(obs, actions), expected, atol=1e-6)
    np.testing.assert_allclose(reward(obs.astype(np.float64), actions), expected, atol=1e-6)


class PlainJointReward(torch.nn.Module):
    """A reader's own centralized reward, of ordinary linear layers."""

    reward_form, joint, sees_actions = "g", True, False

    def __init__(self, envs):
        super().__init__()
        size = len(envs.agents) * int(max(envs.obs_sizes))
        layers = [torch.nn.Linear(size, 16), torch.nn.GELU(), torch.nn.Linear(16, len(envs.agents))]
        self.reward_network = torch.nn.Sequential(*layers)

    def reward(self, obs, actions):
        return self.reward_network(obs.transpose(0, 1).flatten(1)).T


def test_a_joint_reward_of_ordinary_linear_layers_is_served(tmp_path):
    envs = make_envs(TASK, 30, 0)
    obs, actions = envs.reset(), random_actions(envs.num_actions, 0)(np.zeros(30))
    mine = PlainJointReward(envs)
    save_reward(tmp_path / "reward.safetensors", mine, envs)
    expected = mine.reward(torch.as_tensor(obs).transpose(0, 1), None).T.detach()
    np.testing.assert_allclose(learned_reward(tmp_path, envs)(obs, actions), expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_rewards_are_functions_of_the_networks_output(form, tmp_path, monkeypatch):
    envs = make_envs(TASK, 30, 0)
    obs, actions = envs.reset(), random_actions(envs.num_actions, 0)(np.zeros(30))
    save_new_reward(tmp_path / "plain", TASK)
    plain = madaac.Discriminators.reward

    def reward(discriminators, obs, actions):
        outputs = plain(discriminators, obs, actions)
        return torch.as_tensor(FORMS[form](outputs.double().numpy())).float()

    monkeypatch.setattr(madaac.Discriminators, "reward", reward)
    monkeypatch.setattr(madaac.Discriminators, "reward_form", form)
    save_new_reward(tmp_path / "form", TASK)
    outputs = learned_reward(tmp_path / "plain")(obs, actions).astype(np.float64)
    found = learned_reward(tmp_path / "form")(obs, actions)
    np.testing.assert_allclose(found, FORMS[form](outputs), atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PettingZoo's remarks about the task itself
def test_a_recovered_reward_behind_pettingzoos_interface(run):
    env = learned_reward_env(run, scale=0.5)
    parallel_api_test(env, num_cycles=60)
    reward, plain = learned_reward(run), parallel_env(TASK)
    obs, _ = env.reset(seed=3)
    plain_obs, _ = plain.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(25):
        assert all(np.array_equal(obs[agent], plain_obs[agent]) for agent in env.agents)
        actions = {agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents}
        padded = np.zeros((1, 2, 11), dtype=np.float32)
        for i, agent in enumerate(env.agents):
            padded[0, i, : len(obs[agent])] = obs[agent]
        expected = 0.5 * reward(padded, np.array([list(actions.values())]))[0]
        obs, rewards, *_, infos = env.step(actions)
        plain_obs, true_rewards, *_ = plain.step(actions)
        assert list(rewards.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert {agent: info["true_reward"] for agent, info in infos.items()} == true_rewards
    assert not env.agents
    api_test(parallel_to_aec(learned_reward_env(run)), num_cycles=60)


def test_a_learned_reward_knows_which_actions_there_are(run):
    reward = learned_reward(run)
    obs = np.zeros((1, 2, 11), dtype=np.float32)
    assert reward(obs, [[2, 4]]).shape == (1, 2)
    for actions in ([[3, 0]], [[0, 5]], [[-1, 0]], [[0.5, 0]]):
        with pytest.raises(UserError):
            reward(obs, actions)
    for shapes in ((obs[0], [2, 4]), (obs, [[2, 4]] * 2), (obs[..., :9], [[2, 4]])):
        with pytest.raises(UserError):
            reward(*shapes)


def test_clients_may_change_the_observations_that_they_get(run):
    rewards = []
    for change in (False, True):
        env = learned_reward_env(run)
        obs, _ = env.reset(seed=3)
        if change:
            for part in obs.values():
                part *= 100.0
        rewards.append(env.step(dict.fromkeys(env.agents, 1))[1])
    assert rewards[0] == rewards[1]


def test_a_reward_for_a_task_of_mpe2_works_in_its_environment(tmp_path):
    save_new_reward(tmp_path, "simple_reference")
    env = learned_reward_env(tmp_path)
    parallel_api_test(env, num_cycles=60)
    obs, _ = env.reset(seed=0)
    before = np.stack([obs[agent] for agent in env.possible_agents])[None].astype(np.float32)
    rewards = env.step(dict.fromkeys(env.agents, 3))[1]
    expected = learned_reward(tmp_path)(before, np.array([[3, 3]]))[0]
    assert list(rewards.values()) == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_file_cannot_have_a_module_imported(tmp_path):
    """A reward for a module path is only wrapped around an environment that the user has made."""
    envs = make_envs("mpe2.simple_reference_v3", 1)
    envs.env_id = "antigravity.not_ours"
    save_reward(tmp_path / "reward.safetensors", madaac.Discriminators(envs, madaac.Args(hidden_size=16)), envs)
    with pytest.raises(TaskError):
        learned_reward_env(tmp_path)
    assert learned_reward_env(tmp_path, envs.envs[0]).reset(seed=0)


def test_a_reward_for_another_task_is_refused(run, tmp_path):
    with pytest.raises(UserError):
        learned_reward(run, make_envs("simple_tag", 1))
    with pytest.raises(UserError):
        learned_reward_env(run, parallel_env("simple_tag"))
    with pytest.raises(UserError):  # the same agents and sizes
        learned_reward_env(run, parallel_env("simple_speaker_listener"))


def test_folders_without_a_reward_are_refused(tmp_path):
    for folder in (EXPERTS / TASK, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError):
            learned_reward(folder)
