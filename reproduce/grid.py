"""The grid of experiments: tasks, algorithms, budgets, and the command that runs one cell of it."""

import difflib
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from madaac_utils.files import ROOT, UserError
from madaac_utils.paper import paper_episodes, paper_learner

SMALL_TASKS = {
    "keep_away": "Keep Away",
    "cooperative_communication": "Cooperative Communication",
    "cooperative_navigation": "Cooperative Navigation",
}
LARGE_TASKS = {f"rover_tower_{agents}": f"Rover Tower, {agents} agents" for agents in (8, 12, 16)}
TASKS = SMALL_TASKS | LARGE_TASKS
HEADLINE_TASKS = (*SMALL_TASKS, "rover_tower_8")
TASK_SETS = {"small": SMALL_TASKS, "large": LARGE_TASKS, "headline": HEADLINE_TASKS, "all": TASKS}
EPISODE_LENGTH = 25

STAGES = {"imitate": "imitation", "retrain": "retraining"}
PAPER_DISCRIMINATORS = ("decentralized", "centralized")
DISCRIMINATORS = (*PAPER_DISCRIMINATORS, "shared")  # the last one for MA-DAAC only, on
SHARING_TASKS = ("cooperative_navigation", *LARGE_TASKS)  # tasks with several agents of the same kind
DEMOS = (50, 100, 200)
SHIPPED_DEMOS = 200
MOST_SEEDS = 1000
OWN_EPISODES = {"imitate": 10_000, "retrain": 20_000}  # of MA-DAAC and of retraining by MAAC, the scripts' defaults
SMOKE_EPISODES = 120  # a few updates of every script


class Algorithm(NamedTuple):
    """One algorithm of the grid: a script and the arguments that make it this algorithm."""

    title: str
    script: str
    arguments: str = ""
    own_budget: bool = False  # by default, OWN_EPISODES instead of the paper's number of episodes
    adversarial: bool = True  # has discriminators, an adjustable number of episodes, and a reward to retrain on


PAPER_SETTINGS = "--updates-per-period 1 --batch-size 1000 --disc-lr 0.0005 --policy-tau 0.0005 --critic-tau 0.0005"
ALGORITHMS = {
    "magail": Algorithm("MA-GAIL", "magail_mack.py"),
    "mairl": Algorithm("MA-AIRL", "mairl_mack.py"),
    "madaac": Algorithm("MA-DAAC", "madaac_discrete.py", own_budget=True),
    "madaac_paper": Algorithm("MA-DAAC, 1 × 1,000", "madaac_discrete.py", PAPER_SETTINGS),
    "bc": Algorithm("BC", "bc_discrete.py", adversarial=False),
}
# What an empty argument of the grid stands for: (by default, with --scale smoke)
DEFAULTS = {
    "tasks": ("all", "keep_away"),
    "algorithms": ("magail,mairl,madaac,bc", "mairl,madaac"),
    "discriminators": ("decentralized,centralized", "decentralized"),
    "n_demos": ("50,100,200", "50"),
}
SCRIPTS_WITH_ARGUMENTS = ("madaac", "mairl", "magail", "bc", "retrain")
# Flags that the grid sets itself, so that extra arguments must not
GRID_FLAGS = {"--env-id", "--n-demos", "--discriminator", "--seed", "--runs", "--exp-name"}
GRID_FLAGS |= {"--total-timesteps", "--resume", "--torch-threads"}


@dataclass
class Grid:
    """Which part of the grid, and where its files are."""

    tasks: str = ""
    """task names separated by commas, or small, large, headline or all (default: all; smoke: keep_away)"""
    algorithms: str = ""
    """magail, mairl, madaac, bc or madaac_paper, separated by commas
    (default: all but madaac_paper; smoke: mairl,madaac)"""
    discriminators: str = ""
    """decentralized, centralized or shared, separated by commas
    (default: decentralized,centralized; smoke: decentralized)"""
    n_demos: str = ""
    """numbers of demonstrations separated by commas (default: 50,100,200; smoke: 50)"""
    seeds: str = "1"
    """seeds separated by commas, or a range such as 1-10"""
    stages: str = "imitate,retrain"
    """imitate, retrain or both, separated by a comma"""
    scale: Literal["default", "paper", "smoke"] = "default"
    """default: the paper's number of episodes for MA-GAIL, MA-AIRL and retraining by MACK, the scripts' own for the
    others; paper: the paper's for all; smoke: a few tiny runs that show that everything works"""
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
    def script(self) -> str:
        return "retrain.py" if self.stage == "retrain" else ALGORITHMS[self.algorithm].script

    @property
    def imitation(self) -> "Cell":
        """The run that recovers the reward of a retraining."""
        budget = self.budget if ALGORITHMS[self.algorithm].own_budget else "default"
        return replace(self, stage="imitate", budget=budget, arguments=self.reward_arguments, reward_arguments="")


