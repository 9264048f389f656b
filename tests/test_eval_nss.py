"""eval_nss.py, and recovered rewards for other libraries."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec

import env_utils
import eval_nss
import madaac_discrete as madaac
import magail_mack as magail
import mairl_mack as mairl
from particle_envs import TaskError, parallel_env

ROOT = Path(__file__).resolve().parent.parent
TASK = "cooperative_communication"
SHIPPED = sorted(path.parent.name for path in env_utils.EXPERTS.glob("*/card.json"))


def evaluate(*arguments, cwd=ROOT):
    command = [sys.executable, str(ROOT / "eval_nss.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def nss_of(*arguments):
    done = evaluate(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_expert_has_an_nss_of_one_and_random_play_of_zero(env_id):
    """Within four standard errors, as in test_demos_and_files.py: there are many agents to compare."""
    args = eval_nss.Args(episodes=500)
    random = env_utils.random_actions(env_utils.make_envs(env_id, 1).num_actions, 5)
    expert = env_utils.load_policy(env_utils.EXPERTS / env_id / "policy.safetensors").greedy
    found = eval_nss.evaluate(env_id, {"expert_again": expert, "random_again": random}, {}, args)
    for name, expected in (("expert_again", 1.0), ("random_again", 0.0)):
        for agent, nss, half in zip(found["agents"], found[name]["nss"], found[name]["nss_interval_95"]):
            assert abs(nss - expected) < 4 / 1.96 * half
            # Four standard errors are then less than what lies between expert and random play.
            assert half < 0.4 or agent in found["too_close"]
        assert abs(found[name]["nss_mean"] - expected) < 4 / 1.96 * found[name]["nss_mean_interval_95"]


def test_nss_and_its_interval_equal_plain_formulas():
    rng = np.random.default_rng(0)
    returns = rng.normal([-50.0, 3.0], [5.0, 1.0], size=(400, 2))
    references = {
        "expert": (np.array([-40.0, 4.0]), np.array([1.0, 0.1])),
        "random": (np.array([-80.0, 0.0]), np.array([2.0, 0.2])),
    }
    found = eval_nss.nss_with_interval(returns, references)
    for i in range(2):
        expert, random = references["expert"][0][i], references["random"][0][i]
        score = returns[:, i].mean()
        assert found["nss"][i] == pytest.approx((score - random) / (expert - random))
        # The interval of a ratio of independent normal scores, by simulation.
        halves = 1.96 * returns[:, i].std(ddof=1) / 20, references["expert"][1][i], references["random"][1][i]
        a, e, r = (rng.normal(m, h / 1.96, 200_000) for m, h in zip((score, expert, random), halves))
        assert found["interval"][i] == pytest.approx(1.96 * ((a - r) / (e - r)).std(), rel=0.03)


def test_the_interval_of_the_mean_over_agents_takes_them_as_dependent():
    """Returns of agents of an episode vary together, and references are off together, the most that they can be."""
    rng = np.random.default_rng(0)
    returns = np.array([-50.0, 3.0]) + rng.normal(size=(400, 1)) * [5.0, 1.0] + rng.normal(size=(400, 2)) * [2.0, 0.1]
    returns += np.array([-50.0, 3.0]) - returns.mean(0)
    references = {
        "expert": (np.array([-40.0, 4.0]), np.array([1.0, 0.1])),
        "random": (np.array([-80.0, 0.0]), np.array([2.0, 0.2])),
    }
    found = eval_nss.nss_with_interval(returns, references)
    assert found["mean"] == pytest.approx(0.75)
    scores = rng.multivariate_normal(returns.mean(0), np.cov(returns.T) / 400, 200_000)
    expert, random = (mean + half / 1.96 * rng.normal(size=(200_000, 1)) for mean, half in references.values())
    simulated = ((scores - random) / (expert - random)).mean(1)
    assert found["mean_interval"] == pytest.approx(1.96 * simulated.std(), rel=0.03)


def test_paired_nss_and_its_interval_equal_a_bootstrap_over_episodes():
    rng = np.random.default_rng(0)
    layout = rng.normal(size=(300, 1)) * 4  # what an episode does to all three
    random, expert, learner = (layout + rng.normal([a, b], 1.0, size=(300, 2)) for a, b in ((0, 5), (10, 0), (7, 1)))
    found = eval_nss.paired_nss(learner, expert, random)
    rows = rng.integers(300, size=(20_000, 300))
    a, e, r = (returns[rows].mean(1) for returns in (learner, expert, random))  # [20,000, agents]
    assert found["nss"] == pytest.approx((learner.mean(0) - random.mean(0)) / (expert.mean(0) - random.mean(0)))
    assert found["nss"] == pytest.approx([0.7, 0.8], abs=0.03)
    drawn = (a - r) / (e - r)
    assert found["interval"] == pytest.approx(1.96 * drawn.std(0), rel=0.05)
    unknown = eval_nss.paired_nss(learner, random, random)
    assert np.isnan(unknown["nss"]).all()


def test_among_experts_an_agent_is_scored_with_the_company_of_the_expert():
    """The scores of the learner are those of mixed play, an agent at a time; the expert's own are 1 exactly."""
    folder = env_utils.EXPERTS / "simple_tag"
    args = eval_nss.Args(episodes=60)
    policy = env_utils.load_policy(folder / "policy.safetensors")
    players = {"again": policy.greedy, "still": lambda obs: np.zeros(obs.shape[:2], dtype=np.int64)}
    found = eval_nss.among_experts("simple_tag", players, {}, args)
    assert found["again"]["nss"] == [1.0] * 4 and found["again"]["nss_interval_95"] == [0.0] * 4
    for i in range(4):

        def act(obs, i=i):
            actions = policy.greedy(obs)
            actions[:, i] = 0
            return actions

        returns = env_utils.play_episodes("simple_tag", act, 60, env_utils.EVALUATION_SEED)[0][:, i]
        assert found["still"]["score"][i] == returns.mean()
    prey, predators = found["still"]["nss"][3], found["still"]["score"][:3]
    assert prey < 0.9 and len(set(predators)) == 3  # each missing predator is missed by itself


