"""How episodes, seconds and memory grow with the number of agents on Rover Tower, from scripted demonstrations.

    python studies/scaling.py --agents 8,16,32,64 --out scaling.png

Each run learns from 50 demonstrations of studies/scripted_rover_tower.py until NSS over the last 500 training episodes
is 0.9, or until it has used --max-seconds of processor time (of wall time while it has logged nothing). Runs follow one
another, so that memory and seconds are those of one run with one torch thread. The command can be stopped; the same
command continues. The table and the figure have all runs in --runs, also those of earlier commands.
"""

import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from madaac_utils.files import ROOT, UserError, exit_on_user_error, read_json, write_json, writing
from reproduce.figures import COLOURS, panels
from reproduce.grid import ALGORITHMS, parse_names, parse_numbers
from reproduce.parameters import count_parameters
from reproduce.store import curve_of


class Compared(NamedTuple):
    title: str
    algorithm: str  # as `reproduce` calls it
    discriminator: str
    colour: str


COMPARED = {
    "mairl": Compared("MA-AIRL", "mairl", "decentralized", COLOURS["mairl"]),
    "madaac": Compared("MA-DAAC", "madaac", "decentralized", COLOURS["madaac"]),
    "shared": Compared("MA-DAAC, shared", "madaac", "shared", "#CC79A7"),
}
GOAL = 0.9
EPISODES = 100_000  # more than any run gets to


@dataclass
class Args:
    agents: str = "8,16,32,64"
    """numbers of agents separated by commas"""
    algorithms: str = "mairl,madaac,shared"
    """mairl, madaac or shared (MA-DAAC with shared discriminators), separated by commas"""
    max_seconds: float = 3600
    """processor time after which a run that has not reached the goal is given up"""
    seed: int = 1
    """seed of all runs"""
    runs: Path = Path("runs/scaling")
    """folder for demonstrations and run folders"""
    out: Path = Path("scaling.png")
    """the figure to write"""


def start(command: list[str], log: Path) -> subprocess.Popen:
    with open(log, "a") as output:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def train(args: Args, algorithm: str, agents: int) -> dict:
    """Train until the goal or the end of the time, and return what was measured."""
    place = (args.runs / f"{algorithm}_{agents}_{args.seed}").resolve()
    result = place / "result.json"
    if result.is_file():
        found = read_json(result, "the result of a run")
        if found["reached"] or found["seconds"] >= args.max_seconds:
            return found
    place.mkdir(parents=True, exist_ok=True)
    env_id, demos = f"rover_tower_{agents}", (args.runs / f"rover_tower_{agents}.npz").resolve()
    if not demos.is_file():
        scripted = ["studies/scripted_rover_tower.py", "--agents", str(agents), "--out", str(demos)]
        if start(scripted, place / "log.txt").wait():
            raise UserError(f"recording demonstrations has failed, see {place / 'log.txt'}")
    command = [ALGORITHMS[COMPARED[algorithm].algorithm].script]
    begun = [path.parent for path in place.glob("*/checkpoint.pt")]
    if begun:
        command += ["--resume", str(begun[0])]
    else:
        command += ["--env-id", env_id, "--demos", str(demos), "--n-demos", "50", "--seed", str(args.seed)]
        command += ["--total-timesteps", str(EPISODES * 25), "--runs", str(place), "--torch-threads", "1"]
        command += ["--log-every", "2500", "--discriminator", COMPARED[algorithm].discriminator]
    process, began = start(command, place / "log.txt"), time.monotonic()
    while process.poll() is None:
        time.sleep(5)
        curve = [point for folder in place.glob("*/config.json") for point in curve_of(folder.parent)]
        goal = next((point for point in curve if point["nss"] >= GOAL), None)
        last = goal or (curve[-1] if curve else {"episodes": 0, "seconds": round(time.monotonic() - began)})
        best = max((point["nss"] for point in curve), default=None)
        shown = "–" if best is None else f"{best:.2f}"
        print(f"\r{algorithm}, {agents} agents: {last['episodes']:,} episodes, NSS {shown}", end="", flush=True)
        if goal or last["seconds"] >= args.max_seconds:
            process.terminate() if curve else process.kill()  # the script saves a checkpoint and ends
            _, _, usage = os.wait4(process.pid, 0)
            found = {"algorithm": algorithm, "agents": agents, "reached": goal is not None, "nss": best}
            found |= {"episodes": last["episodes"], "seconds": last["seconds"]}
            found["memory_mb"] = round(usage.ru_maxrss / 1024)
            write_json(result, found)
            print()
            return found
    raise UserError(f"{command[0]} has ended before its time, see {place / 'log.txt'}")


def table(results: list[dict]) -> str:
    lines = ["| agents | algorithm | NSS | episodes | seconds | memory (MB) | parameters |", "|" + "---|" * 7]
    for one in results:
        kind = COMPARED[one["algorithm"]]
        count = sum(count_parameters(kind.algorithm, one["agents"], kind.discriminator).values())
        reached = "nothing logged" if one["nss"] is None else f"{one['nss']:.2f} at best"
        reached = f"{GOAL} reached" if one["reached"] else reached
        numbers = [f"{number:,}" for number in (one["episodes"], one["seconds"], one["memory_mb"], count)]
        lines.append(f"| {one['agents']} | {kind.title} | {reached} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def draw(results: list[dict], out: Path) -> None:
    """Crosses are runs that did not reach the goal: they would need more."""
    measures = {"episodes": f"episodes to NSS {GOAL}", "seconds": f"processor seconds to NSS {GOAL}"}
    measures["memory_mb"] = "memory (MB)"
    figure, axes = panels(1, len(measures), (3.6, 3.0))
    for axis, (name, title) in zip(axes.flat, measures.items()):
        for algorithm in dict.fromkeys(one["algorithm"] for one in results):
            own = [one for one in results if one["algorithm"] == algorithm]
            x, y, color = [one["agents"] for one in own], [one[name] for one in own], COMPARED[algorithm].colour
            axis.plot(x, y, color=color, linewidth=1.2, label=COMPARED[algorithm].title)
            for one in own:
                axis.plot(one["agents"], one[name], "o" if one["reached"] else "x", color=color)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({one["agents"] for one in results}))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(title=title, xlabel="agents", yscale="log")
    axes[0, 0].legend(fontsize=8)
    with writing(out) as temporary:
        figure.savefig(temporary, format="png")


def main(args: Args) -> None:
    algorithms = parse_names(args.algorithms, COMPARED, "--algorithms")
    sizes = parse_numbers(args.agents, 4, 1024, "--agents")
    for agents, algorithm in itertools.product(sorted(sizes), algorithms):
        train(args, algorithm, agents)
    results = [read_json(path, "the result of a run") for path in args.runs.glob("*/result.json")]
    results.sort(key=lambda one: (one["agents"], list(COMPARED).index(one["algorithm"])))
    print(table(results))
    draw(results, args.out)
    print(f"written: {args.out}")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
