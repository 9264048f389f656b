"""Kills, damaged files, full disks, divergences and hostile folders, at length.

    python -m tests.torture                                  takes about half an hour on one core
    python -m tests.torture --kills 5 --malformed 50 --full-disks 5

prints a table of what was tried and what happened, and ends with exit code 1 if anything went wrong. The test suite
has a short form of each. docs/reliability.md has the figures of the last long run.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from madaac_utils.checkpoints import load_checkpoint
from madaac_utils.demos import load_demos, reference_scores
from madaac_utils.files import EXPERTS, UserError, read_json
from madaac_utils.networks import digest, load_tensors
from madaac_utils.policies import load_policy
from madaac_utils.rewards import learned_reward, learned_reward_env
from particle_envs import TaskError
from tests.cases import CASES, TASK, Runs, experts_option, name_task, results, run_folder
from tests.damage import damage_bytes, damage_state, flip_bit
from tests.running import Finished, Started, measure_memory, run


@dataclass
class Args:
    kills: int = 100
    """SIGKILLs at random moments, over all scripts"""
    malformed: int = 1000
    """damaged demonstrations, policies, rewards, cards, configs and checkpoints"""
    full_disks: int = 60
    """runs whose files may not grow beyond a random size"""
    divergences: int = 13
    """runs that are made to diverge"""
    seed: int = 0
    """seed of what is damaged and when"""


class Report:
    """Counts what happened, and prints it as a table."""

    def __init__(self):
        self.rows: dict[str, Counter] = {}
        self.bad: list[str] = []

    def add(self, what: str, outcome: str, problem: object = None) -> None:
        self.rows.setdefault(what, Counter())[outcome] += 1
        if problem is not None:
            self.bad.append(f"{what}: {outcome}: {problem}")

    def add_run(self, what: str, ended: Finished, detail: str) -> None:
        """The end of a script: it may succeed, or explain itself in one line."""
        outcomes = {0: "ran on", 1: "stopped as diverged, in one line", 2: "refused in one line"}
        if ended.code in outcomes and ended.err.count("\n") == (ended.code > 0):
            self.add(what, outcomes[ended.code])
        else:
            self.add(what, "TRACEBACK", (detail, ended.code, ended.err[-2000:]))

    def print(self) -> None:
        print("\n| tried | times | what happened |\n|---|---|---|")
        for what, counts in self.rows.items():
            outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
            print(f"| {what} | {sum(counts.values())} | {outcomes} |")
        print("\n" + ("\n".join(self.bad) or "nothing went wrong"))


def kill(runs: Runs, report: Report, kills: int, rng: random.Random) -> None:
    """Kill runs again and again, resume them, and compare what they end with."""
    names, done, seconds = list(CASES), 0, {}
    while done < kills:
        name = names[done % len(names)]
        if name not in seconds:
            started = time.time()
            runs.finish(name, **{"save-every": 0})
            seconds[name] = time.time() - started
        folder = runs.new_folder()
        ended = None
        while ended is None or ended.code == -signal.SIGKILL:
            saved = any(folder.glob("*/checkpoint*.pt"))
            if not saved:
                shutil.rmtree(folder, ignore_errors=True)  # killed before the first checkpoint: begin anew
            resume = (
                [CASES[name].script, "--resume", run_folder(folder), *experts_option(name, folder)] if saved else []
            )
            process = Started(*(resume or runs.words(name, folder)), "--save-every", 0)
            if done < kills and (ended is None or rng.random() < 0.9):
                time.sleep(rng.uniform(0, seconds[name]))
                ended = process.stop(signal.SIGKILL)
            else:
                ended = process.wait()
            done += ended.code == -signal.SIGKILL
            if ended.code == -signal.SIGKILL:
                where = "with a checkpoint" if any(folder.glob("*/checkpoint*.pt")) else "before the first checkpoint"
                report.add("kills", f"killed {where}")
        if ended.code != 0:
            report.add("chains of kills", "FAILED", (name, ended.err))
        elif results(run_folder(folder)) != results(runs.finished(name)):
            report.add("chains of kills", "OTHER BITS", name)
        else:
            report.add("chains of kills", "ended with the same bits as the undisturbed run")
        if list(folder.rglob(".*.tmp*")):
            report.add("chains of kills", "LEFT A TEMPORARY FILE", name)


# Malformed files


FILES = {
    "demonstrations": "demos.npz",
    "arrays of demonstrations": "demos.npz",
    "policies": "policy.safetensors",
    "rewards": "reward.safetensors",
    "cards": "card.json",
}


def load(kind: str, path: Path) -> str | None:
    """Load a file; of a policy or reward, return a checksum of what was loaded."""
    if "demonstrations" in kind:
        load_demos(path)
    elif kind == "cards":
        reference_scores(TASK, expert_folder=path.parent)
    elif kind == "policies":
        policy = load_policy(path)
        return digest(policy.tensors, policy.header)
    else:
        learned_reward(path)
        return digest(*load_tensors(path, "reward", "reward"))
    return None


def load_damaged(kind: str, folder: Path, seeds: range) -> Counter:
    """Damage a file in many ways and load it; count what happens."""
    path, found = folder / FILES[kind], Counter()
    whole, loaded = path.read_bytes(), load(kind, path)
    for seed in seeds:
        rng = random.Random(seed)
        if kind == "arrays of demonstrations":
            path.write_bytes(whole)
            damage_arrays(path, rng)
        elif kind == "cards":
            card = json.loads(whole)
            damage_state(card, rng)
            path.write_text(json.dumps(card))
        else:
            path.write_bytes(damage_bytes(whole, rng))
        try:
            found["loaded" if load(kind, path) == loaded else f"LOADED SOMETHING ELSE, seed {seed}"] += 1
        except (UserError, TaskError) as error:
            found["refused in one line" if "\n" not in str(error) else "MANY LINES"] += 1
        except Exception as error:
            found[f"TRACEBACK of {type(error).__name__}, seed {seed}: {error}"] += 1
    path.write_bytes(whole)
    return found


class Planted:
    """Unpickling this creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def damage_arrays(path: Path, rng: random.Random) -> None:
    """Replace an array of a file of demonstrations by something else, such as a pickle."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(sorted(arrays))
    array = arrays.pop(name)
    others = [None, array[None], array.astype(str), array[:0] if array.ndim else array, np.array(7)]
    others += [np.array([Planted(path.parent / "executed")], dtype=object), np.array("{" * 1000)]
    with np.errstate(all="ignore"):
        if array.dtype.kind in "if":
            others += [array - 10, array.astype(complex), array * 1e300, np.full_like(array, 2**31 - 1)]
    other = rng.choice(others)
    np.savez_compressed(path, **arrays, **({} if other is None else {name: other}))
    shutil.rmtree(path.parent / "executed", ignore_errors=True)


def damage_run(folder: Path, kind: str, rng: random.Random) -> str:
    """Damage a run that is to be resumed."""
    checkpoint, config = folder / "checkpoint.pt", folder / "config.json"
    if kind == "bits of checkpoints":
        checkpoint.write_bytes(rng.choice([flip_bit, damage_bytes])(checkpoint.read_bytes(), rng))
    elif kind == "bytes of configs":
        config.write_bytes(damage_bytes(config.read_bytes(), rng))
    else:
        content = read_json(config, "JSON")
        what = damage_state(content, rng)
        config.write_text(json.dumps(content))
        return what
    return kind


def malform(runs: Runs, report: Report, number: int, rng: random.Random) -> None:
    expert = runs.new_folder()
    shutil.copytree(EXPERTS / TASK, expert)
    for name in ("policy.safetensors", "reward.safetensors"):
        shutil.copy(runs.finished("madaac_discrete") / name, expert)
    resumed = ("bits of checkpoints", "bytes of configs", "structure of configs")
    share = -(-number // (len(FILES) + len(resumed)))
    for kind in FILES:
        first = rng.randrange(10**6)
        found, megabytes = measure_memory(load_damaged, kind, expert, range(first, first + share))
        for outcome, times in found.items():
            for _ in range(times):
                report.add(f"damaged {kind}", outcome, outcome if outcome[:2].isupper() else None)
        if megabytes > 1000:
            report.add(f"damaged {kind}", f"TOOK {megabytes:.0f} MEGABYTES", kind)
    sources = {name: runs.finish(name, **{"save-every": 0}) for name in CASES}  # with two checkpoints each
    for kind in resumed:
        for k in range(share):
            name = list(CASES)[k % len(CASES)]
            folder = runs.new_folder()
            shutil.copytree(sources[name], folder / "run")
            what = damage_run(folder / "run", kind, random.Random(rng.randrange(10**9)))
            words = ["--resume", folder / "run", *experts_option(name, folder)]
            ended = run(CASES[name].script, *words)
            report.add_run(f"damaged {kind}", ended, f"{name}: {what}")
            if kind == "bits of checkpoints" and (ended.code or results(folder / "run") != results(sources[name])):
                report.add(f"damaged {kind}", "NOT RECOVERED FROM THE CHECKPOINT BEFORE", (name, ended.err))
            shutil.rmtree(folder)
    if (expert / "executed").exists():
        report.add("damaged demonstrations", "EXECUTED CODE", "a pickle in demos.npz")


# Full disks, divergences, hostile folders


def fill_disks(runs: Runs, report: Report, number: int, rng: random.Random) -> None:
    for k in range(number):
        name = list(CASES)[k % len(CASES)]
        folder, size = runs.new_folder(), int(10 ** rng.uniform(2.5, 5.5))
        ended = run(*runs.words(name, folder, **{"save-every": 0}), largest_file=size)
        report.add_run("full disks", ended, f"{name} with files of at most {size} bytes")
        for path in folder.glob("*/checkpoint*.pt"):
            load_checkpoint(path.parent)
        if list(folder.rglob(".*.tmp*")):
            report.add("full disks", "LEFT A TEMPORARY FILE", name)


DIVERGENCES = [
    ("madaac_discrete", {"critic-lr": 1e8}),
    ("madaac_discrete", {"critic-lr": 1e30}),
    ("madaac_discrete", {"disc-lr": 1e30}),
    ("madaac_discrete", {"policy-lr": 1e30}),
    ("madaac_discrete", {"alpha": 1e38}),
    ("mairl_mack", {"disc-lr": 1e30}),
    ("mairl_mack", {"policy-lr": 1e30, "kl-clip": 1e30}),
    ("mairl_mack", {"critic-lr": 1e30, "critic-kl-clip": 1e30}),
    ("magail_mack", {"disc-lr": 1e30}),
    ("magail_mack", {"entropy": 1e38}),
    ("train_expert_maac", {"critic-lr": 1e30}),
    ("train_expert_maac", {"policy-lr": 1e30}),
    ("train_expert_maac", {"alpha": 1e38}),
]


def diverge(runs: Runs, report: Report, number: int) -> None:
    for name, options in DIVERGENCES[:number]:
        folder = runs.new_folder()
        shutil.copytree(EXPERTS / TASK, folder / "experts" / TASK)
        ended = run(*runs.words(name, folder, **{"save-every": 0}, **options))
        expert_kept = (folder / "experts" / TASK / "card.json").read_bytes() == (
            EXPERTS / TASK / "card.json"
        ).read_bytes()
        policy = folder.glob("*/policy.safetensors")
        try:
            finite = all(tensor.isfinite().all() for path in policy for tensor in load_policy(path).tensors.values())
        except UserError:
            finite = False
        if ended.code == 0 and finite:
            report.add("divergences", "stayed finite")
        elif ended.code == 1 and ended.err.count("\n") == 1 and finite and expert_kept:
            report.add("divergences", "noticed in one line; last good files kept")
        else:
            report.add("divergences", "NOT NOTICED", (name, options, ended))


def trust_nobody(runs: Runs, report: Report) -> None:
    """Folders that contain code and name it as their task."""
    top = runs.new_folder()
    folder, executed = top / "runs" / "x", top / "executed"
    for task in ("runs.x.plot", "x.plot"):
        path = f"{top}{os.pathsep}{top / 'runs'}"
        for source, command in (
            ("madaac_discrete", ["madaac_discrete.py", "--resume", folder]),
            ("retrain_mack", ["retrain.py", "--resume", folder]),
            ("train_expert_maac", ["train_expert_maac.py", "--resume", folder, "--experts", top / "experts"]),
            ("madaac_discrete", ["retrain.py", folder, "--runs", top / "more"]),
            ("madaac_discrete", None),
        ):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(runs.finished(source), folder)
            (folder / "plot.py").write_text(f"open({str(executed)!r}, 'w')")
            name_task(folder, task)
            if command:
                ended = run(*command, path=path, cwd=top)
                refused = ended.code == 2 and ended.err.count("\n") == 1
            else:
                sys.path[:0] = path.split(os.pathsep)
                try:
                    learned_reward_env(folder)
                    refused = False
                except (UserError, TaskError):
                    refused = True
                del sys.path[:2]
            problem = None if refused and not executed.exists() else (task, command)
            report.add("hostile folders", "refused, nothing executed" if problem is None else "EXECUTED", problem)


def main(args: Args) -> None:
    report, rng = Report(), random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        kill(runs, report, args.kills, rng)
        malform(runs, report, args.malformed, rng)
        fill_disks(runs, report, args.full_disks, rng)
        diverge(runs, report, args.divergences)
        trust_nobody(runs, report)
    report.print()
    sys.exit(bool(report.bad))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
