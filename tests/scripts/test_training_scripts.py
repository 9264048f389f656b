"""All training scripts: what they write, that they can be repeated, killed and resumed, and what they refuse.

Every run here takes well under a second of computing, but gets past the first updates.
"""

import importlib.util
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from env_utils import make_envs, play_episodes
from madaac_utils.checkpoints import load_checkpoint
from madaac_utils.demos import load_demos
from madaac_utils.experts import RECORDING_SEED, SELECTION_SEED
from madaac_utils.files import UserError, read_json, sha256
from madaac_utils.policies import load_policy
from madaac_utils.rewards import learned_reward, learned_reward_env
from particle_envs import TaskError
from tests.cases import CASES, COMMON, TASK, Runs, edit_json, experts_option, name_task, results, run_folder
from tests.damage import damage_state
from tests.running import ROOT, Finished, Started, kill_after, run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


every_script = pytest.mark.parametrize("name", CASES)


def has(folder: Path, name: str) -> bool:
    return any(folder.glob(f"*/{name}"))


def points(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def assert_one_line(ended: Finished, code: int, *words) -> None:
    """One line on stderr, that names what it is about."""
    assert ended.code == code, ended
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1 and len(lines[0]) < 400, ended.err
    for word in words:
        assert str(word) in lines[0]


def copy_of(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


# Whole runs


@every_script
def test_a_run_writes_everything(runs, name):
    folder, case = runs.finished(name), CASES[name]
    names = ["config.json", "policy.safetensors", "checkpoint.pt", "summary.json"]
    names += ["reward.safetensors"] if case.has_reward else []
    assert all((folder / file).stat().st_size > 0 for file in names)
    assert (folder / "reward.safetensors").is_file() == case.has_reward
    assert (folder / "summary.json").stat().st_mtime == max(path.stat().st_mtime for path in folder.iterdir())
    assert folder.name.startswith(f"{TASK}__{case.script.removesuffix('.py')}__3__")

    config = read_json(folder / "config.json", "JSON")
    assert config["script"] == case.script and config["script_sha256"] == sha256(ROOT / case.script)
    assert config["args"]["seed"] == 3 and config["versions"]["torch"] == torch.__version__
    summary = read_json(folder / "summary.json", "JSON")
    assert summary["script"] == case.script and summary["env_id"] == TASK
    scores = summary["scores"]["expert"] if "scores" in summary else summary["greedy"]["scores"]
    assert set(scores) == {"speaker_0", "listener_0"}

    events = points(folder)
    everywhere = {"charts/SPS", "charts/episodic_return-speaker_0", "charts/episodic_return-listener_0"}
    missing = (everywhere | case.metrics) - set(events.Tags()["scalars"])
    assert not missing
    for tag in events.Tags()["scalars"]:
        found = events.Scalars(tag)
        assert np.isfinite([point.value for point in found]).all()
        assert len({point.step for point in found}) == len(found)
    assert len(events.Scalars("losses/policy")) >= 5


def test_a_run_names_the_commands_that_come_next(runs):
    """In keep_away agents compete, in cooperative_communication they do not."""
    for task in ("keep_away", TASK):
        folder = runs.new_folder()
        ended = run(*runs.words("mairl_mack", folder, **{"env-id": task}))
        for command in ("plot.py RUN", "eval_nss.py RUN --video video.mp4", "retrain.py RUN"):
            assert f"python {command}".replace("RUN", str(run_folder(folder))) in ended.out
        assert ("--among-experts" in ended.out) == (task == "keep_away")


@every_script
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(runs, name):
    first = results(runs.finished(name))
    assert results(runs.finish(name)) == first
    assert results(runs.finish(name, seed=4))["policy.safetensors"] != first["policy.safetensors"]


@every_script
def test_killed_at_any_moment_and_resumed_it_ends_in_the_same_bits(runs, name):
    undisturbed = runs.finished(name)
    for _ in range(5):  # a run may end before it can be killed
        folder = runs.new_folder()
        started = Started(*runs.words(name, folder, **{"save-every": 0}))
        killed = kill_after(started, folder, checkpoints=random.randint(1, 3))
        if not has(folder, "summary.json"):
            break
    assert killed.code == -signal.SIGKILL
    ended = run(CASES[name].script, "--resume", run_folder(folder), *experts_option(name, folder))
    assert ended.code == 0, ended.err
    assert results(run_folder(folder)) == results(undisturbed)
    assert not list(folder.rglob(".*.tmp*"))


@every_script
def test_a_run_made_longer_equals_one_that_was_long_from_the_start(runs, name):
    long = runs.finished(name)
    total = (COMMON | CASES[name].options)["total-timesteps"]
    folder = runs.finish(name, **{"total-timesteps": 600 if total == 1000 else 1250})
    words = ["--resume", folder, "--total-timesteps", total, *experts_option(name, folder.parent)]
    ended = run(CASES[name].script, *words)
    assert ended.code == 0, ended.err
    assert results(folder) == results(long)
    assert read_json(folder / "config.json", "JSON")["args"]["total_timesteps"] == total
    for tag in points(folder).Tags()["scalars"]:  # the final evaluation of the shorter run is gone
        if tag.startswith("eval/nss"):
            assert len(points(folder).Scalars(tag)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@every_script
def test_an_interrupted_run_saves_and_says_how_to_continue(runs, name, number):
    folder = runs.new_folder() / "a folder"
    started = Started(*runs.words(name, folder, **{"total-timesteps": 10_000_000, "save-every": 1000}))
    assert started.wait_for(lambda: any(path.stat().st_size > 1000 for path in folder.glob("*/events*")))
    ended = started.stop(number)
    assert_one_line(ended, 130, f"python {CASES[name].script} --resume '{run_folder(folder)}'")
    assert ("--experts" in ended.err) == (name == "train_expert_maac")
    assert f"step {load_checkpoint(run_folder(folder))['step']};" in ended.err
    assert has(folder, "policy.safetensors") and not has(folder, "summary.json")


def test_a_second_process_on_a_run_folder_is_refused(runs):
    folder = runs.new_folder()
    first = Started(*runs.words("madaac_discrete", folder, **{"total-timesteps": 10_000_000, "save-every": 0}))
    assert first.wait_for(lambda: has(folder, "checkpoint.pt"))
    assert_one_line(run("madaac_discrete.py", "--resume", run_folder(folder)), 2, run_folder(folder))
    assert first.process.is_alive()
    assert first.stop(signal.SIGINT).code == 130
    assert load_checkpoint(run_folder(folder))


def test_a_run_that_has_ended_is_evaluated_again_without_doubled_points(runs, tmp_path):
    for killed in (False, True):
        folder = copy_of(runs.finished("madaac_discrete"), tmp_path / str(killed) / "run")
        before = results(folder)
        if killed:  # after the last checkpoint, before the files that are written next
            for name in ("summary.json", "policy.safetensors", "reward.safetensors"):
                (folder / name).unlink()
        ended = run("madaac_discrete.py", "--resume", folder)
        assert ended.code == 0, ended.err
        assert results(folder) == before and (folder / "summary.json").is_file()
        events = points(folder)
        for tag in ("eval/nss_greedy", "charts/nss"):
            steps = [point.step for point in events.Scalars(tag)]
            assert sorted(set(steps)) == steps


# Divergence and full disks


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.diverges])
def test_divergence_stops_a_run_and_replaces_nothing(runs, name):
    folder = runs.new_folder()
    shutil.copytree(ROOT / "experts" / TASK, folder / "experts" / TASK)
    experts = {path: path.read_bytes() for path in folder.rglob("experts/*/*")}
    ended = run(*runs.words(name, folder, **{"save-every": 0}, **CASES[name].diverges))
    assert_one_line(ended, 1, run_folder(folder), " step ")
    assert "nan" in ended.err or "inf" in ended.err or "finite" in ended.err
    [step] = re.findall(r" step (\d+)", ended.err)
    checkpoint = load_checkpoint(run_folder(folder))
    assert 0 < checkpoint["step"] <= int(step)
    assert all(tensor.isfinite().all() for tensor in checkpoint["parts"]["policies"].values())
    assert not has(folder, "summary.json")
    assert experts == {path: path.read_bytes() for path in experts}
    if has(folder, "policy.safetensors"):
        load_policy(run_folder(folder) / "policy.safetensors")


@pytest.mark.parametrize(
    "name, changes",
    [("madaac_discrete", {}), ("mairl_mack", {}), ("train_expert_maac", {"eval-every": 20, "keep": "last"})],
)
def test_divergence_is_noticed_long_before_the_next_checkpoint(runs, name, changes):
    folder = runs.new_folder()
    ended = run(*runs.words(name, folder, **CASES[name].diverges, **changes))
    assert_one_line(ended, 1, run_folder(folder))
    assert int(re.findall(r" step (\d+)", ended.err)[0]) < 1000
    if has(folder, "policy.safetensors"):
        load_policy(run_folder(folder) / "policy.safetensors")


def test_an_error_does_not_stand_behind_a_progress_bar(runs):
    words = runs.words("madaac_discrete", runs.new_folder(), **CASES["madaac_discrete"].diverges)
    ended = run(*words, terminal=True)
    assert ended.code == 1 and "\r" in ended.err
    assert "\nerror: " in ended.err


@every_script
def test_a_full_disk_ends_in_one_line(runs, name):
    """RLIMIT_FSIZE stands in for it: no file may grow beyond a few kilobytes."""
    folder = runs.new_folder()
    assert_one_line(run(*runs.words(name, folder), largest_file=8000), 2, "annot write")
    assert not has(folder, "summary.json") and not list(folder.rglob(".*.tmp*"))


def test_a_disk_that_is_full_when_tensorboard_writes_leaves_a_checkpoint(runs):
    folder = runs.new_folder()
    options = {"log-every": 20, "total-timesteps": 100_000, "save-every": 1000, "hidden-size": 4, "buffer-size": 20}
    ended = run(*runs.words("madaac_discrete", folder, **options), largest_file=90_000)
    assert_one_line(ended, 2, "TensorBoard")
    assert load_checkpoint(run_folder(folder))["step"] > 0


# Mistakes

MISTAKES = {
    "all": [
        ("--seed -1", "--seed"),
        ("--seed 99999999999999999999", "--seed"),
        ("--torch-threads -1", "--torch-threads"),
        ("--total-timesteps 5", "--total-timesteps"),
        ("--num-envs -1", "--num-envs"),
        ("--hidden-size 0", "--hidden-size"),
        ("--gamma 1.5", "--gamma"),
        ("--log-every 0", "--log-every"),
        ("--eval-episodes 1", "--eval-episodes"),
        ("--save-every -1", "--save-every"),
        ("--exp-name a/b", "--exp-name"),
        ("--resume nowhere", "nowhere"),
        ("--runs /proc/nowhere", "/proc/nowhere"),
    ],
    "task": [
        ("--env-id simple_tga", "simple_tag"),
        ("--env-id rover_tower_7", "rover_tower"),
        ("--env-id no.such.module", "no.such.module"),
        ("--env-id os.path", "os.path"),
    ],
    "demonstrations": [
        ("--env-id simple_crypto", "simple_crypto"),
        ("--demos nothing.npz", "nothing.npz"),
        (f"--demos {ROOT}/experts/keep_away/demos.npz", "keep_away"),
        (f"--demos {ROOT}/README.md", "README.md"),
        ("--n-demos 201", "--n-demos"),
        ("--n-demos 0", "--n-demos"),
    ],
    "discriminators": [
        ("--disc-lr nan", "--disc-lr"),
        ("--disc-entropy -1", "--disc-entropy"),
    ],
    "MAAC": [
        ("--attention-heads 3", "--attention-heads"),
        ("--attention-heads 0", "--attention-heads"),
        ("--alpha nan", "--alpha"),
        ("--policy-lr inf", "--policy-lr"),
        ("--critic-tau 2", "--critic-tau"),
        ("--policy-max-grad-norm 0", "--policy-max-grad-norm"),
        ("--buffer-size 10", "--buffer-size"),
    ],
    "MACK": [
        ("--kl-clip 0", "--kl-clip"),
        ("--num-steps 0", "--num-steps"),
        ("--disc-memory 99", "--disc-memory"),
        ("--gae-lambda 2", "--gae-lambda"),
        ("--num-envs 1 --num-steps 1", "--num-envs"),
    ],
    "madaac_discrete": [("--learning-starts 1000", "--learning-starts")],
    "train_expert_maac": [
        ("--store-demos 5", "--store-demos"),
        ("--record-only nowhere", "nowhere"),
        ("--env-id simple", "simple"),
        ("--experts /proc/nowhere", "/proc/nowhere"),
    ],
    "retrain": [
        ("--env-id keep_away", "keep_away"),
        ("--demos mine.npz", "--demos"),
    ],
}


@pytest.mark.parametrize(
    "name, mistake, word",
    [
        (name, *row)
        for name, case in CASES.items()
        if case.mistakes
        for group in ("all", *case.mistakes)
        for row in MISTAKES[group]
    ],
)
def test_a_mistake_ends_in_one_line_and_nothing_is_written(runs, tmp_path, name, mistake, word):
    script, *words = runs.words(name, Path("runs"))
    assert_one_line(run(script, *words, *mistake.split(), cwd=tmp_path), 2, word)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_or_package_is_a_mistake_too(runs, tmp_path):
    script, *words = runs.words("madaac_discrete", Path("runs"))
    flags = ["--cuda"] + ([] if importlib.util.find_spec("wandb") else ["--track"])
    for flag in flags:
        assert_one_line(run(script, *words, flag, cwd=tmp_path), 2, flag)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, complaint",
    [
        ([], "--true-reward"),
        (["nowhere"], "nowhere"),
        ([ROOT / "experts" / TASK], "reward.safetensors"),
        (["--true-reward", "--env-id", TASK, "--demos", "mine.npz"], "mine.npz"),
        (["--true-reward", "--env-id", "simple_crypto"], "simple_crypto"),
    ],
)
def test_retraining_needs_a_reward(tmp_path, words, complaint):
    assert_one_line(run("retrain.py", *words, cwd=tmp_path), 2, complaint)
    assert not list(tmp_path.iterdir())


