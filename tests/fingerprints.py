"""Fingerprints of what the training scripts compute, to restructure them without changing it.

    python -m tests.fingerprints            compares with tests/fingerprints.json
    python -m tests.fingerprints --record   writes that file anew

Each case runs a script for a few updates and hashes the tensors of its final policy and reward. Floating-point results
depend on the processor and on the version of torch, so this is a tool for one machine and not a part of the test suite.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "fingerprints.json"
TASKS = ("cooperative_communication", "rover_tower_8")
COMMON = ["--torch-threads", "1", "--eval-episodes", "2", "--seed", "3"]
MADAAC = ["--num-envs", "20", "--batch-size", "100", "--updates-per-period", "1", "--disc-lr", "0.0005"]
MACK = ["--num-envs", "10"]


def run(*arguments: str, runs: Path) -> Path:
    """Run a script and return the run folder that it made or resumed."""
    before = set(runs.glob("*"))
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if finished.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} failed:\n{finished.stdout[-2000:]}")
    made = set(runs.glob("*")) - before
    return made.pop() if made else Path(arguments[arguments.index("--resume") + 1])


def fingerprint(path: Path) -> str:
    """A hash of the tensors of a file, whatever they are called; the shaping terms h of a reward do not count."""
    digests = []
    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118 (not a dictionary)
            if not name.startswith("h."):
                digests.append(hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]


def measure(folder: Path) -> dict[str, str]:
    found = {}

    def note(name: str, run_folder: Path) -> Path:
        for kind in ("policy", "reward"):
            if (path := run_folder / f"{kind}.safetensors").is_file():
                found[f"{name} {kind}"] = fingerprint(path)
                print(f"{name} {kind}: {found[f'{name} {kind}']}", flush=True)
        return run_folder

    runs = {}
    for task in TASKS:
        for script, options, steps in (
            ("madaac_discrete", MADAAC, (3000, 2000)),
            ("mairl_mack", MACK, (1500, 1000)),
            ("magail_mack", MACK, (1500, 1000)),
        ):
            for kind in ("decentralized", "centralized"):
                words = [f"{script}.py", "--env-id", task, "--discriminator", kind, *COMMON, *options, "--runs", folder]
                name = f"{script} {task} {kind}"
                runs[name] = note(name, run(*words, "--total-timesteps", str(steps[0]), runs=folder))
                if kind == "decentralized":
                    first = run(*words, "--total-timesteps", str(steps[1]), runs=folder)
                    longer = [f"{script}.py", "--resume", str(first), "--total-timesteps", str(steps[0])]
                    note(f"{name} resumed", run(*longer, runs=folder))
        words = f"--env-id {task} --torch-threads 1 --seed 3 --num-envs 20 --batch-size 100 --selection-episodes 4"
        words += f" --total-timesteps 3000 --eval-episodes 4 --store-demos 2 --runs {folder} --experts {folder}/experts"
        note(f"train_expert_maac {task}", run("train_expert_maac.py", *words.split(), runs=folder))
    for script, task, options in (
        ("mairl_mack", TASKS[0], MACK),
        ("magail_mack", TASKS[0], MACK),
        ("madaac_discrete", TASKS[1], MADAAC[:6]),
    ):
        source = runs[f"{script} {task} decentralized"]
        words = ["retrain.py", str(source), *COMMON, *options, "--total-timesteps", "1500", "--runs", folder]
        note(f"retrain {script} {task}", run(*words, runs=folder))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "experts").mkdir()
        found = measure(Path(folder))
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(found, indent=2) + "\n")
        return
    expected = json.loads(RECORD.read_text())
    differ = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    print(f"{len(found) - len(differ)} as recorded, {len(differ)} differ" + "".join(f"\n  {name}" for name in differ))
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