def parse_names(text: str, known, flag: str) -> list[str]:
    """The values of a comma-separated list, without repetitions."""
    values = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for value in values:
        if value not in known:
            nearest = difflib.get_close_matches(value.lower(), known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise UserError(f"{flag} takes {', '.join(known)}, separated by commas; got {value!r}{hint}")
    return values


def parse_numbers(text: str, least: int, most: int, flag: str) -> list[int]:
    """Numbers separated by commas, and ranges such as 1-10, without repetitions."""
    values = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not least <= first <= last <= most:
            raise UserError(
                f"{flag} takes numbers from {least} to {most}, and ranges from a smaller to a larger one, such as "
                f"1,2 or 1-10; got {part!r}"
            )
        if last - first >= MOST_SEEDS:
            raise UserError(f"{flag} takes ranges of at most {MOST_SEEDS} numbers; got {part!r}")
        values += range(first, last + 1)
    return list(dict.fromkeys(values))


def check_extra_arguments(text: str, flag: str) -> None:
    try:
        names = {word.split("=")[0].replace("_", "-") for word in shlex.split(text)}
    except ValueError as error:
        raise UserError(f"{flag} {text!r} cannot be read: {error}") from None
    if wrong := names & GRID_FLAGS:
        raise UserError(f"{flag} must not contain {', '.join(sorted(wrong))}: the grid sets it")


def make_cells(grid: Grid) -> list[Cell]:
    """The chosen runs in the order in which they start: one seed after the other, decentralized and small first."""
    default = {name: values[grid.scale == "smoke"] for name, values in DEFAULTS.items()}
    task_names = parse_names(grid.tasks or default["tasks"], (*TASKS, *TASK_SETS), "--tasks")
    tasks = {task for name in task_names for task in TASK_SETS.get(name, (name,))}
    algorithms = parse_names(grid.algorithms or default["algorithms"], ALGORITHMS, "--algorithms")
    kinds = parse_names(grid.discriminators or default["discriminators"], DISCRIMINATORS, "--discriminators")
    demos = parse_numbers(grid.n_demos or default["n_demos"], 1, SHIPPED_DEMOS, "--n-demos")
    seeds = parse_numbers(grid.seeds, 0, 1_000_000, "--seeds")
    stages = parse_names(grid.stages, STAGES, "--stages")
    if grid.episodes < 0:
        raise UserError(f"--episodes must not be negative, got {grid.episodes}")
    for name in SCRIPTS_WITH_ARGUMENTS:
        check_extra_arguments(getattr(grid, f"{name}_args"), f"--{name}-args")
    cells = [
        make_cell(grid, stage, task, algorithm, kind, number, seed)
        for seed in seeds
        for kind in sorted(kinds, key=DISCRIMINATORS.index)
        for group in (SMALL_TASKS, LARGE_TASKS)
        for number in demos
        for task in group
        if task in tasks
        for algorithm in algorithms
        for stage in sorted(stages)
        if stage == "imitate" or ALGORITHMS[algorithm].adversarial
        if kind != "shared" or algorithm == "bc" or can_share(algorithm, task)
    ]
    if not cells:
        raise UserError(
            "no run fits: only MA-DAAC has --discriminators shared, in tasks with several agents of the same kind, and "
            "BC has no reward to retrain on"
        )
    return list(dict.fromkeys(cells))  # without discriminators, all kinds are the same run


def can_share(algorithm: str, task: str) -> bool:
    return ALGORITHMS[algorithm].script == "madaac_discrete.py" and task in SHARING_TASKS


def make_cell(grid: Grid, stage: str, task: str, algorithm: str, kind: str, n_demos: int, seed: int) -> Cell:
    """The run of one setting with the grid's budget and extra arguments."""
    own = ALGORITHMS[algorithm].own_budget or (stage == "retrain" and paper_learner(task) == "maac")
    budget = "paper" if grid.scale == "paper" and own else "default"
    arguments = getattr(grid, f"{algorithm.split('_')[0]}_args").strip()
    extra = (grid.retrain_args.strip(), arguments) if stage == "retrain" else (arguments, "")
    kind = kind if ALGORITHMS[algorithm].adversarial else "none"
    return Cell(stage, task, algorithm, kind, n_demos, seed, budget, *extra)


def episodes_of(cell: Cell, grid: Grid) -> int:
    """The number of episodes of a run; behavioural cloning plays none."""
    algorithm = ALGORITHMS[cell.algorithm]
    if not algorithm.adversarial:
        return 0
    if grid.episodes or grid.scale == "smoke":
        return grid.episodes or SMOKE_EPISODES
    own = algorithm.own_budget and cell.budget == "default"
    if cell.stage == "retrain":
        own = grid.scale == "default" and paper_learner(cell.task) == "maac"
    return OWN_EPISODES[cell.stage] if own else paper_episodes(cell.task)


def start_command(cell: Cell, grid: Grid, out: Path, reward_run: Path | None) -> list[str]:
    """The command that starts a run in a new folder inside `out`."""
    command = [sys.executable, str(ROOT / cell.script)]
    if cell.stage == "retrain":
        command += [str(reward_run)]
    else:
        command += ["--env-id", cell.task, "--n-demos", str(cell.n_demos)]
        command += ["--discriminator", cell.discriminator] if cell.discriminator != "none" else []
        command += shlex.split(ALGORITHMS[cell.algorithm].arguments)
    command += ["--seed", str(cell.seed), "--runs", str(out), "--exp-name", cell.algorithm, "--torch-threads", "1"]
    episodes = episodes_of(cell, grid)
    command += ["--total-timesteps", str(episodes * EPISODE_LENGTH)] if episodes else []
    command += ["--eval-episodes", "20"] if grid.scale == "smoke" else []
    command += ["--log-every", "500"] if grid.scale == "smoke" and episodes else []
    return command + shlex.split(cell.arguments)


def resume_command(cell: Cell, grid: Grid, folder: Path, steps: int) -> list[str]:
    """The command that continues a run of so many steps, up to the grid's budget if that is larger."""
    command = [sys.executable, str(ROOT / cell.script), "--resume", str(folder), "--torch-threads", "1"]
    wanted = episodes_of(cell, grid) * EPISODE_LENGTH
    return command + (["--total-timesteps", str(wanted)] if wanted > steps else [])
