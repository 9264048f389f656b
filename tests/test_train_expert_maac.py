"""MAAC: its mathematics against plain loops, and the script end to end."""

import copy
import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import env_utils
import train_expert_maac as maac

ROOT = Path(__file__).resolve().parent.parent
UNEQUAL = (np.array([4, 7, 3]), np.array([5, 3, 2]))
TWO = (np.array([3, 11]), np.array([3, 5]))
EQUAL = (np.array([6, 6, 6, 6]), np.array([5, 5, 5, 5]))
SIX = (np.array([4, 7, 3, 5, 5, 6]), np.array([5, 3, 2, 5, 4, 3]))


def random_batch(obs_sizes, num_actions, batch=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    agents = len(obs_sizes)
    obs, next_obs = torch.randn(2, agents, batch, int(max(obs_sizes)), generator=generator)
    for i, size in enumerate(obs_sizes):
        obs[i, :, size:] = next_obs[i, :, size:] = 0.0
    actions = torch.stack([torch.randint(int(n), (batch,), generator=generator) for n in num_actions])
    rewards = torch.randn(agents, batch, generator=generator)
    return obs, next_obs, actions, rewards, (torch.arange(batch) % 3 == 0).float()


# The critic


@pytest.mark.parametrize("size_out", [1, 5, 15, 16])  # FewOutputs below 16
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_stacked_layers_are_linear_layers_and_so_are_their_gradients(size_out, strided):
    torch.manual_seed(0)
    agents, batch, size_in = 3, 11, 7
    layer = maac.StackedLinear(agents, size_in, size_in, size_out).double()
    x = torch.randn(batch, agents, size_in, dtype=torch.float64).transpose(0, 1)  # as the buffer gives it
    x = (x if strided else x.contiguous()).requires_grad_()
    weigh = torch.randn(agents, batch, size_out, dtype=torch.float64)
    found, expected = [], []
    for out, into in (
        (layer(x), found),
        (torch.stack([F.linear(x[i], layer.weight[i].T, layer.bias[i, 0]) for i in range(agents)]), expected),
    ):
        into += [out, *torch.autograd.grad((out * weigh).sum(), [x, layer.weight, layer.bias])]
    for a, b in zip(found, expected):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b)


def plain_critic(critic, obs_sizes, num_actions, obs, actions):
    """Q of every agent and action by loops over transitions' agents and heads, from the definition."""
    heads, hidden = critic.heads, critic.query.weight.shape[0]
    d, agents = hidden // heads, len(obs_sizes)

    def inputs_of(i):
        state = obs[i, :, : obs_sizes[i]]
        both = torch.cat([state, F.one_hot(actions[i], critic.widest_action)[:, : num_actions[i]].float()], -1)
        if critic.batch_norm:
            state, both = (F.batch_norm(x, None, None, training=True) for x in (state, both))
        return state, both

    s, e = [], []
    for i in range(agents):
        state, both = inputs_of(i)
        w = critic.encode_state_action.weight[i]
        widest = critic.encode_state.weight.shape[1]
        w = torch.cat([w[: obs_sizes[i]], w[widest : widest + num_actions[i]]])
        s.append(F.leaky_relu(state @ critic.encode_state.weight[i, : obs_sizes[i]] + critic.encode_state.bias[i]))
        e.append(F.leaky_relu(both @ w + critic.encode_state_action.bias[i]))
    all_q, penalty = [], 0.0
    for i in range(agents):
        attended = []
        for h in range(heads):
            rows = slice(h * d, (h + 1) * d)
            query = s[i] @ critic.query.weight[rows].T
            others = [j for j in range(agents) if j != i]
            logits = torch.stack([(query * (e[j] @ critic.key.weight[rows].T)).sum(-1) for j in others], -1)
            values = [F.leaky_relu(e[j] @ critic.value.weight[rows].T + critic.value.bias[rows]) for j in others]
            weights = torch.softmax(logits / math.sqrt(d), -1)
            attended.append(sum(weights[:, k, None] * value for k, value in enumerate(values)))
            penalty = penalty + logits.square().mean()
        x = torch.cat([s[i], *attended], -1)
        w = torch.cat([critic.head_state.weight[i], critic.head_attended[i]])
        x = F.leaky_relu(x @ w + critic.head_state.bias[i])
        q = x @ critic.head_out.weight[i] + critic.head_out.bias[i]
        all_q.append(q[:, : num_actions[i]])
    return all_q, penalty


