"""KFAC: Kronecker factors example by example, steps against linear systems, momentum and the bound on the step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.maths.helpers import MACK, UNEQUAL, mairl, one_hot, random_rollout, scripts, small_args


def mack(script, args, envs=UNEQUAL):
    """Policies, value functions and their optimizers, in double precision."""
    torch.manual_seed(0)
    policies, values = (part(envs, args.hidden_size).double() for part in (script.Policies, script.Values))
    policy_kfac = script.KFAC(policies.network, args.policy_lr, args.kl_clip)
    value_kfac = script.KFAC(values.network, args.critic_lr, script.VALUE_KL_CLIP)
    return policies, values, policy_kfac, value_kfac


def weights_of(network, i: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(m.weight[i].detach().clone(), m.bias[i, 0].detach().clone()) for m in network if hasattr(m, "weight")]


def factors_by_example(weights, inputs, log_likelihood) -> list[list[torch.Tensor]]:
    """Of each layer of one agent's network: second moments of inputs, and of gradients by outputs."""
    sums = [[0.0, 0.0] for _ in weights]
    for b, x in enumerate(inputs):
        layer_inputs, outputs = [], []
        for k, (weight, bias) in enumerate(weights):
            layer_inputs.append(x)
            outputs.append((x @ weight + bias).requires_grad_())
            x = F.leaky_relu(outputs[-1]) if k < len(weights) - 1 else outputs[-1]
        gradients = torch.autograd.grad(log_likelihood(b, x), outputs)
        for total, a, g in zip(sums, layer_inputs, gradients):
            total[0] = total[0] + torch.outer(a, a).detach() / len(inputs)
            total[1] = total[1] + torch.outer(g, g) / len(inputs)
    return sums


@MACK
def test_factors_are_those_of_the_sampled_fisher_matrix_example_by_example(script):
    args = small_args(script)
    policies, values, policy_kfac, value_kfac = mack(script, args)
    rollout = random_rollout(script, UNEQUAL, steps=2, copies=6)
    obs, actions, time = script.agents_first(rollout.obs), script.agents_first(rollout.actions), rollout.time.flatten()
    policy_weights = [weights_of(policies.network, i) for i in range(3)]
    value_weights = [weights_of(values.network, i) for i in range(3)]
    advantages, returns = torch.randn(2, 3, 12, dtype=torch.float64)
    torch.manual_seed(4)
    script.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
    torch.manual_seed(4)
    noise = torch.randn(3, 12, dtype=torch.float64)

    for i, number in enumerate(UNEQUAL.num_actions):

        def log_pi(b, logits, i=i, number=number):
            return torch.log_softmax(logits[:number], 0)[actions[i, b]]

        def log_likelihood_of_v(b, v, i=i):
            return -((v[0] - (v[0] + noise[i, b]).detach()) ** 2)

        joint = []  # all observations, the actions of the others, the time
        for b in range(12):
            parts = [obs[j, b, :size] for j, size in enumerate(UNEQUAL.obs_sizes)]
            parts += [one_hot(actions[j, b], n) * (j != i) for j, n in enumerate(UNEQUAL.num_actions)]
            joint.append(torch.cat([*parts, time[b : b + 1]]))
        for kfac, expected in (
            (policy_kfac, factors_by_example(policy_weights[i], obs[i], log_pi)),
            (value_kfac, factors_by_example(value_weights[i], joint, log_likelihood_of_v)),
        ):
            for found, factor in zip(kfac.factors, [factor for pair in expected for factor in pair], strict=True):
                torch.testing.assert_close(found[i], factor)


def one_layer(script, agents=2, size_in=4, size_out=3, damping=0.01):
    """A linear layer and its KFAC, which has no momentum and whose step is not bounded."""
    layer = script.StackedLinear(torch.full((agents,), size_in), size_in, size_out).double()
    kfac = script.KFAC(torch.nn.Sequential(layer), 0.5, 1e9)
    kfac.momentum, kfac.damping = 0.0, damping
    return layer, kfac


def observe(kfac, inputs, gradients):
    """Let a KFAC of one layer see inputs, and gradients of each example's log-likelihood by the outputs."""
    with kfac.recording():
        outputs = kfac.layers[0](inputs)
    kfac.observe((outputs * gradients).sum(-1).mean(1).sum())


