"""The experiments of Jeon et al. 2020 (arXiv 2002.10525) by one command, docs/reproduce.md.

    python -m reproduce plan
    python -m reproduce run --tasks small --discriminators decentralized --workers 2
    python -m reproduce status
    python -m reproduce report

`run` can be stopped or killed at any moment; the same command continues where it stopped. Each run that has ended is a
row of results/runs.csv and a curve in results/curves/, from which `report` makes results/tables and results/figures.
"""

import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import tyro

from madaac_utils.files import ROOT, UserError, exit_on_user_error, require_writable
from reproduce.grid import TASKS, Cell, Grid, episodes_of, make_cells
from reproduce.local import LocalLauncher, Scheduler, as_hours, estimate_text, progress_text
from reproduce.store import Workspace, warn


@dataclass(kw_only=True)
class Args(Grid):
    command: tyro.conf.Positional[Literal["plan", "run", "status", "report"]]
    """plan: print what would run and how long it takes; run: run everything that has no row yet; status: print the
    state of each run; report: make tables and figures from all rows with this scale and these extra arguments"""
    workers: int = 0
    """runs at a time, with one torch thread each; 0 is one per core"""
    launcher: Literal["local", "ray"] = "local"
    """processes on this machine, or tasks of a Ray cluster (needs `pip install -r requirements-ray.txt`)"""
    address: str = "auto"
    """address of the Ray cluster; auto is the one that this machine belongs to"""
    cpus_per_run: float = 1.0
    """CPUs that each run asks Ray for"""
    memory_per_run: float = 0.0
    """GB of memory that each run asks Ray for; 0 does not ask"""


def plan(args: Args, cells: list[Cell], work: Workspace) -> None:
    todo, workers = work.missing(cells), args.workers or os.cpu_count()
    print(f"{len(cells)} runs chosen, {len(set(cells) - set(todo))} need nothing, {len(todo)} to run")
    print(f"time with {workers} at a time: {estimate_text(work, todo, workers)}")
    if again := sum(map(work.is_done, todo)):
        print(f"{again} of the runs are repeated: retraining needs their rewards, and rows have only scores")
    if again := sum(cell.run_id in work.rows and not work.current_row(cell) for cell in todo):
        print(f"{again} of the runs are repeated: their rows were measured with another expert than that in experts/")
    print(f"\n{'stage':<9}{'task':<27}{'algorithm':<14}{'episodes':>13}{'runs':>6}{'time each':>11}")
    groups = {}
    for cell in sorted(todo, key=lambda cell: (cell.stage, list(TASKS).index(cell.task))):
        groups.setdefault((cell.stage, cell.task, cell.algorithm), []).append(cell)
    for (stage, task, algorithm), group in groups.items():
        episodes = episodes_of(group[0], args)
        time_each = as_hours(work.estimate_seconds(group[0]))
        print(f"{stage:<9}{task:<27}{algorithm:<14}{episodes:>13,}{len(group):>6}{time_each:>11}")


def status(args: Args, cells: list[Cell], work: Workspace) -> None:
    states = {cell: work.state(cell) for cell in cells}
    print(", ".join(f"{count} {state}" for state, count in Counter(states.values()).items()) + "\n")
    for cell, state in states.items():
        text = ""
        if state == "done":
            text = f"NSS {work.rows[cell.run_id].nss:.3f}"
        elif state in ("running", "interrupted"):
            text = progress_text(work.run_folder(cell))
            if row := work.current_row(cell):
                text += f"  (its row has {row.episodes:,} of {episodes_of(cell, args):,} episodes)"
        elif state == "failed":
            text = work.failure_note(cell).read_text(errors="replace").strip()
        print(f"{cell.run_id:<72}{state:<12}{text}".rstrip())


def run(args: Args, cells: list[Cell], work: Workspace) -> int:
    for folder in (work.results, args.runs_folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None
        require_writable(folder)  # removes nothing, because the folder is there; another command may use it
    if args.launcher == "local":
        return Scheduler(work, cells, LocalLauncher(work, args.workers or os.cpu_count())).run()
    from reproduce.ray import RayLauncher

    return Scheduler(work, cells, RayLauncher(work, args)).run()


def report(args: Args, cells: list[Cell], work: Workspace) -> None:
    from reproduce.report import write_report  # imports torch and matplotlib

    for path in write_report(args, ROOT / "results" / "paper.csv"):
        print(path)


def main(words: list[str] | None = None) -> int | None:
    with exit_on_user_error():
        args = tyro.cli(Args, prog="python -m reproduce", description=__doc__, args=words)
        if args.workers < 0:
            raise UserError(f"--workers must be at least 1, or 0 for one per core; got {args.workers}")
        if args.results and args.command in ("plan", "status") and not (args.results_folder / "runs.csv").exists():
            warn(f"there is no {args.results_folder / 'runs.csv'} yet")
        command = {"plan": plan, "run": run, "status": status, "report": report}[args.command]
        return command(args, make_cells(args), Workspace(args))


if __name__ == "__main__":
    sys.exit(main())
