"""Policies on disk: rebuilt from their file alone, and refused if damaged, foreign or for another task."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn as nn
from safetensors.torch import save_file

import madaac_discrete
from env_utils import make_envs
from madaac_utils.files import UserError
from madaac_utils.networks import ACTIVATIONS, SavedNetwork, describe, load_tensors, save_tensors
from madaac_utils.policies import describe_policy, load_policy
from tests.damage import flip_bit

TASK = "cooperative_communication"


@pytest.fixture
def envs():
    return make_envs(TASK, 5, seed=1)


@pytest.fixture
def policies(envs):
    torch.manual_seed(0)
    return madaac_discrete.Policies(envs, 8)


class Normalizer:
    """Mean and variance of the observations of two agents."""

    mean, var = torch.full((2, 11), 0.3, dtype=torch.float64), torch.full((2, 11), 0.5, dtype=torch.float64)

    def normalized(self, obs):
        return (obs - 0.3) / (0.5 + 1e-8) ** 0.5


@pytest.fixture
def path(envs, policies, tmp_path):
    save(tmp_path / "policy.safetensors", policies, envs)
    return tmp_path / "policy.safetensors"


def save(path, policies, envs):
    policy = describe_policy(policies, envs, Normalizer())
    save_tensors(path, policy.tensors, policy.header, envs)


def test_a_policy_is_rebuilt_from_its_file_alone(path, envs, policies):
    policy, obs = load_policy(path), 30 * envs.reset()  # some of them are clipped
    assert policy.header["agents"] == envs.agents and policy.header["env_id"] == TASK
    for i, layers in enumerate(zip(*[layer.weight for layer in policies.network[::2]])):  # by hand, agent by agent
        x = ((torch.as_tensor(obs[:, i]) - 0.3) / 0.5**0.5).clamp(-10, 10)
        for k, weight in enumerate(layers):
            x = (nn.functional.leaky_relu(x) if k else x) @ weight + policies.network[2 * k].bias[i]
        n = envs.num_actions[i]
        torch.testing.assert_close(policy.logits(obs)[:, i, :n], x[:, :n].detach(), atol=1e-4, rtol=1e-4)
        assert (policy.logits(obs)[:, i, n:] == -torch.inf).all()
        assert np.array_equal(policy.greedy(obs)[:, i], x[:, :n].argmax(-1))


def test_a_stochastic_policy_draws_by_the_probabilities_and_repeats_with_its_seed(path, envs):
    policy, obs = load_policy(path), np.repeat(envs.reset()[:1], 10_000, axis=0)
    drawn = policy.stochastic(seed=0)(obs)
    for i, probabilities in enumerate(policy.logits(obs[:1])[0].softmax(-1)):
        np.testing.assert_allclose(np.bincount(drawn[:, i], minlength=5) / len(drawn), probabilities, atol=0.02)
    assert np.array_equal(policy.stochastic(seed=0)(obs), drawn)
    assert not np.array_equal(policy.stochastic(seed=1)(obs), drawn)


def test_equal_policies_are_equal_files(envs, policies, path, tmp_path):
    save(tmp_path / "again", policies, envs)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_survives_with_its_parameters(name, envs):
    parameters = {"negative_slope": 0.2, "alpha": 0.7, "beta": 3.0, "threshold": 2.0, "approximate": "tanh"}
    network = nn.Sequential(nn.Linear(3, 4), getattr(nn, name)(**{key: parameters[key] for key in ACTIVATIONS[name]}))
    tensors, header = describe(network, envs, "network")
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    rebuilt = SavedNetwork(json.loads(json.dumps(header["layers"])), tensors)
    torch.testing.assert_close(rebuilt(x), network(x))


def test_a_policy_that_computes_more_than_its_network_is_noticed(envs, policies):
    describe_policy(policies, envs)

    class Other(type(policies)):
        def forward(self, obs):
            return super().forward(obs.tanh())

    policies.__class__ = Other
    with pytest.raises(UserError):
        describe_policy(policies, envs)


def test_a_missing_foreign_or_truncated_file_is_refused(path, envs, tmp_path):
    with pytest.raises(UserError, match="nothing"):
        load_policy(tmp_path / "nothing")
    with pytest.raises(UserError, match="simple_tag"):
        load_policy(path, make_envs("simple_tag", 1))
    whole = path.read_bytes()
    for content in (whole[:100], whole[:-1], b"", b"\xff" * 1000, b"\xff" * 8 + b"{" * 1000):
        path.write_bytes(content)
        with pytest.raises(UserError, match=str(path)):
            load_policy(path)
    save_file({"weight_0": torch.zeros(3)}, path)  # without our header
    with pytest.raises(UserError, match=str(path)):
        load_policy(path)


def test_a_flipped_bit_is_noticed(path):
    whole, rng = path.read_bytes(), random.Random(0)
    tensors, header = load_tensors(path, "stacked_mlp_policy", "policy")
    refused = 0
    for _ in range(100):
        path.write_bytes(flip_bit(whole, rng))
        try:
            found = load_policy(path)
            assert found.header == header and all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
        except UserError:
            refused += 1
    assert refused > 90


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "reward"},
        {"kind": ["stacked_mlp_policy"]},
        {"format_version": 2},
        {"layers": None},
        {"layers": "linear"},
        {"layers": []},
        {"layers": [["linear"]]},
        {"layers": [["linear"]] * 9},
        {"layers": [[["linear"]]]},
        {"layers": [["linear"], ["exec", "print()"], ["linear"], ["linear"]]},
        {"layers": [["linear"], ["LeakyReLU", "a"], ["linear"], ["linear"]]},
        {"layers": [["linear"], ["LeakyReLU"], ["linear"], ["linear"]]},
        {"agents": 5},
        {"agents": ["speaker_0"]},
        {"agents": [1, 2]},
        {"obs_sizes": [3, 12]},
        {"obs_sizes": [3, -11]},
        {"obs_sizes": None},
        {"num_actions": [3, 6]},
        {"num_actions": [3, 10**30]},
        {"env_id": 5},
    ],
    ids=str,
)
def test_a_wrong_header_is_refused(path, changes):
    tensors, header = load_tensors(path, "stacked_mlp_policy", "policy")
    save_file(tensors, path, {"header": json.dumps(header | changes)})
    with pytest.raises(UserError, match=str(path)):
        load_policy(path)


@pytest.mark.parametrize(
    "name, tensor",
    [
        ("weight_1", None),
        ("weight_1", torch.zeros(2, 8, 7)),
        ("weight_1", torch.zeros(8)),
        ("weight_1", torch.full((2, 8, 8), torch.nan)),
        ("weight_1", torch.zeros(2, 8, 8, dtype=torch.float64)),
        ("bias_2", torch.full((2, 1, 5), torch.inf)),
        ("bias_2", torch.tensor(1.0)),
        ("obs_mean", None),
        ("obs_var", None),
        ("obs_var", torch.zeros(2, 10)),
        ("obs_var", -torch.ones(2, 11)),
    ],
)
def test_wrong_tensors_are_refused(path, name, tensor):
    tensors, header = load_tensors(path, "stacked_mlp_policy", "policy")
    changed = {key: value for key, value in (tensors | {name: tensor}).items() if value is not None}
    save_tensors(path, changed, header, SimpleNamespace(**header))
    with pytest.raises(UserError, match=str(path)):
        load_policy(path)
