"""Running a grid with stand-ins for the scripts: kills, failures, longer budgets, replaced experts, damaged files."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stand_ins
from torch.utils.tensorboard import SummaryWriter

from reproduce import UserError, __main__
from reproduce.rows import read_rows
from reproduce.store import Events, warnings

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PYTHONPATH = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])  # of commands in other folders
CHOICE = {"scale": "smoke", "tasks": "keep_away", "algorithms": "mairl", "n_demos": "50"}
CHOICE |= {"discriminators": "decentralized"}
IMITATE, RETRAIN = (f"{stage}__keep_away__mairl__decentralized__50__1" for stage in ("imitate", "retrain"))


@pytest.fixture(autouse=True)
def signal_handlers():
    """`run` installs its own."""
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def run(**changes) -> int:
    return __main__.run(__main__.Run(**CHOICE | {"workers": 2} | changes))


def status(capsys, **changes) -> str:
    capsys.readouterr()
    __main__.status(__main__.Status(**CHOICE | changes))
    return capsys.readouterr().out


def rows() -> dict:
    return read_rows(Path("runs/reproduce/smoke/results/runs.csv"))


def notes(what: str) -> list[str]:
    """Run ids of all notes of a kind."""
    path = Path("notes.txt")
    lines = path.read_text().splitlines() if path.is_file() else []
    return [line.split()[1] for line in lines if line.split()[0] == what]


def run_folder(run_id: str) -> Path:
    return next(Path("runs/reproduce/smoke", run_id).glob("*/config.json")).parent


def set_aside() -> list[Path]:
    return list(Path("runs/reproduce/smoke/set_aside").glob("*"))


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """A command of its own, in a folder with a copy of the package beside the stand-ins."""
    if not (folder / "reproduce").exists():
        (folder / "reproduce").mkdir()
        for path in (REPOSITORY / "reproduce").glob("*.py"):
            (folder / "reproduce" / path.name).write_bytes(path.read_bytes())
    choice = [word for name, value in CHOICE.items() for word in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-m", "reproduce", "run", *choice, "--workers", "2", *arguments]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def scripts_at_work(folder: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"^{sys.executable} {folder}/"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def test_a_grid_runs_once_and_then_nothing_is_left_to_do(folder, capsys):
    assert run() == 0
    assert set(rows()) == {IMITATE, RETRAIN}
    assert rows()[RETRAIN].reward_episodes == rows()[IMITATE].episodes == 120
    assert rows()[RETRAIN].rl == "mack" and rows()[RETRAIN].pcc == 0.1
    assert run() == 0
    assert sorted(notes("begin")) == sorted([IMITATE, RETRAIN])
    assert status(capsys).startswith("2 done")
    capsys.readouterr()
    __main__.plan(__main__.Plan(**CHOICE))
    assert "2 runs chosen, 2 done, 0 to run" in capsys.readouterr().out.splitlines()[0]


def test_kills_at_random_moments_lose_no_run_and_do_none_twice(folder):
    """SIGKILL to the command, or to a script at work, again and again; then once to the end."""
    choice = ("--episodes", "1000", "--algorithms", "mairl,madaac")
    rng, killed = random.Random(0), 0
    for turn in range(3):
        process = start(folder, *choice)
        line = "nothing yet"
        while line and line.split()[1:2] != ["started"]:
            line = process.stdout.readline()
        time.sleep(rng.uniform(0, 1.5))
        scripts = scripts_at_work(folder)
        if turn % 2 == 0 and scripts:
            os.kill(rng.choice(scripts), signal.SIGKILL)
            killed += 1
        process.kill()
        process.communicate()
    assert killed, "the test must bite"
    process = start(folder, *choice)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert len(rows()) == 4 and not notes("DOUBLE")
    for run_id in rows():
        assert notes("end").count(run_id) == 1
        assert 1 <= notes("begin").count(run_id) <= 2, "again only if it was killed before its first checkpoint"


def test_two_commands_at_once_share_the_work(folder):
    processes = [start(folder, "--episodes", "600", "--n-demos", "50,100") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len(rows()) == 4 and not notes("DOUBLE")
    assert sorted(notes("begin")) == sorted(notes("end")) == sorted(rows())


def test_an_interrupt_lets_scripts_save_and_the_same_command_continues(folder, capsys):
    process = start(folder, "--episodes", "800")
    while not notes("begin"):
        time.sleep(0.1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130 and not scripts_at_work(folder)
    assert status(capsys, episodes=800).startswith("1 interrupted, 1 waiting")
    assert run(episodes=800) == 0
    assert notes("begin").count(IMITATE) == 1


def test_what_fails_once_is_tried_again_and_what_fails_twice_is_given_up(folder, capsys):
    Path("fails.json").write_text(json.dumps({RETRAIN: 1}))
    assert run() == 0 and set(rows()) == {IMITATE, RETRAIN}
    assert "a reason in the log" in capsys.readouterr().out

    other = IMITATE.replace("50", "100")
    Path("fails.json").write_text(json.dumps({other: 2}))
    assert run(n_demos="100") == 1
    assert set(rows()) == {IMITATE, RETRAIN}, "neither it nor the retraining that needs it has a row"
    table = status(capsys, n_demos="100")
    assert table.startswith("2 failed") and "exit code 3" in table
    assert run(n_demos="100") == 0, "another command tries again"
    assert status(capsys, n_demos="100").startswith("2 done")


def test_a_mistake_in_extra_arguments_is_not_tried_twice_and_can_be_mended(folder, capsys):
    assert run(mairl_args="--mistake 1") == 1
    assert capsys.readouterr().out.count("exit code 2") == 1
    assert run() == 0


def test_runs_with_extra_arguments_are_other_runs(folder):
    assert run() == 0 and run(mairl_args="--disc-lr 0.1") == 0
    others = [f"{run_id}__disc_lr_0.1" for run_id in (IMITATE, RETRAIN)]
    assert set(rows()) == {IMITATE, RETRAIN, *others}
    assert [rows()[run_id].arguments for run_id in others] == ["--disc-lr 0.1", ""]
    assert rows()[others[1]].reward_arguments == "--disc-lr 0.1"
    log = Path("runs/reproduce/smoke", others[1], "log.txt").read_text()
    assert f"smoke/{others[0]}/" in log, "it is retrained on the reward of the other run"


def test_a_longer_budget_continues_the_run_and_retrains_on_the_new_reward(folder):
    def run_default(episodes: int) -> dict:
        assert run(scale="default", episodes=episodes) == 0
        return read_rows(Path("results/runs.csv"))

    assert [row.episodes for row in run_default(100).values()] == [100, 100]
    longer = run_default(300)
    assert [row.episodes for row in longer.values()] == [300, 300] and longer[RETRAIN].reward_episodes == 300
    assert notes("begin").count(IMITATE) == 1, "continued"
    assert notes("begin").count(RETRAIN) == 2, "its reward is another one"
    assert len(list(Path("runs/reproduce/set_aside").glob("*"))) == 1, "nothing that has ended is deleted"
    assert run_default(200) == longer, "a smaller budget changes nothing"


def test_scripts_with_their_own_budget_record_the_episodes_that_they_had(folder):
    choice = {"scale": "default", "algorithms": "madaac,bc", "stages": "imitate"}
    assert run(**choice) == 0 and run(**choice) == 0
    found = read_rows(Path("results/runs.csv"))
    assert {row.algorithm: row.episodes for row in found.values()} == {"madaac": 40, "bc": 40}
    assert len(notes("begin")) == 2
    assert "--total-timesteps" not in Path("runs/reproduce", notes("begin")[0], "log.txt").read_text()


def test_a_replaced_expert_makes_runs_start_again(folder, capsys):
    assert run() == 0
    card = folder / "experts" / "keep_away" / "card.json"
    card.parent.mkdir()
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 2.0}}}}))
    assert status(capsys).startswith("2 done")
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 3.0}}}}))
    assert status(capsys).startswith("2 waiting")
    Path("expert.json").write_text("3.0")
    assert run() == 0
    assert {row.expert_scores for row in rows().values()} == {(3.0,)}
    assert len(notes("begin")) == 4 and len(set_aside()) == 2


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
@pytest.mark.parametrize("content", [b"", b'{"args": 1}', b"\xff\xfe"])
def test_a_damaged_file_of_a_run_is_named_and_the_run_set_aside(folder, capsys, name, content):
    assert run(stages="imitate") == 0
    Path("runs/reproduce/smoke/results/runs.csv").unlink()
    path = run_folder(IMITATE) / name
    path.write_bytes(content)
    assert status(capsys, stages="imitate").startswith("1 waiting")
    warnings.clear()
    assert run(stages="imitate") == 0
    assert str(path) in capsys.readouterr().err
    assert len(set_aside()) == 1 and set(rows()) == {IMITATE}


def test_damaged_rows_stop_the_command_before_anything_runs(folder):
    results = folder / "results"
    stand_ins.write_results(results, [stand_ins.row()])
    content = (results / "runs.csv").read_bytes()
    (results / "runs.csv").write_bytes(content[:-30])
    for command, arguments in ((__main__.run, __main__.Run), (__main__.status, __main__.Status)):
        with pytest.raises(UserError, match="runs.csv, line 2"):
            command(arguments(**CHOICE | {"results": str(results)}))
    assert not notes("begin") and (results / "runs.csv").read_bytes() == content[:-30]


def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(folder):
    process = start(folder, "--tasks", "nowhere")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and "Traceback" not in output and len(output.strip().splitlines()) == 1


def test_plan_names_imitations_that_are_run_again_for_their_rewards(folder, capsys):
    """A clone has rows but no run folders, so no rewards."""
    stand_ins.write_results(folder / "results", [stand_ins.row(algorithm="mairl")])
    __main__.plan(__main__.Plan(**CHOICE | {"scale": "default"}))
    lines = capsys.readouterr().out.splitlines()
    assert "2 runs chosen, 1 done, 2 to run" in lines[0]
    assert any(line.startswith("1 of them") and "reward" in line for line in lines)


def test_progress_and_curve_come_from_the_run_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"args": {"total_timesteps": 40_000}}))
    writer = SummaryWriter(str(tmp_path))
    for step in range(25, 20_001, 25):
        values = {"nss": step / 40_000, "seconds": step / 100, "episodes": step / 25}
        for name, value in values.items():
            writer.add_scalar(f"charts/{name}", value, step)
    writer.close()
    events = Events(tmp_path).reload()
    assert events.progress() == pytest.approx({"done": 0.5, "nss": 0.5, "left": 200})
    points = events.curve()
    assert 200 <= len(points) <= 300 and points[-1]["episodes"] == 800 and points[-1]["seconds"] == 200
    assert all(point["nss"] == pytest.approx(point["episodes"] / 1600) for point in points)


# On a Ray cluster


def test_a_lost_ray_node_loses_no_run(folder, monkeypatch):
    """Two nodes with a CPU each; one is killed while it works, and the other one does its run."""
    pytest.importorskip("ray", reason="optional: pip install -r requirements-ray.txt")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("NOTES", str(folder))  # nodes inherit these
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        choice = ("--n-demos", "50,100,200", "--episodes", "4000")
        process = start(folder, *choice, "--launcher", "ray", "--address", cluster.address)
        deadline = time.time() + 120
        while len(notes("begin")) < 2:
            assert process.poll() is None and time.time() < deadline, process.communicate()[0]
            time.sleep(0.2)
        cluster.remove_node(nodes[0], allow_graceful=False)
        output = process.communicate(timeout=240)[0]
        assert process.returncode == 0, output
    finally:
        cluster.shutdown()
    assert len(rows()) == 6
    assert len(notes("begin")) == 7, "only the lost run was begun again"
    assert (run_folder(IMITATE) / "summary.json").is_file(), "its files were brought back"
    assert run(n_demos="50,100,200", episodes=4000) == 0 and len(notes("begin")) == 7


def test_no_ray_cluster_is_a_clear_error(folder):
    pytest.importorskip("ray", reason="optional: pip install -r requirements-ray.txt")
    process = start(folder, "--launcher", "ray", "--address", "127.0.0.1:1")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and "127.0.0.1:1" in output and "Traceback" not in output


# With real scripts


@pytest.mark.slow
def test_the_smoke_grid_with_real_scripts_and_its_report(tmp_path):
    """Rows agree with what the scripts wrote, and the report is made."""

    def reproduce(command: str) -> str:
        words = [sys.executable, "-m", "reproduce", command, "--scale", "smoke", "--runs", str(tmp_path)]
        words += ["--tasks", "cooperative_communication"]
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    reproduce("run")
    results = tmp_path / "smoke" / "results"
    found = read_rows(results / "runs.csv")
    assert len(found) == 4
    for run_id, row in found.items():
        summary = json.loads(next((tmp_path / "smoke" / run_id).glob("*/summary.json")).read_text())
        assert row.nss == pytest.approx(summary["stochastic"]["nss"], abs=1e-4)
        assert row.episodes == 120 and row.agents == ("speaker_0", "listener_0")
        assert (results / "curves" / f"{run_id}.csv").read_text().splitlines()[-1].startswith("120,")
    assert "4 runs chosen, 4 done, 0 to run" in reproduce("plan")
    reproduce("report")
    assert (results / "tables" / "claims.md").is_file()
