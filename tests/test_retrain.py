"""retrain.py: correlations, both learners end to end on a frozen reward, resuming, and mistakes."""

import inspect
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import env_utils
import madaac_discrete as madaac
import mairl_mack as mairl
import retrain

ROOT = Path(__file__).resolve().parent.parent
TASK = "cooperative_communication"


def test_pearson_equals_numpys_and_is_undefined_without_variance():
    rng = np.random.default_rng(0)
    learned, true = rng.normal(size=(2, 300, 3)).astype(np.float32)
    true[:, 1] = 2 * learned[:, 1] + 5
    learned[:, 2] = 4.0
    found = retrain.pearson(learned, true)
    assert found[0] == pytest.approx(np.corrcoef(learned[:, 0], true[:, 0])[0, 1], abs=1e-6)
    assert found[1] == pytest.approx(1.0)
    assert np.isnan(found[2])
    learned[::2, 2] = np.nextafter(np.float32(4.0), np.float32(5.0))  # constant but for rounding
    assert np.isnan(retrain.pearson(learned, true)[2])


@pytest.mark.parametrize(
    "name", ["FewOutputs", "StackedLinear", "StackedMLP", "sample", "taken", "Values", "KFAC", "generalized_advantages"]
)
def test_mack_is_that_of_mairl_mack(name):
    assert inspect.getsource(getattr(retrain, name)) == inspect.getsource(getattr(mairl, name))


@pytest.mark.parametrize("name", ["attend", "AttentionCritic", "policy_loss", "clip_each_agent", "move_target"])
def test_maac_is_that_of_madaac_discrete(name):
    assert inspect.getsource(getattr(retrain, name)) == inspect.getsource(getattr(madaac, name))


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_mack_update_equals_that_of_mairl_mack(bootstrap):
    """The same weights, rollout and random numbers into both."""
    sizes = (np.array([4, 7, 3]), np.array([5, 3, 2]))
    envs = SimpleNamespace(obs_sizes=sizes[0], num_actions=sizes[1], episode_length=5)
    options = {"hidden_size": 16, "num_envs": 8, "num_steps": 5, "timeout_bootstrap": bootstrap}
    args, theirs = retrain.Args(**options), mairl.Args(**options)
    learner = retrain.Mack(envs, args, torch.device("cpu"))
    nets = mairl.make_networks(*sizes, theirs)
    nets.policies.load_state_dict(learner.nets.policies.state_dict())
    nets.values.load_state_dict(learner.nets.values.state_dict())
    rollout = learner.rollout
    torch.manual_seed(0)
    for name in ("obs", "final_obs", "rewards"):
        getattr(rollout, name).normal_()
    rollout.actions = torch.stack([torch.randint(int(n), (5, 8)) for n in sizes[1]], -1)
    rollout.done[2, 3] = rollout.done[4] = True
    for k in range(3):
        results = []
        for module, networks, arguments in ((retrain, learner.nets, args), (mairl, nets, theirs)):
            torch.manual_seed(k)
            parts = module.advantages_and_returns(rollout, rollout.rewards, networks, arguments)
            module.mack_update(rollout, *parts, networks, arguments)
            results.append([*parts, *networks.policies.parameters(), *networks.values.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*results))


