"""Short trainings that must learn: a flipped sign, a lost gradient or a wrong reward cannot pass.

Run them with `python -m pytest -m slow`. Random play has NSS 0, within 0.05 over 200 episodes.
"""

import functools
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import madaac_discrete
import magail_mack
import mairl_mack
import retrain
import train_expert_maac
from env_utils import make_envs, record_episodes
from madaac_utils.demos import demos_from_episodes, save_demos
from madaac_utils.files import write_json
from madaac_utils.rewards import learned_reward_env, save_reward

pytestmark = pytest.mark.slow
TASK = "cooperative_communication"
KINDS = pytest.mark.parametrize("kind", ["decentralized", "centralized"])
LEARNERS = pytest.mark.parametrize("learner", ["mack", "maac"])


@pytest.fixture
def train(tmp_path):
    """Run a script in this process and return the summary of its run."""

    def run(script, **arguments) -> dict:
        small = {"seed": 3, "hidden_size": 64, "eval_episodes": 200, "runs": str(tmp_path / "runs")}
        script.main(script.Args(**(small | arguments)))
        return json.loads(next((tmp_path / "runs").glob("*/summary.json")).read_text())

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def demos_file(tmp_path_factory) -> Path:
    """Demonstrations by a rule: the speaker names the goal, the listener goes where it is told."""

    def act(obs: np.ndarray) -> np.ndarray:
        speaker, listener = obs[:, 0, :3].argmax(-1), obs[:, 1]
        heard = listener[:, 8:11].argmax(-1)
        offset = listener[:, 2:8].reshape(-1, 3, 2)[np.arange(len(obs)), heard] - 0.3 * listener[:, :2]
        along_x = np.abs(offset[:, 0]) > np.abs(offset[:, 1])
        move = np.where(along_x, np.where(offset[:, 0] > 0, 1, 2), np.where(offset[:, 1] > 0, 3, 4))
        silent = listener[:, 8:11].sum(-1) == 0
        return np.stack([speaker, np.where(silent, 0, move)], 1)

    path = tmp_path_factory.mktemp("demos") / "rule.npz"
    save_demos(path, demos_from_episodes(TASK, record_episodes(TASK, act, 60, seed=0), {}))
    return path


@pytest.fixture(scope="module")
def run_with_a_known_reward(tmp_path_factory) -> Path:
    """A run folder whose reward is written by hand.

    The listener is paid -|x| - |y| of the offset to the landmark that its message names, with the message as a switch:
    relu(x - 10 (1 - message)). The speaker is paid for naming the goal that it sees.
    """
    folder = tmp_path_factory.mktemp("known") / "run"
    envs = make_envs(TASK, 1)
    discriminators = madaac_discrete.Discriminators(envs, madaac_discrete.Args(hidden_size=16))
    with torch.no_grad():
        for parameter in discriminators.parameters():
            parameter.zero_()
        first, second, out = (module for module in discriminators.reward_network if hasattr(module, "weight"))
        for k in range(3):
            # Speaker (agent 0): colour k of the goal and message k, after 11 padded observations, exceed 1.1 together.
            first.weight[0, k, k], first.weight[0, 11 + k, k], first.bias[0, 0, k] = 1.0, 1.0, -1.1
            second.weight[0, k, k], out.weight[0, k, 0] = 1.0, 10.0
            # Listener (agent 1): observations 2 + 2 k and 3 + 2 k are x and y of landmark k, 8 + k is message k.
            for axis in range(2):
                for sign in range(2):
                    unit = 4 * k + 2 * axis + sign
                    first.weight[1, 2 + 2 * k + axis, unit] = 1.0 - 2.0 * sign
                    first.weight[1, 8 + k, unit], first.bias[1, 0, unit] = 10.0, -10.0
                    second.weight[1, unit, unit], out.weight[1, unit, 0] = 1.0, -1.0
    save_reward(folder / "reward.safetensors", discriminators, envs)
    write_json(folder / "config.json", {"args": {"env_id": TASK, "demos": ""}})
    return folder


@KINDS
def test_madaac_imitates(train, demos_file, kind):
    summary = train(
        madaac_discrete, env_id=TASK, demos=str(demos_file), discriminator=kind, total_timesteps=60_000,
        buffer_size=60_000, batch_size=256, updates_per_period=2, policy_tau=0.005, critic_tau=0.005,
    )  # fmt: skip
    assert max(summary["greedy"]["nss"], summary["stochastic"]["nss"]) > 0.4


@KINDS
@pytest.mark.parametrize("script", [mairl_mack, magail_mack], ids=["mairl_mack", "magail_mack"])
def test_scripts_on_mack_imitate(train, script, kind):
    """With the sign of its reward flipped, MA-AIRL ends at an NSS of -1.6 here."""
    summary = train(script, env_id=TASK, discriminator=kind, total_timesteps=100_000, disc_memory=0)
    assert summary["stochastic"]["nss"] > 0.2


def test_mack_learns_from_the_true_reward(train):
    changes = {"disc_batch_size": 300, "disc_memory": 1200, "disc_updates": 2}
    summary = train(mairl_mack, env_id=TASK, total_timesteps=100_000, true_reward=True, **changes)
    assert summary["stochastic"]["nss"] > 0.3


def test_maac_learns_an_expert(train, tmp_path):
    """1,600 small updates"""
    train(
        train_expert_maac, env_id=TASK, experts=str(tmp_path), total_timesteps=80_000, eval_every=40_000,
        selection_episodes=20, eval_episodes=30, store_demos=20, batch_size=256, updates_per_period=2, alpha=0.003,
    )  # fmt: skip
    scores = json.loads((tmp_path / TASK / "card.json").read_text())["scores"]
    assert scores["expert"]["listener_0"]["mean"] > scores["random"]["listener_0"]["mean"] + 12


def retrain_briefly(train, monkeypatch, learner: str, **changes) -> dict:
    if learner == "mack":
        return train(retrain, rl=learner, num_envs=40, total_timesteps=100_000, **changes)
    # A short run has no time for slow target networks.
    faster = functools.partial(madaac_discrete.Args, policy_tau=0.01, critic_tau=0.01, buffer_size=50_000)
    monkeypatch.setattr(retrain.maac, "Args", faster)
    settings = {"batch_size": 256, "updates_per_period": 4}
    return train(retrain, rl=learner, num_envs=40, total_timesteps=50_000, **settings, **changes)


@LEARNERS
def test_a_good_reward_makes_a_good_policy(train, monkeypatch, run_with_a_known_reward, learner):
    summary = retrain_briefly(train, monkeypatch, learner, run=str(run_with_a_known_reward))
    assert summary["stochastic"]["nss"] > 0.4


@LEARNERS
def test_training_on_the_true_reward_learns_with_a_correlation_of_one(train, monkeypatch, learner):
    summary = retrain_briefly(train, monkeypatch, learner, env_id=TASK, true_reward=True)
    assert summary["pcc"] == pytest.approx(1.0)
    assert summary["stochastic"]["nss"] > 0.3


def test_an_independent_client_learns_from_the_recovered_reward(run_with_a_known_reward):
    """Cross-entropy search for what the speaker should say, through nothing but PettingZoo's interface."""
    env = learned_reward_env(run_with_a_known_reward)
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
    assert paid_to_the_speaker(mean, 12) > before + 2
