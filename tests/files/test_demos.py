"""Demonstrations: what is read back is what was written, and wrong or hostile files are refused."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch

from env_utils import make_envs, random_actions, record_episodes
from madaac_utils.demos import Demos, demos_from_episodes, load_demos, reference_scores, save_demos
from madaac_utils.files import EXPERTS, UserError
from tests.running import measure_memory

TASK = "cooperative_communication"


@pytest.fixture
def envs():
    return make_envs(TASK, 1, seed=0)


@pytest.fixture
def demos(envs):
    """Six episodes of 25 steps; observations of 3 and 11 numbers, 3 and 5 actions."""
    return demos_from_episodes(
        TASK, record_episodes(TASK, random_actions(envs.num_actions, 0), 6, seed=0), {"by": "me"}
    )


@pytest.fixture
def path(demos, tmp_path):
    save_demos(tmp_path / "demos.npz", demos)
    return tmp_path / "demos.npz"


def rewrite(path, **changes):
    """Write the file again with other arrays; None drops one."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez_compressed(path, **arrays)


def test_demonstrations_come_back_as_they_were(demos, path, envs):
    again = load_demos(path, envs)
    for name in ("obs", "actions", "rewards", "lengths", "obs_sizes"):
        assert np.array_equal(getattr(again, name), getattr(demos, name))
    assert again.env_id == TASK and again.metadata["by"] == "me"
    assert again.obs.dtype == again.rewards.dtype == np.float32
    assert len(again[:2]) == 2 and np.array_equal(again[:2].obs, demos.obs[:2])
    assert len(load_demos(path.parent)) == 6  # the folder of the file


def test_the_file_has_the_documented_format(path):
    with np.load(path, allow_pickle=False) as file:
        assert {name: (file[name].dtype, file[name].shape) for name in file.files if name != "metadata"} == {
            "obs_speaker_0": (np.float32, (6, 26, 3)),
            "obs_listener_0": (np.float32, (6, 26, 11)),
            "actions": (np.int64, (6, 25, 2)),
            "rewards": (np.float32, (6, 25, 2)),
            "lengths": (np.int64, (6,)),
        }
        metadata = json.loads(str(file["metadata"]))
    assert metadata["format_version"] == 1 and metadata["env_id"] == TASK
    assert metadata["agents"] == ["speaker_0", "listener_0"]


def test_transitions_have_their_true_successors_and_leave_out_padding(demos):
    demos.lengths[1] = 10
    obs, actions, next_obs = demos.transitions()  # agents first
    assert obs.shape == next_obs.shape == (2, 5 * 25 + 10, 11) and actions.shape == (2, 5 * 25 + 10)
    assert np.array_equal(next_obs[:, 24], demos.obs[0, 25])
    assert np.array_equal(obs[:, 25], demos.obs[1, 0])
    assert np.array_equal(obs[:, 35], demos.obs[2, 0])
    assert torch.equal(obs[:, 1:25], next_obs[:, :24])
    assert np.array_equal(actions[:, 34], demos.actions[1, 9])
    np.testing.assert_allclose(demos.returns()[1], demos.rewards[1, :10].sum(0), rtol=1e-5)
    np.testing.assert_allclose(demos.returns()[0], demos.rewards[0].sum(0), rtol=1e-5)


def test_episodes_to_learn_from_and_unseen_ones_do_not_overlap(demos):
    seen, unseen = demos.split(4)
    assert seen.actions.shape == (2, 4 * 25) and unseen.actions.shape == (2, 2 * 25)
    assert np.array_equal(seen.obs[:, 0], demos.obs[0, 0]) and np.array_equal(unseen.obs[:, 0], demos.obs[4, 0])
    assert demos.split(6)[1].actions.numel() == 0
    with pytest.raises(UserError, match="--n-demos"):
        demos.split(7)


def test_scores_of_a_file_are_those_of_all_its_episodes(path, demos):
    references = reference_scores(TASK, str(path))
    np.testing.assert_allclose(references["expert"][0], demos.returns().mean(0), rtol=1e-6)
    assert np.abs(references["random"][0] + 57).max() < 5