def test_a_maac_update_equals_that_of_madaac_discrete():
    """On the true reward, with the same weights, batch and random numbers."""
    sizes = (np.array([4, 7, 3]), np.array([5, 3, 2]))
    envs = SimpleNamespace(obs_sizes=sizes[0], num_actions=sizes[1])
    options = {"hidden_size": 16, "attention_heads": 2, "buffer_size": 100, "critic_tau": 0.1, "policy_tau": 0.2}
    learner = retrain.Maac(envs, retrain.Args(**options), torch.device("cpu"))
    theirs = madaac.Args(**options, debug_true_reward=True)
    nets = madaac.make_networks(*sizes, theirs)
    policies = {name.removeprefix("mlp."): part for name, part in learner.nets.policies.state_dict().items()}
    for name in ("policies", "target_policies"):
        getattr(nets, name).load_state_dict(policies)
    for name in ("critic", "target_critic"):
        getattr(nets, name).load_state_dict(learner.nets.critic.state_dict())
    torch.manual_seed(0)
    obs, next_obs = torch.randn(2, 3, 20, 7)
    for i, size in enumerate(sizes[0]):
        obs[i, :, size:] = next_obs[i, :, size:] = 0.0
    actions = torch.stack([torch.randint(int(n), (20,)) for n in sizes[1]])
    rewards, terminated = torch.randn(3, 20), (torch.arange(20) % 7 == 0).float()
    for k in range(3):
        torch.manual_seed(k)
        learner.update([obs, next_obs, actions, rewards / 25, terminated])
        torch.manual_seed(k)
        madaac.update([obs, next_obs, actions, rewards, terminated], [obs, next_obs, actions], nets, theirs, 25)
        for name in ("policies", "target_policies", "critic", "target_critic"):
            for one, other in zip(getattr(learner.nets, name).parameters(), getattr(nets, name).parameters()):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def scripted_run(tmp_path_factory):
    """A run whose reward is known: minus the listener's distance to the landmark it is told, nearly.

    g of the listener is a network by hand: -|x| - |y| of the offset to the landmark of its message, with the message
    as a switch: relu(x - 10 (1 - message)). The speaker is paid for naming the goal it sees.
    """
    folder = tmp_path_factory.mktemp("scripted") / "run"
    envs = env_utils.make_envs(TASK, 1)
    args = madaac.Args(hidden_size=16)
    disc = madaac.make_networks(envs.obs_sizes, envs.num_actions, args).discriminators
    with torch.no_grad():
        for parameter in disc.parameters():
            parameter.zero_()
        first, second, out = disc.g.layers
        for k in range(3):
            # Speaker (agent 0): goal colour k and message k (after 11 padded observations), both: above 1.1
            first.weight[0, k, k], first.weight[0, 11 + k, k], first.bias[0, 0, k] = 1.0, 1.0, -1.1
            second.weight[0, k, k], out.weight[0, k, 0] = 1.0, 10.0
            # Listener (agent 1): observation 2 + 2 k is x, 3 + 2 k is y of landmark k; 8 + k the message k
            for axis in range(2):
                for sign in range(2):
                    unit = 4 * k + 2 * axis + sign
                    first.weight[1, 2 + 2 * k + axis, unit] = 1.0 - 2.0 * sign
                    first.weight[1, 8 + k, unit], first.bias[1, 0, unit] = 10.0, -10.0
                    second.weight[1, unit, unit], out.weight[1, unit, 0] = 1.0, -1.0
    header = {"decentralized": True, "sees_actions": True, "reward": "g"}
    env_utils.save_reward(folder / "reward.safetensors", disc.state_dict(), header, TASK, envs)
    env_utils.write_json(folder / "config.json", {"args": {"env_id": TASK, "demos": ""}})
    return folder


