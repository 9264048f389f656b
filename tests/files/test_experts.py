"""The shipped experts are what their cards say, and experts are recorded the same way twice."""

import json
import shutil

import numpy as np
import pytest

from env_utils import make_envs, play_episodes, random_actions
from madaac_utils.demos import RANDOM_SEED, load_card, load_demos, reference_scores, save_demos
from madaac_utils.evaluation import EVALUATION_SEED, evaluate
from madaac_utils.experts import RECORDING_SEED, SELECTION_SEED, agents_compete
from madaac_utils.files import EXPERTS, UserError, sha256
from madaac_utils.policies import load_policy
from madaac_utils.scores import mean_and_interval, too_close
from particle_envs import TASK_IDS
from tests.running import ROOT, run

TASK = "cooperative_communication"
SHIPPED = [task for task in TASK_IDS if (EXPERTS / task / "card.json").is_file()]
shipped = pytest.mark.parametrize("task", SHIPPED)


def test_experts_are_shipped():
    assert {"keep_away", TASK, "cooperative_navigation", "rover_tower_8", "simple_tag"} <= set(SHIPPED)


@shipped
def test_the_files_of_an_expert_are_those_of_its_card(task):
    folder, card = EXPERTS / task, load_card(task)
    for name in ("policy.safetensors", "demos.npz"):
        assert sha256(folder / name) == card["sha256"][name]
        assert (folder / name).stat().st_size < 4_000_000
    envs = make_envs(task, 1)
    demos = load_demos(task, envs)
    assert len(demos) == card["demonstrations"] == 200 and demos.env_id == card["env_id"] == task
    # What was recorded is the greedy policy.
    obs, actions, _ = demos.transitions()
    chosen = load_policy(folder / "policy.safetensors", envs).greedy(obs.transpose(0, 1).numpy())
    assert (chosen == actions.T.numpy()).mean() > 0.9999  # ties are rounded otherwise on other processors
    expert, _ = reference_scores(task)["expert"]
    assert (np.abs(demos.returns().mean(0) - expert) < 4 * demos.returns().std(0) / np.sqrt(len(demos))).all()


@shipped
def test_the_expert_has_an_nss_of_one_and_random_play_of_zero(task):
    """On fresh episodes, within four standard errors: there are many agents to compare."""
    envs, references = make_envs(task, 1), reference_scores(task)
    players = {
        "expert": load_policy(EXPERTS / task / "policy.safetensors", envs).greedy,
        "random": random_actions(envs.num_actions, seed=5),
    }
    found = evaluate(task, players, references, 500, seed=7)
    for name, expected in (("expert", 1.0), ("random", 0.0)):
        score, half = references[name]
        assert (np.abs(found[name]["score"] - score) < 4 / 1.96 * np.hypot(half, found[name]["interval_95"])).all()
        nss, interval = np.array(found[name]["nss"]), np.array(found[name]["nss_interval_95"])
        assert (np.abs(nss - expected) < 4 / 1.96 * interval).all()
        assert ((interval < 0.4) | too_close(references)).all()  # so that the line above says something
        assert abs(found[name]["nss_mean"] - expected) < 4 / 1.96 * found[name]["nss_mean_interval_95"]


def test_a_card_beside_other_demonstrations_is_refused(tmp_path):
    folder = tmp_path / TASK
    shutil.copytree(EXPERTS / TASK, folder)
    reference_scores(TASK, expert_folder=folder)
    save_demos(folder / "demos.npz", load_demos(TASK)[:5])
    with pytest.raises(UserError, match=f"--record-only {folder} --experts {tmp_path}"):
        reference_scores(TASK, expert_folder=folder)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"scores": 5}', '{"scores": {"expert": []}}', '{"scores": {"expert": {"speaker_0": {}}}}'],
)
def test_a_damaged_card_is_refused(tmp_path, content):
    shutil.copytree(EXPERTS / TASK, tmp_path / TASK)
    (tmp_path / TASK / "card.json").write_text(content)
    with pytest.raises(UserError, match="card.json"):
        reference_scores(TASK, expert_folder=tmp_path / TASK)
    words = ["--env-id", TASK, "--record-only", tmp_path / TASK, "--eval-episodes", 4, "--store-demos", 2]
    ended = run("train_expert_maac.py", *words, "--experts", tmp_path / "again")
    assert ended.code == (2 if content in ("", "{", "[]") else 0) and "Traceback" not in ended.err


def test_a_task_without_an_expert_names_the_command_that_trains_one():
    with pytest.raises(UserError, match="train_expert_maac.py --env-id simple_crypto"):
        reference_scores("simple_crypto")


@pytest.mark.parametrize(
    "task, rivals",
    [(task, True) for task in ("keep_away", "simple_tag", "simple_adversary", "simple_push")]
    + [(task, False) for task in ("cooperative_navigation", "rover_tower_8", "rover_tower_16", "simple_spread")],
)
def test_competing_agents_are_recognised(task, rivals):
    assert agents_compete(task, make_envs(task, 1).num_actions) == rivals


def test_episodes_that_choose_record_and_judge_have_different_seeds():
    """Every 500 episodes take the next seed."""
    seeds = sorted([0, SELECTION_SEED, RECORDING_SEED, RANDOM_SEED, EVALUATION_SEED])
    assert np.diff(seeds).min() > 1_000_000


def test_recording_twice_gives_the_same_demonstrations(tmp_path):
    words = ["--env-id", "rover_tower_8", "--record-only", EXPERTS / "rover_tower_8", "--eval-episodes", 40]
    for name in ("a", "b"):
        ended = run("train_expert_maac.py", *words, "--store-demos", 5, "--experts", tmp_path / name)
        assert ended.code == 0, ended.err
    a, b = (load_demos(tmp_path / name / "rover_tower_8" / "demos.npz") for name in ("a", "b"))
    assert len(a) == 5 and np.array_equal(a.obs, b.obs) and np.array_equal(a.actions, b.actions)
    card = json.loads((tmp_path / "a" / "rover_tower_8" / "card.json").read_text())
    assert card["training"] == load_card("rover_tower_8")["training"]
    # The agents of one episode are not independent: the interval of their mean is that of the means of episodes.
    policy = load_policy(EXPERTS / "rover_tower_8" / "policy.safetensors")
    returns = play_episodes("rover_tower_8", policy.greedy, 40, RECORDING_SEED)
    for found, played in (
        (card["mean_over_agents"]["expert"], returns.mean(1, keepdims=True)),
        (card["scores"]["expert"]["rover_0"], returns[:, [0]]),
    ):
        (mean,), (half,) = mean_and_interval(played)
        assert found == {"mean": pytest.approx(mean), "interval_95": pytest.approx(half)}


def test_an_agent_that_scores_less_than_random_play_is_pointed_out(tmp_path):
    words = ["--env-id", "keep_away", "--record-only", ROOT / "experts" / "keep_away", "--experts", tmp_path]
    output = run("train_expert_maac.py", *words, "--store-demos", 2).out
    lines = {line.split()[0]: line for line in output.splitlines() if "_0" in line}
    assert "<-" in lines["pusher_0"] and "<-" not in lines["reacher_0"]
    assert "warning" not in output