def test_among_experts_by_the_command_line():
    folder = env_utils.EXPERTS / TASK
    found = nss_of(folder, "--among-experts", "--episodes", 20)[0]
    assert found["among_experts"]["greedy"]["nss"] == [1.0, 1.0]


def test_among_experts_needs_the_expert_of_the_demonstrations(tmp_path, capsys):
    folder = env_utils.EXPERTS / TASK
    learned = tmp_path / "run"
    learned.mkdir()
    shutil.copy(folder / "policy.safetensors", learned)
    alone, other = tmp_path / "mine.npz", tmp_path / "other" / "demos.npz"
    shutil.copy(folder / "demos.npz", alone)
    shutil.copytree(env_utils.EXPERTS / "simple_speaker_listener", other.parent)
    shutil.copy(folder / "demos.npz", other)
    args = eval_nss.Args(runs=(str(learned),), among_experts=True, episodes=20)
    cases = ((alone, "no card.json beside it"), (other, "of other demonstrations"), (tmp_path / "gone.npz", "gone.npz"))
    for demos, complaint in cases:
        (learned / "config.json").write_text(json.dumps({"args": {"env_id": TASK, "demos": str(demos)}}))
        with pytest.raises(env_utils.UserError, match=complaint):
            eval_nss.main(args)
        assert not capsys.readouterr().out, "told before anything is played"
    (learned / "config.json").write_text(json.dumps({"args": {"env_id": TASK, "demos": str(folder / "demos.npz")}}))
    eval_nss.main(args)
    assert capsys.readouterr().out.count("alone among experts") == 1


