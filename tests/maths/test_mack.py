"""MACK: value functions, advantages and the gradients of an update, against plain loops."""

import pytest
import torch

from tests.maths.helpers import MACK, UNEQUAL, huber, one_hot, plain_mlp, random_rollout, random_transitions, small_args
from tests.maths.test_kfac import mack
from tests.maths.watched_run import record_arguments, record_results, run_iterations


@MACK
def test_a_value_function_is_one_network_of_everything_but_the_agents_own_action(script):
    torch.manual_seed(0)
    values = script.Values(UNEQUAL, 16).double()
    obs, actions, _ = random_transitions(UNEQUAL)
    time = torch.rand(7, dtype=torch.float64)
    found = values(obs, actions, time)
    for i in range(3):
        for b in range(7):
            parts = [obs[j, b, :size] for j, size in enumerate(UNEQUAL.obs_sizes)]
            parts += [one_hot(actions[j, b], n) * (j != i) for j, n in enumerate(UNEQUAL.num_actions)]
            expected = plain_mlp(values.network, i, torch.cat([*parts, time[b : b + 1]]))[0]
            torch.testing.assert_close(found[i, b], expected)


@MACK
def test_what_a_value_function_sees(script):
    torch.manual_seed(0)
    values = script.Values(UNEQUAL, 16).double()
    obs, actions, _ = random_transitions(UNEQUAL)
    time = torch.zeros(7, dtype=torch.float64)
    before, changed, shifted = values(obs, actions, time), actions.clone(), obs.clone()
    changed[1] = (changed[1] + 1) % 3
    assert (before != values(obs, changed, time)).any(1).tolist() == [True, False, True]
    shifted[1] += 1.0
    assert (before != values(shifted, actions, time)).any(1).all()
    assert (before != values(obs, actions, time + 1)).any(1).all()


def plain_gae(rewards, values, next_values, done, gamma, gae_lambda) -> list[float]:
    """Of one copy and one agent, by the definition: sum over k of (gamma lambda)^k delta_{t+k} within the episode."""
    advantages = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(t, len(rewards)):
            total += weight * (rewards[k] + gamma * next_values[k] - values[k])
            weight *= gamma * gae_lambda
            if done[k]:
                break
        advantages.append(total)
    return advantages


@MACK
@pytest.mark.parametrize("gamma, gae_lambda", [(0.9, 0.7), (1.0, 1.0), (0.995, 0.0), (0.0, 0.95)])
@pytest.mark.parametrize("ends", [0.0, 0.3, 1.0])  # the share of steps that end an episode
def test_advantages_bootstrap_at_the_end_of_a_rollout_but_not_of_an_episode(
    script, gamma, gae_lambda, ends, monkeypatch
):
    args = small_args(script, gamma=gamma, gae_lambda=gae_lambda)
    policies, values, *_ = mack(script, args)
    rollout = random_rollout(script, UNEQUAL, steps=6, copies=5)
    rollout = rollout._replace(done=torch.rand(6, 5) < ends)
    last_actions = []
    monkeypatch.setattr(script, "sample", record_results(script.sample, last_actions))
    advantages, returns = script.advantages_and_returns(rollout, rollout.rewards, policies, values, 6, args)
    assert len(last_actions) == (not rollout.done[-1].all())

    with torch.no_grad():
        obs, actions = script.agents_first(rollout.obs), script.agents_first(rollout.actions)
        v = values(obs, actions, rollout.time.flatten()).view(3, 6, 5)
        next_v = torch.cat([v[:, 1:], torch.zeros(3, 1, 5, dtype=torch.float64)], 1)
        for copy in (~rollout.done[-1]).nonzero()[:, 0]:  # those that only the rollout cuts off
            obs, time = rollout.next_obs[-1, copy][:, None], rollout.time[-1, copy] + 1 / 6
            next_v[:, -1, copy] = values(obs, last_actions[0][:, copy, None], time[None])[:, 0]
    next_v[:, rollout.done] = 0.0
    for i in range(3):
        for copy in range(5):
            parts = (rollout.rewards[:, copy, i], v[i, :, copy], next_v[i, :, copy])
            expected = plain_gae(*(part.tolist() for part in parts), rollout.done[:, copy], gamma, gae_lambda)
            found = advantages[i].view(6, 5)[:, copy]
            # gamma lambda is rounded to float32 when it is multiplied by the mask.
            torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(returns[i].view(6, 5)[:, copy], found + v[i, :, copy])
    assert not advantages.requires_grad and not returns.requires_grad


