"""MAAC: losses, clipping and target networks against formulas, and the updates of both scripts that use it."""

import copy

import pytest
import torch
import torch.nn as nn

from madaac_utils.demos import Transitions
from tests.maths.helpers import MAAC, UNEQUAL, expert, huber, madaac, plain_mlp, random_batch, small_args
from tests.maths.watched_run import record_arguments, record_results, run_iterations, seed_before


def networks(script, envs, args):
    """Policies, critic and targets that differ from them, in double precision."""
    torch.manual_seed(1)
    policies = script.Policies(envs, args.hidden_size).double()
    critic = script.AttentionCritic(envs, args.hidden_size, args.attention_heads).double()
    targets = copy.deepcopy((policies, critic))
    for target in targets:
        for parameter in target.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return policies, critic, *targets


def critic_loss(script, batch, critic, target_critic, target_policies, args):
    """The reward is an argument of its own where it is learned."""
    rewards = [batch.rewards] if script is madaac else []
    return script.critic_loss(batch, *rewards, critic, target_critic, target_policies, args)


@MAAC
def test_the_critics_loss_equals_the_formula(script):
    args = small_args(script, alpha=0.3, gamma=0.9, attention_regularization=0.05)
    _, critic, target_policies, target_critic = networks(script, UNEQUAL, args)
    batch = random_batch(script, UNEQUAL)
    torch.manual_seed(5)
    loss, metrics = critic_loss(script, batch, critic, target_critic, target_policies, args)

    torch.manual_seed(5)
    next_actions = script.sample(target_policies(batch.next_obs).log_softmax(-1))
    next_q = target_critic(batch.next_obs, next_actions)[0]
    q, squared_logits, weights = critic(batch.obs, batch.actions)
    td_loss = 0.0
    for i, number in enumerate(UNEQUAL.num_actions):
        for b in range(7):
            log_probs = plain_mlp(target_policies.network, i, batch.next_obs[i, b])[:number].log_softmax(0)
            action = next_actions[i, b]
            target = batch.rewards[i, b] + 0.9 * (1 - batch.terminated[b]) * next_q[i, b, action]
            target -= 0.3 * log_probs[action]  # neither discounted nor masked
            td_loss = td_loss + huber(q[i, b, batch.actions[i, b]] - target.detach()) / 7
    torch.testing.assert_close(loss, td_loss + 0.05 * squared_logits)
    torch.testing.assert_close(metrics["losses/critic"], td_loss.detach())
    entropy = torch.special.entr(weights.detach()).sum(-1).mean()
    torch.testing.assert_close(metrics["losses/attention_entropy"], entropy)

    parameters = list(critic.parameters())
    expected = torch.autograd.grad(td_loss + 0.05 * squared_logits, parameters)
    loss.backward()
    for parameter, gradient in zip(parameters, expected):
        torch.testing.assert_close(parameter.grad, gradient)
    for module in (target_critic, target_policies):
        assert all(parameter.grad is None for parameter in module.parameters())


@MAAC
def test_the_policies_loss_equals_the_formula_and_no_gradient_reaches_the_critic(script):
    args = small_args(script, alpha=0.2, logit_regularization=0.1)
    policies, critic, *_ = networks(script, UNEQUAL, args)
    obs = random_batch(script, UNEQUAL).obs
    torch.manual_seed(7)
    loss, metrics = script.policy_loss(obs, policies(obs), policies.has_action, critic, args)
    loss.backward()
    assert all(parameter.grad is None for parameter in critic.parameters())

    torch.manual_seed(7)
    actions = script.sample(policies(obs).log_softmax(-1).detach())
    q = critic(obs, actions)[0].detach()
    expected, entropy = 0.0, 0.0
    for i, number in enumerate(UNEQUAL.num_actions):
        for b in range(7):
            logits = plain_mlp(policies.network, i, obs[i, b])[:number]
            log_probs = logits.log_softmax(0)
            advantage = q[i, b, actions[i, b]] - (log_probs.exp() * q[i, b, :number]).sum()
            log_prob = log_probs[actions[i, b]]
            expected = expected + log_prob * (0.2 * log_prob - advantage).detach() / 7
            expected = expected + 0.1 * logits.square().mean() / 7
            entropy -= (log_probs.exp() * log_probs).sum().item() / 21
    torch.testing.assert_close(loss, expected)
    assert metrics["losses/policy_entropy"].item() == pytest.approx(entropy)
    for parameter, gradient in zip(policies.parameters(), torch.autograd.grad(expected, policies.parameters())):
        torch.testing.assert_close(parameter.grad, gradient)


