"""Discriminators: equations (3) and (4), rewards, what each kind sees, and how the scripts train them."""

import copy

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from madaac_utils.demos import Transitions
from madaac_utils.rewards import REWARD_FORMS
from tests.maths.helpers import (
    IMITATION,
    MACK,
    UNEQUAL,
    madaac,
    magail,
    mairl,
    one_hot,
    plain_mlp,
    random_transitions,
    scripts,
    small_args,
    task,
)
from tests.maths.test_maac import clipped_one_by_one
from tests.maths.watched_run import record_arguments, record_results, run_iterations

AIRL = scripts(madaac, mairl)
KINDS = pytest.mark.parametrize("kind", ["decentralized", "centralized"])


def discriminators(script, **changes):
    torch.manual_seed(0)
    return script.Discriminators(UNEQUAL, small_args(script, **changes)).double()


def output(script, disc, batch: Transitions) -> torch.Tensor:
    """f of MA-AIRL and MA-DAAC, the logit of MA-GAIL."""
    return disc(batch.obs, batch.actions) if script is magail else disc(batch)


def logits(script, disc, policies, batch: Transitions) -> torch.Tensor:
    """High for the expert."""
    if script is mairl:
        return mairl.discriminator_logits(batch, disc, policies)
    f = output(script, disc, batch)
    return f if script is magail else f - madaac.log_pi(policies(batch.obs), batch.actions)


def plain_output(network, kind: str, batch: Transitions, i: int, b: int, sees_actions: bool, obs=None) -> torch.Tensor:
    """The output for agent i of one network and one transition."""
    obs = batch.obs if obs is None else obs
    inputs = [obs[j, b] for j in range(3)]
    if sees_actions:
        inputs = [torch.cat([inputs[j], one_hot(batch.actions[j, b], 5)]) for j in range(3)]
    if kind == "centralized":
        return plain_mlp(network, 0, torch.cat(inputs))[i]
    return plain_mlp(network, i, inputs[i])[0]


@AIRL
@KINDS
@pytest.mark.parametrize("sees_actions", [True, False])
def test_f_is_g_plus_shaping(script, kind, sees_actions):
    """Equation (4): f_i = g_i(o, a) + gamma h_i(o') - h_i(o)"""
    disc = discriminators(script, gamma=0.9, discriminator=kind, disc_actions="yes" if sees_actions else "no")
    batch = random_transitions(UNEQUAL)
    f, g = disc(batch), disc.reward(batch.obs, batch.actions)
    for i in range(3):
        for b in range(7):
            expected_g = plain_output(disc.g, kind, batch, i, b, sees_actions)
            h, next_h = (plain_output(disc.h, kind, batch, i, b, False, obs) for obs in (batch.obs, batch.next_obs))
            torch.testing.assert_close(g[i, b], expected_g)
            torch.testing.assert_close(f[i, b], expected_g + 0.9 * next_h - h)
    assert disc.reward_form == "g" and disc.reward_network is disc.g


@KINDS
def test_the_reward_of_magail_is_log_d(kind):
    disc = discriminators(magail, discriminator=kind, disc_actions="yes")
    batch = random_transitions(UNEQUAL)
    rewards = disc.reward(batch.obs, batch.actions)
    for i in range(3):
        for b in range(7):
            d = 1 / (1 + torch.exp(-plain_output(disc.reward_network, kind, batch, i, b, True)))
            torch.testing.assert_close(rewards[i, b], torch.log(d))
    recovered = REWARD_FORMS[disc.reward_form](disc(batch.obs, batch.actions))  # what a saved reward computes
    torch.testing.assert_close(recovered, rewards)


@AIRL
def test_the_paper_writes_the_logit_as_f_minus_log_pi(script):
    """D = exp(f) / (exp(f) + pi), so log D - log(1 - D) = f - log pi."""
    torch.manual_seed(0)
    disc, policies = discriminators(script), script.Policies(UNEQUAL, 16).double()
    batch = random_transitions(UNEQUAL)
    f, pi = disc(batch), policies(batch.obs).softmax(-1).gather(-1, batch.actions[..., None])[..., 0]
    d = f.exp() / (f.exp() + pi)
    torch.testing.assert_close(logits(script, disc, policies, batch), torch.log(d) - torch.log(1 - d))


