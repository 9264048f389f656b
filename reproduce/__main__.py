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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reproduce import ROOT, UserError, exit_on_user_error
from reproduce.grid import TASKS, Grid, episodes_of, make_cells
from reproduce.store import Events, Workspace, as_hours, total_time


@dataclass
class Plan(Grid):
    """Print what would run and how long it takes, estimated from the rows that there are."""

    workers: int = 2
    """runs at a time"""


@dataclass
class Run(Grid):
    """Run everything that has no row yet."""

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


@dataclass
class Status(Grid):
    """Print the state of each run."""


@dataclass
class Report(Grid):
    """Make tables and figures from all rows, whatever part of the grid is chosen."""


def plan(args: Plan) -> None:
    if args.workers < 1:
        raise UserError(f"--workers must be at least 1, got {args.workers}")
    cells, work = make_cells(args), Workspace(args)
    todo = work.missing(cells)
    print(f"{len(cells)} runs chosen, {sum(map(work.is_done, cells))} done, {len(todo)} to run")
    print(f"with {args.workers} at a time: {total_time(todo, work, args.workers)}")
    if again := sum(map(work.is_done, todo)):
        print(f"{again} of them are run again for their rewards, which rows do not hold")
    if again := sum(cell.run_id in work.rows and not work.current_row(cell) for cell in todo):
        print(f"{again} of them are run again because the expert has been replaced")
    if todo:
        print(
            f"\n{'stage':<9}{'task':<27}{'algorithm':<14}{'runs':>5}{'episodes each':>15}{'time each':>11}{'all':>10}"
        )
    groups = {}
    for cell in sorted(todo, key=lambda cell: (cell.stage, list(TASKS).index(cell.task))):
        groups.setdefault((cell.stage, cell.task, cell.algorithm, episodes_of(cell, args)), []).append(cell)
    for (stage, task, algorithm, episodes), group in groups.items():
        seconds = work.estimate_seconds(group[0])
        times = f"{as_hours(seconds):>11}{as_hours(seconds * len(group)):>10}"
        budget = f"{episodes:,}" if episodes else "script's own"
        print(f"{stage:<9}{task:<27}{algorithm:<14}{len(group):>5}{budget:>15}{times}")


def status(args: Status) -> None:
    from reproduce.local import progress_text

    cells, work = make_cells(args), Workspace(args)
    states = {cell: work.state(cell) for cell in cells}
    counts = {state: list(states.values()).count(state) for state in dict.fromkeys(states.values())}
    print(", ".join(f"{count} {state}" for state, count in counts.items()) + "\n")
    for cell, state in states.items():
        text = f"NSS {work.rows[cell.run_id].nss:.3f}" if state == "done" else ""
        if state in ("running", "interrupted") and (folder := work.run_folder(cell)):
            text = progress_text(Events(folder).reload().progress())
        if state == "failed":
            text = work.failure_note(cell).read_text(errors="replace").strip()
        print(f"{cell.run_id:<72}{state:<12}{text}".rstrip())


def run(args: Run) -> int:
    from reproduce.local import Display, Scheduler, run_locally

    if args.workers < 0:
        raise UserError(f"--workers must be at least 1, or 0 for one per core; got {args.workers}")
    cells, work = make_cells(args), Workspace(args)
    if args.launcher == "ray":
        from reproduce.ray import connect, run_on_ray

        ray = connect(args.address, args.cpus_per_run)
    for folder in (work.results, args.runs_folder):
        make_writable(folder)
    scheduler = Scheduler(work, work.missing(cells), Display())
    scheduler.display.event(f"{scheduler.total} runs to do")
    if args.launcher == "ray":
        return run_on_ray(ray, work, scheduler, args)
    return run_locally(work, scheduler, args.workers or os.cpu_count())


def make_writable(folder: Path) -> None:
    """Make a folder, or fail now instead of after hours of training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None


def report(args: Report) -> None:
    from reproduce.report import write_report

    make_cells(args)  # checks the arguments
    for path in write_report(args, ROOT / "results" / "paper.csv"):
        print(path)


COMMANDS = {Plan: plan, Run: run, Status: status, Report: report}
Command = (
    Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)

if __name__ == "__main__":
    with exit_on_user_error():
        command = tyro.cli(Command, prog="python -m reproduce", description=__doc__)
        sys.exit(COMMANDS[type(command)](command))
