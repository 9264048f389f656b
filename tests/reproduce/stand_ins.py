"""Stand-ins for scripts, experts and rows, so that tests need no training."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

from madaac_utils.paper import paper_learner
from reproduce.grid import ALGORITHMS, TASKS, Cell, Grid, episodes_of
from reproduce.rows import ROW_COLUMNS, as_text

# Keeps the contract of run folders, checkpoints and --resume, learns nothing, and notes in notes.txt when it begins a
# new run, when it ends, and whether another process is at work in the same place.
SCRIPT = """
import fcntl, hashlib, json, os, signal, sys, time
from pathlib import Path

words = sys.argv[1:]
words = words if words[0].startswith("--") else ["--run", *words]  # retrain.py RUN
args = {name[2:].replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
if "mistake" in args:
    print("error: no such option")
    sys.exit(2)
root = Path(os.environ.get("NOTES", Path(__file__).parent))  # a Ray node has its own copy of the code

def note(what):
    with open(root / "notes.txt", "a") as file:
        file.write(f"{what} {folder.parent.name}\\n")

def write(name, content):
    (folder / f".{name}").write_text(json.dumps(content))
    os.replace(folder / f".{name}", folder / name)

step = 0
if "resume" in args:
    folder, longer = Path(args["resume"]), int(args.get("total_timesteps", 0))
    args = json.loads((folder / "config.json").read_text())["args"]
    step = json.loads((folder / "checkpoint.pt").read_text())["step"]
    if longer > args["total_timesteps"]:
        args["total_timesteps"] = longer
        (folder / "summary.json").unlink(missing_ok=True)
        write("config.json", {"args": args, "commit": "0000"})
else:
    folder = Path(args["runs"]) / f"run__{time.time_ns()}"
    folder.mkdir(parents=True)
    args["total_timesteps"] = int(args.get("total_timesteps", 1000))
    if "run" in args:
        args["reward_sha256"] = hashlib.sha256((Path(args["run"]) / "reward.safetensors").read_bytes()).hexdigest()
    write("config.json", {"args": args, "commit": "0000"})
    note("begin")
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
    if asked:
        sys.exit(130)
(folder / "reward.safetensors").write_text(str(step))
expert = json.loads((root / "expert.json").read_text()) if (root / "expert.json").is_file() else 2.0
scores = {"scores": {"a": {"mean": 1.0, "interval_95": 0.1}}, "nss": 0.5, "nss_by_agent": {"a": 0.5}}
summary = {"episodes": step // 25, "seconds": 1, "nss_last_500_training_episodes": 0.5, "expert": {"a": expert},
           "random": {"a": 0.0}, "stochastic": scores, "greedy": scores}
write("summary.json", summary | ({"rl": "mack", "pcc": 0.1} if "run" in args else {}))
note("end")
"""

SCORES = {"keep_away": {"pusher_0": (20.0, 120.0), "reacher_0": (-5.0, -25.0)}}  # expert, random
for task in list(TASKS)[1:]:
    names = [f"agent_{i}" for i in range(int(task.split("_")[2]) if task.startswith("rover") else 3)]
    SCORES[task] = dict.fromkeys(names, (-10.0, -60.0) if task.startswith("cooperative") else (120.0, 0.0))


def write_scripts(folder: Path) -> None:
    for name in {*(algorithm.script for algorithm in ALGORITHMS.values()), "retrain.py"}:
        (folder / name).write_text(SCRIPT)
    (folder / "experts").mkdir()


def write_cards(experts: Path) -> None:
    for task, scores in SCORES.items():
        names = {"expert": 0, "random": 1}
        card = {name: {a: {"mean": s[i], "interval_95": 1.0} for a, s in scores.items()} for name, i in names.items()}
        (experts / task).mkdir(parents=True)
        (experts / task / "card.json").write_text(json.dumps({"scores": card}))


def row(task="keep_away", stage="imitate", algorithm="madaac", nss=0.9, **others) -> dict:
    """A row of runs.csv whose agents all have this NSS."""
    expert, random = ([score[i] for score in SCORES[task].values()] for i in (0, 1))
    scores = tuple(r + nss * (e - r) for e, r in zip(expert, random))
    kind = "decentralized" if ALGORITHMS[algorithm].adversarial else "none"
    place = {"stage": stage, "task": task, "algorithm": algorithm, "discriminator": kind, "n_demos": 50, "seed": 1}
    cell = Cell(**place | {name: others.pop(name) for name in list(others) if name in Cell.__dataclass_fields__})
    retrained = stage == "retrain"
    return {
        "run_id": cell.run_id,
        **asdict(cell),
        "episodes": episodes_of(cell, Grid()),
        "rl": paper_learner(task) if retrained else "",
        "agents": tuple(SCORES[task]),
        "scores": scores,
        "score_intervals": tuple(1.0 for _ in scores),
        "greedy_scores": scores,
        "expert_scores": tuple(expert),
        "random_scores": tuple(random),
        **{"nss": nss, "nss_greedy": nss, "nss_last_500": float("nan"), "pcc": 0.25 if retrained else float("nan")},
        **{
            "seconds": 100,
            "commit": "0123456",
            "reward_episodes": episodes_of(cell.imitation, Grid()) if retrained else 0,
        },
    } | others


def write_results(results: Path, rows: list[dict], curve=((1000, 10, 0.2), (2000, 20, 0.91), (3000, 30, 0.85))) -> None:
    """runs.csv, and a curve of (episodes, seconds, NSS) for every row; a row may bring its own as `curve`."""
    (results / "curves").mkdir(parents=True, exist_ok=True)
    with open(results / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW_COLUMNS), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_text(value) for name, value in one.items()} for one in rows)
    for one in rows:
        pcc = "0.25" if one["stage"] == "retrain" else ""
        points = [f"{episodes},{seconds},{nss},{pcc}\n" for episodes, seconds, nss in one.get("curve", curve)]
        path = results / "curves" / f"{one['run_id']}.csv"
        path.write_text("episodes,seconds,nss,pcc\n" + "".join(points))