@MAAC
def test_clipping_each_agent_equals_clipping_them_one_by_one(script):
    policies = script.Policies(UNEQUAL, 16)
    for parameter in policies.parameters():
        parameter.grad = torch.randn_like(parameter) * torch.tensor([0.005, 1.0, 10.0])[:, None, None]
    expected, expected_norms = clipped_one_by_one(policies, 0.5)
    norms = script.clip_each_agent(policies, 0.5)
    torch.testing.assert_close(norms, expected_norms)
    assert norms[0] < 0.5 < norms[1]
    for parameter, gradient in zip(policies.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient)


def clipped_one_by_one(module: nn.Module, max_norm: float) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The gradients of a stack after each agent's were clipped, and the norms that they had before."""
    gradients, norms = [parameter.grad.clone() for parameter in module.parameters()], []
    for i in range(len(gradients[0])):
        rows = [nn.Parameter(gradient[i]) for gradient in gradients]
        for row, gradient in zip(rows, gradients):
            row.grad = gradient[i]
        norms.append(nn.utils.clip_grad_norm_(rows, max_norm))
    return gradients, torch.stack(norms)


@MAAC
def test_targets_move_by_their_rate(script):
    policies, _, target, _ = networks(script, UNEQUAL, small_args(script))
    before = copy.deepcopy(target)
    script.soft_update(target, policies, 0.25)
    for new, old, online in zip(target.parameters(), before.parameters(), policies.parameters()):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


@MAAC
def test_the_critic_can_fit_one_batch(script):
    """With fixed targets the critic must be able to fit any batch; with wrong gradients it cannot."""
    args = small_args(script, hidden_size=64, attention_heads=4, gamma=0.0, alpha=0.0)
    _, critic, target_policies, target_critic = (part.float() for part in networks(script, UNEQUAL, args))
    batch = random_batch(script, UNEQUAL, batch=32)
    batch = batch._replace(**{name: getattr(batch, name).float() for name in batch._fields if name != "actions"})
    optimizer, losses = torch.optim.Adam(critic.parameters(), 3e-3), []
    for _ in range(300):
        loss, metrics = critic_loss(script, batch, critic, target_critic, target_policies, args)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(metrics["losses/critic"].item())
    assert losses[-1] < 0.02 * losses[0]


# The updates of the scripts

SHARED = ("attention.", "query.", "key.", "value.", "encode_state_action.")  # reached by the losses of all agents
SHORT = {  # the first update comes in the second iteration
    "env_id": "cooperative_communication", "num_envs": 60, "update_period": 60, "batch_size": 100, "hidden_size": 16,
    "total_timesteps": 100_000, "buffer_size": 1000, "updates_per_period": 1,
    "policy_tau": 0.5, "critic_tau": 0.25, "critic_max_grad_norm": 0.01, "policy_max_grad_norm": 0.001,
}  # fmt: skip


