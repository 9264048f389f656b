"""reproduce.py: which runs a grid has, kills at random moments, failures, longer budgets, a grid of real scripts."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reproduce
from env_utils import UserError

ROOT = Path(__file__).resolve().parent.parent

# Stands in for every training script: keeps the contract of run folders, checkpoints and resuming, learns nothing, and
# notes in notes.txt when it begins from nothing, when it ends, and whether another one is at work in the same folder.
STUB = """
import argparse, fcntl, hashlib, json, os, signal, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
known, rest = parser.parse_known_args()
names, values = [word[2:].replace("-", "_") for word in rest[::2]], rest[1::2]
args = dict(zip(names, values))
if "alhpa" in args:  # as real scripts do: before anything is written
    print("error: no such option")
    sys.exit(2)
root = Path(os.environ.get("NOTES", Path(__file__).parent))  # a Ray node has its own copy of the code

def note(what):
    with open(root / "notes.txt", "a") as file:
        file.write(f"{what} {folder.parent.name}\\n")

def write(name, content):
    (folder / f".{name}").write_text(json.dumps(content))
    os.replace(folder / f".{name}", folder / name)

def hash_of_reward():
    return hashlib.sha256((Path(args["run"]) / "reward.safetensors").read_bytes()).hexdigest()

step = 0
if known.resume:
    folder = Path(known.resume)
    args = json.loads((folder / "config.json").read_text())["args"]
    step = json.loads((folder / "checkpoint.pt").read_text())["step"]
else:
    folder = Path(args["runs"]) / f"run__{time.time_ns()}"
    folder.mkdir(parents=True)
    args["total_timesteps"] = int(args["total_timesteps"])
    if "run" in args:
        args["reward_sha256"] = hash_of_reward()
    write("config.json", {"args": args, "commit": "0000"})
    note("begin")
if "run" in args and args["reward_sha256"] != hash_of_reward():
    print("error: not the reward that this run began with")
    sys.exit(2)
busy = open(folder.parent / "busy", "w")
try:
    fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("DOUBLE")
fails = root / "fails.json"
if fails.is_file():
    left = json.loads(fails.read_text())
    if left.get(folder.parent.name, 0):
        left[folder.parent.name] -= 1
        fails.write_text(json.dumps(left))
        print("a reason in the log")
        sys.exit(3)
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
while step < args["total_timesteps"]:
    step += 250
    time.sleep(0.02)
    write("checkpoint.pt", {"step": step})
    print(f"{100 * step // args['total_timesteps']}%|#| [00:01<00:02, NSS 0.5]", end="\\r", flush=True)
    if asked:
        sys.exit(130)
(folder / "reward.safetensors").write_text(str(step))
scores = {"scores": {"a": {"mean": 1.0, "interval_95": 0.1}}, "nss": 0.5, "nss_by_agent": {"a": 0.5}}
write("summary.json", {"episodes": step // 25, "seconds": 1, "nss_last_500_training_episodes": 0.5,
                       "expert": {"a": 2.0}, "random": {"a": 0.0}, "stochastic": scores, "greedy": scores})