def metadata(**changes):
    return np.array(json.dumps({"format_version": 1, "env_id": TASK, "agents": ["speaker_0", "listener_0"]} | changes))


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": np.array("no json")}, "metadata"),
        ({"metadata": np.array("[" * 100_000)}, "metadata"),
        ({"metadata": np.array("[1, 2]")}, "metadata"),
        ({"metadata": np.zeros(4)}, "metadata"),
        ({"metadata": metadata(format_version=9)}, "version 9"),
        ({"metadata": metadata(agents=5)}, "agents"),
        ({"metadata": metadata(agents=[])}, "agents"),
        ({"metadata": metadata(agents=[1, 2])}, "agents"),
        ({"metadata": metadata(env_id=5)}, "task"),
        ({"obs_speaker_0": None}, "obs_speaker_0"),
        ({"obs_speaker_0": np.full((6, 26, 3), "a")}, "obs_speaker_0"),
        ({"obs_speaker_0": np.full((6, 26, 3), 1e300)}, "obs_speaker_0"),
        ({"obs_speaker_0": np.full((6, 26, 3), np.inf)}, "obs_speaker_0"),
        ({"obs_speaker_0": np.zeros((6, 25, 3))}, "obs_speaker_0"),
        ({"obs_listener_0": np.zeros((6, 26, 10))}, "obs_sizes"),
        ({"rewards": None}, "rewards"),
        ({"rewards": np.zeros((6, 25, 2), complex)}, "rewards"),
        ({"rewards": np.zeros((6, 24, 2))}, "rewards"),
        ({"rewards": np.full((6, 25, 2), np.nan)}, "rewards"),
        ({"actions": np.zeros((6, 25, 3), int)}, "actions"),
        ({"actions": np.zeros((6, 25, 2))}, "actions"),
        ({"actions": np.full((6, 25, 2), -1)}, "actions"),
        ({"actions": np.full((6, 25, 2), 4)}, "speaker_0"),
        ({"actions": np.array(5)}, "actions"),
        ({"actions": np.zeros((0, 25, 2), int)}, "no steps"),
        ({"lengths": np.array([25, 26, 25, 25, 25, 25])}, "lengths"),
        ({"lengths": np.array([0, 25, 25, 25, 25, 25])}, "lengths"),
        ({"lengths": np.full(6, 25.0)}, "lengths"),
        ({"lengths": np.array(25)}, "lengths"),
    ],
)
def test_a_wrong_file_is_refused_and_the_array_is_named(path, envs, changes, named):
    rewrite(path, **changes)
    with pytest.raises(UserError, match=named):
        load_demos(path, envs)


def test_files_of_another_task_are_refused(path):
    for other in ("cooperative_navigation", "simple_speaker_listener"):  # the latter has the same agents and sizes
        with pytest.raises(UserError, match=TASK):
            load_demos(path, make_envs(other, 1))


def test_files_that_are_missing_foreign_or_truncated_are_refused(path, tmp_path):
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "empty", tmp_path / "nothing.npz", "no/such/file"):
        with pytest.raises(UserError, match=str(missing)):
            load_demos(missing)
    with pytest.raises(UserError, match="train_expert_maac.py --env-id simple_crypto"):
        load_demos("simple_crypto")
    whole, single, text = path.read_bytes(), io.BytesIO(), io.BytesIO()
    np.save(single, np.zeros(3))
    with zipfile.ZipFile(text, "w") as file:
        file.writestr("readme.txt", "hello")
    for content in (whole[:2000], whole[:-1], single.getvalue(), text.getvalue(), b"something else", b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match=str(path)):
            load_demos(path)


def test_a_pickled_array_is_not_read(path, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    rewrite(path, lengths=np.array([Evil()], dtype=object))
    (tmp_path / "executed").unlink(missing_ok=True)
    with pytest.raises(UserError, match="not a readable"):
        load_demos(path)
    assert not (tmp_path / "executed").exists()


def add_zeros(path, name: str, megabytes: int) -> None:
    """Add an array of zeros to an archive, without having it in memory."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (megabytes * 2**18,)}
    )
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(megabytes):
            member.write(bytes(2**20))


@pytest.mark.parametrize("name, megabytes", [("unknown", 200), ("obs_nobody", 200), ("rewards", 520)])
def test_a_zip_bomb_is_not_inflated(path, name, megabytes):
    """Members that the format does not have are not read; those that it has are refused if they are too large."""
    rewrite(path, **{name: None})
    add_zeros(path, name, megabytes)
    found, taken = measure_memory(load_demos, path)
    assert isinstance(found, UserError if name == "rewards" else Demos)
    assert taken < 100 < megabytes


def test_padding_cannot_blow_up_a_small_file(path):
    """A thousand agents with one number each and one with a million would be padded to four gigabytes."""
    agents = [f"agent_{k}" for k in range(1000)]
    arrays = {f"obs_{agent}": np.zeros((1, 2, 1), np.float32) for agent in agents[1:]}
    arrays["obs_agent_0"] = np.zeros((1, 2, 1_000_000), np.float32)
    small = np.zeros((1, 1, 1000), int)
    np.savez_compressed(path, metadata=metadata(agents=agents), actions=small, rewards=small, lengths=[1], **arrays)
    found, megabytes = measure_memory(load_demos, path)
    assert isinstance(found, UserError) and megabytes < 300


def test_the_shipped_demonstrations_are_within_the_limits():
    for file in EXPERTS.glob("*/demos.npz"):
        assert len(load_demos(file)) == 200
