"""MA-DAAC: discriminator, rewards and buffer against plain formulas, and the script end to end."""

import copy
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import env_utils
import madaac_discrete as madaac
import train_expert_maac as maac

ROOT = Path(__file__).resolve().parent.parent
SIZES = (np.array([4, 7, 3]), np.array([5, 3, 2]))
TASK = "cooperative_communication"


def small_args(**changes):
    return madaac.Args(**({"hidden_size": 16, "attention_heads": 2} | changes))


def random_batch(seed=0, batch=6):
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, 3, batch, 7, generator=generator)
    for i, size in enumerate(SIZES[0]):
        obs[i, :, size:] = next_obs[i, :, size:] = 0.0
    actions = torch.stack([torch.randint(int(n), (batch,), generator=generator) for n in SIZES[1]])
    return [obs, next_obs, actions, torch.randn(3, batch, generator=generator), torch.zeros(batch)]


def stacked_weights(module, i):
    return [(layer.weight[i].detach().numpy(), layer.bias[i, 0].detach().numpy()) for layer in module.layers]


def plain_f(disc, i, obs, action, next_obs, gamma):
    """g_i(o_i, a_i) + gamma h_i(o'_i) - h_i(o_i) of one transition, from the definition."""

    def forward(weights, x):
        for k, (w, b) in enumerate(weights):
            x = x @ w.astype(np.float64) + b.astype(np.float64)
            x = np.where(x > 0, x, 0.01 * x) if k < 2 else x
        return float(x[0])

    one_hot = np.eye(disc.widest_action)[action]
    g = forward(stacked_weights(disc.g, i), np.concatenate([obs, one_hot]))
    h, next_h = (forward(stacked_weights(disc.h, i), o) for o in (obs, next_obs))
    return g + gamma * next_h - h


def test_logits_and_loss_equal_plain_formulas_in_double_precision():
    torch.manual_seed(0)
    args = small_args()
    nets = madaac.make_networks(*SIZES, args)
    obs, next_obs, actions, _, _ = random_batch(batch=8)
    f = nets.discriminators(obs, actions, next_obs)
    log_pi = madaac.taken(nets.policies(obs)[1], actions).detach()
    expected = 0.0
    for i in range(3):
        for b in range(8):
            o, o2 = obs[i, b].numpy().astype(float), next_obs[i, b].numpy().astype(float)
            plain = plain_f(nets.discriminators, i, o, int(actions[i, b]), o2, args.gamma)
            assert f[i, b].item() == pytest.approx(plain, abs=1e-5)
            logit = plain - float(log_pi[i, b])
            pi = np.exp(float(log_pi[i, b]))
            probability = np.exp(plain) / (np.exp(plain) + pi)  # the paper's D, probability of expert
            assert np.log(probability) - np.log(1 - probability) == pytest.approx(logit, abs=1e-9)
            entropy = -probability * np.log(probability) - (1 - probability) * np.log(1 - probability)
            label_is_expert = b >= 4
            expected += -np.log(probability if label_is_expert else 1 - probability) / 4 - 0.25 * entropy / 4
    loss, seen = madaac.discriminator_loss(f - log_pi, 4, entropy_weight=0.25)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    right = ((f - log_pi)[:, 4:] > 0).float().mean()
    assert seen["accuracy_expert"].item() == pytest.approx(right.item())


def test_loss_stays_finite_where_probabilities_would_not():
    logits = torch.tensor([[200.0, -200.0, 90.0, -90.0]], requires_grad=True)
    loss, _ = madaac.discriminator_loss(logits, 2, 0.01)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] > 0 > logits.grad[0, 3]  # the learner's logit goes down, the expert's up


def test_decentralized_discriminators_do_not_influence_one_another():
    disc = madaac.make_networks(*SIZES, small_args()).discriminators
    obs, next_obs, actions, _, _ = random_batch()
    before = disc(obs, actions, next_obs)
    before[1].sum().backward()
    for parameter in disc.parameters():
        assert parameter.grad[[0, 2]].abs().sum() == 0
    obs[1] += 1.0
    actions[1] = (actions[1] + 1) % 3
    after = disc(obs, actions, next_obs)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
