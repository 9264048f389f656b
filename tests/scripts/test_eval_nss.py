"""eval_nss.py: the numbers of runs, experts and random play by the command line."""

import functools
import json
import shutil

import imageio.v2 as imageio
import numpy as np
import pytest

from bc_discrete import Policies
from env_utils import make_envs
from madaac_utils import demos, video
from madaac_utils.files import EXPERTS
from madaac_utils.networks import save_tensors
from madaac_utils.policies import describe_policy, load_policy
from tests.small_runs import make_run, run_script

TASK = "cooperative_communication"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    scripts = ("madaac_discrete.py", "mairl_mack.py", "bc_discrete.py")
    return [make_run(folder, script, TASK) for script in scripts]


@pytest.fixture
def evaluate(capsys):
    def evaluate(*arguments) -> list[dict]:
        assert run_script("eval_nss.py", *arguments, "--json") == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return evaluate


@pytest.fixture
def few_random_episodes(monkeypatch):
    """Tasks of mpe2's own code are slow."""
    monkeypatch.setattr(demos, "play_randomly", lambda env_id, play=demos.play_randomly: play(env_id, 5))


def write_run(folder, policy=EXPERTS / TASK / "policy.safetensors", **args):
    """A run folder with the policy of an expert."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"args": {"env_id": TASK} | args}))
    shutil.copy(policy, folder / "policy.safetensors")
    return folder


def test_runs_and_experts_start_from_the_same_states(evaluate, runs):
    found = evaluate(*runs, EXPERTS / TASK, "--episodes", 50)
    assert [result["run"] for result in found] == [*map(str, runs), str(EXPERTS / TASK)]
    assert all(result["remarks"] == [] and result["env_id"] == TASK for result in found)
    assert found[-1]["greedy"]["nss_mean"] > 0.8 > found[0]["greedy"]["nss_mean"]
    alone = evaluate(runs[1], "--episodes", 50)[0]
    assert alone["greedy"] == found[1]["greedy"] and alone["stochastic"] == found[1]["stochastic"]
    assert evaluate(runs[1], "--episodes", 50, "--seed", 1)[0]["greedy"] != alone["greedy"]


def test_the_seed_of_a_run_gives_the_episodes_of_its_summary(evaluate, runs):
    summary = json.loads((runs[0] / "summary.json").read_text())
    found = evaluate(runs[0], "--episodes", 4, "--seed", 1)[0]
    for name in ("stochastic", "greedy"):
        assert found[name]["nss_mean"] == pytest.approx(summary[name]["nss"])


def test_a_run_that_has_not_ended_is_evaluated_with_a_remark(evaluate, runs, tmp_path, capsys):
    cut = tmp_path / "cut"
    shutil.copytree(runs[0], cut)
    (cut / "summary.json").unlink()
    whole, again = evaluate(runs[0], cut, "--episodes", 20)
    assert not whole["remarks"] and again["remarks"]
    assert again["stochastic"]["score"] == whole["stochastic"]["score"]
    assert run_script("eval_nss.py", cut, "--episodes", 2) == 0
    assert again["remarks"][0] in capsys.readouterr().out


def test_random_play_and_the_shipped_expert_by_name(evaluate):
    random = evaluate("--policy", "random", "--env-id", TASK, "--episodes", 200)[0]
    expert = evaluate("--policy", "expert", "--env-id", TASK, "--episodes", 200)[0]
    assert abs(random["played"]["nss_mean"]) < 0.3
    assert abs(expert["greedy"]["nss_mean"] - 1) < 0.15
    assert expert["reference_episodes"] == {"expert": 500, "random": 500}
    other_name = evaluate("--policy", "expert", "--env-id", "simple_tag_v3", "--episodes", 2)[0]
    assert other_name["greedy"] == evaluate(EXPERTS / "simple_tag", "--episodes", 2)[0]["greedy"]


def test_a_task_without_an_expert_has_scores_but_no_nss(evaluate, capsys, few_random_episodes):
    arguments = ("--policy", "random", "--env-id", "simple_reference", "--episodes", 5)
    found = evaluate(*arguments)[0]
    assert found["played"]["nss"] == [None, None] and found["played"]["nss_mean"] is None
    assert None not in found["played"]["score"] and None not in found["random"]["score"]
    assert found["expert"]["score"] == [None, None] and found["warnings"] == {}
    assert run_script("eval_nss.py", *arguments) == 0
    assert "nan" not in capsys.readouterr().out


def test_warnings_stand_beside_the_agent_that_they_concern(evaluate, capsys):
    assert run_script("eval_nss.py", EXPERTS / "simple_tag", "--episodes", 5) == 0
    lines = capsys.readouterr().out.splitlines()
    found = evaluate(EXPERTS / "simple_tag", "--episodes", 5)[0]
    assert found["warnings"].keys() == {"agent_0"}
    assert [line.split()[0] for line in lines if found["warnings"]["agent_0"] in line] == ["agent_0"]
    assert found["greedy"]["nss_mean"] == pytest.approx(np.mean(found["greedy"]["nss"][:3]))


def test_among_experts(evaluate, capsys):
    found = evaluate(EXPERTS / TASK, "--among-experts", "--episodes", 20)[0]
    assert found["among_experts"]["greedy"]["nss"] == [1.0, 1.0]
    assert found["among_experts"]["greedy"]["nss_mean"] is None  # each agent has its own zero
    assert run_script("eval_nss.py", EXPERTS / TASK, "--among-experts", "--episodes", 2) == 0
    assert capsys.readouterr().out.count("listener_0") == 2


def test_own_demonstrations_are_the_reference_and_among_experts_needs_the_expert_behind_them(
    evaluate, tmp_path, capsys
):
    alone, other = tmp_path / "mine.npz", tmp_path / "other" / "demos.npz"
    shutil.copy(EXPERTS / TASK / "demos.npz", alone)
    shutil.copytree(EXPERTS / "simple_speaker_listener", other.parent)
    shutil.copy(alone, other)
    for i, path in enumerate((alone, other)):
        run = write_run(tmp_path / f"run{i}", demos=str(path))
        assert evaluate(run, "--episodes", 4)[0]["expert_from"] == str(path)
        assert run_script("eval_nss.py", run, "--among-experts", "--episodes", 4) == 2
        assert not capsys.readouterr().out  # the error comes before anything is played
    run = write_run(tmp_path / "run", demos=str(EXPERTS / TASK / "demos.npz"))
    assert evaluate(run, "--among-experts", "--episodes", 4)[0]["among_experts"]["greedy"]["nss"] == [1.0, 1.0]


def test_a_video_of_expert_and_learner_from_the_same_initial_states(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "write_video", functools.partial(video.write_video, episodes=1))  # drawing is slow
    assert run_script("eval_nss.py", runs[0], "--episodes", 2, "--video", tmp_path / "both.mp4") == 0
    frames = np.stack(imageio.mimread(tmp_path / "both.mp4", memtest=False)).astype(int)
    assert frames.shape[2] == 2 * frames.shape[1] and len(frames) == 25
    left, right = np.split(frames[:, 60:], 2, axis=2)  # below the titles
    difference = np.abs(left - right).mean((1, 2, 3))
    assert difference[0] < 0.5 < difference[-1]  # the episodes begin alike and do not end alike


def test_a_task_that_a_file_names_is_not_imported_unless_the_user_names_it(
    tmp_path, monkeypatch, capsys, few_random_episodes
):
    """A run of a PettingZoo module of the user's own."""
    (tmp_path / "package").mkdir()
    code = "from mpe2.simple_reference_v3 import parallel_env\nprint('imported')\n"
    (tmp_path / "package" / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    envs = make_envs("simple_reference", 1)
    envs.env_id = "package.mine"
    run = write_run(tmp_path / "run", env_id="package.mine")
    policy = describe_policy(Policies(envs, 16), envs)
    save_tensors(run / "policy.safetensors", policy.tensors, policy.header, envs)
    assert run_script("eval_nss.py", run, "--episodes", 2) == 2
    assert "imported" not in capsys.readouterr().out
    assert run_script("eval_nss.py", run, "--episodes", 2, "--env-id", "simple_reference") == 2
    assert run_script("eval_nss.py", run, "--episodes", 2, "--env-id", "package.mine") == 0
    assert "imported" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nowhere"],
        ["EMPTY"],
        ["EXPERT", "--episodes", "1"],
        ["EXPERT", "--seed", "-1"],
        ["EXPERT", "--torch-threads", "-1"],
        ["EXPERT", "--env-id", "simple_tag"],
        ["EXPERT", "--policy", "expert", "--env-id", TASK],
        ["EXPERT", "--video", "both"],
        ["EXPERT", "EXPERT", "--video", "both.mp4"],
        ["EXPERT", "--video", "/proc/both.mp4"],
        ["--policy", "random"],
        ["--policy", "random", "--env-id", "no_such_task"],
        ["--policy", "random", "--env-id", TASK, "--video", "both.mp4"],
        ["--policy", "expert", "--env-id", "simple_crypto"],
        ["--policy", "expert", "--env-id", "rover_tower"],
        ["FOREIGN"],
        ["NOT_TEXT"],
        ["NO_NAME"],
        ["NO_POLICY"],
        ["MISMATCH"],
        ["NO_BIAS"],
        ["BAD_CARD"],
        ["OTHER_DEMOS"],
        ["NO_DEMOS"],
    ],
    ids=" ".join,
)
def test_a_mistake_ends_in_one_line(arguments, tmp_path, capsys):
    for name in ("EMPTY", "BAD_CARD"):
        (tmp_path / name).mkdir()
    for name in ("FOREIGN", "NOT_TEXT", "NO_POLICY", "NO_BIAS"):
        write_run(tmp_path / name)
    (tmp_path / "FOREIGN/config.json").write_text('{"learning_rate": 1}')
    (tmp_path / "NOT_TEXT/config.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "NO_POLICY/policy.safetensors").unlink()
    write_run(tmp_path / "NO_NAME", env_id=5)
    write_run(tmp_path / "MISMATCH", env_id="simple_tag")
    write_run(tmp_path / "OTHER_DEMOS", demos=str(EXPERTS / "simple_tag" / "demos.npz"))
    write_run(tmp_path / "NO_DEMOS", demos="nowhere.npz")
    policy = load_policy(EXPERTS / TASK / "policy.safetensors")
    tensors = {name: tensor for name, tensor in policy.tensors.items() if name != "bias_1"}
    save_tensors(tmp_path / "NO_BIAS/policy.safetensors", tensors, policy.header, make_envs(TASK, 1))
    shutil.copy(EXPERTS / TASK / "policy.safetensors", tmp_path / "BAD_CARD")
    (tmp_path / "BAD_CARD/card.json").write_text(json.dumps({"env_id": TASK}))
    folders = {path.name: path for path in tmp_path.iterdir()} | {"EXPERT": EXPERTS / TASK}
    assert run_script("eval_nss.py", *(folders.get(part, part) for part in arguments)) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1 and printed.err.startswith("error: ")
    assert not printed.out