def plain_maac_update(script, nets: dict, batch, args) -> None:
    """One update of MAAC on a batch, step by step, with the losses that are tested above."""
    policies, critic = nets["policies"], nets["critic"]
    torch.manual_seed(11)
    loss, _ = critic_loss(script, batch, critic, nets["target_critic"], nets["target_policies"], args)
    critic.zero_grad()
    loss.backward()
    for name, parameter in critic.named_parameters():
        if name.startswith(SHARED):
            parameter.grad /= len(batch.obs)  # the number of agents
    norm = torch.cat([parameter.grad.flatten() for parameter in critic.parameters()]).norm()
    assert norm > args.critic_max_grad_norm, "the test is to see the clipping"
    for parameter in critic.parameters():
        parameter.grad *= args.critic_max_grad_norm / norm
    nets["critic_optimizer"].step()

    torch.manual_seed(12)
    loss, _ = script.policy_loss(batch.obs, policies(batch.obs), policies.has_action, critic, args)
    policies.zero_grad()
    loss.backward()
    gradients, norms = clipped_one_by_one(policies, args.policy_max_grad_norm)
    assert (norms > args.policy_max_grad_norm).all()
    for parameter, gradient in zip(policies.parameters(), gradients):
        parameter.grad = gradient
    nets["policy_optimizer"].step()

    with torch.no_grad():
        for name, tau in (("critic", args.critic_tau), ("policies", args.policy_tau)):
            for target, online in zip(nets[f"target_{name}"].parameters(), nets[name].parameters()):
                target.copy_((1 - tau) * target + tau * online)


def assert_same_parameters(found: nn.Module, expected: nn.Module, started: nn.Module) -> None:
    assert any(not torch.equal(a, b) for a, b in zip(found.parameters(), started.parameters())), "it did not learn"
    for (name, a), b in zip(found.named_parameters(), expected.parameters()):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", ["decentralized", "centralized", "shared"])
@pytest.mark.parametrize("changes", [{}, {"true_reward": True}], ids=["paper", "true"])
def test_updates_of_madaac_are_those_of_algorithm_1(kind, changes, monkeypatch, tmp_path):
    changes = SHORT | {"discriminator": kind, "disc_max_grad_norm": 0.01} | changes
    if kind == "shared":
        changes["env_id"] = "cooperative_navigation"  # three agents of one kind
    args = madaac.Args(**changes, runs=str(tmp_path), learning_starts=120)
    learner_batches, expert_batches = [], []
    monkeypatch.setattr(madaac.ReplayBuffer, "sample", record_results(madaac.ReplayBuffer.sample, learner_batches))
    monkeypatch.setattr(Transitions, "sample", record_results(Transitions.sample, expert_batches))
    critic_loss_before, policy_loss_before = madaac.critic_loss, madaac.policy_loss
    monkeypatch.setattr(madaac, "critic_loss", seed_before(madaac.critic_loss, 11))
    monkeypatch.setattr(madaac, "policy_loss", seed_before(madaac.policy_loss, 12))
    run = run_iterations(madaac, args, 3, monkeypatch)
    monkeypatch.setattr(madaac, "critic_loss", critic_loss_before)
    monkeypatch.setattr(madaac, "policy_loss", policy_loss_before)
    assert len(learner_batches) == len(expert_batches) == 2

    nets = copy.deepcopy(run.initial)
    policies, disc = nets["policies"], nets["discriminators"]
    for learner, demo in zip(learner_batches, expert_batches):
        # Rewards and the update of the discriminators have the same logits, of the policies before their update.
        logits_learner, logits_expert = (
            disc(batch) - madaac.log_pi(policies(batch.obs), batch.actions) for batch in (learner, demo)
        )
        rewards = (learner.rewards if args.true_reward else logits_learner.detach()) / 25
        plain_maac_update(madaac, nets, learner._replace(rewards=rewards), args)
        loss, _ = madaac.discriminator_loss(logits_learner, logits_expert, args)
        disc.zero_grad()
        loss.backward()
        if kind != "centralized":
            for parameter, gradient in zip(disc.parameters(), clipped_one_by_one(disc, 0.01)[0]):
                parameter.grad = gradient
        else:
            nn.utils.clip_grad_norm_(disc.parameters(), 0.01)
        if kind == "shared":
            for name, parameter in disc.named_parameters():
                if name.endswith("weight"):
                    parameter.grad = parameter.grad.sum(0).repeat(3, 1, 1)
        nets["disc_optimizer"].step()
    for name in ("policies", "critic", "discriminators", "target_policies", "target_critic"):
        assert_same_parameters(run.parts[name], nets[name], run.initial[name])


