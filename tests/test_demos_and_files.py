"""Demonstrations, policies, cards and files: what is read back is what was written, and bad files are refused."""

import importlib
import json
import os
import resource
import shutil
import signal
import zipfile
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import env_utils
from env_utils import UserError, load_demos, load_policy, make_envs, play_episodes, random_actions, save_demos
from particle_envs import TASK_IDS

TASK = "cooperative_communication"


@pytest.fixture
def envs():
    return make_envs(TASK, 1, 0)


@pytest.fixture
def demos(envs):
    return play_episodes(TASK, random_actions(envs.num_actions, 0), 6, seed=0, record=True)[1]


@pytest.fixture
def path(demos, tmp_path):
    save_demos(tmp_path / "demos.npz", demos)
    return tmp_path / "demos.npz"


def rewrite(path, **changes):
    """The same file with other arrays; None drops one."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez_compressed(path, **arrays)


def test_demos_come_back_as_they_were(demos, path, envs):
    again = load_demos(path, envs=envs)
    for name in ("obs", "actions", "rewards", "lengths"):
        assert np.array_equal(getattr(again, name), getattr(demos, name))
    assert again.env_id == TASK
    assert again.obs.dtype == again.rewards.dtype == np.float32
    first = load_demos(path, n_demos=2)
    assert len(first) == 2
    assert np.array_equal(first.obs, demos.obs[:2])
    with np.load(path, allow_pickle=False) as file:  # the documented format
        assert file["obs_speaker_0"].shape == (6, 26, 3)
        assert file["obs_listener_0"].shape == (6, 26, 11)
        assert file["actions"].dtype == file["lengths"].dtype == np.int64
        assert json.loads(str(file["metadata"]))["format_version"] == 1


def test_transitions_have_their_true_successors_and_leave_out_padding(demos):
    demos.lengths[1] = 10
    obs, actions, next_obs = demos.transitions()
    assert len(obs) == len(actions) == len(next_obs) == 5 * 25 + 10
    assert np.array_equal(next_obs[24], demos.obs[0, 25])
    assert np.array_equal(obs[25], demos.obs[1, 0])
    assert np.array_equal(obs[35], demos.obs[2, 0])
    assert np.array_equal(obs[1:25], next_obs[:24])
    assert demos.returns()[1] == pytest.approx(demos.rewards[1, :10].sum(0))
    assert demos.returns()[0] == pytest.approx(demos.rewards[0].sum(0))


def test_unseen_transitions_are_those_behind_the_ones_learned_from(path, demos):
    obs, actions, next_obs = env_utils.unseen_transitions(path, 4, "cpu")
    assert obs.shape == (2, 2 * 25, 11) and actions.shape == (2, 2 * 25) and next_obs.shape == obs.shape
    assert np.array_equal(obs[:, 0], demos.obs[4, 0])
    assert np.array_equal(next_obs[:, -1], demos.obs[5, 25])
    assert np.array_equal(actions[:, 25], demos.actions[5, 0])
    assert env_utils.unseen_transitions(path, 4, "cpu", most=1)[0].shape[1] == 25
    assert env_utils.unseen_transitions(path, 6, "cpu")[0].numel() == 0


def test_episodes_of_unequal_length_are_joined_with_padding(demos):
    short = demos.first(2)
    short.obs, short.actions, short.rewards = short.obs[:, :11], short.actions[:, :10], short.rewards[:, :10]
    short.lengths = np.array([10, 10])
    both = env_utils.Demos.joined([demos, short])
    assert both.obs.shape[:2] == (8, 26)
    assert len(both.transitions()[0]) == 6 * 25 + 20


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"metadata": None}, "lacks metadata"),
        ({"metadata": np.array("no json")}, "metadata must be JSON"),
        ({"metadata": np.array('{"format_version": 9, "env_id": "x", "agents": []}')}, "format version 9"),
        ({"obs_speaker_0": None}, "obs_speaker_0"),
        ({"metadata": np.array('{"format_version": 1, "env_id": "x", "agents": 5}')}, "name the agents in a list"),
        ({"metadata": np.array('{"format_version": 1, "env_id": "x", "agents": []}')}, "name the agents in a list"),
        ({"metadata": np.array('{"format_version": 1, "env_id": 5, "agents": ["a"]}')}, "must name the task, found 5"),
        ({"rewards": np.zeros((6, 25, 2), complex)}, "rewards must be real numbers, found complex128"),
        ({"obs_speaker_0": np.full((6, 26, 3), "a")}, "obs_speaker_0 must be real numbers"),
        ({"obs_speaker_0": np.full((6, 26, 3), 1e300)}, "obs_speaker_0 contains NaN or infinity"),
        ({"actions": np.zeros((6, 25, 3), int)}, r"actions must have shape \(6, 25, 2\), found \(6, 25, 3\)"),
        ({"actions": np.zeros((6, 25, 2))}, "actions must be integers"),
        ({"actions": np.full((6, 25, 2), -1)}, "must not be negative"),
        ({"actions": np.full((6, 25, 2), 4)}, "action 4 of speaker_0 is out of range, it has actions 0-2"),
        ({"rewards": np.zeros((6, 24, 2))}, r"rewards must have shape \(6, 25, 2\), found \(6, 24, 2\)"),
        ({"rewards": np.full((6, 25, 2), np.nan)}, "rewards contain NaN"),
        ({"lengths": np.array([25, 26, 25, 25, 25, 25])}, "lengths must be whole numbers from 1 to 25"),
        ({"obs_speaker_0": np.zeros((6, 25, 3))}, r"obs_speaker_0 must have shape \(6, 26, size\)"),
        ({"obs_speaker_0": np.full((6, 26, 3), np.inf)}, "obs_speaker_0 contains NaN or infinity"),
        ({"obs_listener_0": np.zeros((6, 26, 10))}, r"expected observation sizes \[3, 11\], found \[3, 10\]"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(path, envs, changes, complaint):
    rewrite(path, **changes)
    with pytest.raises(UserError, match=complaint):
        load_demos(path, envs=envs)


def test_files_of_another_task_truncated_foreign_or_missing_are_refused(path, tmp_path, envs):
    with pytest.raises(
        UserError, match="another task: expected cooperative_navigation, found cooperative_communication"
    ):
        load_demos(path, envs=make_envs("cooperative_navigation", 1))
    with pytest.raises(UserError, match="another task"):  # the same agents and sizes, but other directions
        load_demos(path, envs=make_envs("simple_speaker_listener", 1))
    with pytest.raises(UserError, match="it is a folder"):
        load_demos(tmp_path)
    with pytest.raises(UserError, match="whole number"):
        load_demos(path, n_demos=2.5)
    with pytest.raises(UserError, match="7 demonstrations asked for, but .* holds 6"):
        load_demos(path, n_demos=7)
    with pytest.raises(UserError, match="at least 1"):
        load_demos(path, n_demos=0)
    with pytest.raises(UserError, match="no such file"):
        load_demos(tmp_path / "nothing.npz")
    with pytest.raises(UserError, match="python train_expert_maac.py --env-id simple_crypto"):
        load_demos("simple_crypto")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="not a readable .npz"):
        load_demos(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))  # one array, not an archive
    with pytest.raises(UserError, match="not a readable .npz"):
        load_demos(path)
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match="not a readable .npz"):
        load_demos(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(UserError, match="lacks metadata|not a readable"):
        load_demos(path)


def test_pickled_arrays_are_not_read(path):
    rewrite(path, lengths=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="not a readable .npz"):
        load_demos(path)


def policy_tensors(envs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    agents, sizes = envs.num_agents, [int(envs.obs_sizes.max()), 8, 8, int(envs.num_actions.max())]
    tensors = {"obs_mean": torch.zeros(agents, sizes[0]), "obs_var": torch.ones(agents, sizes[0])}
    for k in range(3):
        tensors[f"weight_{k}"] = torch.randn(agents, sizes[k], sizes[k + 1], generator=generator)
        tensors[f"bias_{k}"] = torch.randn(agents, 1, sizes[k + 1], generator=generator)
    return tensors


def test_a_policy_is_rebuilt_from_its_file_alone(tmp_path, envs):
    tensors = policy_tensors(envs)
    env_utils.save_policy(tmp_path / "policy.safetensors", tensors, TASK, envs)
    policy = load_policy(tmp_path / "policy.safetensors", envs)
    assert policy.header["agents"] == envs.agents
    obs = make_envs(TASK, 5, 1).reset()
    for i in range(2):  # by hand, agent by agent
        x = torch.as_tensor(obs[:, i])
        for k in range(3):
            x = x @ tensors[f"weight_{k}"][i] + tensors[f"bias_{k}"][i]
            x = torch.nn.functional.leaky_relu(x) if k < 2 else x
        n = envs.num_actions[i]
        torch.testing.assert_close(policy.logits(obs)[:, i, :n], x[:, :n], atol=1e-4, rtol=1e-4)
        assert (policy.greedy(obs)[:, i] == x[:, :n].argmax(-1).numpy()).all()
    act = policy.stochastic(seed=0)
    probabilities = policy.logits(obs[:1]).softmax(-1)[0]
    drawn = np.stack([act(np.repeat(obs[:1], 500, 0)) for _ in range(20)]).reshape(-1, 2)
    for i in range(2):
        counts = np.bincount(drawn[:, i], minlength=5) / len(drawn)
        np.testing.assert_allclose(counts, probabilities[i], atol=0.02)


def test_a_policy_that_does_not_fit_or_is_no_policy_is_refused(tmp_path, envs):
    path = tmp_path / "policy.safetensors"
    with pytest.raises(UserError, match="no policy at"):
        load_policy(path)
    env_utils.save_policy(path, policy_tensors(envs), TASK, envs)
    with pytest.raises(UserError, match="another task: expected simple_tag, found cooperative_communication"):
        load_policy(path, make_envs("simple_tag", 1))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="not a readable policy"):
        load_policy(path)


def test_ids_of_the_same_task():
    assert env_utils.same_task("simple_tag", "mpe2.simple_tag_v3")
    assert not env_utils.same_task("simple_tag", "simple_spread")


def test_run_folders_of_the_same_second_differ(tmp_path):
    folders = {env_utils.make_run_folder(tmp_path, "task", "name", 1, {}) for _ in range(5)}
    assert len(folders) == 5
    assert all((folder / "config.json").is_file() for folder in folders)


SCRIPTS = ["madaac_discrete", "mairl_mack", "magail_mack", "retrain", "train_expert_maac"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_resumed_run_goes_on_as_it_began(tmp_path, script, monkeypatch):
    new_args = importlib.import_module(script).Args
    begun = new_args(env_id=TASK, seed=4, gamma=0.9, total_timesteps=1000, torch_threads=1)
    folder = env_utils.make_run_folder(str(tmp_path), TASK, "x", 4, asdict(begun))
    assert env_utils.resumed_args(folder, new_args(resume=str(folder))) == begun
    assert env_utils.resumed_args(folder, new_args(resume=str(folder), seed=4, gamma=0.9)) == begun
    assert env_utils.resumed_args(folder, new_args(resume=str(folder), torch_threads=2)).torch_threads == 2
    for changes in ({"gamma": 0.8}, {"seed": 5}, {"total_timesteps": 5000, "seed": 5}):
        with pytest.raises(UserError, match="goes on with what"):
            env_utils.resumed_args(folder, new_args(resume=str(folder), **changes))
    typed = ["script.py", "--resume", str(folder), "--gamma", str(new_args.gamma)]  # the default, but not this run's
    monkeypatch.setattr("sys.argv", typed)
    with pytest.raises(UserError, match=r"--gamma was 0\.9"):
        env_utils.resumed_args(folder, new_args(resume=str(folder)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_run_is_made_longer_when_it_has_been_read_back(tmp_path, script):
    new_args = importlib.import_module(script).Args
    begun = new_args(env_id=TASK, total_timesteps=1000)
    folder = env_utils.make_run_folder(str(tmp_path), TASK, "x", 1, asdict(begun))
    ended = [folder / name for name in ("summary.json", "policy.safetensors", "reward.safetensors")]
    for path in ended:
        path.write_text("{}")
    longer = env_utils.resumed_args(folder, new_args(resume=str(folder), total_timesteps=5000, torch_threads=1))
    assert longer == replace(begun, total_timesteps=5000, torch_threads=1)
    assert env_utils.resumed_args(folder, new_args(resume=str(folder))) == begun, "nothing has been changed yet"
    assert all(path.exists() for path in ended)
    env_utils.save_resumed_args(folder, longer)
    assert env_utils.resumed_args(folder, new_args(resume=str(folder))) == longer
    assert not any(path.exists() for path in ended), "what the shorter run ended with"
    sooner = env_utils.resumed_args(folder, new_args(resume=str(folder), total_timesteps=2000))
    env_utils.save_resumed_args(folder, sooner)
    assert env_utils.resumed_args(folder, new_args(resume=str(folder))).total_timesteps == 2000


def test_demonstrations_of_a_run_may_move_but_not_change(tmp_path, path, monkeypatch):
    new_args = importlib.import_module("mairl_mack").Args
    begun = new_args(env_id=TASK, demos=str(path), disc_max_grad_norm=float("inf"))
    folder = env_utils.make_run_folder(str(tmp_path), TASK, "x", 1, asdict(begun))
    monkeypatch.chdir(tmp_path)
    assert env_utils.resumed_args(folder, new_args(resume=str(folder), demos="demos.npz")) == begun
    path.rename(tmp_path / "moved.npz")
    moved = env_utils.resumed_args(folder, new_args(resume=str(folder), demos="moved.npz"))
    assert moved == replace(begun, demos=str(tmp_path / "moved.npz"))
    env_utils.save_resumed_args(folder, moved)
    assert env_utils.resumed_args(folder, new_args(resume=str(folder))) == moved
    rewrite(tmp_path / "moved.npz", rewards=np.zeros((6, 25, 2), np.float32))
    with pytest.raises(UserError, match="changed since"):
        env_utils.resumed_args(folder, new_args(resume=str(folder)))
    with pytest.raises(UserError, match="changed since"):
        env_utils.demos_of_run(json.loads((folder / "config.json").read_text()))


def test_a_run_whose_step_sizes_fell_to_zero_cannot_be_made_longer(tmp_path):
    new_args = importlib.import_module("mairl_mack").Args
    begun = new_args(total_timesteps=1000, anneal_lr=True)
    folder = env_utils.make_run_folder(str(tmp_path), TASK, "x", 1, asdict(begun))
    with pytest.raises(UserError, match="step sizes fall to zero"):
        env_utils.resumed_args(folder, new_args(resume=str(folder), total_timesteps=5000))


def test_scores_of_a_file_do_not_depend_on_how_many_of_its_episodes_are_used(path, demos):
    expert, random = env_utils.reference_scores(TASK, str(path)).values()
    np.testing.assert_allclose(expert, demos.returns().mean(0), rtol=1e-6)
    assert np.abs(random + 57).max() < 5


def test_require_writable_leaves_nothing(tmp_path):
    env_utils.require_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="cannot write"):
        env_utils.require_writable("/proc/nowhere")


def test_equal_policies_are_equal_files(tmp_path, envs):
    for name in "ab":
        env_utils.save_policy(tmp_path / name, policy_tensors(envs), TASK, envs)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_files_appear_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.json"
    env_utils.write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), env_utils.writing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("killed here")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]
    with pytest.raises(UserError, match="cannot write"):
        env_utils.write_json("/proc/nowhere/file.json", {})


def test_a_foreign_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="not a readable checkpoint"):
        env_utils.load_checkpoint(path)
    torch.save({"code": os.system}, path)  # unpickling this would hand out a function
    with pytest.raises(UserError, match="not a readable checkpoint"):
        env_utils.load_checkpoint(path)


def test_a_full_disk_is_told_and_leaves_the_last_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    env_utils.save_checkpoint(path, {"step": 1})
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, allowed[1]))
    try:
        with pytest.raises(UserError, match="cannot write .*checkpoint.pt"):
            env_utils.save_checkpoint(path, {"step": 2, "buffer": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        signal.signal(signal.SIGXFSZ, ignored)
    assert env_utils.load_checkpoint(path) == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_normalized_score_similarity_and_intervals():
    nss = env_utils.normalized_score_similarity(np.array([5.0, -3.0]), np.array([10.0, -1.0]), np.array([0.0, -5.0]))
    np.testing.assert_allclose(nss, [0.5, 0.5])
    mean, half = env_utils.mean_and_interval(np.array([[1.0], [3.0], [5.0]]))
    assert mean[0] == 3
    assert half[0] == pytest.approx(1.96 * 2 / 3**0.5)


# The shipped experts

SHIPPED = [task for task in TASK_IDS if (env_utils.EXPERTS / task / "card.json").is_file()]


@pytest.mark.parametrize("task", SHIPPED)
def test_a_shipped_expert_is_what_its_card_says(task):
    folder, card, envs = env_utils.EXPERTS / task, env_utils.load_card(task), make_envs(task, 1)
    for name in ("policy.safetensors", "demos.npz"):
        assert env_utils.sha256(folder / name) == card["sha256"][name]
        assert (folder / name).stat().st_size < 4_000_000
    demos = load_demos(task, envs=envs)
    assert len(demos) == 200
    assert demos.env_id == card["env_id"] == task
    policy = load_policy(folder / "policy.safetensors", envs)
    obs, actions, _ = demos.transitions()
    assert (policy.greedy(obs) == actions).mean() > 0.9999  # ties of rounding on other processors
    # Fresh episodes score as the card says, within four standard errors of both samples: with the 114 scores of all
    # experts and of random play compared, one is more than three off in every fourth set, and four in one of 140.
    returns = play_episodes(task, policy.greedy, 500, seed=77)[0]
    mean, half = env_utils.mean_and_interval(returns)
    stated = np.array([score["interval_95"] for score in card["scores"]["expert"].values()])
    assert (np.abs(mean - env_utils.expert_scores(task)) < 4 / 1.96 * np.hypot(half, stated)).all()
    random_returns = play_episodes(task, random_actions(envs.num_actions, 5), 500, seed=78)[0]
    mean, half = env_utils.mean_and_interval(random_returns)
    stated = np.array([score["interval_95"] for score in card["scores"]["random"].values()])
    assert (np.abs(mean - env_utils.random_scores(task)) < 4 / 1.96 * np.hypot(half, stated)).all()


def test_the_demonstrations_of_the_card_are_those_of_the_file():
    for task in SHIPPED:
        demos = load_demos(task)
        stated = env_utils.expert_scores(task)
        spread = demos.returns().std(0) / np.sqrt(len(demos))
        assert (np.abs(demos.returns().mean(0) - stated) < 4 * spread).all()


def test_scores_of_a_card_beside_other_demonstrations_are_refused(tmp_path):
    folder = tmp_path / "cooperative_communication"
    shutil.copytree(env_utils.EXPERTS / "cooperative_communication", folder)
    env_utils.references_with_intervals("cooperative_communication", expert_folder=folder)
    env_utils.save_demos(folder / "demos.npz", load_demos("cooperative_communication", 5))
    with pytest.raises(UserError, match=f"--record-only {folder} --experts {tmp_path}"):
        env_utils.references_with_intervals("cooperative_communication", expert_folder=folder)
    (folder / "card.json").write_text("[]")
    with pytest.raises(UserError, match="not the card of an expert"):
        env_utils.references_with_intervals("cooperative_communication", expert_folder=folder)


def test_a_task_without_an_expert_names_the_command():
    with pytest.raises(UserError, match="python train_expert_maac.py --env-id simple_crypto"):
        env_utils.expert_scores("simple_crypto")


def test_a_run_knows_the_demonstrations_it_was_begun_with_also_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(env_utils, "EXPERTS", tmp_path / "experts")
    (tmp_path / "experts/simple_tag").mkdir(parents=True)
    shipped, own = tmp_path / "experts/simple_tag/demos.npz", tmp_path / "own.npz"
    for path in (shipped, own):
        path.write_bytes(b"some demonstrations")
    for demos in ("", str(own)):
        args = {"env_id": "simple_tag", "n_demos": 50, "demos": demos}
        folder = env_utils.make_run_folder(str(tmp_path / "runs"), "simple_tag", "test", 1, args)
        config = json.loads((folder / "config.json").read_text())
        assert env_utils.demos_of_run(config) == demos
        (own if demos else shipped).write_bytes(b"others")
        with pytest.raises(UserError, match="is not the file that the run was begun with"):
            env_utils.demos_of_run(config)
    args = {"env_id": "simple_tag", "seed": 1}  # an expert's training has none
    folder = env_utils.make_run_folder(str(tmp_path / "runs"), "simple_tag", "test", 1, args)
    assert "demos_sha256" not in json.loads((folder / "config.json").read_text())