def test_agents_are_too_close_among_experts_by_paired_differences():
    """Keep Away's expert pusher scores 27 points above random pushing, and returns vary by 20 over initial states.

    With 20 episodes, only differences within the same initial states show that the two are apart.
    """
    random = env_utils.random_actions(env_utils.make_envs("keep_away", 1).num_actions, 5)
    found = eval_nss.among_experts("keep_away", {"played": random}, {}, eval_nss.Args(episodes=20))
    assert found["too_close"] == []
    unpaired = {name: tuple(map(np.array, found[name].values())) for name in ("expert", "random")}
    assert env_utils.too_close(found["agents"], unpaired) == ["pusher_0"]
    assert abs(found["played"]["nss"][0]) < 2 * found["played"]["nss_interval_95"][0]


def test_an_expert_below_random_play_is_told_of(capsys):
    """Keep Away's pusher is paid less by the expert's reacher than by a random one."""
    printed = []
    for env_id in ("keep_away", TASK):
        eval_nss.main(eval_nss.Args(policy="expert", env_id=env_id, episodes=5))
        printed.append(capsys.readouterr().out)
    competing, cooperating = printed
    for said in ("warning: pusher_0 scores less as the expert", "note: where agents compete"):
        assert said in competing and said not in cooperating
    with pytest.raises(TaskError, match="unknown task"):  # so there is no expert of it to make
        eval_nss.main(eval_nss.Args(policy="expert", env_id="rover_tower"))


def test_an_agent_without_a_gap_has_no_nss_and_the_rest_have(tmp_path):
    references = {"expert": (np.array([1.0, 5.0]), np.full(2, 0.1)), "random": (np.array([1.0, 0.0]), np.full(2, 0.1))}
    found = eval_nss.nss_with_interval(np.array([[1.0, 2.0], [1.0, 3.0]]), references)
    assert np.isnan(found["nss"][0])
    assert found["mean"] == pytest.approx(0.5)
    env_utils.write_json(tmp_path / "x.json", {"nss": found["nss"].tolist()})
    assert json.loads((tmp_path / "x.json").read_text()) == {"nss": [None, 0.5]}


def test_an_expert_run_cut_short_is_evaluated_with_its_normaliser(tmp_path):
    """Weights that see only normalised observations: a policy that goes by the sign of the first one."""
    envs = env_utils.make_envs(TASK, 1)
    weight, bias = torch.zeros(2, 11, 5), torch.zeros(2, 1, 5)
    weight[:, 0, 1] = 1.0
    stats = {"mean": torch.full((2, 11), 7.0, dtype=torch.float64), "var": torch.ones(2, 11, dtype=torch.float64)}
    state = {"policies": {"layers.0.weight": weight, "layers.0.bias": bias}, "obs_stats": stats}
    policy = eval_nss.policy_of_checkpoint(state, TASK, envs, tmp_path)
    obs = np.full((1, 2, 11), 6.0, dtype=np.float32)
    assert policy.logits(obs)[0, 1, 1] == pytest.approx(-1.0)