@IMITATION
def test_the_loss_is_equation_3_with_an_entropy_bonus(script):
    torch.manual_seed(0)
    learner, expert = torch.randn(3, 5, dtype=torch.float64), 1 + torch.randn(3, 8, dtype=torch.float64)
    learner.requires_grad_(), expert.requires_grad_()
    loss, metrics = script.discriminator_loss(learner, expert, small_args(script, disc_entropy=0.25))
    expected, entropies = 0.0, []
    for own, label in ((learner, 0), (expert, 1)):
        d = 1 / (1 + torch.exp(-own))
        entropy = -d * torch.log(d) - (1 - d) * torch.log(1 - d)
        expected = expected - torch.log(d if label else 1 - d).mean(1).sum() - 0.25 * entropy.mean(1).sum()
        entropies.append(entropy.mean().item())
    torch.testing.assert_close(loss, expected)
    for found, gradient in zip(
        torch.autograd.grad(loss, [learner, expert]), torch.autograd.grad(expected, [learner, expert])
    ):
        torch.testing.assert_close(found, gradient)
    assert metrics["discriminator/accuracy_learner"].item() == pytest.approx((learner < 0).double().mean().item())
    assert metrics["discriminator/accuracy_expert"].item() == pytest.approx((expert > 0).double().mean().item())
    assert metrics["discriminator/entropy"].item() == pytest.approx(np.mean(entropies))


@IMITATION
def test_the_loss_stays_finite_where_probabilities_round_to_zero(script):
    learner = torch.tensor([[200.0, -200.0]], requires_grad=True)
    expert = torch.tensor([[90.0, -90.0]], requires_grad=True)
    loss, _ = script.discriminator_loss(learner, expert, small_args(script))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.cat([learner.grad, expert.grad])).all()
    assert learner.grad[0, 0] > 0 > expert.grad[0, 1]  # the learner's logit falls, the expert's rises


@IMITATION
def test_decentralized_discriminators_do_not_influence_one_another(script):
    disc = discriminators(script)
    batch = random_transitions(UNEQUAL)
    before = output(script, disc, batch)
    before[1].sum().backward()
    for parameter in disc.parameters():
        assert parameter.grad[[0, 2]].abs().sum() == 0
        assert parameter.grad[1].abs().sum() > 0
    batch.obs[1] += 1.0
    batch.next_obs[1] -= 1.0
    batch.actions[1] = (batch.actions[1] + 1) % 3
    after = output(script, disc, batch)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


@IMITATION
@KINDS
@pytest.mark.parametrize("choice", ["auto", "yes", "no"])
def test_what_a_discriminator_sees(script, kind, choice):
    disc = discriminators(script, discriminator=kind, disc_actions=choice)
    sees_actions = kind == "decentralized" if choice == "auto" else choice == "yes"
    sees_others = kind == "centralized"
    assert (disc.sees_actions, disc.joint) == (sees_actions, sees_others)
    batch = random_transitions(UNEQUAL)
    before, changed = output(script, disc, batch), batch.actions.clone()
    changed[0] = (changed[0] + 1) % 5
    moved = (before != output(script, disc, batch._replace(actions=changed))).any(1).tolist()
    assert moved == [sees_actions, sees_actions and sees_others, sees_actions and sees_others]
    names = ["obs"] if script is magail else ["obs", "next_obs"]
    for name in names:
        shifted = getattr(batch, name).clone()
        shifted[0, :, :4] += 1.0
        moved = (before != output(script, disc, batch._replace(**{name: shifted}))).any(1).tolist()
        assert moved == [True, sees_others, sees_others]