@MACK
def test_without_damping_the_step_of_a_linear_layer_is_the_exact_natural_gradient(script):
    """Outputs are means of unit Gaussians: the Fisher matrix of the weights is E[a a^T] (x) I, that of biases I."""
    torch.manual_seed(0)
    layer, kfac = one_layer(script, damping=1e-12)
    inputs, targets = torch.randn(2, 52, 4, dtype=torch.float64), torch.randn(2, 52, 3, dtype=torch.float64)
    # Gradients of the log-likelihood by the outputs are +-1 and orthogonal between outputs: their second moment is I.
    signs = torch.tensor([[1, 1, 1], [1, -1, 1], [1, 1, -1], [1, -1, -1]], dtype=torch.float64).repeat(13, 1)
    observe(kfac, inputs, signs.expand(2, -1, -1))
    (0.5 * (layer(inputs) - targets).square().sum(-1).mean(1)).sum().backward()
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    kfac.step()
    for i in range(2):
        fisher = torch.kron(inputs[i].T @ inputs[i] / 52, torch.eye(3, dtype=torch.float64))
        natural = torch.linalg.solve(fisher, layer.weight.grad[i].flatten()).view(4, 3)
        torch.testing.assert_close(layer.weight[i], weight[i] - 0.5 * natural, atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(layer.bias[i], bias[i] - 0.5 * layer.bias.grad[i], atol=1e-8, rtol=1e-8)


@MACK
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.floats(1e-3, 1.0))
def test_a_step_solves_the_damped_kronecker_system(script, agents, size_in, size_out, damping):
    torch.manual_seed(size_in)
    layer, kfac = one_layer(script, agents, size_in, size_out, damping)
    inputs, gradients = (torch.randn(agents, 20, n, dtype=torch.float64) for n in (size_in, size_out))
    observe(kfac, inputs, gradients)
    layer.weight.grad, layer.bias.grad = torch.randn_like(layer.weight), torch.randn_like(layer.bias)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    kfac.step()
    for i in range(agents):
        a, g = inputs[i].T @ inputs[i] / 20, gradients[i].T @ gradients[i] / 20
        fisher = torch.kron(a, g) + damping * torch.eye(size_in * size_out, dtype=torch.float64)
        natural = torch.linalg.solve(fisher, layer.weight.grad[i].flatten()).view(size_in, size_out)
        torch.testing.assert_close(weight[i] - layer.weight[i], 0.5 * natural, atol=1e-7, rtol=1e-7)
        natural = torch.linalg.solve(g + damping * torch.eye(size_out, dtype=torch.float64), layer.bias.grad[i, 0])
        torch.testing.assert_close(bias[i, 0] - layer.bias[i, 0], 0.5 * natural, atol=1e-7, rtol=1e-7)


@MACK
def test_running_factors_momentum_and_the_age_of_eigenvectors(script):
    torch.manual_seed(0)
    layer, kfac = one_layer(script, agents=1)
    kfac.momentum, kfac.decay, kfac.eigen_every = 0.5, 0.9, 2
    all_inputs = torch.randn(3, 1, 20, 4, dtype=torch.float64)
    gradients = torch.randn(1, 20, 3, dtype=torch.float64)
    a, moves, directions = None, [], []
    for inputs in all_inputs:
        observe(kfac, inputs, gradients)
        new = inputs[0].T @ inputs[0] / 20
        a = new if a is None else 0.9 * a + 0.1 * new
        torch.testing.assert_close(kfac.factors[0][0], a)
        fisher = torch.kron(a, gradients[0].T @ gradients[0] / 20) + 0.01 * torch.eye(12, dtype=torch.float64)
        directions.append(torch.linalg.solve(fisher, torch.ones(12, dtype=torch.float64)).view(4, 3))
        layer.weight.grad, layer.bias.grad = torch.ones_like(layer.weight), torch.ones_like(layer.bias)
        before = layer.weight.detach().clone()
        kfac.step()
        moves.append((before - layer.weight.detach())[0])
    # The step size is 0.5, and a step takes 1 - momentum of the velocity. The second step still has the eigenvectors
    # of the first, the third one has new ones.
    velocity = directions[0]
    torch.testing.assert_close(moves[0], 0.5 * 0.5 * velocity)
    velocity = 0.5 * velocity + directions[0]
    torch.testing.assert_close(moves[1], 0.5 * 0.5 * velocity)
    velocity = 0.5 * velocity + directions[2]
    torch.testing.assert_close(moves[2], 0.5 * 0.5 * velocity)