@pytest.mark.parametrize("sees", [None, True, False])
def test_what_a_discriminator_sees(kind, sees):
    torch.manual_seed(0)
    args = small_args(discriminator=kind, disc_actions=sees is True, no_disc_actions=sees is False)
    disc = madaac.make_networks(*SIZES, args).discriminators
    obs, next_obs, actions, _, _ = random_batch()
    before = disc(obs, actions, next_obs)
    changed = actions.clone()
    changed[0] = (changed[0] + 1) % 5
    moved = (before != disc(obs, changed, next_obs)).any(1).tolist()
    sees_actions = (kind == "decentralized") if sees is None else sees
    others = sees_actions and kind == "centralized"
    assert moved == [sees_actions, others, others]
    shifted = obs.clone()
    shifted[0, :, :4] += 1.0
    moved = (before != disc(shifted, actions, next_obs)).any(1).tolist()
    assert moved == [True, kind == "centralized", kind == "centralized"]


@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
def test_rewards_are_f_minus_log_pi_over_the_episode_length(kind, monkeypatch):
    torch.manual_seed(1)
    args = small_args(discriminator=kind)
    nets = madaac.make_networks(*SIZES, args)
    learner, expert = random_batch(1), random_batch(2)[:3]
    obs, next_obs, actions, true_rewards, _ = learner
    with torch.no_grad():
        log_pi = madaac.taken(nets.policies(obs)[1], actions)
        expected = (nets.discriminators(obs, actions, next_obs) - log_pi) / 25
    used, plain_critic_loss = [], madaac.critic_loss

    def spy(batch, *rest):
        used.append(batch[3])
        return plain_critic_loss(batch, *rest)

    monkeypatch.setattr(madaac, "critic_loss", spy)
    madaac.update(learner, expert, nets, args, 25)
    torch.testing.assert_close(used[0], expected, atol=1e-6, rtol=1e-5)
    assert not used[0].requires_grad
    args.debug_true_reward = True
    madaac.update(learner, expert, nets, args, 25)
    torch.testing.assert_close(used[1], true_rewards / 25)


def test_no_gradient_crosses_where_it_must_not(monkeypatch):
    """Through log pi the discriminator's loss must not reach the policies, nor the policies' loss the critic."""
    torch.manual_seed(0)
    args = small_args()
    nets = madaac.make_networks(*SIZES, args)
    gradients = {}

    def snapshot(name, module):
        gradients[name] = [None if p.grad is None else p.grad.clone() for p in module.parameters()]

    plain = madaac.discriminator_loss

    def spy(*arguments):
        snapshot("policies before", nets.policies)
        snapshot("critic before", nets.critic)
        return plain(*arguments)

    monkeypatch.setattr(madaac, "discriminator_loss", spy)
    madaac.update(random_batch(1), random_batch(2)[:3], nets, args, 25)
    snapshot("policies after", nets.policies)
    snapshot("critic after", nets.critic)
    for name in ("policies", "critic"):
        for before, after in zip(gradients[f"{name} before"], gradients[f"{name} after"]):
            assert torch.equal(before, after)
    assert all(parameter.grad.abs().sum() > 0 for parameter in nets.discriminators.g.parameters())


SHARED = [
    "FewOutputs",
    "StackedLinear",
    "Policies",
    "attend",
    "AttentionCritic",
    "sample",
    "taken",
    "policy_loss",
    "clip_each_agent",
    "move_target",
]


@pytest.mark.parametrize("name", SHARED)
def test_what_both_scripts_have_is_the_same(name):
    """test_train_expert_maac.py holds these to plain loops; the copies here must not drift from them."""
    assert inspect.getsource(getattr(madaac, name)) == inspect.getsource(getattr(maac, name))