def test_agents_whose_references_are_too_close_are_named():
    references = {"expert": (np.array([1.0, 5.0]), np.full(2, 0.5)), "random": (np.zeros(2), np.full(2, 0.5))}
    assert env_utils.too_close(["slow", "fast"], references) == ["slow"]
    table = evaluate(env_utils.EXPERTS / "simple_tag", "--episodes", 5).stdout
    warnings = [line for line in table.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1 and "agent_0" in warnings[0]


def test_random_play_and_the_shipped_expert_by_name():
    random, expert = (nss_of("--policy", name, "--env-id", TASK, "--episodes", 200)[0] for name in ("random", "expert"))
    assert abs(random["played"]["nss_mean"]) < 0.3
    assert abs(expert["greedy"]["nss_mean"] - 1) < 0.15
    assert expert["reference_episodes"] == {"expert": 500, "random": 500}


def test_a_task_without_an_expert_has_scores_and_no_nss():
    found = nss_of("--policy", "random", "--env-id", "simple_reference", "--episodes", 5)[0]
    assert found["played"]["nss"] == [None, None] and found["played"]["nss_mean"] is None
    assert None not in found["played"]["score"] and None not in found["random"]["score"]
    assert found["expert"]["score"] == [None, None] and found["too_close"] == []
    table = evaluate("--policy", "random", "--env-id", "simple_reference", "--episodes", 5).stdout
    assert "there is no NSS" in table and "nan" not in table


@pytest.fixture(scope="module", params=["madaac_discrete", "mairl_mack", "magail_mack"])
def a_run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    options = ["--env-id", TASK, "--runs", folder, "--total-timesteps", 5000, "--hidden-size", 16, "--num-envs", 40]
    options += ["--torch-threads", 1, "--eval-episodes", 20]
    command = [sys.executable, str(ROOT / f"{request.param}.py"), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(folder.iterdir())


def test_a_run_an_expert_and_a_run_cut_short(a_run, tmp_path):
    found = nss_of(a_run, env_utils.EXPERTS / TASK, "--episodes", 50)
    assert [result["remarks"] for result in found] == [[], []]
    assert found[1]["greedy"]["nss_mean"] > 0.8
    cut = tmp_path / "cut"
    cut.mkdir()
    for name in ("config.json", "checkpoint.pt"):
        shutil.copy(a_run / name, cut)
    again = nss_of(cut, "--episodes", 50)[0]
    assert "cut short" in again["remarks"][0]
    assert "step 5000" in again["remarks"][1]
    assert again["stochastic"]["score"] == found[0]["stochastic"]["score"]  # the same policy, the same episodes
    table = evaluate(cut, "--episodes", 20)
    assert "listener_0" in table.stdout
    assert "cut short" in table.stdout


def test_a_video_of_expert_and_learner_from_the_same_initial_states(a_run, tmp_path):
    done = evaluate(a_run, "--episodes", 5, "--video", tmp_path / "both.mp4")
    assert done.returncode == 0, done.stderr
    import imageio.v2 as imageio

    frames = np.stack(imageio.mimread(tmp_path / "both.mp4", memtest=False)).astype(int)
    assert frames.shape[2] == 2 * frames.shape[1] and len(frames) == 75
    left, right = np.split(frames[:, 60:], 2, axis=2)  # below the titles
    difference = np.abs(left - right).mean((1, 2, 3))
    assert (difference[[0, 25, 50]] < 0.5).all(), "episodes begin alike"
    assert (difference[[24, 49, 74]] > 0.5).any(), "and do not end so"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "name run folders"),
        (["nowhere"], "nowhere is not a folder"),
        (["EMPTY"], "neither config.json nor card.json"),
        (["--policy", "random"], "needs --env-id"),
        (["--policy", "expert", "--env-id", "simple_crypto"], "train_expert_maac.py --env-id simple_crypto"),
        (["--policy", "random", "--env-id", "no_such_task"], "no_such_task"),
        (["EMPTY", "--episodes", "1"], "--episodes must be at least 2"),
        (["FOREIGN"], "is not that of a run"),
        (["EMPTY", "--env-id", "keep_away"], "--env-id is for --policy only"),
        (["EMPTY", "--video", "both"], "must end in .mp4"),
        (["UNINSTALLED"], "no_such_package"),
        (["NEW"], "no policy yet"),
        (["MISMATCH"], "another task"),
        (["EMPTY", "--seed", "-1"], "--seed and --torch-threads must be at least 0"),
        (["EXPERT", "--video", "/proc/both.mp4"], "cannot write"),
        (["NOT_TEXT"], "is not that of a run"),
        (["NO_NAME"], "named by a string"),
        (["BAD_CARD"], "card.json lacks scores of speaker_0, listener_0"),
        (["LIST"], "not the checkpoint of a run"),
        (["NO_BIAS"], "do not fit"),
        (["FLAT"], "do not fit"),
        (["OTHER_DEMOS"], "is for another task"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    names = ("EMPTY", "FOREIGN", "UNINSTALLED", "NEW", "MISMATCH", "NOT_TEXT", "NO_NAME", "BAD_CARD", "LIST")
    folders = {name: tmp_path / name for name in (*names, "NO_BIAS", "FLAT", "OTHER_DEMOS")}
    for folder in folders.values():
        folder.mkdir()
    folders["FOREIGN"].joinpath("config.json").write_text('{"learning_rate": 1}')
    folders["UNINSTALLED"].joinpath("config.json").write_text('{"args": {"env_id": "no_such_package.task_v0"}}')
    folders["NEW"].joinpath("config.json").write_text(json.dumps({"args": {"env_id": TASK}}))
    folders["MISMATCH"].joinpath("config.json").write_text('{"args": {"env_id": "keep_away"}}')
    for name in ("MISMATCH", "BAD_CARD", "OTHER_DEMOS"):
        shutil.copy(env_utils.EXPERTS / TASK / "policy.safetensors", folders[name])
    folders["NOT_TEXT"].joinpath("config.json").write_bytes(b"\xff\xfe{")
    folders["NO_NAME"].joinpath("config.json").write_text('{"args": {"env_id": 5}}')
    folders["BAD_CARD"].joinpath("card.json").write_text(json.dumps({"env_id": TASK}))
    for name in ("LIST", "NO_BIAS", "FLAT"):
        shutil.copy(folders["NEW"] / "config.json", folders[name])
    torch.save([1, 2], folders["LIST"] / "checkpoint.pt")
    tensors = dict(env_utils.load_policy(env_utils.EXPERTS / TASK / "policy.safetensors").tensors)
    del tensors["bias_1"]
    envs = env_utils.make_envs(TASK, 1)
    env_utils.save_policy(folders["NO_BIAS"] / "policy.safetensors", tensors, TASK, envs)
    flat = {"weight_0": torch.zeros(5), "bias_0": torch.zeros(5)}
    env_utils.save_policy(folders["FLAT"] / "policy.safetensors", flat, TASK, envs)
    demos = str(env_utils.EXPERTS / "keep_away" / "demos.npz")
    folders["OTHER_DEMOS"].joinpath("config.json").write_text(json.dumps({"args": {"env_id": TASK, "demos": demos}}))
    folders["EXPERT"] = env_utils.EXPERTS / TASK
    arguments = [str(folders.get(part, part)) for part in arguments]
    monkeypatch.setattr(sys, "argv", ["eval_nss.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "eval_nss.py"), run_name="__main__")
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert complaint in lines[0]


# Recovered rewards


@pytest.mark.parametrize(
    "script, form",
    [(madaac, "g"), (mairl, "g"), *((magail, form) for form in ("log_d", "logit", "softplus", "centered"))],
    ids=lambda part: getattr(part, "__name__", part),
)
@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
def test_a_learned_reward_is_what_the_discriminator_computed(script, form, kind, tmp_path):
    torch.manual_seed(0)
    envs = env_utils.make_envs("keep_away", 30, 0)  # agents of unequal sizes
    obs, actions = envs.reset(), env_utils.random_actions(envs.num_actions, 0)(np.zeros(30))
    args = script.Args(discriminator=kind, **({"disc_reward": form} if script is magail else {}))
    disc = script.make_networks(envs.obs_sizes, envs.num_actions, args).discriminators
    header = {"decentralized": disc.decentralized, "sees_actions": disc.sees_actions, "reward": form}
    header |= {"kind": "gail_reward"} if script is magail else {}
    path = tmp_path / "reward.safetensors"
    env_utils.save_reward(path, disc.state_dict(), header, "keep_away", envs)
    reward = env_utils.learned_reward(tmp_path, envs)
    with torch.no_grad():
        expected = disc.reward(torch.as_tensor(obs).transpose(0, 1), torch.as_tensor(actions).T).T
    np.testing.assert_allclose(reward(obs, actions), expected, atol=1e-6)
    np.testing.assert_allclose(reward(obs.astype(np.float64), actions), expected, atol=1e-6)
    if form == "log_d":
        assert (reward(obs, actions) < 0).all()  # log D


@pytest.mark.filterwarnings("ignore::UserWarning")  # PettingZoo's remarks on the task itself
def test_a_recovered_reward_behind_pettingzoos_interface(a_run):
    env = env_utils.learned_reward_env(a_run)
    parallel_api_test(env, num_cycles=60)
    reward = env_utils.learned_reward(a_run)
    plain = parallel_env(TASK)
    obs, _ = env.reset(seed=3)
    plain_obs, _ = plain.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(25):
        assert all(np.array_equal(obs[agent], plain_obs[agent]) for agent in env.agents)
        actions = {agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents}
        padded = np.zeros((1, 2, 11), dtype=np.float32)
        for i, agent in enumerate(env.agents):
            padded[0, i, : len(obs[agent])] = obs[agent]
        expected = reward(padded, np.array([list(actions.values())]))[0]
        obs, rewards, *_, infos = env.step(actions)
        plain_obs, true_rewards, *_ = plain.step(actions)
        assert list(rewards.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert {agent: info["true_reward"] for agent, info in infos.items()} == true_rewards
    assert not env.agents
    api_test(parallel_to_aec(env_utils.learned_reward_env(a_run)), num_cycles=60)


def test_a_learned_reward_knows_which_actions_there_are(a_run):
    reward = env_utils.learned_reward(a_run)
    obs = np.zeros((1, 2, 11), dtype=np.float32)
    assert reward(obs, [[2, 4]]).shape == (1, 2)
    for actions in ([[3, 0]], [[0, 5]], [[-1, 0]], [[0.5, 0]]):
        with pytest.raises(env_utils.UserError, match="is none that it has"):
            reward(obs, actions)
    for shapes in ((obs[0], [2, 4]), (obs, [[2, 4]] * 2), (obs[..., :9], [[2, 4]])):
        with pytest.raises(env_utils.UserError, match=r"must be \[B, 2, 11\] and \[B, 2\]"):
            reward(*shapes)


def test_clients_may_change_what_they_are_given(a_run):
    rewards = []
    for change in (False, True):
        env = env_utils.learned_reward_env(a_run)
        obs, _ = env.reset(seed=3)
        if change:
            for part in obs.values():
                part *= 100.0
        rewards.append(env.step(dict.fromkeys(env.agents, 1))[1])
    assert rewards[0] == rewards[1]


def random_reward(folder, env_id):
    """A run folder with nothing but a reward, that of a new discriminator."""
    torch.manual_seed(0)
    envs = env_utils.make_envs(env_id, 1)
    disc = madaac.make_networks(envs.obs_sizes, envs.num_actions, madaac.Args(hidden_size=16)).discriminators
    header = {"decentralized": True, "sees_actions": True, "reward": "g"}
    env_utils.save_reward(folder / "reward.safetensors", disc.state_dict(), header, env_id, envs)
    return envs


def test_a_reward_for_a_task_that_is_not_ours_works_in_its_environment(tmp_path):
    envs = random_reward(tmp_path, "simple_reference")  # mpe2's own code, by the adapter
    env = env_utils.learned_reward_env(tmp_path)
    parallel_api_test(env, num_cycles=60)
    obs, _ = env.reset(seed=0)
    before = np.stack([obs[agent] for agent in envs.agents])[None].astype(np.float32)
    rewards = env.step(dict.fromkeys(env.agents, 3))[1]
    expected = env_utils.learned_reward(tmp_path)(before, np.array([[3, 3]]))[0]
    assert list(rewards.values()) == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_reward_for_another_task_is_refused(a_run, tmp_path):
    with pytest.raises(env_utils.UserError, match="another task"):
        env_utils.learned_reward(a_run, env_utils.make_envs("keep_away", 1))
    with pytest.raises(env_utils.UserError, match="agents"):
        env_utils.learned_reward_env(a_run, parallel_env("keep_away"))
    with pytest.raises(env_utils.UserError, match="the environment is simple_speaker_listener"):
        env_utils.learned_reward_env(a_run, parallel_env("simple_speaker_listener"))  # the same sizes
    with pytest.raises(env_utils.UserError, match="an expert"):
        env_utils.learned_reward(env_utils.EXPERTS / TASK)
    with pytest.raises(env_utils.UserError, match="there is no run"):
        env_utils.learned_reward(tmp_path / "nowhere")
    with pytest.raises(env_utils.UserError, match="not a run"):
        env_utils.learned_reward(tmp_path)


def test_seen_layouts_of_the_docs_start_as_the_demonstrations_do(tmp_path):
    script = runpy.run_path(str(env_utils.ROOT / "docs/seen_layouts.py"))
    with pytest.raises(env_utils.UserError, match="not the folder of a run that has ended"):
        script["row"](tmp_path, greedy=True)
    with pytest.raises(env_utils.UserError, match="there is no folder"):
        script["row"](tmp_path / "nowhere", greedy=True)
    run = {"env_id": TASK, "n_demos": 50, "demos": "", "seed": 1, "discriminator": "decentralized"}
    (tmp_path / "summary.json").write_text('{"script": "madaac_discrete.py"}')
    shutil.copy(env_utils.EXPERTS / TASK / "policy.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"args": run}))
    own = script["row"](tmp_path, greedy=True)  # the expert itself
    assert own.endswith("| 1.000 ± 0.000 | 1.000 ± 0.000 | 1.000 ± 0.000 | +0.000 ± 0.000 |")
    losses = np.array([[0.1, 0.3], [0.2, 0.6], [0.0, 0.0]])  # means 0.2, 0.4 and 0: deviation 0.2
    assert script["nss"](losses) == pytest.approx((0.8, 1.96 * 0.2 / 3**0.5), abs=1e-3)
    losses = np.repeat([0.1, 0.2, 0.5], [50, 150, 300])[:, None]
    assert script["cells"](losses, 50)[:3] == ["0.900 ± 0.000", "0.800 ± 0.000", "0.500 ± 0.000"]
    assert script["cells"](losses, 50)[3].startswith("+0.300 ±")  # 0.9 - (150 * 0.8 + 300 * 0.5) / 450
    assert script["cells"](losses, 200)[1] == ""
    random_reward(tmp_path, TASK)
    *_, shown, shown_too, later, later_too, _ = script["reward_row"](tmp_path, greedy=True).split("|")
    assert (shown, later) == (shown_too, later_too)  # the run's play is the expert's
    demos = env_utils.load_demos(TASK, 50)
    paid = env_utils.learned_reward(tmp_path)(*demos.transitions()[:2]).mean(0)
    assert [float(value) for value in shown.split("/")] == pytest.approx(paid.tolist(), abs=0.06)
    (tmp_path / "config.json").write_text(json.dumps({"args": run | {"demos": "mine.npz"}}))
    with pytest.raises(env_utils.UserError, match="did not learn from shipped demonstrations"):
        script["row"](tmp_path, greedy=True)


def test_keep_away_pairs_of_the_docs_take_each_agent_from_the_right_policy():
    script = runpy.run_path(str(env_utils.ROOT / "docs/keep_away_pairs.py"))
    pair = script["pair"](lambda obs: np.full(obs.shape[:2], 1), lambda obs: np.full(obs.shape[:2], 2))
    assert pair(np.zeros((3, 2, 19))).tolist() == [[1, 2]] * 3  # pusher, reacher
    with pytest.raises(env_utils.UserError, match="these are on: none"):
        script["main"](script["Args"](folders=()))