@MACK
def test_each_agents_step_is_shortened_to_its_bound(script):
    """The squared length lr^2 <V, grad> of a step is kl_clip if it would be longer, for each agent by itself."""
    torch.manual_seed(0)
    layer, kfac = one_layer(script)
    inputs, gradients = torch.randn(2, 20, 4, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
    observe(kfac, inputs, gradients)
    kfac.kl_clip = 1e-3
    layer.weight.grad, layer.bias.grad = torch.randn_like(layer.weight), torch.randn_like(layer.bias)
    layer.weight.grad[1] *= 1e-4
    layer.bias.grad[1] *= 1e-4
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    shortened = kfac.step()
    moves = [old - new.detach() for old, new in zip(before, (layer.weight, layer.bias))]
    products = sum((m * p.grad).flatten(1).sum(1) for m, p in zip(moves, (layer.weight, layer.bias)))
    squared_length = 0.5 * products / shortened  # moves are lr * shortened * V
    assert shortened[0] < 1 and shortened[1] == 1
    assert squared_length[0] * shortened[0] ** 2 == pytest.approx(1e-3)
    assert squared_length[1] < 1e-3


@MACK
def test_the_kl_divergence_of_a_policy_step_stays_near_its_bound(script):
    """lr^2 <V, grad> = kl_clip is twice the KL divergence if the Fisher matrix is what KFAC assumes.

    KFAC assumes that the six blocks, weights and biases of three layers, are independent. Where their steps all push
    the outputs in the same direction, the squared length is up to six times the sum over blocks: a KL of 3 kl_clip.
    """
    args = small_args(script, kl_clip=0.001, entropy=0.0, policy_lr=10.0)
    policies, values, policy_kfac, value_kfac = mack(script, args)
    policy_kfac.momentum, policy_kfac.decay, policy_kfac.eigen_every = 0.0, 0.0, 1
    divergences = []
    for k in range(10):
        rollout = random_rollout(script, UNEQUAL, 25, 40, seed=k)
        obs = script.agents_first(rollout.obs)
        with torch.no_grad():
            old = policies(obs).log_softmax(-1)
        rollout = rollout._replace(actions=script.sample(old).T.reshape(25, 40, 3))
        good_action = (obs[:, :, 0] > 0).long()  # [agents, batch]
        advantages = (script.agents_first(rollout.actions) == good_action).double()
        returns = torch.zeros(3, 1000, dtype=torch.float64)
        metrics = script.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
        assert metrics["gradients/policy_step_shortened_to"] < 1
        with torch.no_grad():
            new = policies(obs).log_softmax(-1)
        divergences.append((old.exp() * (old - new)).sum(-1).mean(1))
    divergences = torch.stack(divergences)  # [updates, agents]
    assert divergences.max() < 3 * 0.001
    assert divergences.min() > 0.1 * 0.001


@MACK
def test_agents_do_not_influence_one_another(script):
    """If only agent 1's data change, the other agents take the same steps.

    Value functions see all observations, so only agent 1's targets change for them.
    """

    def train(change: str) -> dict[str, torch.nn.Module]:
        args = small_args(script)
        policies, values, policy_kfac, value_kfac = mack(script, args)
        for k in range(3):
            rollout = random_rollout(script, UNEQUAL, seed=k)
            advantages, returns = torch.randn(2, 3, 40, dtype=torch.float64)
            if change == "policies":
                rollout.obs[:, :, 1] *= 2
                advantages[1] *= -1
            if change == "values":
                returns[1] += 30.0
            script.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
        return {"policies": policies, "values": values}

    for name in ("policies", "values"):
        for before, after in zip(train("")[name].parameters(), train(name)[name].parameters()):
            torch.testing.assert_close(before[[0, 2]], after[[0, 2]], atol=1e-12, rtol=1e-12)
            assert not torch.allclose(before[1], after[1])


@scripts(mairl)
def test_a_restored_optimizer_takes_the_same_steps(script):
    def updates(kfac, layer, seeds):
        for seed in seeds:
            torch.manual_seed(seed)
            inputs, gradients = torch.randn(2, 20, 4, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
            observe(kfac, inputs, gradients)
            layer.weight.grad, layer.bias.grad = torch.randn_like(layer.weight), torch.randn_like(layer.bias)
            kfac.step()
        return layer.weight.detach().clone()

    (layer, kfac), (other_layer, restored) = one_layer(script), one_layer(script)
    kfac.momentum = restored.momentum = 0.9
    updates(kfac, layer, range(4))
    other_layer.load_state_dict(layer.state_dict())
    restored.load_state_dict(copy.deepcopy(kfac.state_dict()))
    expected = updates(kfac, layer, range(4, 16))
    assert torch.equal(updates(restored, other_layer, range(4, 16)), expected)