@pytest.mark.parametrize("sizes", [UNEQUAL, TWO, EQUAL, SIX], ids=["unequal", "two agents", "equal", "six agents"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_attention_critic_equals_loops_and_so_do_its_gradients(sizes, batch_norm):
    torch.manual_seed(3)
    critic = maac.AttentionCritic(*map(torch.as_tensor, sizes), hidden=16, heads=4, batch_norm=batch_norm)
    obs, _, actions, *_ = random_batch(*sizes)
    gradients = []
    for run in (critic, lambda o, a: plain_critic(critic, *sizes, o, a)):
        critic.zero_grad()
        q, penalty = run(obs, actions)[:2]
        parts = [q[i][..., :n] for i, n in enumerate(sizes[1])]
        (sum((part * (1 + k)).sin().sum() for k, part in enumerate(parts)) + penalty).backward()
        gradients.append(([p.detach() for p in parts], penalty.detach(), [p.grad.clone() for p in critic.parameters()]))
    (q_a, penalty_a, grad_a), (q_b, penalty_b, grad_b) = gradients
    for a, b in zip(q_a + [penalty_a] + grad_a, q_b + [penalty_b] + grad_b):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("agents", [2, 3, 4, 6])  # element by element up to 3
def test_attention_weights_are_of_the_others_and_sum_to_one(agents):
    queries, keys, values = torch.randn(3, agents, 10, 5, generator=torch.Generator().manual_seed(0))
    myself = torch.eye(agents, dtype=torch.bool)
    attended, logits, weights = maac.attend(queries, keys, values, myself)
    assert logits.shape == weights.shape == (10, agents, agents)
    assert (weights[:, myself] == 0).all() and (weights[:, ~myself] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(10, agents))
    torch.testing.assert_close(logits, torch.einsum("ird,jrd->rij", queries, keys))
    torch.testing.assert_close(attended, torch.einsum("rij,jrd->ird", weights, values))


@pytest.mark.parametrize("hidden", [8, 32])  # layers of less than 16 outputs are FewOutputs, hidden ones too
def test_the_gradients_of_policies_are_those_of_plain_networks(hidden):
    """Activations in place after a layer must not spoil what its gradient needs; observations need no gradient."""
    torch.manual_seed(0)
    policies = maac.Policies(torch.tensor([6, 6]), torch.tensor([5, 5]), hidden)
    obs = torch.randn(2, 9, 6)
    found = torch.autograd.grad(policies(obs)[1].square().sum(), list(policies.parameters()))
    x = obs
    for k, layer in enumerate(policies.layers):
        x = torch.baddbmm(layer.bias, x, layer.weight)
        x = F.leaky_relu(x) if k < 2 else x.log_softmax(-1)
    for a, b in zip(found, torch.autograd.grad(x.square().sum(), list(policies.parameters()))):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_own_action_never_enters_own_q_but_enters_the_others():
    torch.manual_seed(0)
    critic = maac.AttentionCritic(*map(torch.as_tensor, EQUAL), hidden=16, heads=2, batch_norm=False)
    obs, _, actions, *_ = random_batch(*EQUAL)
    changed = actions.clone()
    changed[1] = (changed[1] + 1) % 5
    before, after = critic(obs, actions)[0], critic(obs, changed)[0]
    assert torch.equal(before[1], after[1])
    assert all(not torch.allclose(before[i], after[i]) for i in (0, 2, 3))


# The losses


def test_critic_loss_equals_the_formula_in_double_precision():
    args = maac.Args(hidden_size=16, attention_heads=2, alpha=0.3, gamma=0.9, attention_regularization=0.05)
    torch.manual_seed(1)
    nets = maac.make_networks(*UNEQUAL, args)
    for parameter in nets.target_critic.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    batch = random_batch(*UNEQUAL)
    obs, next_obs, actions, rewards, terminated = batch
    for soft_discounted in (False, True):
        args.soft_discounted = soft_discounted
        torch.manual_seed(5)
        loss, _ = maac.critic_loss(batch, nets.critic, nets.target_critic, nets.target_policies, args)
        torch.manual_seed(5)
        log_probs = nets.target_policies(next_obs)[1].detach()
        next_actions = maac.sample(log_probs)
        next_q = nets.target_critic(next_obs, next_actions)[0].detach().double()
        q, penalty, _ = nets.critic(obs, actions)
        expected = 0.05 * penalty.item()
        for i in range(3):
            for b in range(obs.shape[1]):
                a = next_actions[i, b]
                bonus = -0.3 * log_probs[i, b, a].double()
                alive = 0.9 * (1 - terminated[b])
                target = alive * next_q[i, b, a] + rewards[i, b] + (alive * bonus if soft_discounted else bonus)
                error = abs(q[i, b, actions[i, b]].double() - target)
                huber = 0.5 * error**2 if error < 1 else error - 0.5
                expected += huber.item() / obs.shape[1]
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_policy_loss_equals_the_formula_and_leaves_the_critic_alone():
    args = maac.Args(hidden_size=16, attention_heads=2, alpha=0.2, logit_regularization=0.1)
    torch.manual_seed(2)
    nets = maac.make_networks(*UNEQUAL, args)
    obs = random_batch(*UNEQUAL)[0]
    torch.manual_seed(7)
    loss, _ = maac.policy_loss(obs, nets.policies, nets.critic, args)
    loss.backward()
    assert all(parameter.grad is None for parameter in nets.critic.parameters())
    got = [parameter.grad.clone() for parameter in nets.policies.parameters()]

    nets.policies.zero_grad()
    torch.manual_seed(7)
    logits, log_probs = nets.policies(obs)
    actions = maac.sample(log_probs.detach())
    q = nets.critic(obs, actions)[0].detach()
    total = 0.0
    for i, n in enumerate(UNEQUAL[1]):
        for b in range(obs.shape[1]):
            log_pi = torch.log_softmax(logits[i, b, :n], -1)
            advantage = q[i, b, actions[i, b]] - (log_pi.exp() * q[i, b, :n]).sum()
            lp = log_pi[actions[i, b]]
            term = lp * (0.2 * lp - advantage).detach() + 0.1 * logits[i, b, :n].square().mean()
            total = total + term / obs.shape[1]
    total.backward()
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    for a, parameter in zip(got, nets.policies.parameters()):
        torch.testing.assert_close(a, parameter.grad, atol=1e-6, rtol=1e-4)


def test_policies_of_a_stack_do_not_influence_one_another():
    args = maac.Args(hidden_size=16, attention_heads=2)
    nets = maac.make_networks(*EQUAL, args)
    obs = random_batch(*EQUAL)[0]
    nets.policies(obs)[1][2].sum().backward()
    for parameter in nets.policies.parameters():
        assert parameter.grad[2].abs().sum() > 0
        assert parameter.grad[[0, 1, 3]].abs().sum() == 0


def test_clip_each_agent_equals_clipping_them_one_by_one():
    policies = maac.Policies(*map(torch.as_tensor, UNEQUAL), hidden=8)
    for parameter in policies.parameters():
        parameter.grad = torch.randn_like(parameter) * torch.tensor([0.01, 1.0, 10.0])[:, None, None]
    expected = []
    for i in range(3):
        own = [torch.nn.Parameter(p[i].detach().clone()) for p in policies.parameters()]
        for mine, p in zip(own, policies.parameters()):
            mine.grad = p.grad[i].clone()
        torch.nn.utils.clip_grad_norm_(own, 0.5)
        expected.append([p.grad for p in own])
    norms = maac.clip_each_agent(policies, 0.5)
    assert norms[0] < 0.5 < norms[1]
    for k, parameter in enumerate(policies.parameters()):
        for i in range(3):
            torch.testing.assert_close(parameter.grad[i], expected[i][k])


def test_shared_gradients_are_divided_by_the_number_of_agents_and_targets_follow():
    args = maac.Args(hidden_size=16, attention_heads=2, critic_tau=0.25, policy_tau=0.5, critic_max_grad_norm=1e9)
    torch.manual_seed(0)
    nets = maac.make_networks(*EQUAL, args)
    batch = random_batch(*EQUAL)
    before = copy.deepcopy(nets)
    torch.manual_seed(9)
    loss, _ = maac.critic_loss(batch, before.critic, before.target_critic, before.target_policies, args)
    loss.backward()
    torch.manual_seed(9)
    maac.update(batch, nets, args)
    shared = {id(p) for p in nets.critic.shared_parameters()}
    assert len(shared) == 6
    for new, old in zip(nets.critic.parameters(), before.critic.parameters()):
        factor = len(EQUAL[0]) if id(new) in shared else 1
        torch.testing.assert_close(new.grad * factor, old.grad, atol=1e-6, rtol=1e-4)
    for name, tau in (("critic", 0.25), ("policies", 0.5)):
        moved = [getattr(nets, f"target_{name}"), getattr(before, f"target_{name}"), getattr(nets, name)]
        for target, old, online in zip(*(module.parameters() for module in moved)):
            torch.testing.assert_close(target, (1 - tau) * old + tau * online)


def test_one_batch_can_be_overfitted():
    """With a fixed target the critic must be able to fit any batch; broken gradients cannot."""
    args = maac.Args(hidden_size=64, attention_heads=4, critic_lr=3e-3, critic_max_grad_norm=1e9, gamma=0.0, alpha=0.0)
    torch.manual_seed(0)
    nets = maac.make_networks(*UNEQUAL, args)
    batch = random_batch(*UNEQUAL, batch=32)
    losses = [float(maac.update(batch, nets, args)["td"]) for _ in range(300)]
    assert losses[-1] < 0.02 * losses[0]


def test_rewards_are_standardised_and_divided_by_the_episode_length():
    stats = maac.RunningMeanStd(2)
    data = torch.randn(5000, 2) * torch.tensor([3.0, 0.1]) + torch.tensor([7.0, -2.0])
    stats.update(data)
    scaled = maac.scaled_rewards(data.T, stats, 25, maac.Args())
    torch.testing.assert_close(scaled.mean(1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(1), torch.full((2,), 1 / 25), atol=1e-4, rtol=0)
    plain = maac.scaled_rewards(data.T, stats, 25, maac.Args(normalize_rewards=False))
    torch.testing.assert_close(plain, data.T / 25)


def test_learning_rates_fall_only_when_asked():
    for anneal, expected in ((False, 1e-3), (True, 0.25e-3)):
        args = maac.Args(hidden_size=16, anneal_lr=anneal, total_timesteps=1000)
        nets = maac.make_networks(*TWO, args)
        maac.set_learning_rates(nets, 750, args)
        assert nets.policy_optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        assert nets.critic_optimizer.param_groups[0]["lr"] == pytest.approx(expected)


# Sampling and data


def test_sample_follows_the_probabilities_and_never_gives_a_padding_action():
    torch.manual_seed(0)
    policies = maac.Policies(*map(torch.as_tensor, UNEQUAL), hidden=8)
    log_probs = policies(torch.ones(3, 1, 7))[1].detach()
    counts = F.one_hot(maac.sample(log_probs.expand(3, 20_000, 5)), 5).float().mean(1)
    torch.testing.assert_close(counts, log_probs[:, 0].exp(), atol=0.015, rtol=0)
    for i, n in enumerate(UNEQUAL[1]):
        assert counts[i, n:].sum() == 0
        assert log_probs[i, 0, :n].exp().sum().item() == pytest.approx(1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_running_mean_std_equals_numpy(lengths, seed):
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3, 5, (n, 2, 3)) for n in lengths]
    stats = maac.RunningMeanStd(2, 3)
    for batch in batches:
        stats.update(torch.as_tensor(batch))
    data = np.concatenate(batches)
    np.testing.assert_allclose(stats.mean, data.mean(0), atol=0.02)
    np.testing.assert_allclose(stats.var, data.var(0), atol=0.05 + 0.01 * len(data) * (len(data) < 3))
    scaled = stats.normalized(torch.as_tensor(data, dtype=torch.float32).transpose(0, 1))
    assert scaled.shape == (2, len(data), 3)


def test_replay_buffer_is_a_ring_with_true_successors_across_episode_ends():
    envs = env_utils.make_envs("cooperative_communication", 3, 0)
    act = env_utils.random_actions(envs.num_actions, 0)
    buffer = maac.ReplayBuffer(capacity=60, num_agents=2, widest_obs=11)
    obs, history = envs.reset(), []
    for _ in range(55):
        actions = act(obs)
        next_obs, rewards, terminated, _, final_obs = envs.step(actions)
        history += list(zip(obs, actions, rewards, final_obs))
        tensors = map(torch.as_tensor, (obs, final_obs, actions, rewards, terminated))
        buffer.add(**dict(zip(buffer.names, tensors)))
        obs = next_obs
    assert len(buffer) == 60
    latest = history[-60:]
    stored = {buffer.obs[k].numpy().tobytes(): k for k in range(60)}
    for o, a, r, successor in latest:
        k = stored[o.tobytes()]
        assert np.array_equal(buffer.next_obs[k], successor)
        assert np.array_equal(buffer.actions[k], a)
        assert np.array_equal(buffer.rewards[k], r)
    b_obs, b_next_obs, b_actions, b_rewards, b_terminated = buffer.sample(50)
    assert b_obs.shape == b_next_obs.shape == (2, 50, 11)
    assert b_actions.shape == b_rewards.shape == (2, 50)
    assert b_terminated.shape == (50,)
    assert all(row.numpy().tobytes() in stored for row in b_obs.transpose(0, 1).contiguous())


@pytest.mark.parametrize(
    "task, rivals",
    [("keep_away", True), ("simple_tag", True), ("simple_adversary", True), ("simple_push", True)]
    + [(task, False) for task in ("cooperative_navigation", "rover_tower_8", "rover_tower_16", "simple_spread")],
)
def test_competition_is_told_from_cooperation(task, rivals):
    assert maac.agents_compete(task, env_utils.make_envs(task, 1).num_actions) == rivals


# The script


def run(*arguments, check=True, **kwargs):
    command = [sys.executable, str(ROOT / "train_expert_maac.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if check:
        assert done.returncode == 0, done.stderr[-2000:]
    return done


def small(folder, **changes):
    """Arguments of a run of seconds that still makes many updates."""
    options = {
        "env-id": "cooperative_communication", "runs": folder / "runs", "experts": folder / "experts", "seed": 3,
        "total-timesteps": 6000, "eval-every": 1000, "eval-episodes": 20, "final-episodes": 30, "store-demos": 20,
        "batch-size": 256, "hidden-size": 32, "torch-threads": 1, "log-every": 500,
    } | changes  # fmt: skip
    return [part for name, value in options.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expert")
    output = run(*small(folder), "--capture-video").stdout
    return folder, next((folder / "runs").iterdir()), output


def test_end_to_end_writes_everything(finished):
    folder, run_folder, output = finished
    assert "speaker_0" in output
    expert = folder / "experts" / "cooperative_communication"
    card = json.loads((expert / "card.json").read_text())
    for name in ("policy.safetensors", "demos.npz"):
        assert card["sha256"][name] == env_utils.sha256(expert / name)
    assert card["training"]["steps"] == 6000
    assert card["training"]["args"]["seed"] == 3
    assert set(card["scores"]) == set(card["mean_over_agents"]) == {"expert", "random"}
    for name in ("config.json", "summary.json", "checkpoint.pt", "policy.safetensors", "video.mp4"):
        assert (run_folder / name).stat().st_size > 0
    assert list(run_folder.glob("events.*"))
    assert not list(folder.rglob("*.tmp*"))
    envs = env_utils.make_envs("cooperative_communication", 1)
    demos = env_utils.load_demos(expert / "demos.npz", envs=envs)
    assert len(demos) == 20
    # What was recorded is the greedy policy on raw observations.
    policy = env_utils.load_policy(expert / "policy.safetensors", envs)
    obs, actions, _ = demos.transitions()
    assert np.array_equal(policy.greedy(obs), actions)
    # Losses were logged past the first update, and the policy that was kept is the best of the evaluations.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder))
    events.Reload()
    assert len(events.Scalars("losses/critic")) >= 5
    evaluations = {point.step: point.value for point in events.Scalars("eval/greedy_return-mean")}
    assert len(evaluations) == 6
    assert card["training"]["kept"] == "best"
    assert card["training"]["kept_at_step"] == max(evaluations, key=evaluations.get)
    assert np.isfinite([point.value for tag in events.Tags()["scalars"] for point in events.Scalars(tag)]).all()
    # Every evaluation had the same episodes.
    again = env_utils.play_episodes("cooperative_communication", policy.greedy, 20, maac.SELECTION_SEED)[0].mean()
    assert again == pytest.approx(max(evaluations.values()), rel=1e-5)
    # The card's scores are those of the recorded episodes, the mean over agents with an interval of its own.
    returns = env_utils.play_episodes("cooperative_communication", policy.greedy, 30, maac.RECORDING_SEED)[0]
    for found, played in (
        (card["scores"]["expert"]["listener_0"], returns[:, 1]),
        (card["mean_over_agents"]["expert"], returns.mean(1)),
    ):
        assert found["mean"] == pytest.approx(played.mean())
        assert found["interval_95"] == pytest.approx(1.96 * played.std(ddof=1) / math.sqrt(30))


def test_episodes_that_choose_score_and_judge_are_not_the_same():
    """Every 500 episodes of `play_episodes` take the next seed."""
    seeds = sorted([maac.SELECTION_SEED, maac.RECORDING_SEED, 20_000_003, env_utils.EVALUATION_SEED])
    assert seeds[0] > 1_000_000 and np.diff(seeds).min() > 1_000_000


def test_the_mean_over_agents_has_the_interval_of_episodes_and_rivals_are_warned_of(tmp_path):
    """Rover and tower of a pair are paid alike, other pairs apart from them: neither all alike nor all independent."""
    arguments = ["--experts", tmp_path, "--final-episodes", 40, "--store-demos", 2, "--torch-threads", 1]
    run("--env-id", "rover_tower_8", "--record-only", ROOT / "experts/rover_tower_8", *arguments)
    card = json.loads((tmp_path / "rover_tower_8" / "card.json").read_text())
    policy = env_utils.load_policy(ROOT / "experts/rover_tower_8/policy.safetensors")
    by_episode = env_utils.play_episodes("rover_tower_8", policy.greedy, 40, maac.RECORDING_SEED)[0].mean(1)
    found = card["mean_over_agents"]["expert"]
    assert found["mean"] == pytest.approx(by_episode.mean())
    assert found["interval_95"] == pytest.approx(1.96 * by_episode.std(ddof=1) / math.sqrt(40))
    arguments[3] = 500
    output = run("--env-id", "keep_away", "--record-only", ROOT / "experts/keep_away", *arguments).stdout
    assert "warning: pusher_0 scores less as the expert than in random play" in output
    assert "reacher_0 scores less" not in output and "no agent of this expert" not in output


def test_the_loop_stores_true_successors_and_takes_no_timeout_for_an_end(finished):
    _, run_folder, _ = finished
    checkpoint = env_utils.load_checkpoint(run_folder / "checkpoint.pt")
    buffer = {name: tensor[:6000] for name, tensor in checkpoint["buffer"].items() if name != "added"}
    assert checkpoint["buffer"]["added"] == 6000
    assert buffer["terminated"].sum() == 0
    # 100 copies side by side: step t of copy k is row 100 t + k, and row 100 (t + 1) + k goes on, but for resets.
    obs, next_obs = (buffer[name].view(60, 100, 2, -1) for name in ("obs", "next_obs"))
    goes_on = (next_obs[:-1] == obs[1:]).flatten(1).all(1)
    assert goes_on.tolist() == [(t + 1) % 25 != 0 for t in range(59)]
    # A listener that starts anew stands still; one that was cut off after 25 steps had moved on.
    assert (obs[25, :, 1, :2] == 0).all() and (next_obs[24, :, 1, :2] != 0).any(-1).float().mean() > 0.9


def test_same_seed_same_bits(finished, tmp_path):
    folder, _, _ = finished
    run(*small(tmp_path))
    run(*small(tmp_path / "other", seed=4))
    name = "experts/cooperative_communication/policy.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert (folder / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_resume_after_sigkill_ends_in_the_same_bits(finished, tmp_path):
    folder, _, _ = finished
    command = [sys.executable, str(ROOT / "train_expert_maac.py"), *map(str, small(tmp_path)), "--save-every", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(2400):
        time.sleep(0.05)
        if list((tmp_path / "runs").glob("*/checkpoint.pt")):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run_folder = next((tmp_path / "runs").iterdir())
    assert not (run_folder / "summary.json").exists(), "the run ended before it could be killed"
    step = env_utils.load_checkpoint(run_folder / "checkpoint.pt")["step"]
    assert 0 < step < 6000
    run("--resume", run_folder)
    name = "experts/cooperative_communication/policy.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert (run_folder / "summary.json").exists()


def test_a_run_made_longer_ends_in_the_same_bits_as_one_that_was_long_from_the_start(finished, tmp_path):
    folder, _, _ = finished
    run(*small(tmp_path, **{"total-timesteps": 3000}))
    run_folder = next((tmp_path / "runs").iterdir())
    run("--resume", run_folder, "--total-timesteps", 6000)
    name = "experts/cooperative_communication/policy.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert (run_folder / "policy.safetensors").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_saves_and_says_how_to_go_on(finished, tmp_path, asked):
    command = [sys.executable, str(ROOT / "train_expert_maac.py"), *map(str, small(tmp_path))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        time.sleep(0.05)
        if list((tmp_path / "runs").glob("*/policy.safetensors")):  # past its first evaluation
            break
    process.send_signal(asked)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    run_folder = next((tmp_path / "runs").iterdir())
    assert f"--resume {run_folder}" in errors
    assert "Traceback" not in errors
    run("--resume", run_folder)
    name = "experts/cooperative_communication/policy.safetensors"
    assert (finished[0] / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_damaged_config_is_told(finished, tmp_path):
    _, run_folder, _ = finished
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").write_bytes((run_folder / "checkpoint.pt").read_bytes())
    for content in ("{", "{}", '{"args": {"no_such_flag": 1}}'):
        (tmp_path / "run" / "config.json").write_text(content)
        with pytest.raises(env_utils.UserError, match="not a config of this script"):
            maac.main(maac.Args(resume=str(tmp_path / "run")))


def test_an_end_that_a_run_has_passed_is_refused(finished, tmp_path):
    """No evaluation would follow, and the card would call another policy the last."""
    _, run_folder, _ = finished
    shutil.copytree(run_folder, tmp_path / "run")
    with pytest.raises(env_utils.UserError, match="is at step 6000 already"):
        maac.main(maac.Args(resume=str(tmp_path / "run"), total_timesteps=3000))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["args"]["total_timesteps"] == 6000


def test_what_a_run_has_kept_can_be_recorded_before_its_end(finished, tmp_path):
    folder, run_folder, _ = finished
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    recording = {"experts": str(tmp_path / "experts"), "final_episodes": 30, "store_demos": 20}
    maac.main(maac.Args(env_id="cooperative_communication", record_only=str(tmp_path / "run"), **recording))
    before, after = (
        json.loads((path / "experts/cooperative_communication/card.json").read_text()) for path in (folder, tmp_path)
    )
    assert before["training"] == after["training"] and before["scores"] == after["scores"]


def test_a_damaged_card_beside_a_policy_is_told(finished, tmp_path):
    folder, _, _ = finished
    shutil.copytree(folder / "experts" / "cooperative_communication", tmp_path / "expert")
    for content in ("{", "[]"):
        (tmp_path / "expert" / "card.json").write_text(content)
        with pytest.raises(env_utils.UserError, match="card.json is not what the policy beside it was trained by"):
            maac.main(maac.Args(env_id="cooperative_communication", record_only=str(tmp_path / "expert")))


def test_record_only_gives_the_same_demonstrations(finished, tmp_path):
    folder, _, _ = finished
    expert = folder / "experts" / "cooperative_communication"
    run(*small(tmp_path, **{"store-demos": 10}), "--record-only", expert, "--capture-video")
    again = tmp_path / "experts" / "cooperative_communication"
    a, b = (env_utils.load_demos(path / "demos.npz") for path in (expert, again))
    assert np.array_equal(a.first(10).obs, b.obs)
    before, after = (json.loads((path / "card.json").read_text()) for path in (expert, again))
    assert before["demonstrations"] == 20 and after["demonstrations"] == 10
    assert before["training"] == after["training"] and "store_demos" not in after["training"]["args"]
    assert (again / "video.mp4").stat().st_size > 0
    output = run(*small(tmp_path), "--record-only", expert).stdout
    assert f"what is in {again} will be replaced" in output


def test_unequal_agents_and_a_pettingzoo_task_run(tmp_path):
    changes = {"env-id": "simple_crypto", "num-envs": 20, "total-timesteps": 1500}
    run(*small(tmp_path, **changes), "--updates-per-period", 4, "--critic-batch-norm", "--anneal-lr")
    assert (tmp_path / "experts/simple_crypto/card.json").exists()
    # It cannot be put back into its state: a run that goes on starts new episodes, and counts none of the old rewards.
    run_folder = next((tmp_path / "runs").iterdir())
    checkpoint = env_utils.load_checkpoint(run_folder / "checkpoint.pt")
    checkpoint["episode_return"][:] = 1e6
    env_utils.save_checkpoint(run_folder / "checkpoint.pt", checkpoint)
    config = json.loads((run_folder / "config.json").read_text())
    config["args"] |= {"total_timesteps": 2500}
    env_utils.write_json(run_folder / "config.json", config)
    run("--resume", run_folder)
    recent = env_utils.load_checkpoint(run_folder / "checkpoint.pt")["progress"][-1]
    assert len(recent) == 100 and np.abs(recent).max() < 1e5


def test_it_learns(tmp_path):
    """1,600 small updates must leave random play behind; a flipped sign or a lost gradient cannot."""
    changes = {"total-timesteps": 80_000, "eval-every": 40_000, "hidden-size": 64, "batch-size": 256, "alpha": 0.003}
    run(*small(tmp_path, **changes), "--updates-per-period", 2)
    scores = json.loads((tmp_path / "experts/cooperative_communication/card.json").read_text())["scores"]
    assert scores["expert"]["listener_0"]["mean"] > scores["random"]["listener_0"]["mean"] + 12


# Bad input


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--env-id", "simple_tga"], "did you mean 'simple_tag'"),
        (["--env-id", "rover_tower_7"], "even number"),
        (["--num-envs", "0"], "--num-envs must be at least 1"),
        (["--total-timesteps", "500"], "--total-timesteps must exceed"),
        (["--buffer-size", "10"], "--buffer-size"),
        (["--attention-heads", "3"], "--attention-heads"),
        (["--store-demos", "900"], "--store-demos"),
        (["--cuda"], "no GPU"),
        (["--resume", "nowhere"], "nothing to resume"),
        (["--record-only", "nowhere"], "no policy at"),
        (["--runs", "/proc/nowhere", "--experts", "e"], "cannot write"),
        (["--experts", "/proc/nowhere"], "cannot write"),
        (["--env-id", "simple"], "needs at least two"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--attention-heads", "0"], "--attention-heads must be at least 1"),
        (["--torch-threads", "-1"], "--torch-threads"),
        (["--policy-lr", "-1"], "--policy-lr must be above 0"),
        (["--critic-tau", "2"], "--critic-tau must be from 0 to 1"),
        (["--exp-name", "a/b"], "--exp-name"),
        (["--alpha", "nan"], "--alpha must be a number from 0 on"),
        (["--critic-weight-decay", "-1"], "--critic-weight-decay must be a number from 0 on"),
        (["--policy-max-grad-norm", "0"], "--policy-max-grad-norm must be above 0"),
        (["--env-id", "simple_crypto", "--capture-video"], "--capture-video"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    if arguments == ["--cuda"] and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_expert_maac.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "train_expert_maac.py"), run_name="__main__")
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert complaint in lines[0]
    assert not list(tmp_path.iterdir()), "something was written"


def test_a_mistake_gives_no_traceback_at_the_command_line(tmp_path):
    done = run("--env-id", "simple_tga", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown task 'simple_tga'; did you mean 'simple_tag'?")
    assert "Traceback" not in done.stderr


def test_the_planning_pusher_of_the_docs_is_never_worse_than_those_it_plans_with():
    script = runpy.run_path(str(ROOT / "docs/keep_away_pusher.py"))
    envs = env_utils.make_envs("keep_away", 20, seed=0)
    expert = env_utils.load_policy(ROOT / "experts/keep_away/policy.safetensors", envs)
    obs, pushers, left = envs.reset(), [script["towards"](1.0), script["towards"](0.0)], 5
    for _ in range(envs.episode_length - left):
        obs, *_ = envs.step(expert.greedy(obs))
    start = envs.get_state()
    plain = [script["play_on"](envs, envs.set_state(start), expert, pusher, left)[:, 0] for pusher in pushers]
    now, planned = envs.set_state(start), 0.0
    for steps_left in range(left, 0, -1):
        actions = expert.greedy(now)
        before = envs.get_state()
        actions[:, 0] = script["plan"](envs, now, expert, pushers, steps_left)
        assert str(envs.get_state()) == str(before)
        now, rewards, *_ = envs.step(actions)
        planned = planned + rewards[:, 0]
    assert (planned >= np.max(plain, 0) - 1e-4).all() and (planned > np.min(plain, 0) + 1e-3).any()


def test_the_table_of_experts_has_a_row_for_every_shipped_one(capsys):
    runpy.run_path(str(ROOT / "docs" / "expert_table.py"))
    table = capsys.readouterr().out
    assert [row.split("`")[1] for row in table.splitlines()[2:]] == list(env_utils.TASK_IDS)
    assert table in (ROOT / "README.md").read_text()
