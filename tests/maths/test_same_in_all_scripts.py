"""Classes and functions that stand in several scripts compute the same, to the last bit.

The other modules compare them with plain references, script by script. Here the scripts are compared with one another,
so that a change of one copy is not forgotten in the others. Each function below computes results with one script.
"""

import pytest
import torch

from tests.maths.helpers import (
    UNEQUAL,
    cloning,
    expert,
    madaac,
    magail,
    mairl,
    random_batch,
    random_rollout,
    random_transitions,
    small_args,
    task,
)
from tests.maths.test_buffers import numbered
from tests.maths.test_kfac import mack
from tests.maths.test_maac import critic_loss

CPU = torch.device("cpu")


def gradients(module, output):
    return torch.autograd.grad(output.sin().sum(), list(module.parameters()), retain_graph=True)


def stacked_layers(script):
    results, obs = [], random_transitions(UNEQUAL).obs.float()
    for size_out in (1, 5, 32):
        layer = script.StackedLinear(torch.as_tensor(UNEQUAL.obs_sizes), 7, size_out)
        results += [layer(obs), *gradients(layer, layer(obs))]
    return results


def policies(script):
    network = script.Policies(UNEQUAL, 16)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    log_probs = network(random_transitions(UNEQUAL).obs.float()).log_softmax(-1)
    torch.manual_seed(1)
    return [log_probs, script.sample(log_probs.detach()), *gradients(network, log_probs)]


def chosen_actions_and_clipping(script):
    network, (obs, actions, _) = script.Policies(UNEQUAL, 16).double(), random_transitions(UNEQUAL)
    for parameter in network.parameters():
        parameter.data.fill_(0.1)
    chosen = script.gather_actions(network(obs).log_softmax(-1), actions)
    chosen.square().sum().backward()
    norms = script.clip_each_agent(network, 0.1)
    return [chosen, norms, *(parameter.grad for parameter in network.parameters())]


def maac_networks(script):
    """Critics differ: that of MA-DAAC normalises its inputs. Both start with the same weights."""
    parts = script.Policies(UNEQUAL, 16), script.AttentionCritic(UNEQUAL, 16, 2)
    return [parameter for part in parts for parameter in part.parameters()]


class PlainCritic(torch.nn.Module):
    """Some function of observations and actions, in the place of the critics."""

    def forward(self, obs, actions):
        q = obs[..., :5].cumsum(0) + actions[..., None].sin()
        return q, q.square().mean(), torch.full((7, 3, 3), 1 / 3)


def maac_losses(script):
    args, batch, critic = small_args(script), random_batch(script, UNEQUAL), PlainCritic()
    network, target = (script.Policies(UNEQUAL, 16).double() for _ in range(2))
    loss, metrics = critic_loss(script, batch, critic, critic, target, args)
    own_loss, own_metrics = script.policy_loss(batch.obs, network(batch.obs), network.has_action, critic, args)
    script.soft_update(target, network, 0.3)
    logged = metrics | own_metrics
    names = ("critic", "q_mean", "q_abs_max", "attention_entropy", "policy", "policy_entropy", "advantage_std")
    return [loss, own_loss, *(logged[f"losses/{name}"] for name in names), *target.parameters()]


def replay_buffer(script):
    buffer = script.ReplayBuffer(10, UNEQUAL, CPU)
    for seed in range(4):
        *by_agent, terminated = random_batch(script, UNEQUAL, 4, seed)
        buffer.add(*(part.transpose(0, 1) for part in by_agent), terminated)
    return [*buffer.sample(50), *buffer.store]


def discriminators(script):
    results, batch = [], random_transitions(UNEQUAL)
    for kind in ("decentralized", "centralized"):
        disc = script.Discriminators(UNEQUAL, small_args(script, discriminator=kind)).double()
        results += [disc(batch), disc.reward(batch.obs, batch.actions), *gradients(disc, disc(batch))]
    return results


def discriminator_loss(script):
    loss, metrics = script.discriminator_loss(*torch.randn(2, 3, 20), small_args(script, disc_entropy=0.2))
    names = ("loss", "entropy", "accuracy_learner", "accuracy_expert")
    return [loss, *(metrics[f"discriminator/{name}"] for name in names)]


def memory(script):
    kept = script.Memory(10, 5, task([1], [2]), CPU)
    for first in range(0, 40, 5):
        kept.add(numbered(first, 5))
    return list(kept.contents())


def mack_updates(script):
    args, results = small_args(script), []
    networks = mack(script, args)
    for seed in range(3):
        rollout = random_rollout(script, UNEQUAL, seed=seed)
        rollout.done[2, 3] = rollout.done[4, :4] = True
        parts = script.advantages_and_returns(rollout, rollout.rewards, *networks[:2], 5, args)
        metrics = script.mack_update(rollout, *parts, *networks, args)
        results += [*parts, *(metrics[name] for name in sorted(metrics))]
    return [*results, *networks[0].parameters(), *networks[1].parameters()]


@pytest.mark.parametrize(
    "compute, first, others",
    [
        (stacked_layers, madaac, [expert, mairl, magail, cloning]),
        (policies, madaac, [expert, mairl, magail, cloning]),
        (chosen_actions_and_clipping, madaac, [expert, mairl, magail]),
        (maac_networks, madaac, [expert]),
        (maac_losses, madaac, [expert]),
        (replay_buffer, madaac, [expert]),
        (discriminators, madaac, [mairl]),
        (discriminator_loss, madaac, [mairl, magail]),
        (memory, mairl, [magail]),
        (mack_updates, mairl, [magail]),
    ],
)
def test_scripts_compute_the_same(compute, first, others):
    def results(script):
        torch.manual_seed(0)
        return compute(script)

    expected = results(first)
    for script in others:
        for a, b in zip(results(script), expected, strict=True):
            assert torch.equal(a, b), script.__name__
