"""Which runs a grid has, the commands that run them, and the files of rows."""

import math

import pytest
import stand_ins

from madaac_utils.files import UserError
from particle_envs import make_task
from reproduce.grid import TASKS, Grid, episodes_of, make_cells, resume_command, start_command
from reproduce.local import estimate_text
from reproduce.rows import read_rows, write_rows
from reproduce.store import Workspace

ONE = {"tasks": "keep_away", "n_demos": "50", "discriminators": "decentralized"}


def test_the_papers_grid_has_every_cell_once_and_imitation_before_retraining():
    cells = make_cells(Grid(seeds="1-10", algorithms="magail,mairl,madaac"))
    assert len(cells) == len({cell.run_id for cell in cells}) == 3 * 2 * 3 * 6 * 10 * 2
    order = {cell: place for place, cell in enumerate(cells)}
    assert all(order[cell.imitation] < order[cell] for cell in cells if cell.stage == "retrain")


def test_behavioural_cloning_has_one_run_per_task_and_no_retraining():
    cells = make_cells(Grid(algorithms="bc", tasks="small", n_demos="50"))
    assert [(cell.stage, cell.discriminator) for cell in cells] == [("imitate", "none")] * 3
    command = start_command(cells[0], Grid(), "out", None)
    assert "--discriminator" not in command and "--total-timesteps" not in command


def test_budgets():
    def budget(**choice) -> dict[tuple, int]:
        grid = Grid(**ONE | choice)
        return {(cell.stage, cell.task, cell.algorithm): episodes_of(cell, grid) for cell in make_cells(grid)}

    default = budget(tasks="keep_away,rover_tower_8", algorithms="mairl,madaac,madaac_paper,bc")
    paper = budget(tasks="keep_away,rover_tower_8", scale="paper", algorithms="mairl,madaac,bc")
    for task, episodes in (("keep_away", 50_000), ("rover_tower_8", 100_000)):
        assert default["imitate", task, "mairl"] == default["imitate", task, "madaac_paper"] == episodes
        assert default["imitate", task, "madaac"] == 10_000 and default["imitate", task, "bc"] == 0
        assert paper["imitate", task, "madaac"] == episodes and paper["imitate", task, "bc"] == 0
        assert paper["retrain", task, "madaac"] == episodes
    assert default["retrain", "keep_away", "mairl"] == 50_000
    assert default["retrain", "rover_tower_8", "mairl"] == 20_000
    smoke = budget(scale="smoke")
    assert len(smoke) == 4 and all(episodes < 200 for episodes in smoke.values())


def test_madaac_at_the_papers_budget_is_another_run_and_a_baseline_is_the_same():
    ids = []
    for scale in ("default", "paper"):
        cells = make_cells(Grid(**ONE, stages="imitate", scale=scale, algorithms="mairl,madaac"))
        ids.append({cell.algorithm: cell.run_id for cell in cells})
    assert ids[0]["mairl"] == ids[1]["mairl"] and ids[0]["madaac"] != ids[1]["madaac"]


def test_retraining_by_maac_at_the_papers_budget_is_another_run_on_the_same_reward():
    own, papers = (
        make_cells(Grid(tasks="rover_tower_8", n_demos="50", stages="retrain", algorithms="mairl", scale=scale))[0]
        for scale in ("default", "paper")
    )
    assert own.run_id != papers.run_id and own.imitation == papers.imitation


PAPERS = "--disc-lr 0.0005 --policy-tau 0.0005 --critic-tau 0.0005"


def test_only_madaac_has_shared_discriminators_and_only_where_agents_are_of_the_same_kind():
    cells = make_cells(Grid(tasks="all", n_demos="50", stages="imitate", discriminators="decentralized,shared"))
    shared = {(cell.task, cell.algorithm) for cell in cells if cell.discriminator == "shared"}
    assert {algorithm for _, algorithm in shared} == {"madaac"}
    for task in TASKS:
        kinds = [name.rstrip("0123456789") for name in make_task(task, 1).agents]
        assert ((task, "madaac") in shared) == (len(set(kinds)) < len(kinds))
    assert {cell.discriminator for cell in cells if cell.algorithm == "bc"} == {"none"}


