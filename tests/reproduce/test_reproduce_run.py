"""Running a grid with stand-ins for the scripts: kills, failures, longer budgets, replaced experts, damaged files."""

import json
import multiprocessing
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

from reproduce.__main__ import main
from reproduce.local import progress_text
from reproduce.rows import read_rows
from reproduce.store import curve_of, warn

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CHOICE = {"scale": "smoke", "algorithms": "mairl", "workers": "2"}
IMITATE, RETRAIN = (f"{stage}__keep_away__mairl__decentralized__50__1" for stage in ("imitate", "retrain"))
SMOKE = Path("runs/reproduce/smoke")
IN_THIS_FOLDER = """
import sys, pathlib, reproduce.grid, reproduce.ray, reproduce.store, reproduce.__main__
reproduce.grid.ROOT = reproduce.ray.ROOT = pathlib.Path.cwd()
reproduce.store.EXPERTS = pathlib.Path("experts")
sys.exit(reproduce.__main__.main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def signal_handlers():
    """`run` installs its own."""
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def words(command: str, changes: dict) -> list[str]:
    return [command, *(f"--{name.replace('_', '-')}={value}" for name, value in (CHOICE | changes).items())]


def run(**changes) -> int:
    return main(words("run", changes))


def output_of(capsys, command: str, **changes) -> str:
    capsys.readouterr()
    assert not main(words(command, changes))
    return capsys.readouterr().out


def start(**changes) -> multiprocessing.Process:
    """The same command in a process of its own."""

    def target():
        os.setsid()
        sys.exit(run(**changes))

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def rows() -> dict:
    return read_rows(SMOKE / "results" / "runs.csv")


def notes(what: str) -> list[str]:
    """Run ids of all notes of a kind."""
    path = Path("notes.txt")
    lines = path.read_text().splitlines() if path.is_file() else []
    return [line.split()[1] for line in lines if line.split()[0] == what]


def run_folder(run_id: str) -> Path:
    return next((SMOKE / run_id).glob("*/config.json")).parent


def scripts_at_work(folder: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"^{sys.executable} {folder}/"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def wait_for(condition) -> None:
    deadline = time.time() + 300
    while not condition():
        assert time.time() < deadline
        time.sleep(0.05)


def test_a_grid_runs_once_and_then_nothing_is_left_to_do(folder, capsys):
    assert run() == 0
    assert set(rows()) == {IMITATE, RETRAIN}
    assert rows()[RETRAIN].reward_episodes == rows()[IMITATE].episodes == 120
    assert rows()[RETRAIN].rl == "mack" and rows()[RETRAIN].pcc == 0.1
    assert run() == 0
    assert sorted(notes("begin")) == sorted([IMITATE, RETRAIN])
    assert output_of(capsys, "status").startswith("2 done")
    assert output_of(capsys, "plan").startswith("2 runs chosen, 2 need nothing, 0 to run")


def test_kills_at_random_moments_lose_no_run_and_do_none_twice(folder):
    """SIGKILL to the command, or to a script at work, again and again; then once to the end."""
    choice = {"episodes": 1000, "algorithms": "mairl,madaac"}
    rng, killed = random.Random(0), 0
    for turn in range(3):
        process = start(**choice)
        wait_for(lambda: scripts_at_work(folder))
        time.sleep(rng.uniform(0, 0.7))
        scripts = scripts_at_work(folder)
        if turn % 2 == 0 and scripts:
            os.kill(rng.choice(scripts), signal.SIGKILL)
            killed += 1
        process.kill()
        process.join()
    assert killed, "the test must bite"
    assert run(**choice) == 0
    assert len(rows()) == 4 and not notes("DOUBLE")
    for run_id in rows():
        assert notes("end").count(run_id) == 1
        assert 1 <= notes("begin").count(run_id) <= 2, "again only if it was killed before its first checkpoint"


def test_two_commands_at_once_share_the_work(folder):
    processes = [start(episodes=600, n_demos="50,100") for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(rows()) == 4 and not notes("DOUBLE")
    assert sorted(notes("begin")) == sorted(notes("end")) == sorted(rows())


def test_an_interrupt_lets_scripts_save_and_the_same_command_continues(folder, capsys):
    process = start(episodes=1000)
    wait_for(lambda: list(SMOKE.glob("*/*/checkpoint.pt")))
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130 and not scripts_at_work(folder)
    assert output_of(capsys, "status", episodes=1000).startswith("1 interrupted, 1 waiting")
    assert run(episodes=1000) == 0
    assert notes("begin").count(IMITATE) == 1


def test_what_fails_once_is_tried_again_and_what_fails_twice_is_given_up(folder, capsys):
    Path("fails.json").write_text(json.dumps({RETRAIN: 1}))
    assert run() == 0 and set(rows()) == {IMITATE, RETRAIN}
    assert "a reason in the log" in capsys.readouterr().out
    Path("fails.json").write_text(json.dumps({IMITATE.replace("50", "100"): 2}))
    assert run(n_demos=100) == 1
    assert set(rows()) == {IMITATE, RETRAIN}, "neither it nor the retraining that needs it has a row"
    table = output_of(capsys, "status", n_demos=100)
    assert table.startswith("2 failed") and "exit code 3" in table
    assert run(n_demos=100) == 0, "another command tries again"
    assert run(mairl_args="--mistake 1") == 1
    assert capsys.readouterr().out.count("exit code 2") == 1, "a mistake in the arguments is not tried again"


def test_runs_with_extra_arguments_are_other_runs(folder):
    assert run() == 0 and run(mairl_args="--disc-lr 0.1") == 0
    others = [f"{run_id}__disc_lr_0.1" for run_id in (IMITATE, RETRAIN)]
    assert set(rows()) == {IMITATE, RETRAIN, *others}
    assert [rows()[run_id].arguments for run_id in others] == ["--disc-lr 0.1", ""]
    assert rows()[others[1]].reward_arguments == "--disc-lr 0.1"
    log = (SMOKE / others[1] / "log.txt").read_text()
    assert f"smoke/{others[0]}/" in log, "it is retrained on the reward of the other run"


def test_a_longer_budget_continues_the_run_and_retrains_on_the_new_reward(folder):
    def run_default(episodes: int) -> dict:
        assert (
            run(scale="default", episodes=episodes, n_demos=50, tasks="keep_away", discriminators="decentralized") == 0
        )
        return read_rows(Path("results/runs.csv"))

    assert [row.episodes for row in run_default(100).values()] == [100, 100]
    longer = run_default(300)
    assert [row.episodes for row in longer.values()] == [300, 300] and longer[RETRAIN].reward_episodes == 300
    assert notes("begin").count(IMITATE) == 1, "continued"
    assert notes("begin").count(RETRAIN) == 2, "its reward is another one"
    assert len(list(Path("runs/reproduce/set_aside").glob("*"))) == 1, "nothing that has ended is deleted"
    assert run_default(200) == longer, "a smaller budget changes nothing"


def test_behavioural_cloning_runs_once_for_all_discriminators(folder):
    choice = {"scale": "default", "algorithms": "bc", "stages": "imitate", "tasks": "keep_away", "n_demos": 50}
    choice |= {"discriminators": "decentralized,centralized"}
    assert run(**choice) == 0 and run(**choice) == 0
    found = read_rows(Path("results/runs.csv"))
    assert [row.discriminator for row in found.values()] == ["none"]
    assert len(notes("begin")) == 1


def test_a_replaced_expert_makes_runs_start_again(folder, capsys):
    assert run() == 0
    card = folder / "experts" / "keep_away" / "card.json"
    card.parent.mkdir()
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 2.0}}}}))
    assert output_of(capsys, "status").startswith("2 done")
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 3.0}}}}))
    assert output_of(capsys, "status").startswith("2 waiting")
    Path("expert.json").write_text("3.0")
    assert run() == 0
    assert {row.expert_scores for row in rows().values()} == {(3.0,)}
    assert len(notes("begin")) == 4 and len(list((SMOKE / "set_aside").glob("*"))) == 2


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
def test_a_damaged_file_of_a_run_is_named_and_the_run_set_aside(folder, capsys, name):
    assert run(stages="imitate") == 0
    for count, content in enumerate((b"", b'{"args": 1}', b"\xff\xfe"), start=1):
        (SMOKE / "results" / "runs.csv").unlink()
        path = run_folder(IMITATE) / name
        path.write_bytes(content)
        assert output_of(capsys, "status", stages="imitate").startswith("1 waiting")
        warn.cache_clear()
        assert run(stages="imitate") == 0
        assert str(path) in capsys.readouterr().err
        assert len(list((SMOKE / "set_aside").glob("*"))) == count and set(rows()) == {IMITATE}


@pytest.mark.parametrize("wrong", [{"tasks": "nowhere"}, {"workers": -1}, {"runs": "blocked/runs"}, {}])
def test_a_mistake_or_damaged_rows_end_in_one_line_before_anything_runs(folder, capsys, wrong):
    Path("blocked").write_text("a file, not a folder")
    stand_ins.write_results(folder / "results", [stand_ins.row()])
    content = (folder / "results" / "runs.csv").read_bytes()
    if not wrong:
        (folder / "results" / "runs.csv").write_bytes(content[:-30])
    with pytest.raises(SystemExit) as end:
        run(results=folder / "results", **wrong)
    assert end.value.code == 2 and len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not notes("begin")


def test_plan_names_imitations_that_are_run_again_for_their_rewards(folder, capsys):
    """A clone has rows but no run folders, so no rewards."""
    stand_ins.write_results(folder / "results", [stand_ins.row(algorithm="mairl")])
    choice = {"scale": "default", "tasks": "keep_away", "n_demos": 50, "discriminators": "decentralized"}
    lines = output_of(capsys, "plan", **choice).splitlines()
    assert lines[0].startswith("2 runs chosen, 0 need nothing, 2 to run")
    assert any(line.startswith("1 ") and "reward" in line for line in lines)


def test_progress_and_curve_come_from_the_run_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"args": {"total_timesteps": 40_000}}))
    writer = SummaryWriter(str(tmp_path))
    for step in range(25, 20_001, 25):
        for name, value in {"nss": step / 40_000, "seconds": step / 100, "episodes": step / 25}.items():
            writer.add_scalar(f"charts/{name}", value, step)
    writer.close()
    assert progress_text(tmp_path).split() == ["50%", "NSS", "0.500", "3", "min", "left"]
    points = curve_of(tmp_path)
    assert len(points) == 800 and points[-1]["episodes"] == 800 and points[-1]["seconds"] == 200
    assert all(point["nss"] == pytest.approx(point["episodes"] / 1600) for point in points)


# On a Ray cluster


def test_a_lost_ray_node_loses_no_run(folder, monkeypatch, capsys):
    """Two nodes with a CPU each; one is killed while it works, and the other one does its run."""
    pytest.importorskip("ray", reason="optional: pip install -r requirements-ray.txt")
    from ray.cluster_utils import Cluster

    with pytest.raises(SystemExit) as end:
        run(launcher="ray", address="127.0.0.1:1")
    assert end.value.code == 2 and "127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("NOTES", str(folder))  # nodes inherit these
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    choice = {"n_demos": "50,100,200", "episodes": 4000}
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        command = words("run", {**choice, "launcher": "ray", "address": cluster.address})
        process = subprocess.Popen([sys.executable, "-c", IN_THIS_FOLDER, *command])  # Ray cannot be forked
        wait_for(lambda: len(notes("begin")) == 2)
        cluster.remove_node(nodes[0], allow_graceful=False)
        assert process.wait() == 0
    finally:
        cluster.shutdown()
    assert len(rows()) == 6
    assert len(notes("begin")) == 7, "only the lost run was begun again"
    assert (run_folder(IMITATE) / "summary.json").is_file(), "its files were brought back"
    assert run(**choice) == 0 and len(notes("begin")) == 7


@pytest.mark.slow
def test_the_smoke_grid_with_real_scripts_and_its_report(tmp_path, capsys):
    """Rows agree with what the scripts wrote, and the report is made."""
    choice = {"runs": tmp_path, "tasks": "cooperative_communication", "algorithms": "mairl,madaac"}
    assert run(**choice) == 0
    results = tmp_path / "smoke" / "results"
    found = read_rows(results / "runs.csv")
    assert len(found) == 4
    for run_id, row in found.items():
        summary = json.loads(next((tmp_path / "smoke" / run_id).glob("*/summary.json")).read_text())
        assert row.nss == pytest.approx(summary["stochastic"]["nss"], abs=1e-4)
        assert row.episodes == 120 and row.agents == ("speaker_0", "listener_0")
        assert (results / "curves" / f"{run_id}.csv").read_text().splitlines()[-1].startswith("120,")
    assert "4 runs chosen, 4 need nothing, 0 to run" in output_of(capsys, "plan", **choice)
    output_of(capsys, "report", **choice)
    assert (results / "tables" / "claims.md").is_file()