def tied_f(disc, batch: Transitions, weights: dict[str, torch.Tensor], kind_of: list[int]) -> torch.Tensor:
    """f, agent by agent, with weights [kinds, in, out] that agents of the same kind share."""

    def run(name: str, x: torch.Tensor, i: int) -> torch.Tensor:
        for k in (0, 2, 4):
            x = x @ weights[f"{name}.{k}.weight"][kind_of[i]] + getattr(disc, name)[k].bias[i]
            x = F.leaky_relu(x) if k < 4 else x[:, 0]
        return x

    found = []
    for i in range(len(kind_of)):
        g = run("g", torch.cat([batch.obs[i], one_hot(batch.actions[i], 5)], -1), i)
        found.append(g + disc.gamma * run("h", batch.next_obs[i], i) - run("h", batch.obs[i], i))
    return torch.stack(found)


def test_shared_discriminators_equal_agents_with_tied_weights_and_biases_of_their_own():
    envs, kind_of = copy.copy(task([4, 4, 3, 4], [5, 5, 5, 5])), [0, 0, 1, 2]
    envs.agents = ["rover_0", "rover_1", "tower_0", "drone_0"]
    torch.manual_seed(0)
    disc = madaac.Discriminators(envs, small_args(madaac, discriminator="shared")).double()
    optimizer, batch = torch.optim.Adam(disc.parameters(), 0.01), random_transitions(envs)
    start = {name: value.detach().clone() for name, value in disc.named_parameters()}
    weights = {name: value[[0, 2, 3]].requires_grad_() for name, value in start.items() if name.endswith("weight")}
    tied = torch.optim.Adam(weights.values(), 0.01)
    for _ in range(3):
        disc.zero_grad()
        tied.zero_grad()
        expected = tied_f(disc, batch, weights, kind_of)
        torch.testing.assert_close(disc(batch), expected)
        expected.sin().sum().backward()
        disc.zero_grad()  # of the biases, which both have
        disc(batch).sin().sum().backward()
        disc.share_gradients()
        for name, parameter in disc.named_parameters():
            if name in weights:
                torch.testing.assert_close(parameter.grad, weights[name].grad[kind_of])
        optimizer.step()
        tied.step()
    for name, parameter in disc.named_parameters():
        assert not torch.equal(parameter, start[name]), "it learns"
        same = [torch.equal(parameter[0], parameter[i]) for i in (1, 3)]
        assert same == [name in weights, False], "rovers share weights, but no biases, and nothing with the drone"


@IMITATION
def test_no_gradient_of_the_discriminators_reaches_the_policies(script):
    disc, policies = discriminators(script), script.Policies(UNEQUAL, 16).double()
    parts = [logits(script, disc, policies, random_transitions(UNEQUAL, seed=seed)) for seed in (1, 2)]
    script.discriminator_loss(*parts, small_args(script))[0].backward()
    assert all(parameter.grad is None for parameter in policies.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in disc.reward_network.parameters())