def run(*arguments):
    command = [sys.executable, str(ROOT / "retrain.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def small(folder, learner="mack", **changes):
    options = {
        "runs": folder / "runs", "seed": 3, "total-timesteps": 6000, "num-envs": 20, "hidden-size": 32,
        "eval-episodes": 20, "log-every": 500, "rl": learner,
    }  # fmt: skip
    options |= ({"batch-size": 128, "buffer-size": 4000} if learner == "maac" else {}) | changes
    return [part for name, value in options.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module", params=["mack", "maac"])
def finished(request, tmp_path_factory, scripted_run):
    folder = tmp_path_factory.mktemp(request.param)
    run("--run", scripted_run, *small(folder, request.param))
    return request.param, next((folder / "runs").iterdir())


def test_end_to_end_logs_nss_and_pcc(finished, scripted_run):
    learner, run_folder = finished
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["rl"] == learner
    assert summary["reward_of"] == str(scripted_run.resolve())
    assert -1 <= summary["pcc"] <= 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder))
    events.Reload()
    for tag in ("charts/nss", "charts/pcc", "charts/pcc-listener_0"):
        assert len(events.Scalars(tag)) >= 5
    command = [sys.executable, str(ROOT / "eval_nss.py"), str(run_folder), "--episodes", "20", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found[0]["env_id"] == TASK


def test_resume_after_sigkill_ends_in_the_same_bits_as_an_undisturbed_run(finished, tmp_path, scripted_run):
    learner, undisturbed = finished
    options = ["--run", scripted_run, *small(tmp_path, learner), "--save-every", 0]
    command = [sys.executable, str(ROOT / "retrain.py"), *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(6000):
        time.sleep(0.02)
        saved = list((tmp_path / "runs").glob("*/checkpoint.pt"))
        if saved and env_utils.load_checkpoint(saved[0])["step"] >= 2000:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run_folder = next((tmp_path / "runs").iterdir())
    assert env_utils.load_checkpoint(run_folder / "checkpoint.pt")["step"] < 6000, "ended before it could be killed"
    run("--resume", run_folder)
    name = "policy.safetensors"
    assert (run_folder / name).read_bytes() == (undisturbed / name).read_bytes()


@pytest.mark.parametrize("learner", ["mack", "maac"])
def test_what_a_learner_is_told(monkeypatch, tmp_path, scripted_run, learner):
    """The reward of observation and action, over the episode length; when episodes are over, and with what."""
    told, args = [], {"run": str(scripted_run), "rl": learner, "num_envs": 4, "total_timesteps": 4 * 60}
    args |= {"runs": str(tmp_path), "eval_episodes": 2, "hidden_size": 16}
    args |= {"learning_starts": 40} if learner == "maac" else {}
    original = {"mack": retrain.Mack, "maac": retrain.Maac}[learner]

    class Recorder(original):
        def learn(self, transition, step, rate):
            told.append({name: part.clone() for name, part in transition.items()})
            return super().learn(transition, step, rate)

    monkeypatch.setattr(retrain, original.__name__, Recorder)
    handler = signal.getsignal(signal.SIGINT)
    try:
        retrain.main(retrain.Args(**args))
    finally:
        signal.signal(signal.SIGINT, handler)
    reward = env_utils.learned_reward(scripted_run)
    assert len(told) == 60
    for k, now in enumerate(told):
        np.testing.assert_allclose(now["rewards"] * 25, reward(now["obs"], now["actions"]), rtol=1e-5)
        assert not now["terminated"].any()
        over = (k + 1) % 25 == 0
        if learner == "mack":
            assert now["done"].all() == now["done"].any() == over
            assert torch.equal(now["time_over"], torch.full((4,), k % 25 / 25))
        if k + 1 < len(told):
            assert torch.equal(now["final_obs"], told[k + 1]["obs"]) != over


@pytest.mark.parametrize("learner", ["mack", "maac"])
def test_a_good_reward_makes_a_good_policy(tmp_path, scripted_run, learner):
    """The scripted reward leads to the goal: NSS far above random play's 0, and above what is luck in 200 episodes."""
    changes = {"total-timesteps": 100_000 if learner == "mack" else 50_000, "eval-episodes": 200, "hidden-size": 64}
    changes |= {"num-envs": 40, "log-every": 5000}
    if learner == "maac":  # a short run has no time
        changes |= {"batch-size": 256, "buffer-size": 50_000, "updates-per-period": 4}
        changes |= {"policy-tau": 0.01, "critic-tau": 0.01}
    run("--run", scripted_run, *small(tmp_path, learner, **changes))
    summary = json.loads(next((tmp_path / "runs").glob("*/summary.json")).read_text())
    assert summary["stochastic"]["nss"] > 0.4, summary


@pytest.mark.parametrize("learner", ["mack", "maac"])
def test_training_on_the_true_reward_learns_with_a_correlation_of_one(tmp_path, learner):
    changes = {"total-timesteps": 100_000 if learner == "mack" else 50_000, "eval-episodes": 200, "hidden-size": 64}
    changes |= {"num-envs": 40, "log-every": 5000}
    if learner == "maac":
        changes |= {"batch-size": 256, "buffer-size": 50_000, "updates-per-period": 4}
        changes |= {"policy-tau": 0.01, "critic-tau": 0.01}
    run("--true-reward", "--env-id", TASK, *small(tmp_path, learner, **changes))
    summary = json.loads(next((tmp_path / "runs").glob("*/summary.json")).read_text())
    assert summary["pcc"] == pytest.approx(1.0)
    assert summary["stochastic"]["nss"] > 0.3, summary


def with_constant_rewards(scripted_run, folder, agents):
    """A copy of the scripted run whose reward is 0 for some agents."""
    shutil.copytree(scripted_run, folder)
    envs = env_utils.make_envs(TASK, 1)
    path = folder / "reward.safetensors"
    tensors, header = env_utils._load_tensors(path, "reward", ("airl_reward",), envs)
    for name, tensor in tensors.items():
        if name.startswith("g."):
            tensor[agents] = 0.0
    env_utils.save_reward(path, tensors, header, TASK, envs)
    return folder


@pytest.mark.parametrize("constant", [[0], [0, 1]])
def test_an_undefined_correlation_is_missing_and_never_zero(tmp_path, scripted_run, constant):
    source = with_constant_rewards(scripted_run, tmp_path / "source", constant)
    run("--run", source, *small(tmp_path, **{"total-timesteps": 2000}))
    run_folder = next((tmp_path / "runs").iterdir())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder))
    events.Reload()
    found = {tag for tag in events.Tags()["scalars"] if tag.startswith("charts/pcc")}
    pcc = json.loads((run_folder / "summary.json").read_text())["pcc"]
    if constant == [0]:
        assert found == {"charts/pcc", "charts/pcc-listener_0"}
        last = [events.Scalars(tag)[-1].value for tag in sorted(found)]
        assert last[0] == last[1] == pytest.approx(pcc) and pcc != 0
    else:
        assert not found and pcc is None


def test_an_independent_client_learns_from_the_recovered_reward(scripted_run):
    """Cross-entropy search for what the speaker should say, by nothing but PettingZoo's interface."""
    env = env_utils.learned_reward_env(scripted_run)
    rng = np.random.default_rng(0)

    def paid_to_the_speaker(weights: np.ndarray, episodes: int = 6) -> float:
        total = 0.0
        for seed in range(episodes):
            observations, _ = env.reset(seed=seed)
            while env.agents:
                message = int(np.argmax(observations["speaker_0"] @ weights))
                actions = {"speaker_0": message, "listener_0": int(rng.integers(5))}
                observations, rewards, *_ = env.step(actions)
                total += rewards["speaker_0"]
        return total / episodes / 25

    mean, deviation = np.zeros((3, 3)), np.ones((3, 3))
    before = np.mean([paid_to_the_speaker(rng.normal(size=(3, 3))) for _ in range(10)])
    for _ in range(6):
        tries = mean + deviation * rng.normal(size=(20, 3, 3))
        best = tries[np.argsort([paid_to_the_speaker(each) for each in tries])[-5:]]
        mean, deviation = best.mean(0), best.std(0) + 0.1
    after = paid_to_the_speaker(mean, 12)
    assert after > before + 2, (before, after)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "name the run"),
        (["--run", "nowhere"], "there is no run at nowhere"),
        (["--run", "SCRIPTED", "--eigen-every", "0"], "--eigen-every must be at least 1"),
        (["--run", "SCRIPTED", "--num-steps", "1000", "--total-timesteps", "5000"], "the first update comes after"),
        (["--run", "EXPERT"], "has no reward.safetensors"),
        (["--run", "SCRIPTED", "--env-id", "keep_away"], f"is a run on {TASK}"),
        (["--run", "SCRIPTED", "--total-timesteps", "500"], "at least one episode"),
        (["--run", "SCRIPTED", "--num-envs", "-1"], "--num-envs must be at least 1"),
        (["--run", "BROKEN"], "not a readable reward"),
        (["--run", "OTHER_TASK"], f"config.json is of keep_away, reward.safetensors of {TASK}"),
        (["--run", "OTHER_SCRIPT"], "are not of the same run"),
        (["--run", "OTHER_FORM"], "the reward of cooperative_communication is 'nonsense'"),
        (["--run", "OTHER_SHAPE"], "layers.1 of (2, 7, 16) and (2, 1, 16) does not fit its 16 inputs"),
        (["--run", "SCRIPTED", "--demos", "mine.npz"], "--demos is for --true-reward without a --run"),
        (["--true-reward", "--env-id", TASK, "--demos", "mine.npz"], "mine.npz: no such file"),
        (["--run", "SCRIPTED", "--policy-lr", "0.1"], "--policy-lr is for the other learner: --rl mack"),
        (["--run", "SCRIPTED", "--rl", "maac", "--entropy", "0.1"], "--entropy is for the other learner"),
        (["--resume", "nowhere"], "nothing to resume"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, complaint, tmp_path, monkeypatch, capsys, scripted_run):
    broken = tmp_path / "broken"
    shutil.copytree(scripted_run, broken)
    (broken / "reward.safetensors").write_bytes((broken / "reward.safetensors").read_bytes()[:200])
    names = {"EXPERT": env_utils.EXPERTS / TASK, "SCRIPTED": scripted_run, "BROKEN": broken}
    envs = env_utils.make_envs(TASK, 1)
    for name in ("OTHER_TASK", "OTHER_SCRIPT", "OTHER_FORM", "OTHER_SHAPE"):
        names[name] = tmp_path / name
        shutil.copytree(scripted_run, names[name])
    (names["OTHER_TASK"] / "config.json").write_text('{"args": {"env_id": "keep_away"}}')
    of_magail = {"args": {"env_id": TASK, "disc_reward": "log_d"}}
    (names["OTHER_SCRIPT"] / "config.json").write_text(json.dumps(of_magail))
    tensors, header = env_utils._load_tensors(scripted_run / "reward.safetensors", "reward", ("airl_reward",), envs)
    env_utils.save_reward(
        names["OTHER_FORM"] / "reward.safetensors", tensors, header | {"reward": "nonsense"}, TASK, envs
    )
    tensors["g.layers.1.weight"] = torch.zeros(2, 7, 16)
    env_utils.save_reward(names["OTHER_SHAPE"] / "reward.safetensors", tensors, header, TASK, envs)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "argv", ["retrain.py", *(str(names.get(part, part)) for part in arguments)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "retrain.py"), run_name="__main__")
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert complaint in lines[0]
    assert not list(elsewhere.iterdir()), "something was written"