note("end")
"""


@pytest.fixture
def copy(tmp_path):
    """A folder with reproduce.py as it is and stubs for scripts."""
    for name in ("reproduce.py", "env_utils.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "particle_envs", tmp_path / "particle_envs")
    for name in (*reproduce.SCRIPTS.values(), "retrain.py"):
        (tmp_path / name).write_text(STUB)
    (tmp_path / "experts").mkdir()
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "reproduce.py", "run", "--scale", "smoke", "--workers", "2", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    process = start(folder, *arguments)
    output = process.communicate(timeout=180)[0]
    return process.returncode, output


def status(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "reproduce.py", "status", "--scale", "smoke", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def rows(folder: Path) -> dict[str, dict]:
    with open(folder / "runs/reproduce/smoke/results/runs.csv") as file:
        return {row["run_id"]: row for row in csv.DictReader(file)}


def notes(folder: Path) -> list[str]:
    return (folder / "notes.txt").read_text().splitlines()


def stubs_at_work(folder: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"^{sys.executable} {folder}/"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


# The grid


def test_the_papers_grid_has_every_cell_once_and_imitation_before_retraining():
    cells = reproduce.cells_of(reproduce.Plan(seeds="1-10"))
    assert len(cells) == len(set(cells)) == 3 * 2 * 3 * 6 * 10 * 2
    for cell in cells:
        if cell.stage == "retrain":
            assert cells.index(cell.imitation) < cells.index(cell)
    first_seed = [cell.discriminator for cell in cells if cell.seed == 1]
    assert first_seed == sorted(first_seed, reverse=True), "decentralized ones come first"


def test_a_part_of_the_grid():
    grid = reproduce.Plan(tasks="small", algorithms="madaac", n_demos="50", stages="imitate", seeds="3,5-6")
    cells = reproduce.cells_of(grid)
    assert {cell.seed for cell in cells} == {3, 5, 6} and len(cells) == 3 * 2 * 3
    assert len({cell.task for cell in reproduce.cells_of(reproduce.Plan(scale="smoke"))}) == 2
    budgets = [reproduce.episodes_of(cells[0], reproduce.Plan(scale=scale)) for scale in ("paper", "quick")]
    assert budgets == [50_000, 10_000]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tasks": "keepaway"}, "--tasks knows keep_away, "),
        ({"algorithms": "gail"}, "--algorithms knows madaac"),
        ({"discriminators": ""}, "--discriminators is empty"),
        ({"n_demos": "fifty"}, "--n-demos takes numbers"),
        ({"n_demos": "0"}, "--n-demos must be at least 1"),
        ({"seeds": "1..3"}, "--seeds takes numbers"),
        ({"seeds": "5-2"}, "ends before it starts"),
        ({"stages": "evaluate"}, "--stages knows imitate, retrain"),
    ],
)
def test_a_wrong_choice_says_what_there_is(wrong, says):
    with pytest.raises(UserError, match=says):
        reproduce.cells_of(reproduce.Plan(**wrong))


def test_time_is_estimated_from_rows_of_the_like():
    row = {"stage": "imitate", "algorithm": "mairl", "rl": "", "seconds": "100", "episodes": "1000"}
    speeds = reproduce.measured_speeds({"a": row | {"task": "rover_tower_8"}, "b": row | {"task": "keep_away"}})
    grid = reproduce.Plan(episodes=2000)

    def seconds(task: str, algorithm: str = "mairl") -> float | None:
        return reproduce.estimated_seconds(
            reproduce.Cell("imitate", task, algorithm, "decentralized", 50, 1), grid, speeds
        )

    assert seconds("rover_tower_8") == pytest.approx(200)
    assert seconds("rover_tower_16") == pytest.approx(400), "from 8 agents, not from 2"
    assert seconds("cooperative_navigation") == pytest.approx(300), "from 2 agents"
    assert seconds("keep_away", "madaac") is None


def test_the_documented_commands_can_be_planned_from_the_committed_rows():
    """Whatever extra arguments the rows in results/ were made with."""
    for options in ({}, {"tasks": "small", "discriminators": "decentralized"}, {"tasks": "small", "seeds": "1-10"}):
        grid = reproduce.Plan(results=str(ROOT / "results"), **options)
        work, cells = reproduce.Workspace(grid), reproduce.cells_of(grid)
        missing, done = work.missing(cells), [cell for cell in cells if work.has_row(cell)]
        assert set(cells) <= {*missing, *done} and done, options


def test_plan_says_which_imitations_are_run_again_for_their_rewards(tmp_path, capsys):
    """A clone has the committed rows, and no run folders to take a reward from."""
    choice = {"tasks": "cooperative_communication", "algorithms": "mairl", "n_demos": "50", "stages": "retrain"}
    choice |= {
        "results": str(ROOT / "results"),
        "runs": str(tmp_path),
        "seeds": "2",
        "discriminators": "decentralized",
    }
    row = "cooperative_communication__mairl__decentralized__50__2"
    rows = reproduce.read_rows(ROOT / "results" / "runs.csv")
    assert f"imitate__{row}" in rows and f"retrain__{row}" in rows
    reproduce.plan(reproduce.Plan(**choice))
    assert "again" not in capsys.readouterr().out, "it has both rows: nothing is to be run"
    del rows[f"retrain__{row}"]
    reproduce.write_csv(tmp_path / "results" / "runs.csv", reproduce.COLUMNS, list(rows.values()))
    reproduce.plan(reproduce.Plan(**choice | {"results": str(tmp_path / "results")}))
    marked = [line for line in capsys.readouterr().out.splitlines() if line.endswith("again, for its reward")]
    assert len(marked) == 1 and marked[0].startswith(f"imitate__{row}")


def test_plan_runs_again_what_was_made_with_an_expert_that_was_replaced(tmp_path, capsys):
    choice = {"tasks": "cooperative_communication", "algorithms": "mairl", "n_demos": "50", "stages": "imitate"}
    choice |= {"runs": str(tmp_path), "seeds": "1,2", "discriminators": "decentralized"}
    rows = reproduce.read_rows(ROOT / "results" / "runs.csv")
    row = "imitate__cooperative_communication__mairl__decentralized__50__2"
    rows[row]["expert_scores"] = "-20.0000;-20.0000"
    reproduce.write_csv(tmp_path / "results" / "runs.csv", reproduce.COLUMNS, list(rows.values()))
    reproduce.plan(reproduce.Plan(results=str(tmp_path / "results"), **choice))
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines() if "again, of a new expert" in line] == [row]
    assert "2 runs chosen, 1 done, 1 to run" in output


# Running it, with stubs


def test_kills_at_random_moments_lose_no_run_and_do_none_twice(copy):
    """SIGKILL to the command, or to a script at work, again and again; then once to the end."""
    choice = ("--episodes", "600", "--n-demos", "50,100", "--discriminators", "decentralized")
    rng = random.Random(0)
    killed = {"command": 0, "script": 0}
    for turn in range(4):
        process = start(copy, *choice)
        line = "nothing yet"
        while line and line.split()[1:2] != ["started"]:
            line = process.stdout.readline()
        time.sleep(rng.uniform(0, 2))
        scripts = stubs_at_work(copy)
        if turn % 2 and scripts:
            os.kill(rng.choice(scripts), signal.SIGKILL)
            killed["script"] += 1
            time.sleep(0.5)
        process.kill()
        killed["command"] += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert killed["command"] == 4 and killed["script"] >= 1, "the test itself must bite"
    code, output = run(copy, *choice)
    assert code == 0, output
    assert len(rows(copy)) == 2 * 3 * 2 * 2
    seen = notes(copy)
    assert not [line for line in seen if line.startswith("DOUBLE")]
    for run_id in rows(copy):
        assert seen.count(f"end {run_id}") == 1, "ended once"
        # begun once, or again only if it was killed before its first checkpoint
        assert 1 <= seen.count(f"begin {run_id}") <= 2
    before = len(seen)
    code, output = run(copy, *choice)
    assert code == 0 and "0 runs to do" in output and len(notes(copy)) == before


SMALL = ("--tasks", "keep_away", "--n-demos", "50", "--discriminators", "decentralized", "--algorithms", "mairl")
IMITATE, RETRAIN = (f"{stage}__keep_away__mairl__decentralized__50__1" for stage in ("imitate", "retrain"))


def test_what_fails_once_is_tried_again_and_what_fails_twice_is_reported(copy):
    (copy / "fails.json").write_text(json.dumps({RETRAIN: 1}))
    code, output = run(copy, *SMALL)
    assert code == 0 and set(rows(copy)) == {IMITATE, RETRAIN}
    assert f"FAILED   {RETRAIN}: exit code 3; once more" in output and "a reason in the log" in output

    (copy / "fails.json").write_text(json.dumps({IMITATE.replace("50", "100"): 2}))
    code, output = run(copy, *SMALL, "--n-demos", "100")
    assert code == 1 and set(rows(copy)) == {IMITATE, RETRAIN}, "neither it nor what needs it has a row"
    assert "2 failed" in output and "has no reward to train on" in output

    _, imitation, retraining, _, counts = status(copy, *SMALL, "--n-demos", "100").splitlines()
    assert "failed" in imitation and imitation.endswith("exit code 3")
    assert "failed" in retraining and "has no reward to train on" in retraining and counts == "2 failed"
    code, output = run(copy, *SMALL, "--n-demos", "100")
    assert code == 0, "another command tries again"
    assert status(copy, *SMALL, "--n-demos", "100").endswith("2 done\n")


def test_two_commands_at_once_share_the_work(copy):
    processes = [start(copy, "--episodes", "600", "--n-demos", "50", "--tasks", "keep_away") for _ in range(2)]
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    seen = notes(copy)
    assert not [line for line in seen if line.startswith("DOUBLE")]
    assert len(rows(copy)) == 12
    assert all(seen.count(f"{what} {run_id}") == 1 for run_id in rows(copy) for what in ("begin", "end"))


def test_a_longer_budget_goes_on_and_retrains_on_the_new_reward(copy):
    def quick(episodes):
        code, output = run(copy, *SMALL, "--episodes", str(episodes), "--scale", "quick")
        assert code == 0, output
        with open(copy / "runs/reproduce/quick/results/runs.csv") as file:
            return {row["run_id"]: row for row in csv.DictReader(file)}

    first = quick(100)
    assert [first[key]["episodes"] for key in (IMITATE, RETRAIN)] == ["100", "100"]
    longer = quick(300)
    assert [longer[key]["episodes"] for key in (IMITATE, RETRAIN)] == ["300", "300"]
    assert longer[RETRAIN]["reward_episodes"] == "300"
    assert notes(copy).count(f"begin {IMITATE}") == 1, "gone on with"
    assert notes(copy).count(f"begin {RETRAIN}") == 2, "its reward is another one"
    assert len(list((copy / "runs/reproduce/quick/put_aside").iterdir())) == 1, "what had ended is not deleted"
    assert quick(200) == longer, "a smaller budget changes nothing"


def test_a_new_expert_makes_runs_begin_again(copy):
    """Those that have ended, and those that were stopped on the way: no script would go on with them."""
    choice = ["--tasks", "cooperative_communication", "--algorithms", "mairl", "--n-demos", "50", "--seeds", "1"]
    choice += ["--discriminators", "decentralized"]
    assert run(copy, *choice)[0] == 0
    before = rows(copy)
    assert set(before) == {
        f"{stage}__cooperative_communication__mairl__decentralized__50__1" for stage in ("imitate", "retrain")
    }
    # The stubs' expert scores 2.0; a card that says so changes nothing, another one does.
    card = copy / "experts" / "cooperative_communication" / "card.json"
    card.parent.mkdir()
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 2.0}}}}))
    assert "0 runs to do" in run(copy, *choice)[1]
    card.write_text(json.dumps({"scores": {"expert": {"a": {"mean": 3.0}}}}))
    for name in (*reproduce.SCRIPTS.values(), "retrain.py"):
        (copy / name).write_text(STUB.replace('"expert": {"a": 2.0}', '"expert": {"a": 3.0}'))
    assert "waiting" in status(copy, *choice)
    code, output = run(copy, *choice)
    assert code == 0 and "2 runs to do" in output
    assert {row["expert_scores"] for row in rows(copy).values()} == {"3.0000"}
    assert sum(line.startswith("begin") for line in notes(copy)) == 4
    assert len(list((copy / "runs/reproduce/smoke/put_aside").iterdir())) == 2


def test_an_interrupt_lets_runs_save_and_the_same_command_goes_on(copy):
    process = start(copy, *SMALL, "--episodes", "3000")
    while not (copy / "notes.txt").is_file():
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "the same command goes on" in output
    assert not stubs_at_work(copy)
    table = status(copy, *SMALL, "--episodes", "3000")
    assert "interrupted" in table and "1 waiting" in table
    assert run(copy, *SMALL, "--episodes", "3000")[0] == 0
    assert notes(copy).count(f"begin {IMITATE}") == 1


def test_runs_with_other_arguments_are_other_runs(copy):
    assert run(copy, *SMALL)[0] == 0
    assert run(copy, *SMALL, "--mairl-args=--disc-lr 0.1")[0] == 0
    other = [f"{run_id}__disc_lr_0.1" for run_id in (IMITATE, RETRAIN)]
    assert set(rows(copy)) == {IMITATE, RETRAIN, *other}
    assert [rows(copy)[run_id]["arguments"] for run_id in other] == ["--disc-lr 0.1", ""]
    assert rows(copy)[other[1]]["reward_arguments"] == "--disc-lr 0.1"
    log = (copy / "runs/reproduce/smoke" / other[1] / "log.txt").read_text()
    assert f"smoke/{other[0]}/" in log, "retrained on the reward of the other run"


def test_a_mistake_in_extra_arguments_can_be_mended(copy):
    code, output = run(copy, *SMALL, "--mairl-args=--alhpa 1")
    assert code == 1 and output.count("exit code 2") == 1, "a mistake is not tried twice"
    assert run(copy, *SMALL)[0] == 0
    for wrong, says in (("--seed 3", "must not set --seed"), ("'--disc-lr", "cannot be read")):
        code, output = run(copy, *SMALL, f"--mairl-args={wrong}")
        assert code == 2 and says in output and "Traceback" not in output


# On a Ray cluster


def test_a_lost_ray_node_loses_no_run(copy, monkeypatch):
    """Two nodes with a CPU each; one is killed while it works, and its run is done by the other one."""
    pytest.importorskip("ray", reason="optional: pip install -r requirements-ray.txt")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("NOTES", str(copy))  # nodes inherit it
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        process = start(copy, *SMALL, "--n-demos", "50,100,200", "--episodes", "4000", "--launcher", "ray",
                        "--address", cluster.address)  # fmt: skip
        deadline = time.time() + 120
        while not (copy / "notes.txt").is_file() or len(notes(copy)) < 2:  # both nodes have begun
            assert process.poll() is None and time.time() < deadline, process.communicate()[0]
            time.sleep(0.2)
        cluster.remove_node(nodes[0], allow_graceful=False)
        output = process.communicate(timeout=240)[0]
        assert process.returncode == 0, output
    finally:
        cluster.shutdown()
    assert len(rows(copy)) == 6
    begun = [line for line in notes(copy) if line.startswith("begin")]
    assert len(begun) == 7, "the lost one was begun again, by nobody else's loss"
    assert next((copy / "runs/reproduce/smoke" / IMITATE).glob("*/summary.json")), "its files were brought back"
    code, output = run(copy, *SMALL, "--n-demos", "50,100,200", "--episodes", "4000")
    assert code == 0 and "0 runs to do" in output, "a local command knows what Ray has done"


def test_no_ray_cluster_is_a_clear_error(copy):
    pytest.importorskip("ray", reason="optional: pip install -r requirements-ray.txt")
    code, output = run(copy, *SMALL, "--launcher", "ray", "--address", "127.0.0.1:1")
    assert code == 2 and "no Ray cluster at --address 127.0.0.1:1" in output and "Traceback" not in output


# With real scripts


def test_a_small_grid_of_real_scripts_and_its_report(tmp_path):
    """One task, all three algorithms, both stages: rows that agree with what scripts wrote, and a report."""
    grid = ("--scale", "smoke", "--runs", str(tmp_path), "--tasks", "cooperative_communication")
    grid += ("--n-demos", "50", "--discriminators", "decentralized")

    def reproduce_py(*arguments):
        command = [sys.executable, str(ROOT / "reproduce.py"), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    done = reproduce_py("run", *grid, "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "smoke/results/runs.csv") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 6
    for row in found:
        summary = json.loads(next((tmp_path / "smoke" / row["run_id"]).glob("*/summary.json")).read_text())
        assert float(row["nss"]) == pytest.approx(summary["stochastic"]["nss"], abs=1e-4)
        assert row["episodes"] == "120" and row["agents"] == "speaker_0;listener_0"
        with open(tmp_path / "smoke/results/curves" / f"{row['run_id']}.csv") as file:
            points = list(csv.DictReader(file))
        assert points and points[-1]["episodes"] == "120"
    planned = reproduce_py("plan", *grid)
    assert "6 runs chosen, 6 done, 0 to run" in planned.stdout
    reported = reproduce_py("report", *grid)
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "smoke/results/tables/index.md").is_file()