def test_updates_of_the_expert_are_those_of_maac_on_normalised_data(monkeypatch, tmp_path):
    args = expert.Args(**SHORT, runs=str(tmp_path), experts=str(tmp_path))
    batches, used = [], []
    monkeypatch.setattr(expert.ReplayBuffer, "sample", record_results(expert.ReplayBuffer.sample, batches))
    critic_loss_before, policy_loss_before = expert.critic_loss, expert.policy_loss
    monkeypatch.setattr(expert, "critic_loss", record_arguments(seed_before(expert.critic_loss, 11), used))
    monkeypatch.setattr(expert, "policy_loss", seed_before(expert.policy_loss, 12))
    run = run_iterations(expert, args, 3, monkeypatch)
    monkeypatch.setattr(expert, "critic_loss", critic_loss_before)
    monkeypatch.setattr(expert, "policy_loss", policy_loss_before)
    assert len(batches) == len(used) == 2

    nets, store = copy.deepcopy(run.initial), run.parts["buffer"].store
    for k, (raw, (batch, *_)) in enumerate(zip(batches, used)):
        # Statistics of all observations and rewards so far, which are all in the buffer
        seen = 60 * (k + 2)
        for name, of_store in (("obs", "obs"), ("next_obs", "obs"), ("rewards", "rewards")):
            var, mean = torch.var_mean(getattr(store, of_store)[:seen].double(), dim=0, correction=0)
            expected = (getattr(raw, name) - mean[:, None]) / (var[:, None] + 1e-8).sqrt()
            expected = expected / 25 if name == "rewards" else expected.clamp(-10, 10)
            torch.testing.assert_close(getattr(batch, name).double(), expected, atol=1e-3, rtol=1e-3)
        assert torch.equal(batch.actions, raw.actions) and torch.equal(batch.terminated, raw.terminated)
        plain_maac_update(expert, nets, batch, args)
    for name in ("policies", "critic", "target_policies", "target_critic"):
        assert_same_parameters(run.parts[name], nets[name], run.initial[name])


@MAAC
def test_the_buffer_holds_true_successors_and_a_time_limit_is_no_end(script, monkeypatch, tmp_path):
    changes = {"experts": str(tmp_path)} if script is expert else {}
    args = script.Args(**SHORT, runs=str(tmp_path), **changes)
    args.num_envs, args.update_period, args.batch_size = 10, 100_000, 10
    buffer = run_iterations(script, args, 60, monkeypatch).parts["buffer"]
    assert len(buffer) == 600
    assert buffer.store.terminated[:600].sum() == 0
    # Ten copies side by side: row 10 (t + 1) + k continues row 10 t + k, except where a new episode starts.
    obs, next_obs = (part[:600].view(60, 10, 2, -1) for part in (buffer.store.obs, buffer.store.next_obs))
    continues = (next_obs[:-1] == obs[1:]).flatten(1).all(1)
    assert continues.tolist() == [(t + 1) % 25 != 0 for t in range(59)]
    # A listener stands still at the start of an episode, and has moved by its end.
    assert (obs[25, :, 1, :2] == 0).all()
    assert (next_obs[24, :, 1, :2] != 0).any()


@pytest.mark.parametrize("anneal", [False, True])
def test_the_experts_step_sizes_fall_linearly_only_if_asked_to(anneal, monkeypatch, tmp_path):
    args = expert.Args(**SHORT, runs=str(tmp_path), experts=str(tmp_path), anneal_lr=anneal)
    args.total_timesteps, args.policy_lr, args.critic_lr, args.update_period = 6000, 0.1, 0.2, 100_000
    found = []

    def look(run, k):
        groups = (run.parts[f"{name}_optimizer"].param_groups[0] for name in ("policy", "critic"))
        found.append([group["lr"] for group in groups])

    run_iterations(expert, args, 50, monkeypatch, look)
    left = 1 - 49 * 60 / 6000 if anneal else 1.0  # what the 49 iterations before the last one left
    assert found[-1] == pytest.approx([0.1 * left, 0.2 * left])
