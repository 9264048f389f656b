"""The grid of experiments: tasks, algorithms, budgets, and the command that runs one cell of it."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from reproduce import ROOT, UserError

SMALL_TASKS = {
    "keep_away": "Keep Away",
    "cooperative_communication": "Cooperative Communication",
    "cooperative_navigation": "Cooperative Navigation",
}
LARGE_TASKS = {f"rover_tower_{agents}": f"Rover Tower, {agents} agents" for agents in (8, 12, 16)}
TASKS = SMALL_TASKS | LARGE_TASKS
HEADLINE_TASKS = (*SMALL_TASKS, "rover_tower_8")
TASK_SETS = {"small": SMALL_TASKS, "large": LARGE_TASKS, "headline": HEADLINE_TASKS, "all": TASKS}
NUM_AGENTS = {"keep_away": 2, "cooperative_communication": 2, "cooperative_navigation": 3}
NUM_AGENTS |= {task: int(task.rsplit("_", 1)[1]) for task in LARGE_TASKS}
EPISODE_LENGTH = 25
PAPER_EPISODES = dict.fromkeys(SMALL_TASKS, 50_000) | dict.fromkeys(LARGE_TASKS, 100_000)
PAPER_LEARNER = dict.fromkeys(SMALL_TASKS, "mack") | dict.fromkeys(LARGE_TASKS, "maac")  # for retraining
NSS_GOALS = dict.fromkeys(TASKS, 0.9) | {"cooperative_communication": 0.7}  # for sample efficiency

STAGES = {"imitate": "imitation", "retrain": "retraining"}
DISCRIMINATORS = ("decentralized", "centralized")
DEMOS = (50, 100, 200)
SHIPPED_DEMOS = 200
BC_COEF = 0.1  # weight of the cloning loss in MA-DAAC + BC
SMOKE_EPISODES = 120  # a few updates of every script


class Algorithm(NamedTuple):
    """One algorithm of the grid: a script and the arguments that make it this algorithm."""

    title: str
    script: str
    arguments: str = ""
    own_budget: bool = False
    """Run for the script's default number of steps instead of the paper's number of episodes."""
    adversarial: bool = True
    """Has discriminators, an adjustable number of episodes, and a reward to retrain on."""


ALGORITHMS = {
    "magail": Algorithm("MA-GAIL", "magail_mack.py"),
    "mairl": Algorithm("MA-AIRL", "mairl_mack.py"),
    "madaac": Algorithm("MA-DAAC", "madaac_discrete.py", own_budget=True),
    "madaac_paper": Algorithm(
        "MA-DAAC, paper's settings",
        "madaac_discrete.py",
        "--updates-per-period 1 --batch-size 1000 --disc-lr 0.0005",
    ),
    "madaac_bc": Algorithm("MA-DAAC + BC", "madaac_discrete.py", f"--bc-coef {BC_COEF}", own_budget=True),
    "bc": Algorithm("BC", "bc_discrete.py", own_budget=True, adversarial=False),
}
# Flags that the grid sets itself, so that extra arguments must not.
GRID_FLAGS = {"--env-id", "--n-demos", "--discriminator", "--seed", "--runs", "--exp-name"}
GRID_FLAGS |= {"--total-timesteps", "--resume", "--torch-threads"}


@dataclass
class Grid:
    """Which part of the grid, and where its files are."""

    tasks: str = ""
    """task names separated by commas, or small, large, headline or all (default: all; smoke: keep_away)"""
    algorithms: str = ""
    """magail, mairl, madaac, madaac_bc, bc or madaac_paper, separated by commas
    (default: all but madaac_paper; smoke: mairl,madaac)"""
    discriminators: str = ""
    """decentralized, centralized or both, separated by a comma (default: both; smoke: decentralized)"""
    n_demos: str = ""
    """numbers of demonstrations separated by commas (default: 50,100,200; smoke: 50)"""
    seeds: str = "1"
    """seeds separated by commas, or a range such as 1-10"""
    stages: str = "imitate,retrain"
    """imitate, retrain or both, separated by a comma"""
    scale: Literal["default", "paper", "smoke"] = "default"
    """default: the paper's number of episodes for MA-GAIL, MA-AIRL and retraining, the scripts' own for the others;
    paper: the paper's for all; smoke: a few tiny runs that show that everything works"""
    episodes: int = 0
    """another number of episodes per run; a run that ended with fewer is continued"""
    madaac_args: str = ""
    """extra arguments for madaac_discrete.py, in quotes: "--alpha 0.001" """
    mairl_args: str = ""
    """extra arguments for mairl_mack.py"""
    magail_args: str = ""
    """extra arguments for magail_mack.py"""
    bc_args: str = ""
    """extra arguments for bc_discrete.py"""
    retrain_args: str = ""
    """extra arguments for retrain.py"""
    runs: str = "runs/reproduce"
    """folder for run folders and logs"""
    results: str = ""
    """folder for rows, curves, tables and figures (default: results; smoke: <runs>/smoke/results)"""

    @property
    def runs_folder(self) -> Path:
        return Path(self.runs) / "smoke" if self.scale == "smoke" else Path(self.runs)

    @property
    def results_folder(self) -> Path:
        default = self.runs_folder / "results" if self.scale == "smoke" else Path("results")
        return Path(self.results) if self.results else default

    def extra_arguments(self, stage: str, algorithm: str) -> tuple[str, str]:
        """Extra arguments of a run, and of the imitation that its reward comes from."""
        imitation = getattr(self, f"{algorithm.split('_')[0]}_args").strip()
        return (self.retrain_args.strip(), imitation) if stage == "retrain" else (imitation, "")


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    stage: str
    task: str
    algorithm: str
    discriminator: str
    n_demos: int
    seed: int
    budget: str = "default"
    arguments: str = ""
    reward_arguments: str = ""

    @property
    def run_id(self) -> str:
        parts = [self.stage, self.task, self.algorithm, self.discriminator, str(self.n_demos), str(self.seed)]
        parts += ["paper_budget"] if self.budget == "paper" else []
        parts += [re.sub(r"[^\w.]+", "_", text).strip("_") for text in (self.reward_arguments, self.arguments) if text]
        return "__".join(parts)

    @property
    def imitation(self) -> "Cell":
        """The run that recovers the reward of a retraining."""
        place = (self.task, self.algorithm, self.discriminator, self.n_demos, self.seed, self.budget)
        return Cell("imitate", *place, arguments=self.reward_arguments)