@MACK
def test_gradients_are_those_of_normalised_advantages_entropy_and_huber_loss(script, monkeypatch):
    args = small_args(script, entropy=0.3, critic_max_grad_norm=1e9)
    policies, values, policy_kfac, value_kfac = mack(script, args)
    with torch.no_grad():
        policies.network[-1].weight *= 100  # far from uniform, so that the entropy has a gradient
    rollout = random_rollout(script, UNEQUAL)
    advantages, returns = 4 * torch.randn(2, 3, 40, dtype=torch.float64) + 2
    obs, actions, time = script.agents_first(rollout.obs), script.agents_first(rollout.actions), rollout.time.flatten()
    v, policy_loss, value_loss = values(obs, actions, time), 0.0, 0.0
    for i, number in enumerate(UNEQUAL.num_actions):
        mean, std = advantages[i].mean(), advantages[i].std()
        for b in range(40):
            log_probs = plain_mlp(policies.network, i, obs[i, b])[:number].log_softmax(0)
            policy_loss = policy_loss - (advantages[i, b] - mean) / std * log_probs[actions[i, b]] / 40
            policy_loss = policy_loss + 0.3 * (log_probs.exp() * log_probs).sum() / 40
            value_loss = value_loss + huber(v[i, b] - returns[i, b]) / 40
    parameters = [*policies.parameters(), *values.parameters()]
    expected = torch.autograd.grad(policy_loss + 0.5 * value_loss, parameters)
    monkeypatch.setattr(script.KFAC, "step", lambda self: torch.ones(3))
    metrics = script.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
    for parameter, gradient in zip(parameters, expected):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(metrics["losses/policy"], policy_loss.detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(metrics["losses/critic"], value_loss.detach())
    explained = 1 - (returns - v.detach()).var(1) / returns.var(1)
    torch.testing.assert_close(metrics["losses/explained_variance"], explained.mean())


@MACK
def test_each_value_functions_gradient_is_clipped(script, monkeypatch):
    args = small_args(script, critic_max_grad_norm=0.01)
    policies, values, policy_kfac, value_kfac = mack(script, args)
    monkeypatch.setattr(script.KFAC, "step", lambda self: torch.ones(3))
    advantages, returns = torch.randn(2, 3, 40, dtype=torch.float64)
    rollout = random_rollout(script, UNEQUAL)
    metrics = script.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
    norms = sum(parameter.grad.flatten(1).square().sum(1) for parameter in values.parameters()).sqrt()
    torch.testing.assert_close(norms, torch.full_like(norms, 0.01), atol=1e-6, rtol=1e-3)
    assert metrics["gradients/critic"] > 0.01


@MACK
def test_value_functions_are_told_the_time_through_episodes_and_rollouts(script, monkeypatch, tmp_path):
    """Rollouts of 10 steps cut episodes of 25. With --true-reward, the task's own reward is paid."""
    sizes = {"num_envs": 4, "num_steps": 10, "disc_batch_size": 40, "total_timesteps": 10_000, "hidden_size": 16}
    args = script.Args(env_id="cooperative_communication", runs=str(tmp_path), true_reward=True, **sizes)
    calls, times, ends = [], [], []
    monkeypatch.setattr(script, "advantages_and_returns", record_arguments(script.advantages_and_returns, calls))

    def look(run, k):
        if calls:
            rollout, rewards, *_ = calls[-1]
            times.append(rollout.time.clone())
            ends.append(rollout.done.clone())
            torch.testing.assert_close(rewards, rollout.rewards / 25)
            assert (rollout.rewards < 0).all()

    run = run_iterations(script, args, 8, monkeypatch, look)
    look(run, 8)
    steps = torch.arange(80)[:, None].expand(80, 4)
    torch.testing.assert_close(torch.cat(times), steps % 25 / 25)
    assert torch.equal(torch.cat(ends), steps % 25 == 24)


@MACK
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)])
def test_agents_first_keeps_the_steps_of_an_agent_in_order(script, shape):
    x = torch.randn(shape)
    found = script.agents_first(x)
    for step in range(2):
        for copy in range(3):
            for i in range(4):
                assert torch.equal(found[i, step * 3 + copy], x[step, copy, i])