@pytest.mark.parametrize("entropy_in_target", [True, False])
def test_critic_loss_equals_the_formula(entropy_in_target):
    args = small_args(alpha=0.3, gamma=0.9, attention_regularization=0.05, entropy_in_target=entropy_in_target)
    torch.manual_seed(1)
    nets = madaac.make_networks(*SIZES, args)
    obs, next_obs, actions, rewards, _ = random_batch()
    terminated = (torch.arange(6) % 3 == 0).float()
    torch.manual_seed(5)
    batch = (obs, next_obs, actions, rewards, terminated)
    loss, _ = madaac.critic_loss(batch, nets.critic, nets.target_critic, nets.target_policies, args)
    torch.manual_seed(5)
    log_probs = nets.target_policies(next_obs)[1].detach()
    next_actions = madaac.sample(log_probs)
    next_q = nets.target_critic(next_obs, next_actions)[0].detach()
    q, penalty, _ = (part.detach() for part in nets.critic(obs, actions))
    expected = 0.05 * penalty.item()
    for i in range(3):
        for b in range(6):
            a = next_actions[i, b]
            target = rewards[i, b] + 0.9 * (1 - terminated[b]) * next_q[i, b, a]
            target -= 0.3 * log_probs[i, b, a] if entropy_in_target else 0.0
            error = abs(q[i, b, actions[i, b]] - target).item()
            expected += (0.5 * error**2 if error < 1 else error - 0.5) / 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_an_update_scales_shared_gradients_and_moves_targets_by_their_rates():
    args = small_args(critic_tau=0.25, policy_tau=0.5, critic_max_grad_norm=1e9, debug_true_reward=True)
    torch.manual_seed(0)
    nets = madaac.make_networks(*SIZES, args)
    before, learner = copy.deepcopy(nets), random_batch(1)
    torch.manual_seed(9)
    madaac.update(learner, random_batch(2)[:3], nets, args, 25)
    torch.manual_seed(9)
    batch = (*learner[:3], learner[3] / 25, learner[4])
    madaac.critic_loss(batch, before.critic, before.target_critic, before.target_policies, args)[0].backward()
    shared = {id(parameter) for parameter in nets.critic.shared_parameters()}
    for new, old in zip(nets.critic.parameters(), before.critic.parameters()):
        torch.testing.assert_close(new.grad * (3 if id(new) in shared else 1), old.grad, atol=1e-6, rtol=1e-4)
    for name, tau in (("critic", 0.25), ("policies", 0.5)):
        moved = [getattr(nets, f"target_{name}"), getattr(before, f"target_{name}"), getattr(nets, name)]
        for target, old, online in zip(*(module.parameters() for module in moved)):
            torch.testing.assert_close(target, (1 - tau) * old + tau * online)


@pytest.mark.parametrize("before", [False, True])
def test_log_pi_of_the_discriminator_is_from_before_or_after_the_policy_step(before, monkeypatch):
    args = small_args(log_prob_before_policy_step=before, policy_lr=0.1)
    torch.manual_seed(0)
    nets = madaac.make_networks(*SIZES, args)
    old_policies, disc = copy.deepcopy(nets.policies), copy.deepcopy(nets.discriminators)
    logits, plain = [], madaac.discriminator_loss

    def spy(given, *rest):
        logits.append(given.detach())
        return plain(given, *rest)

    monkeypatch.setattr(madaac, "discriminator_loss", spy)
    learner, expert = random_batch(1), random_batch(2)[:3]
    madaac.update(learner, expert, nets, args, 25)
    obs, next_obs, actions = (torch.cat([learner[k], expert[k]], 1) for k in range(3))
    policies = old_policies if before else nets.policies
    with torch.no_grad():
        expected = disc(obs, actions, next_obs) - madaac.taken(policies(obs)[1], actions)
    torch.testing.assert_close(logits[0], expected, atol=1e-5, rtol=1e-5)


def test_an_interruption_ends_episodes_in_the_buffer():
    buffer = madaac.ReplayBuffer(100, 2, 1, 1)
    for t in range(3):
        values = np.full((2, 1, 1), float(t), dtype=np.float32)
        none = np.zeros(2, dtype=bool)
        buffer.add(values, np.zeros((2, 1)), np.zeros((2, 1)), none, none, values + 1, values + 1)
    buffer.cut(torch.full((2, 1, 1), 3.0))
    fresh = np.full((2, 1, 1), 50.0, dtype=np.float32)
    buffer.add(fresh, np.zeros((2, 1)), np.zeros((2, 1)), none, none, fresh + 1, fresh + 1)
    obs, next_obs, *_ = buffer.sample(200)
    assert torch.equal(next_obs, obs + 1)


def test_a_checkpoint_of_the_buffer_holds_only_what_was_written(tmp_path):
    buffer = madaac.ReplayBuffer(100_000, 10, 3, 16)
    torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
    assert (tmp_path / "buffer.pt").stat().st_size < 50_000


