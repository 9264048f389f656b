"""Stacked layers, policies and sampling, against one network at a time."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.maths.helpers import (
    ALL,
    EQUAL,
    MACK,
    TASKS,
    UNEQUAL,
    expert,
    madaac,
    magail,
    mairl,
    plain_mlp,
    random_transitions,
    scripts,
    small_args,
)


@ALL
@pytest.mark.parametrize("size_out", [1, 5, 15, 16, 32])
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_stacked_layers_are_linear_layers_and_so_are_their_gradients(script, size_out, strided):
    torch.manual_seed(0)
    agents, batch, size_in = 3, 11, 7
    layer = script.StackedLinear(torch.full((agents,), size_in), size_in, size_out).double()
    x = torch.randn(batch, agents, size_in, dtype=torch.float64).transpose(0, 1)  # as the replay buffer returns it
    x = (x if strided else x.contiguous()).requires_grad_()
    weights = torch.randn(agents, batch, size_out, dtype=torch.float64)

    found = layer(x)
    (found * weights).sum().backward()
    for i in range(agents):
        plain = nn.Linear(size_in, size_out).double()
        plain.weight.data, plain.bias.data = layer.weight[i].detach().T.clone(), layer.bias[i, 0].detach().clone()
        plain_x = x[i].detach().clone().requires_grad_()
        expected = plain(plain_x)
        (expected * weights[i]).sum().backward()
        torch.testing.assert_close(found[i], expected)
        torch.testing.assert_close(x.grad[i], plain_x.grad)
        torch.testing.assert_close(layer.weight.grad[i], plain.weight.grad.T)
        torch.testing.assert_close(layer.bias.grad[i, 0], plain.bias.grad)


@ALL
def test_stacked_layers_are_initialised_as_linear_layers_of_each_agents_own_size(script):
    torch.manual_seed(0)
    layer = script.StackedLinear(torch.tensor([4, 100]), 100, 200)
    for i, fan_in in enumerate((4, 100)):
        plain = nn.Linear(fan_in, 200)
        for found, expected in ((layer.weight[i], plain.weight), (layer.bias[i], plain.bias)):
            bound = fan_in**-0.5
            assert 0.95 * bound < found.abs().max() <= bound
            assert found.std().item() == pytest.approx(expected.std().item(), rel=0.15)


@ALL
@TASKS
def test_policies_are_one_network_per_agent(script, envs):
    torch.manual_seed(0)
    policies = script.Policies(envs, 16).double()
    obs = random_transitions(envs).obs
    logits = policies(obs)
    assert logits.shape == (len(envs.agents), 7, max(envs.num_actions))
    for i, number in enumerate(envs.num_actions):
        for b in range(7):
            torch.testing.assert_close(logits[i, b, :number], plain_mlp(policies.network, i, obs[i, b])[:number])
        assert (logits[i, :, number:] == -1e9).all()
        assert (logits.softmax(-1)[i, :, number:] == 0).all()


@ALL
@pytest.mark.parametrize("hidden", [8, 32])
def test_the_gradients_of_policies_are_those_of_plain_networks(script, hidden):
    torch.manual_seed(0)
    policies = script.Policies(UNEQUAL, hidden).double()
    obs = random_transitions(UNEQUAL).obs
    expected = 0.0
    for i, number in enumerate(UNEQUAL.num_actions):
        for b in range(7):
            log_probs = plain_mlp(policies.network, i, obs[i, b])[:number].log_softmax(-1)
            expected = expected + log_probs.square().sum()
    parameters = list(policies.parameters())
    expected_gradients = torch.autograd.grad(expected, parameters)
    log_probs = policies(obs).log_softmax(-1)
    total = sum(log_probs[i, :, :number].square().sum() for i, number in enumerate(UNEQUAL.num_actions))
    for found, gradient in zip(torch.autograd.grad(total, parameters), expected_gradients):
        torch.testing.assert_close(found, gradient)


@ALL
def test_policies_of_a_stack_do_not_influence_one_another(script):
    policies = script.Policies(EQUAL, 16)
    obs = random_transitions(EQUAL).obs.float()
    policies(obs).log_softmax(-1)[2, :, 0].sum().backward()
    for parameter in policies.parameters():
        assert parameter.grad[2].abs().sum() > 0
        assert parameter.grad[[0, 1, 3]].abs().sum() == 0
    changed = obs.clone()
    changed[2] += 1.0
    moved = (policies(obs) != policies(changed)).flatten(1).any(1)
    assert moved.tolist() == [False, False, True, False]


@MACK
def test_mack_starts_with_orthogonal_weights_and_almost_uniform_policies(script):
    torch.manual_seed(0)
    policies, values = script.Policies(UNEQUAL, 16), script.Values(UNEQUAL, 16)
    for network, gain_out in ((policies.network, 0.01), (values.network, 1.0)):
        layers = script.linear_layers(network)
        for layer, gain in zip(layers, (2**0.5, 2**0.5, gain_out)):
            assert (layer.bias == 0).all()
            for weight in layer.weight:
                singular_values = torch.linalg.svdvals(weight)
                torch.testing.assert_close(singular_values, torch.full_like(singular_values, gain))
    probabilities = policies(random_transitions(UNEQUAL).obs.float()).softmax(-1)
    for i, number in enumerate(UNEQUAL.num_actions):
        assert (probabilities[i, :, :number] - 1 / number).abs().max() < 0.05


@ALL
def test_samples_follow_the_probabilities_and_no_agent_gets_an_action_that_it_lacks(script):
    torch.manual_seed(0)
    policies = script.Policies(UNEQUAL, 16)
    with torch.no_grad():
        policies.network[-1].bias += torch.linspace(-1, 1, 5)
        log_probs = policies(torch.ones(3, 1, 7)).log_softmax(-1)
    shares = F.one_hot(script.sample(log_probs.expand(3, 20_000, 5)), 5).float().mean(1)
    torch.testing.assert_close(shares, log_probs[:, 0].exp(), atol=0.015, rtol=0)
    for i, number in enumerate(UNEQUAL.num_actions):
        assert shares[i, number:].sum() == 0
        assert log_probs[i, 0, :number].exp().std() > 0.02, "the samples of a uniform policy would prove little"


@scripts(madaac, expert, mairl, magail)
def test_gather_actions_picks_one_entry_per_agent_and_example(script):
    _, actions, _ = random_transitions(UNEQUAL)
    values = torch.randn(3, 7, 5)
    found = script.gather_actions(values, actions)
    for i in range(3):
        for b in range(7):
            assert found[i, b] == values[i, b, actions[i, b]]


@scripts(madaac, mairl)
def test_log_pi_is_a_constant_that_is_clamped_from_below(script):
    torch.manual_seed(0)
    policies = script.Policies(UNEQUAL, 16).double()
    with torch.no_grad():
        policies.network[-1].bias[:, :, 0] = 22.0  # action 0 is almost certain
        policies.network[-1].weight.mul_(5)
    transitions = random_transitions(UNEQUAL, batch=50)
    if script is mairl:
        discriminators = script.Discriminators(UNEQUAL, small_args(script)).double()
        found = discriminators(transitions) - script.discriminator_logits(transitions, discriminators, policies)
        found.sum().backward()
        assert all(parameter.grad is None for parameter in policies.parameters())
    else:
        found = script.log_pi(policies(transitions.obs), transitions.actions)
        assert not found.requires_grad
    clamped = 0
    for i, number in enumerate(UNEQUAL.num_actions):
        for b in range(50):
            logits = plain_mlp(policies.network, i, transitions.obs[i, b])[:number]
            log_prob = (logits[transitions.actions[i, b]] - logits.exp().sum().log()).item()
            clamped += log_prob < -20
            assert found[i, b].item() == pytest.approx(max(log_prob, -20.0))
    assert 0 < clamped < 150