SCRIPTS = sorted({case.script for case in CASES.values()})


@pytest.mark.parametrize("flag, code", [("--help", 0), ("--no-such-flag", 2)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_mistyped_flags_are_answered_before_torch_is_imported(script, flag, code):
    """Importing it takes seconds."""
    program = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"sys.argv = [{script!r}, {flag!r}]\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / script)!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    slow = {'torch', 'numpy', 'mpe2', 'pettingzoo', 'tensorboard'} & set(sys.modules)\n"
        "    sys.exit(99 if slow else stop.code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == code and "Traceback" not in ended.stderr


def test_a_mistake_at_a_real_command_line(tmp_path):
    command = [sys.executable, ROOT / "madaac_discrete.py", "--seed", "-1"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert_one_line(Finished(ended.returncode, ended.stdout, ended.stderr), 2, "--seed")
    assert not list(tmp_path.iterdir())


# Resuming: what may change


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mistakes])
def test_a_resumed_run_keeps_its_arguments(runs, tmp_path, name):
    folder, script = copy_of(runs.finished(name), tmp_path / "run"), CASES[name].script
    before = {path: path.read_bytes() for path in folder.iterdir()}
    default = runpy.run_path(str(ROOT / script))["Args"]().gamma
    for words in (["--seed", 4], ["--gamma", 0.5], ["--num-envs", 40]):
        assert_one_line(run(script, "--resume", folder, *words, *experts_option(name, tmp_path)), 2, words[0])
    edit_json(folder / "config.json", lambda config: config["args"].update(gamma=0.5))
    # A value that is typed must be the run's, also if it is the default.
    ended = run(script, "--resume", folder, "--gamma", default, *experts_option(name, tmp_path))
    assert_one_line(ended, 2, "--gamma")
    del before[folder / "config.json"]
    assert before == {path: path.read_bytes() for path in before}


def damaged_configs(config: dict) -> dict[str, str]:
    args = config["args"]
    changes = {
        "another type": config | {"args": args | {"seed": "3"}},
        "no number": config | {"args": args | {"gamma": "0.9"}},
        "out of range": config | {"args": args | {"gamma": 7}},
        "unknown choice": config | {"args": args | {"discriminator": "both"}},
        "unknown argument": config | {"args": args | {"no_such_flag": 1}},
        "missing argument": config | {"args": {key: args[key] for key in args if key != "total_timesteps"}},
        "missing task": config | {"args": {key: args[key] for key in args if key != "env_id"}},
        "null byte": config | {"args": args | {"demos": "a\0b"}},
        "no arguments": {key: config[key] for key in config if key != "args"},
        "arguments as a list": config | {"args": list(args)},
        "a list": [config],
    }
    return {"empty": "", "truncated": "{", "deep": "[" * 100_000} | {
        name: json.dumps(change) for name, change in changes.items()
    }


def test_a_damaged_config_ends_in_one_line(runs, tmp_path):
    folder = copy_of(runs.finished("madaac_discrete"), tmp_path / "run")
    for name, text in damaged_configs(read_json(folder / "config.json", "JSON")).items():
        (folder / "config.json").write_text(text)
        ended = run("madaac_discrete.py", "--resume", folder, "--total-timesteps", 1500)
        assert_one_line(ended, 2)
        assert (folder / "config.json").read_text() == text, name
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    assert_one_line(run("madaac_discrete.py", "--resume", folder), 2, "config.json")


def test_the_checkpoint_of_another_run_is_refused(runs, tmp_path):
    folder = copy_of(runs.finished("madaac_discrete"), tmp_path / "run")
    wider = runs.finish("madaac_discrete", **{"hidden-size": 32})
    for other in (runs.finished("mairl_mack"), runs.finished("train_expert_maac"), wider):
        shutil.copy(other / "checkpoint.pt", folder)
        before = results(folder)
        ended = run("madaac_discrete.py", "--resume", folder, "--total-timesteps", 1500)
        assert_one_line(ended, 2, folder)
        assert results(folder) == before


@pytest.mark.parametrize("name", ["madaac_discrete", "mairl_mack", "train_expert_maac"])
def test_a_checkpoint_of_another_structure_gives_no_traceback(runs, tmp_path, name):
    """tests/torture.py has more of them. A replaced number may well fit; then the run goes on."""
    folder, script = copy_of(runs.finished(name), tmp_path / "run"), CASES[name].script
    whole, refused = folder / "whole.pt", 0
    (folder / "checkpoint.pt").rename(whole)
    for seed in range(8):
        state = torch.load(whole, weights_only=True)
        what = damage_state(state, random.Random(seed))
        torch.save(state, folder / "checkpoint.pt")
        ended = run(script, "--resume", folder, "--total-timesteps", 1100, *experts_option(name, tmp_path))
        assert ended.code in (0, 1, 2) and ended.err.count("\n") == (ended.code > 0), (what, ended.err)
        refused += ended.code == 2
    assert refused >= 4


def test_a_config_does_not_choose_where_files_go(runs, tmp_path):
    folder = copy_of(runs.finished("train_expert_maac"), tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    changes = {"experts": str(elsewhere), "runs": str(elsewhere), "track": True, "capture_video": True}
    edit_json(folder / "config.json", lambda config: config["args"].update(changes))
    script = shutil.copy(ROOT / "train_expert_maac.py", tmp_path)  # its default is tmp_path/experts
    assert_one_line(run(script, "--resume", folder), 2, "--experts")
    assert not (tmp_path / "experts").exists()
    ended = run(script, "--resume", folder, "--experts", tmp_path / "mine")
    assert ended.code == 0, ended.err
    assert (tmp_path / "mine" / TASK / "card.json").is_file() and not elsewhere.exists()
    assert not (folder / "video.mp4").exists() and not (folder / "wandb").exists()


def test_demonstrations_may_move_but_not_change(runs, tmp_path):
    demos = tmp_path / "demos.npz"
    shutil.copy(ROOT / "experts" / TASK / "demos.npz", demos)
    folder = runs.finish("madaac_discrete", demos=demos)
    demos.rename(tmp_path / "moved.npz")
    assert_one_line(run("madaac_discrete.py", "--resume", folder), 2, demos)
    ended = run("madaac_discrete.py", "--resume", folder, "--demos", "moved.npz", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert run("madaac_discrete.py", "--resume", folder).code == 0
    shutil.copy(ROOT / "experts" / "keep_away" / "demos.npz", tmp_path / "moved.npz")
    assert_one_line(run("madaac_discrete.py", "--resume", folder), 2, "moved.npz")
    assert_one_line(run("retrain.py", folder, cwd=tmp_path), 2, "moved.npz")


def test_a_reward_may_not_change_under_a_retrained_run(runs, tmp_path):
    source = copy_of(runs.finished("madaac_discrete"), tmp_path / "source")
    folder = runs.new_folder()
    words = [
        word.replace(str(runs.finished("madaac_discrete")), str(source)) for word in runs.words("retrain_mack", folder)
    ]
    assert run(*words).code == 0
    shutil.copy(runs.finish("madaac_discrete", seed=5) / "reward.safetensors", source)
    assert_one_line(run("retrain.py", "--resume", run_folder(folder), "--total-timesteps", 1500), 2, source)


def test_step_sizes_that_have_fallen_to_zero_do_not_rise_again(runs, tmp_path):
    folder = runs.new_folder()
    words = [*runs.words("train_expert_maac", folder), "--anneal-lr"]
    assert run(*words).code == 0
    words = ["--resume", run_folder(folder), "--total-timesteps", 2000, "--experts", folder / "experts"]
    assert_one_line(run("train_expert_maac.py", *words), 2, "--total-timesteps")


# Experts, and tasks of others


def test_the_expert_is_the_best_policy_of_the_evaluations(runs):
    folder = runs.finished("train_expert_maac")
    expert = folder.parent / "experts" / TASK
    card, events = read_json(expert / "card.json", "JSON"), points(folder)
    evaluations = {point.step: point.value for point in events.Scalars("eval/greedy_return-mean")}
    assert sorted(evaluations) == [200, 400, 600, 800, 1000]
    assert card["training"]["kept_at_step"] == max(evaluations, key=evaluations.get)
    policy = load_policy(expert / "policy.safetensors", make_envs(TASK, 1))
    again = play_episodes(TASK, policy.greedy, 4, SELECTION_SEED).mean()  # every evaluation plays the same episodes
    assert again == pytest.approx(max(evaluations.values()), rel=1e-5)
    returns = play_episodes(TASK, policy.greedy, 4, RECORDING_SEED)
    assert card["scores"]["expert"]["listener_0"]["mean"] == pytest.approx(returns[:, 1].mean())
    assert card["sha256"] == {name: sha256(expert / name) for name in ("policy.safetensors", "demos.npz")}
    assert card["training"]["args"]["seed"] == 3 and card["training"]["steps"] == 1000
    assert len(load_demos(expert / "demos.npz")) == card["demonstrations"] == 4


def test_a_policy_can_be_recorded_before_its_training_has_ended(runs, tmp_path):
    folder = copy_of(runs.finished("train_expert_maac"), tmp_path / "run")
    (folder / "summary.json").unlink()
    words = ["--env-id", TASK, "--record-only", folder, "--experts", tmp_path / "experts"]
    ended = run("train_expert_maac.py", *words, "--eval-episodes", 4, "--store-demos", 4)
    assert ended.code == 0, ended.err
    before = read_json(runs.finished("train_expert_maac").parent / "experts" / TASK / "card.json", "JSON")
    after = read_json(tmp_path / "experts" / TASK / "card.json", "JSON")
    assert before["training"] == after["training"] and before["scores"] == after["scores"]


def test_a_pettingzoo_task_with_unequal_agents_starts_new_episodes_when_resumed(runs):
    """It cannot be put back into its state, and none of the old rewards may count in the new episodes."""
    changes = {"env-id": "simple_crypto", "num-envs": 4, "total-timesteps": 150, "batch-size": 16}
    folder = runs.finish("train_expert_maac", **changes)
    assert (folder.parent / "experts" / "simple_crypto" / "card.json").is_file()
    state = load_checkpoint(folder)
    state["envs"]["episode_return"][:] = 1e6
    torch.save(state, folder / "checkpoint.pt")
    words = ["--resume", folder, "--total-timesteps", 300, *experts_option("train_expert_maac", folder.parent)]
    ended = run("train_expert_maac.py", *words)
    assert ended.code == 0, ended.err
    assert np.abs(load_checkpoint(folder)["envs"]["recent_returns"]).max() < 1e5


# Shared discriminators


def test_shared_discriminators_have_equal_weights_and_unequal_biases_also_when_resumed(runs):
    shared = {"discriminator": "shared", "env-id": "cooperative_navigation"}
    folder = runs.finish("madaac_discrete", **shared)
    assert run("madaac_discrete.py", "--resume", folder, "--total-timesteps", 1500).code == 0
    found = load_checkpoint(folder)["parts"]["discriminators"]
    for name, (first, *others) in found.items():
        for other in others:
            if name.endswith("weight"):
                torch.testing.assert_close(first, other, atol=1e-6, rtol=0)
            else:
                assert not torch.allclose(first, other)
    ended = run(*runs.words("madaac_discrete", runs.new_folder(), discriminator="shared"))
    assert_one_line(ended, 2, "shared")  # a speaker and a listener


# Copied and changed scripts


NEW_NETWORKS = """
def stacked_mlp(fan_in, size_in, hidden, size_out):
    wide = torch.full_like(fan_in, 24)
    return nn.Sequential(
        StackedLinear(fan_in, size_in, 24), nn.Tanh(),
        StackedLinear(wide, 24, 24), nn.ELU(0.5),
        StackedLinear(wide, 24, 24), nn.Softplus(beta=2.0),
        StackedLinear(wide, 24, size_out),
    )


"""


def variant(folder: Path, change: str) -> Path:
    """A copy of madaac_discrete.py in which later definitions replace those of the original."""
    source = (ROOT / "madaac_discrete.py").read_text()
    assert source.count("\ndef main(") == 1
    folder.mkdir(exist_ok=True)
    (folder / "my_variant.py").write_text(source.replace("\ndef main(", f"{change}\ndef main("))
    return folder / "my_variant.py"


def run_variant(runs: Runs, script: Path, folder: Path, **changes) -> Finished:
    return run(script, *runs.words("madaac_discrete", folder, **changes)[1:])


@pytest.mark.parametrize("kind", ["decentralized", "centralized"])
def test_changed_networks_are_served_as_they_were_trained(runs, tmp_path, kind):
    script, folder = variant(tmp_path, NEW_NETWORKS), runs.new_folder()
    ended = run_variant(runs, script, folder, discriminator=kind)
    assert ended.code == 0, ended.err
    folder, module = run_folder(folder), runpy.run_path(str(script))
    parts, envs = load_checkpoint(folder)["parts"], make_envs(TASK, 50, seed=1)
    policies = module["Policies"](envs, 16)
    policies.load_state_dict(parts["policies"])
    discriminators = module["Discriminators"](envs, module["Args"](discriminator=kind, hidden_size=16))
    discriminators.load_state_dict(parts["discriminators"])
    obs, actions = envs.reset(), np.random.default_rng(0).integers(envs.num_actions, size=(50, 2))
    agents_first = torch.as_tensor(obs).transpose(0, 1)
    with torch.no_grad():
        trained = policies(agents_first).softmax(-1).transpose(0, 1)
        rewards = discriminators.reward(agents_first, torch.as_tensor(actions).T).T.numpy()
    served = load_policy(folder / "policy.safetensors", envs).logits(obs).softmax(-1)
    torch.testing.assert_close(served, trained, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(learned_reward(folder, envs)(obs, actions), rewards, atol=1e-5, rtol=1e-4)
    retrained = run("retrain.py", folder, *runs.words("retrain_mack", runs.new_folder())[2:])
    assert retrained.code == 0, retrained.err


UNDESCRIBED = {
    "batch normalisation": "def extra(network): return nn.Sequential(*network[:-1], nn.BatchNorm1d(2), network[-1])",
    "layer normalisation": "def extra(network): return nn.Sequential(*network[:-1], nn.LayerNorm(16), network[-1])",
    "dropout": "def extra(network): return nn.Sequential(*network[:-1], nn.Dropout(), network[-1])",
    "a class of one's own": (
        "class Sine(nn.Module):\n"
        "    def forward(self, x): return x.sin()\n"
        "def extra(network): return nn.Sequential(*network[:-1], Sine(), network[-1])"
    ),
    "more than the network computes": (
        "class Doubled(nn.Sequential):\n"
        "    def forward(self, x): return 2 * super().forward(x)\n"
        "def extra(network): return Doubled(*network)"
    ),
}


@pytest.mark.parametrize("where", ["Policies", "Discriminators"])
@pytest.mark.parametrize("what", UNDESCRIBED)
def test_a_network_that_the_files_cannot_describe_is_refused_before_training(runs, tmp_path, what, where):
    attribute = "network" if where == "Policies" else "g"
    change = f"""
{UNDESCRIBED[what]}
class Changed({where}):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.{attribute} = extra(self.{attribute})
{where} = Changed
"""
    ended = run_variant(runs, variant(tmp_path, change), tmp_path / "runs")
    assert_one_line(ended, 2)
    assert not (tmp_path / "runs").exists()


def test_a_copied_script_names_itself(runs, tmp_path):
    script, folder = variant(tmp_path, ""), runs.new_folder()
    assert run_variant(runs, script, folder).code == 0
    folder = run_folder(folder)
    assert folder.name.startswith(f"{TASK}__my_variant__3__")
    config, summary = (read_json(folder / f"{name}.json", "JSON") for name in ("config", "summary"))
    assert config["script"] == summary["script"] == "my_variant.py"
    assert config["script_sha256"] == sha256(script)
    assert config["args"]["exp_name"] == "my_variant"
    assert config["commit"].endswith("+") or config["commit"] == "unknown"  # it is in no commit

    longer = ["--resume", folder, "--total-timesteps", 1500]
    before = results(folder)
    assert_one_line(run("madaac_discrete.py", *longer), 2, "my_variant.py")
    script.write_text(script.read_text() + "\n# changed\n")
    assert_one_line(run(script, *longer), 2, "--resume-changed")
    assert results(folder) == before
    assert run(script, *longer, "--resume-changed").code == 0
    config = read_json(folder / "config.json", "JSON")
    assert config["script_sha256"] == sha256(script) and config["changed"][0]["step"] == 1000


# Folders from strangers


@pytest.fixture
def stranger(tmp_path):
    """A folder with code in it, which can be imported as runs.x.plot and as x.plot."""
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "plot.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (folder.parent / "__init__.py").touch()
    return folder


@pytest.mark.parametrize("task", ["runs.x.plot", "x.plot", "experts.x.plot"])
def test_the_folder_of_a_stranger_executes_nothing(runs, tmp_path, stranger, task, monkeypatch):
    path = f"{tmp_path}{os.pathsep}{tmp_path / 'runs'}"
    for name in CASES:
        shutil.copytree(runs.finished(name), stranger, dirs_exist_ok=True)
        name_task(stranger, task)
        words = ["--resume", stranger, *experts_option(name, tmp_path)]
        assert_one_line(run(CASES[name].script, *words, path=path, cwd=tmp_path), 2, task)
    shutil.copytree(runs.finished("madaac_discrete"), stranger, dirs_exist_ok=True)
    name_task(stranger, task)
    assert_one_line(run("retrain.py", stranger, path=path, cwd=tmp_path), 2, task)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "runs"))
    with pytest.raises((UserError, TaskError), match=task):
        learned_reward_env(stranger)
    shutil.copytree(ROOT / "experts" / TASK, stranger, dirs_exist_ok=True)
    name_task(stranger, task)
    words = ["--env-id", TASK, "--record-only", stranger, "--experts", tmp_path / "mine"]
    assert_one_line(run("train_expert_maac.py", *words, path=path, cwd=tmp_path), 2, task)
    assert not (tmp_path / "executed").exists()


def test_the_stranger_could_have_been_executed(tmp_path, stranger):
    """The test above proves nothing if the module cannot be imported."""
    ended = run("madaac_discrete.py", "--env-id", "x.plot", path=str(tmp_path / "runs"), cwd=tmp_path)
    assert_one_line(ended, 2, "x.plot")
    assert (tmp_path / "executed").exists()


def test_results_are_never_imported_even_if_the_user_names_them(tmp_path, stranger):
    assert_one_line(run("madaac_discrete.py", "--env-id", "runs.x.plot", path=str(tmp_path)), 2, "runs.x.plot")
    assert not (tmp_path / "executed").exists()