def test_log_pi_is_clamped():
    nets = madaac.make_networks(*SIZES, small_args(log_prob_min=-2.0))
    with torch.no_grad():
        nets.policies.layers[2].bias[:, :, 0] = 50.0  # action 0 for sure: all others have log pi of about -50
    seen = madaac.update(random_batch(1), random_batch(2)[:3], nets, small_args(log_prob_min=-2.0), 25)
    assert seen["log_pi"].min() == -2.0


def test_discriminator_learns_to_tell_two_fixed_batches_apart():
    torch.manual_seed(0)
    args = small_args(disc_lr=5e-3, policy_lr=1e-6)
    nets = madaac.make_networks(*SIZES, args)
    learner, expert = random_batch(1, batch=64), random_batch(2, batch=64)[:3]
    first = madaac.update(learner, expert, nets, args, 25)
    for _ in range(200):
        last = madaac.update(learner, expert, nets, args, 25)
    assert last["disc_loss"] < 0.3 * first["disc_loss"]
    assert min(last["accuracy_expert"], last["accuracy_learner"]) > 0.9
    assert last["reward"].mean() < first["reward"].mean()  # the learner's reward falls when it is found out


@pytest.mark.parametrize("capacity", [3000, 90])
def test_replay_buffer_gives_true_successors_across_episode_ends(capacity):
    envs = env_utils.make_envs(TASK, 3, 0)
    act = env_utils.random_actions(envs.num_actions, 0)
    buffer = madaac.ReplayBuffer(capacity, 3, 2, 11)
    obs, history = envs.reset(), []
    for _ in range(130):
        actions = act(obs)
        next_obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        buffer.add(obs, actions, rewards, terminated, terminated | truncated, next_obs, final_obs)
        step = zip(obs, actions, rewards, final_obs)
        history.append([(o.tobytes(), a.tolist(), r.tolist(), f.tobytes()) for o, a, r, f in step])
        obs = next_obs
    kept = [row for step in history[-(capacity // 3) :] for row in step]
    assert len(buffer) == len(kept)
    known = {row[0]: row for row in kept}
    torch.manual_seed(0)
    b_obs, b_next_obs, b_actions, b_rewards, _ = (part for part in buffer.sample(4000))
    seen = set()
    for k in range(4000):
        o, f = (x[:, k].contiguous().numpy().tobytes() for x in (b_obs, b_next_obs))
        assert o in known, "a transition that was overwritten"
        seen.add(o)
        _, actions, rewards, successor = known[o]
        assert successor == f
        assert actions == b_actions[:, k].tolist()
        assert rewards == b_rewards[:, k].tolist()
    assert len(seen) > 0.99 * len(known)  # all of them are drawn

    again = madaac.ReplayBuffer(capacity, 3, 2, 11)
    again.load_state_dict(buffer.state_dict())
    torch.manual_seed(5)
    one = buffer.sample(500)
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(one, again.sample(500)))


# The script


def run(*arguments, check=True, **kwargs):
    command = [sys.executable, str(ROOT / "madaac_discrete.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if check:
        assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def demos_file(tmp_path_factory):
    """Demonstrations by a script: the speaker names the goal, the listener goes where it is told."""
    path = tmp_path_factory.mktemp("demos") / "mine.npz"

    def act(obs):
        speaker, listener = obs[:, 0, :3].argmax(-1), obs[:, 1]
        heard = listener[:, 8:11].argmax(-1)
        offset = listener[:, 2:8].reshape(-1, 3, 2)[np.arange(len(obs)), heard] - 0.3 * listener[:, :2]
        along_x = np.abs(offset[:, 0]) > np.abs(offset[:, 1])
        move = np.where(along_x, np.where(offset[:, 0] > 0, 1, 2), np.where(offset[:, 1] > 0, 3, 4))
        silent = listener[:, 8:11].sum(-1) == 0
        return np.stack([speaker, np.where(silent, 0, move)], 1)

    _, demos = env_utils.play_episodes(TASK, act, 60, seed=0, record=True)
    env_utils.save_demos(path, demos)
    return path


def small(folder, demos, **changes):
    options = {
        "env-id": TASK, "demos": demos, "runs": folder / "runs", "seed": 3, "total-timesteps": 6000, "batch-size": 256,
        "hidden-size": 32, "torch-threads": 1, "eval-episodes": 20, "log-every": 500, "buffer-size": 4000,
    } | changes  # fmt: skip
    return [part for name, value in options.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, demos_file):
    folder = tmp_path_factory.mktemp("madaac")
    output = run(*small(folder, demos_file)).stdout
    return next((folder / "runs").iterdir()), output


def test_end_to_end_writes_everything(finished):
    run_folder, output = finished
    assert "NSS" in output
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["steps"] == 6000
    assert set(summary["stochastic"]["scores"]) == {"speaker_0", "listener_0"}
    for name in ("config.json", "checkpoint.pt", "policy.safetensors", "reward.safetensors"):
        assert (run_folder / name).stat().st_size > 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder))
    events.Reload()
    assert len(events.Scalars("charts/nss")) >= 5
    for whom in ("expert", "unseen_expert", "learner"):
        assert len(events.Scalars(f"discriminator/accuracy_{whom}")) >= 5
    assert np.isfinite([point.value for tag in events.Tags()["scalars"] for point in events.Scalars(tag)]).all()


def test_resume_after_sigkill_ends_in_the_same_bits_as_an_undisturbed_run(finished, tmp_path, demos_file):
    arguments = [*small(tmp_path, demos_file), "--save-every", "0"]
    command = [sys.executable, str(ROOT / "madaac_discrete.py"), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(2400):
        time.sleep(0.05)
        saved = list((tmp_path / "runs").glob("*/checkpoint.pt"))
        if saved and saved[0].stat().st_size > 0 and env_utils.load_checkpoint(saved[0])["step"] > 2000:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run_folder = next((tmp_path / "runs").iterdir())
    assert not (run_folder / "summary.json").exists(), "the run ended before it could be killed"
    run("--resume", run_folder)
    for name in ("policy.safetensors", "reward.safetensors"):
        assert (run_folder / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_run_made_longer_ends_in_the_same_bits_as_one_that_was_long_from_the_start(finished, tmp_path, demos_file):
    run(*small(tmp_path, demos_file, **{"total-timesteps": 3000}))
    run_folder = next((tmp_path / "runs").iterdir())
    run("--resume", run_folder, "--total-timesteps", 6000)
    for name in ("policy.safetensors", "reward.safetensors"):
        assert (run_folder / name).read_bytes() == (finished[0] / name).read_bytes()


@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
def test_it_imitates(tmp_path, demos_file, kind):
    """Short runs must leave random play (NSS 0, within 0.05 over 200 episodes) far behind; broken rewards cannot."""
    changes = {
        "eval-episodes": 200,
        "total-timesteps": 60_000,
        "buffer-size": 60_000,
        "hidden-size": 64,
        "discriminator": kind,
    }
    run(
        *small(tmp_path, demos_file, **changes), "--updates-per-period", 2, "--policy-tau", 0.005, "--critic-tau", 0.005
    )
    summary = json.loads(next((tmp_path / "runs").glob("*/summary.json")).read_text())
    assert max(summary["greedy"]["nss"], summary["stochastic"]["nss"]) > 0.4, summary


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--env-id", "simple_crypto"], "train_expert_maac.py --env-id simple_crypto"),
        (["--demos", "nothing.npz"], "no such file"),
        (["--demos", "MINE", "--n-demos", "61"], "61 demonstrations asked for"),
        (["--demos", "MINE", "--n-demos", "0"], "--n-demos must be at least 1"),
        (["--demos", "MINE", "--env-id", "simple_speaker_listener"], "another task"),
        (["--demos", "a_folder"], "/a_folder: no such file"),
        (["--demos", "MINE", "--total-timesteps", "2000"], "at least one episode"),
        (["--demos", "MINE", "--learning-starts", "2000000"], "--learning-starts"),
        (["--demos", "MINE", "--attention-heads", "3"], "--attention-heads"),
        (["--demos", "MINE", "--disc-actions", "--no-disc-actions"], "exclude one another"),
        (["--resume", "nowhere"], "nothing to resume"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, complaint, tmp_path, monkeypatch, capsys, demos_file):
    arguments = [str(demos_file) if part == "MINE" else part for part in arguments]
    if "--env-id" not in arguments:
        arguments += ["--env-id", TASK]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["madaac_discrete.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "madaac_discrete.py"), run_name="__main__")
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert complaint in lines[0]
    assert not list(tmp_path.iterdir()), "something was written"


def test_a_discriminator_kind_that_does_not_exist_is_refused(tmp_path):
    done = run("--discriminator", "single", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "decentralized" in done.stderr
    assert "Traceback" not in done.stderr