def test_commands():
    grid = Grid(tasks="keep_away", algorithms="madaac_paper", n_demos="100", madaac_args="--alpha 0.001")
    words = " ".join(start_command(make_cells(grid)[0], grid, "out", None))
    for part in ("--n-demos 100", "--seed 1", "--updates-per-period 1 --batch-size 1000", "--alpha 0.001", PAPERS):
        assert part in words
    assert "--torch-threads 1" in words and "--total-timesteps 1250000" in words
    grid = Grid(episodes=100)
    cell = make_cells(grid)[0]
    assert resume_command(cell, grid, "run", 1000)[-2:] == ["--total-timesteps", "2500"]
    assert "--total-timesteps" not in resume_command(cell, grid, "run", 9999), "a run is never shortened"


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": "keepaway"},
        {"algorithms": "gail"},
        {"discriminators": ","},
        {"discriminators": "shared", "algorithms": "mairl"},
        {"discriminators": "shared", "tasks": "keep_away", "algorithms": "madaac"},
        {"n_demos": "fifty"},
        {"n_demos": "0"},
        {"n_demos": "201"},
        {"seeds": "1..3"},
        {"seeds": "5-2"},
        {"seeds": "1-100000"},
        {"stages": "evaluate"},
        {"episodes": -1},
        {"madaac_args": "--seed 3"},
        {"retrain_args": "--total_timesteps=3"},
        {"mairl_args": "'--disc-lr"},
    ],
)
def test_a_wrong_choice_is_an_error_that_names_the_flag(wrong):
    with pytest.raises(UserError, match="--" + next(iter(wrong)).replace("_", "-")):
        make_cells(Grid(**wrong))


def test_time_is_estimated_from_rows_of_the_same_algorithm_and_task(tmp_path):
    rows = [stand_ins.row(seed=seed, algorithm="mairl", episodes=1000) | {"seconds": 100 * seed} for seed in (1, 2)]
    stand_ins.write_results(tmp_path, rows)
    work = Workspace(Grid(results=str(tmp_path), episodes=2000))
    cells = make_cells(Grid(**ONE | {"seeds": "1-3"}, algorithms="mairl,magail", stages="imitate"))
    same = [cell for cell in cells if cell.algorithm == "mairl"]
    assert work.estimate_seconds(same[0]) == pytest.approx(300)
    assert estimate_text(work, same, workers=2) == "8 min"
    assert estimate_text(work, cells, workers=2) == "8 min, but 3 of 6 runs have no estimate"
    others = [cell for cell in cells if cell.algorithm == "magail"]
    assert estimate_text(work, others, workers=2).startswith("unknown")


def test_rows_with_other_arguments_do_not_count_if_there_are_some_with_the_same(tmp_path):
    other = stand_ins.row(arguments="--alpha 0.1") | {"seconds": 1}
    stand_ins.write_results(tmp_path, [stand_ins.row() | {"seconds": 400}, other])
    [cell] = make_cells(Grid(**ONE, algorithms="madaac", stages="imitate"))
    assert Workspace(Grid(results=str(tmp_path))).estimate_seconds(cell) == 400


# Rows


def test_rows_survive_a_round_trip(tmp_path):
    rows = [stand_ins.row(), stand_ins.row("rover_tower_8", "retrain", "mairl", seed=3), stand_ins.row(algorithm="bc")]
    rows.append(stand_ins.row(algorithm="madaac_paper", arguments='--alpha 0.001, "quoted"'))
    stand_ins.write_results(tmp_path, rows)
    first = read_rows(tmp_path / "runs.csv")
    assert {row.algorithm for row in first.values()} == {"madaac", "mairl", "bc", "madaac_paper"}
    imitation = first[rows[0]["run_id"]]
    assert imitation.scores == (30.0, -7.0) and math.isnan(imitation.pcc) and imitation.reward_episodes == 0
    write_rows(tmp_path / "again.csv", first)
    write_rows(tmp_path / "third.csv", read_rows(tmp_path / "again.csv"))
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "third.csv").read_bytes()
    assert read_rows(tmp_path / "nothing.csv") == {}


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"task": "simple_spread"}, "task"),
        ({"algorithm": "gail"}, "algorithm"),
        ({"episodes": "many"}, "episodes"),
        ({"scores": "nan;1"}, "scores"),
        ({"scores": (1.0, 2.0, 3.0)}, "scores"),
        ({"nss": ""}, "nss"),
        ({"run_id": stand_ins.row()["run_id"]}, "run_id"),
        ({"expert_scores": (120.0, -5.0)}, "expert"),
    ],
)
def test_a_malformed_row_is_named_with_its_line_and_column(tmp_path, changes, column):
    stand_ins.write_results(tmp_path, [stand_ins.row(), stand_ins.row(seed=2) | changes])
    with pytest.raises(UserError, match=f"runs.csv, line 3.*{column}"):
        read_rows(tmp_path / "runs.csv")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-60],
        lambda content: content[:-1],
        lambda content: content.replace(b"commit", b"revision", 1),
        lambda content: content.replace(b"keep_away", b"keep\xff\xfeaway"),
        lambda content: content + b'"an open quote\n',
        lambda content: b"",
        lambda content: b"\x00" * 100,
    ],
)
def test_a_damaged_file_of_rows_is_one_clear_error(tmp_path, damage):
    stand_ins.write_results(tmp_path, [stand_ins.row(), stand_ins.row(seed=2)])
    path = tmp_path / "runs.csv"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="runs.csv") as error:
        read_rows(path)
    assert "\n" not in str(error.value)