@IMITATION
def test_discriminators_learn_to_tell_two_batches_apart(script):
    torch.manual_seed(0)
    disc, policies, args = discriminators(script), script.Policies(UNEQUAL, 16).double(), small_args(script)
    learner, expert = (random_transitions(UNEQUAL, 64, seed) for seed in (1, 2))
    optimizer, losses, rewards = torch.optim.Adam(disc.parameters(), 5e-3), [], []
    for _ in range(200):
        loss, metrics = script.discriminator_loss(
            logits(script, disc, policies, learner), logits(script, disc, policies, expert), args
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(metrics["discriminator/loss"].item())
        rewards.append(logits(script, disc, policies, learner).mean().item())
    assert losses[-1] < 0.3 * losses[0]
    assert min(metrics["discriminator/accuracy_expert"], metrics["discriminator/accuracy_learner"]) > 0.9
    assert rewards[-1] < rewards[0]  # a learner that is found out is paid less


# The scripts on MACK: rewards by the discriminators so far, new policies, then the discriminators learn.


class Watched:
    """Two iterations of a script: networks before, between and after, and what its functions were given."""

    def __init__(self, script, monkeypatch, tmp_path, **changes):
        self.script, self.networks, self.rollouts, self.demos = script, [], [], []
        small = {"num_envs": 20, "hidden_size": 16, "disc_batch_size": 500, "total_timesteps": 100_000}
        self.args = script.Args(env_id="cooperative_communication", runs=str(tmp_path), **small, **changes)
        gae_calls, loss_calls = [], []
        for name, calls in (("advantages_and_returns", gae_calls), ("discriminator_loss", loss_calls)):
            monkeypatch.setattr(script, name, record_arguments(getattr(script, name), calls))
        monkeypatch.setattr(Transitions, "sample", record_results(Transitions.sample, self.demos))

        def look(run, k):
            self.networks.append(copy.deepcopy((run.parts["policies"], run.parts["discriminators"])))
            if gae_calls:
                parts = gae_calls[-1][0][:3]
                self.rollouts.append(Transitions(*(script.agents_first(part).clone() for part in parts)))

        self.run = run_iterations(script, self.args, 2, monkeypatch, look)
        look(self.run, 2)
        self.rewards = [script.agents_first(arguments[1]) for arguments in gae_calls]
        self.losses_of = [[part.detach() for part in arguments[:2]] for arguments in loss_calls]


@MACK
@KINDS
def test_rewards_of_the_scripts_on_mack(script, kind, monkeypatch, tmp_path):
    watched = Watched(script, monkeypatch, tmp_path, discriminator=kind)
    for rollout, rewards, (policies, disc) in zip(watched.rollouts, watched.rewards, watched.networks):
        with torch.no_grad():
            expected = logits(script, disc, policies, rollout)
        expected = torch.log(torch.sigmoid(expected)) if script is magail else expected
        torch.testing.assert_close(rewards, expected / 25, atol=1e-6, rtol=1e-4)


@MACK
@KINDS
def test_discriminator_updates_of_the_scripts_on_mack(script, kind, monkeypatch, tmp_path):
    """One Adam step on the rollout and as many demonstrations, with log pi of the policies after their own step."""
    watched = Watched(script, monkeypatch, tmp_path, discriminator=kind, disc_memory=0, disc_max_grad_norm=0.01)
    disc, optimizer = watched.run.initial["discriminators"], watched.run.initial["disc_optimizer"]
    for k in range(2):
        policies, new_disc = watched.networks[k + 1]
        learner, expert = (logits(script, disc, policies, batch) for batch in (watched.rollouts[k], watched.demos[k]))
        found_learner, found_expert = watched.losses_of[k]
        torch.testing.assert_close(found_learner.sort(1)[0], learner.detach().sort(1)[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found_expert, expert.detach(), atol=1e-5, rtol=1e-4)
        disc.zero_grad()
        script.discriminator_loss(learner, expert, watched.args)[0].backward()
        if kind == "centralized":
            assert nn.utils.clip_grad_norm_(disc.parameters(), 0.01) > 0.01
        else:
            gradients, norms = clipped_one_by_one(disc, 0.01)
            assert (norms > 0.01).all()
            for parameter, gradient in zip(disc.parameters(), gradients):
                parameter.grad = gradient
        optimizer.step()
        for found, expected in zip(new_disc.parameters(), disc.parameters()):
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


@MACK
def test_with_a_memory_discriminators_learn_from_earlier_rollouts_too(script, monkeypatch, tmp_path):
    watched = Watched(script, monkeypatch, tmp_path, disc_memory=1000)
    policies, disc = watched.networks[2][0], watched.networks[1][1]
    of_listener = [logits(script, disc, policies, rollout)[1].detach() for rollout in watched.rollouts]
    distances = (watched.losses_of[1][0][1][:, None] - torch.cat(of_listener)).abs()
    assert distances.min(1)[0].max() < 1e-5, "a transition that was in no rollout"
    from_the_first = (distances.argmin(1) < 500).sum()
    assert 150 < from_the_first < 350  # half of 500