def parse_choices(text: str, known: tuple, flag: str, kind: type = str) -> list:
    """The values of a comma-separated list, without repetitions."""
    values = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = kind(part)
        except ValueError:
            raise UserError(f"{flag} takes numbers separated by commas, got {part!r}") from None
        if known and value not in known:
            raise UserError(f"{flag} takes {', '.join(map(str, known))}; got {part!r}")
        values += [value] if value not in values else []
    if not values:
        raise UserError(f"{flag} must name at least one value")
    return values


def parse_seeds(text: str) -> list[int]:
    seeds = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UserError(f"--seeds takes numbers separated by commas, or a range such as 1-10; got {part!r}")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def check_extra_arguments(text: str, flag: str) -> None:
    """Extra arguments must be readable, and must not set what the grid sets."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag} {text!r} cannot be read: {error}") from None
    for word in words:
        name = word.split("=")[0].replace("_", "-")
        if name in GRID_FLAGS:
            raise UserError(f"{flag} must not contain {name}: the grid sets it")


def make_cells(grid: Grid) -> list[Cell]:
    """The chosen runs in the order in which they start: one seed after the other, decentralized and small first."""
    smoke = grid.scale == "smoke"
    names = parse_choices(grid.tasks or ("keep_away" if smoke else "all"), (*TASKS, *TASK_SETS), "--tasks")
    tasks = dict.fromkeys(task for name in names for task in TASK_SETS.get(name, (name,)))
    default = "mairl,madaac" if smoke else ",".join(name for name in ALGORITHMS if name != "madaac_paper")
    algorithms = parse_choices(grid.algorithms or default, tuple(ALGORITHMS), "--algorithms")
    default = "decentralized" if smoke else "decentralized,centralized"
    discriminators = parse_choices(grid.discriminators or default, DISCRIMINATORS, "--discriminators")
    demos = parse_choices(grid.n_demos or ("50" if smoke else "50,100,200"), (), "--n-demos", int)
    stages = parse_choices(grid.stages, tuple(STAGES), "--stages")
    if not all(1 <= number <= SHIPPED_DEMOS for number in demos):
        raise UserError(f"--n-demos must be from 1 to {SHIPPED_DEMOS}, the number that each task comes with")
    if grid.episodes < 0:
        raise UserError("--episodes must not be negative")
    for name in ("madaac", "mairl", "magail", "bc", "retrain"):
        check_extra_arguments(getattr(grid, f"{name}_args"), f"--{name}-args")
    cells = [
        make_cell(grid, stage, task, algorithm, kind, number, seed)
        for seed in parse_seeds(grid.seeds)
        for kind in DISCRIMINATORS
        if kind in discriminators
        for group in (SMALL_TASKS, LARGE_TASKS)
        for number in demos
        for task in tasks
        if task in group
        for algorithm in algorithms
        for stage in STAGES
        if stage in stages
    ]
    return [cell for cell in dict.fromkeys(cells) if cell is not None]


def make_cell(grid: Grid, stage: str, task: str, algorithm: str, kind: str, n_demos: int, seed: int) -> Cell | None:
    adversarial = ALGORITHMS[algorithm].adversarial
    if stage == "retrain" and not adversarial:
        return None
    budget = "paper" if grid.scale == "paper" and ALGORITHMS[algorithm].own_budget and adversarial else "default"
    extra = grid.extra_arguments(stage, algorithm)
    return Cell(stage, task, algorithm, kind if adversarial else "none", n_demos, seed, budget, *extra)


def episodes_of(cell: Cell, grid: Grid) -> int | None:
    """The number of episodes of a run; None leaves it to the script."""
    algorithm = ALGORITHMS[cell.algorithm]
    if not algorithm.adversarial:
        return None
    if grid.episodes or grid.scale == "smoke":
        return grid.episodes or SMOKE_EPISODES
    own = cell.stage == "imitate" and algorithm.own_budget and cell.budget == "default"
    return None if own else PAPER_EPISODES[cell.task]


def script_of(cell: Cell) -> str:
    return "retrain.py" if cell.stage == "retrain" else ALGORITHMS[cell.algorithm].script


def start_command(cell: Cell, grid: Grid, out: Path, reward_run: Path | None) -> list[str]:
    """The command that starts a run in a new folder inside `out`."""
    command = [sys.executable, str(ROOT / script_of(cell))]
    if cell.stage == "retrain":
        command += [str(reward_run)]
    else:
        command += ["--env-id", cell.task, "--n-demos", str(cell.n_demos)]
        command += ["--discriminator", cell.discriminator] if cell.discriminator != "none" else []
        command += shlex.split(ALGORITHMS[cell.algorithm].arguments)
    command += ["--seed", str(cell.seed), "--runs", str(out), "--exp-name", cell.algorithm, "--torch-threads", "1"]
    episodes = episodes_of(cell, grid)
    command += ["--total-timesteps", str(episodes * EPISODE_LENGTH)] if episodes else []
    if grid.scale == "smoke" and cell.discriminator != "none":
        command += ["--eval-episodes", "20", "--log-every", "500"]
    return command + shlex.split(cell.arguments)


def resume_command(cell: Cell, grid: Grid, folder: Path, steps: int) -> list[str]:
    """The command that continues a run of so many steps, up to the grid's budget if that is larger."""
    command = [sys.executable, str(ROOT / script_of(cell)), "--resume", str(folder), "--torch-threads", "1"]
    wanted = (episodes_of(cell, grid) or 0) * EPISODE_LENGTH
    return command + (["--total-timesteps", str(wanted)] if wanted > steps else [])
