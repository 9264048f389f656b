"""Numbers against plain formulas and SciPy, tables and verdicts of rows made by hand, and the same bytes every time."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import stand_ins
from scipy import stats as scipy_stats

from reproduce import UserError, claims, figures, stats, tables
from reproduce.figures import headline_figure
from reproduce.grid import HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS, Grid
from reproduce.parameters import count_parameters
from reproduce.report import write_report
from reproduce.stats import Value

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SEEDS = range(1, 4)


@pytest.fixture
def load(tmp_path, experts, paper):
    """The data of rows made by hand."""

    def load_rows(rows: list[dict], **grid) -> stats.Data:
        stand_ins.write_results(tmp_path / "results", rows)
        return stats.load(Grid(results=str(tmp_path / "results"), **grid), paper)

    return load_rows


def seeds(*values: float, **place) -> list[dict]:
    """One row per value of NSS."""
    return [stand_ins.row(nss=nss, seed=seed, **place) for seed, nss in enumerate(values, start=1)]


def lookup(table: tables.Table, column: str, *labels: str) -> str:
    (row,) = [row for row in table.rows if row[: len(labels)] == list(labels)]
    return row[table.header.index(column)]


# Statistics


def test_intervals_over_runs_are_those_of_scipy():
    values = [0.3, 0.5, 0.9, 1.2]
    found = stats.over_runs(values)
    low, high = scipy_stats.t.interval(0.95, 3, np.mean(values), scipy_stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert found.runs == 4
    assert math.isnan(stats.over_runs([0.5]).half), "one run says nothing about other seeds"


def test_values_are_compared_by_their_intervals_and_only_with_three_runs():
    assert stats.compare(Value(1.0, 0.1, 3), Value(0.7, 0.1, 3)) == 1
    assert stats.compare(Value(1.0, 0.1, 3), Value(1.3, 0.1, 3)) == -1
    assert stats.compare(Value(1.0, 0.1, 3), Value(0.9, 0.1, 3)) == 0
    assert stats.compare(Value(1.0, 0.0, 2), Value(0.1, 0.0, 10)) is None
    difference = Value(1.0, 0.3, 5).minus(Value(0.4, 0.4, 3))
    assert difference == pytest.approx((0.6, 0.5, 3))


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    scores = np.array([[0.1, 0.7], [0.5, 0.8], [0.6, 5.0], [0.9, 1.0]])
    assert stats.interquartile_mean(scores) == pytest.approx(np.mean([0.6, 0.7, 0.8, 0.9]))


def test_the_bootstrap_draws_runs_within_each_setting():
    rng = np.random.default_rng(0)
    constant = np.array([[0.2, 1.0]] * 5)
    assert stats.bootstrap_interval(constant) == pytest.approx((0.6, 0.6)), "no spread within a setting"
    scores = rng.normal(0.8, 0.1, size=(40, 3))
    low, high = stats.bootstrap_interval(scores)
    assert low < stats.interquartile_mean(scores) < high
    plain = [
        scipy_stats.trim_mean(np.column_stack([rng.choice(column, 40) for column in scores.T]), 0.25, axis=None)
        for _ in range(2000)
    ]
    assert (low, high) == pytest.approx(np.percentile(plain, [2.5, 97.5]), abs=0.005)
    assert stats.bootstrap_interval(scores) == (low, high), "the same every time"


def test_curves_are_averaged_where_all_runs_have_values():
    one = {"episodes": np.array([0.0, 10, 20]), "nss": np.array([0.0, 1, 2])}
    other = {"episodes": np.array([5.0, 15, 30]), "nss": np.array([1.5, 2.5, np.nan])}
    x, mean, half = stats.mean_curve([one, other], "episodes", "nss")
    np.testing.assert_allclose(x, [5, 10, 15])
    np.testing.assert_allclose(mean, [1.0, 1.5, 2.0])
    np.testing.assert_allclose(half, scipy_stats.t.ppf(0.975, 1) * 0.5)


def test_aggregates_use_settings_and_runs_that_the_papers_algorithms_share(load):
    rows = [row for name in ("magail", "mairl", "madaac") for row in seeds(0.5, 0.6, algorithm=name)]
    rows += seeds(0.9, 0.9, 0.9, algorithm="madaac", task="cooperative_navigation")
    rows += seeds(0.1, algorithm="bc")
    found = stats.aggregate(load(rows), "imitate", (50, 100))
    assert list(found) == ["magail", "mairl", "madaac"]
    assert all(scores.tolist() == [[0.5], [0.6]] for scores in found.values())
    assert stats.aggregate(load([]), "imitate", (50,)) == {}


# Which rows count


def test_rows_are_left_out_for_reasons_that_are_told(load):
    rows = seeds(0.8, 0.9)
    rows += [stand_ins.row(seed=3, episodes=20_000), stand_ins.row(seed=4, arguments="--alpha 0.1", nss=0.1)]
    rows += [stand_ins.row(seed=5, expert_scores=(20.0, -6.0), nss=0.2), stand_ins.row(n_demos=10)]
    data = load(rows)
    assert [row.seed for row in data.get("imitate", "keep_away", "madaac", "decentralized", 50)] == [1, 2]
    assert len(data.left_out) == 4 and all(line.startswith("1 rows") for line in data.left_out)
    assert data.nss("imitate", "keep_away", "madaac", "decentralized", 50).mean == pytest.approx(0.85)
    chosen = load(rows, madaac_args="--alpha 0.1")
    assert chosen.nss("imitate", "keep_away", "madaac", "decentralized", 50).mean == pytest.approx(0.1)


def test_longer_runs_stand_apart(load):
    data = load([*seeds(0.8, 0.9, 1.0), stand_ins.row(budget="paper", nss=0.2, episodes=99_000)])
    assert data.nss("imitate", "keep_away", "madaac", "decentralized", 50).mean == pytest.approx(0.9)
    (row,) = tables.budget_table(data).rows
    assert row[-2:] == ["99,000", "0.200 (1)"]


# Tables


def test_a_cell_has_mean_interval_and_number_of_runs_beside_the_papers(load):
    data = load([*seeds(0.8, 0.9, 1.0), *seeds(0.9, n_demos=100), *seeds(0.5, algorithm="bc")])
    table = tables.paper_tables(data)[0]
    place = ("Keep Away, pusher", "50", "decentralized")
    half = scipy_stats.t.ppf(0.975, 2) * 10 / math.sqrt(3)  # scores 40, 30 and 20
    assert lookup(table, "MA-DAAC", *place) == f"30.00 ± {half:.2f} (3) ="
    assert lookup(table, "paper's MA-DAAC", *place) == "44.329 ± 3.457"
    assert lookup(table, "MA-DAAC", "Keep Away, pusher", "100", "decentralized") == "30.00 (1)", "one run has no mark"
    assert lookup(table, "MA-GAIL", *place) == "–"
    assert lookup(table, "BC", *place) == "70.00 (1)"


def test_marks_compare_nss_with_the_papers(load):
    """The paper's NSS of MA-DAAC in Keep Away is 1.00 ± 0.05 for the pusher, who wants a low score."""
    for values, mark in (((0.5, 0.51, 0.52), "↓"), ((1.5, 1.51, 1.52), "↑"), ((1.0, 1.01, 1.02), "=")):
        table = tables.paper_tables(load(seeds(*values)))[0]
        assert lookup(table, "MA-DAAC", "Keep Away, pusher", "50", "decentralized").endswith(f"(3) {mark}")
        nss = tables.nss_tables(load(seeds(*values)))[0]
        assert lookup(nss, "MA-DAAC", "Keep Away", "50", "decentralized").endswith(f"(3) {mark}")
    two = tables.paper_tables(load(seeds(0.5, 0.51)))[0]
    assert lookup(two, "MA-DAAC", "Keep Away, pusher", "50", "decentralized").endswith("(2)")


def test_every_imitation_table_has_a_column_of_behavioural_cloning(load):
    found = {table.name: table.header for table in tables.all_tables(load(seeds(0.5)))}
    for name in ("small_scale_imitation", "large_scale_imitation", "nss_imitation"):
        assert "BC" in found[name]
    assert "BC" not in found["small_scale_retraining"]


def test_differences_to_magail(load):
    place = {"task": "rover_tower_8"}
    rows = seeds(0.1, 0.11, 0.12, algorithm="magail", **place) + seeds(0.9, 0.91, 0.92, **place)
    table = tables.relative_table(load(rows + seeds(0.5, algorithm="mairl", **place)), "imitate")
    half = scipy_stats.t.ppf(0.975, 2) * 1.2 / math.sqrt(3) * math.sqrt(2)
    title = "Rover Tower, 8 agents"
    assert lookup(table, "50 demonstrations", title, "MA-DAAC") == f"96.00 ± {half:.2f} (3) ↑"
    assert lookup(table, "paper's, 50", title, "MA-DAAC").startswith("46.684 ± ")
    assert lookup(table, "50 demonstrations", title, "MA-AIRL").endswith("(1)"), "too few runs for a mark"


def test_episodes_and_seconds_to_the_goal(load):
    fast, slow = ((500, 5, 0.2), (1000, 10, 0.95)), ((500, 5, 0.2), (2000, 20, 0.7), (3000, 30, 0.8))
    rows = [row | {"curve": fast} for row in seeds(0.9, 0.9, 0.9)]
    rows += [row | {"curve": slow} for row in seeds(0.9, 0.9, algorithm="mairl")]
    rows += [row | {"curve": slow} for row in seeds(0.9, algorithm="mairl", task="cooperative_communication")]
    table = tables.efficiency_table(load(rows), "efficiency", "", TASKS, (50,), ("decentralized",))
    place = ("Keep Away", "50", "decentralized")
    assert lookup(table, "episodes to the goal", *place, "MA-DAAC") == "1,000 ± 0 (3)"
    assert lookup(table, "seconds to the goal", *place, "MA-DAAC") == "10 ± 0 (3)"
    assert lookup(table, "episodes to the goal", *place, "MA-AIRL") == "not reached by 2 of 2"
    communication = ("Cooperative Communication", "50", "decentralized", "MA-AIRL")
    assert lookup(table, "episodes to the goal", *communication) == "2,000 (1)", "the goal is 0.7 there"


# Claims


def verdicts(data: stats.Data) -> list[str]:
    return [claims.verdict(claim.tests(data, "madaac")) for claim in claims.CLAIMS]


def comparison(tasks, demos, stage: str, best: float, others: float) -> list[dict]:
    """Three runs each of MA-DAAC, at the best NSS, and of the baselines."""
    return [
        row
        for task in tasks
        for n in demos
        for name in ("magail", "mairl", "madaac")
        for row in seeds(
            *(nss + (best if name == "madaac" else others) for nss in (0, 0.01, 0.02)),
            **{"task": task, "n_demos": n, "stage": stage, "algorithm": name},
        )
    ]


def test_verdicts_follow_the_rows(load, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", [c for c in claims.CLAIMS if c.tests is not claims.parameter_tests])
    assert set(verdicts(load([]))) == {"not enough runs"}
    imitation, retraining = claims.CLAIMS[1], claims.CLAIMS[5]
    better = comparison(SMALL_TASKS, (50, 100, 200), "retrain", 0.9, 0.5)
    better += comparison(SMALL_TASKS, (50, 100, 200), "imitate", 0.9, 0.9)
    data = load(better)
    assert claims.verdict(imitation.tests(data, "madaac")) == "holds", "as good is good enough"
    assert claims.verdict(retraining.tests(data, "madaac")) == "holds"
    assert claims.verdict(retraining.tests(data, "madaac_paper")) == "not enough runs"
    data = load([row for row in better if row["seed"] < 3 or row["task"] != "keep_away"])
    assert claims.verdict(retraining.tests(data, "madaac")) == "not enough runs"
    worse = comparison(["keep_away"], (50,), "imitate", 0.5, 0.9) + comparison(
        ["keep_away"], (50,), "retrain", 0.9, 0.9
    )
    data = load(worse)
    assert claims.verdict(imitation.tests(data, "madaac")) == "does not hold"
    assert claims.verdict(retraining.tests(data, "madaac")) == "does not hold", "as good is not better"


def test_sample_efficiency_is_judged_by_episodes_to_the_goal(load):
    def data(own_curve, own_episodes=5000):
        rows = comparison(HEADLINE_TASKS, (50,), "imitate", 0.9, 0.9)
        slow = [(1000, 10, 0.2), (20_000, 20, 0.95)]
        return load(
            [
                row
                | ({"curve": own_curve, "episodes": own_episodes} if row["algorithm"] == "madaac" else {"curve": slow})
                for row in rows
            ]
        )

    claim = claims.CLAIMS[0]
    assert claims.verdict(claim.tests(data([(1000, 10, 0.95)]), "madaac")) == "holds"
    assert claims.verdict(claim.tests(data([(30_000, 10, 0.95)], 50_000), "madaac")) == "does not hold"
    never = data([(1000, 10, 0.5)])
    assert claims.verdict(claim.tests(never, "madaac")) == "does not hold", (
        "a short run that never gets there is not fast"
    )


def test_discriminators_are_judged_by_overlap_on_small_tasks_and_order_on_large_ones(load):
    small, large = claims.CLAIMS[8], claims.CLAIMS[9]
    rows = [
        row
        for task in (*SMALL_TASKS, *LARGE_TASKS)
        for name in ("magail", "mairl", "madaac")
        for kind, nss in (("decentralized", 0.9), ("centralized", 0.9 if task in SMALL_TASKS else 0.2))
        for row in seeds(nss, nss + 0.01, nss + 0.02, task=task, algorithm=name, discriminator=kind)
    ]
    data = load(rows)
    assert [claims.verdict(claim.tests(data, "madaac")) for claim in (small, large)] == ["holds", "holds"]


# Parameters


def test_parameters_of_the_attention_critic_grow_linearly_and_those_of_mack_do_not():
    agents = (8, 16, 32)
    ours, mack = (
        [sum(count_parameters(name, n, "decentralized").values()) for n in agents] for name in ("madaac", "mairl")
    )
    assert ours[1] < mack[1], "fewer than MA-AIRL with 16 agents"
    assert ours[2] / ours[0] < 4.5 and mack[2] / mack[0] > 8
    policies = count_parameters("madaac", 8, "decentralized")["policies"]
    assert policies == count_parameters("mairl", 8, "decentralized")["policies"] == 149_032


# The whole report


@pytest.fixture
def quick(monkeypatch):
    """Without counting the parameters of large networks."""
    for module in ("figures", "parameters"):
        monkeypatch.setattr(f"reproduce.{module}.AGENTS", (8, 16))


def test_the_report_has_all_files_and_the_same_bytes_again(load, paper, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", [c for c in claims.CLAIMS if c.tests is not claims.parameter_tests])
    rows = comparison(("keep_away", "rover_tower_8"), (50,), "imitate", 0.9, 0.8) + seeds(0.5, 0.6, algorithm="bc")
    rows += comparison(("keep_away",), (50,), "retrain", 0.9, 0.8)
    load(rows)
    grid = Grid(results=str(tmp_path / "results"))
    written = write_report(grid, paper)
    names = {path.relative_to(tmp_path / "results").as_posix() for path in written}
    scores = [f"{scale}_scale_{stage}" for scale in ("small", "large") for stage in ("imitation", "retraining")]
    for name in (*scores, "relative_imitation", "relative_retraining", "headline", "efficiency", "parameters"):
        assert {f"tables/{name}.md", f"tables/{name}.tex"} <= names
    assert {"tables/claims.md", "tables/index.md"} <= names
    assert {"figures/headline.png", "figures/imitation_small.png", "figures/retraining.png", "figures/pcc.png"} <= names
    before = {path: path.read_bytes() for path in written}
    figures_again = dict.fromkeys(("imitation_large", "retraining", "interquartile_mean"))  # the others take long
    monkeypatch.setattr(
        "reproduce.report.all_figures", lambda data: figures_again | {"headline": headline_figure(data)}
    )
    again = write_report(grid, paper)
    same = [path for path in again if path.name != "index.md"]  # it lists the figures
    assert {path: path.read_bytes() for path in same} == {path: before[path] for path in same}
    assert any(path.suffix == ".png" for path in again)


def test_a_figure_without_data_is_removed(load, tmp_path):
    assert figures.curves_figure(load([]), "retrain", SMALL_TASKS) is None
    assert headline_figure(load([])) is None


def test_latex_escapes_what_has_a_meaning_in_latex(load):
    text = tables.latex(tables.paper_tables(load(seeds(0.5, 0.6, 0.7)))[0])
    body = [line for line in text.splitlines() if not line.startswith("% needs")]
    assert not any(character in line for line in body for character in "±−–↑↓")
    assert all("%" not in line.replace(r"\%", "") for line in body)


def test_missing_and_damaged_files_are_named(load, paper, tmp_path, capsys):
    data = load(seeds(0.5, 0.6))
    path = tmp_path / "results" / "curves" / f"{stand_ins.row()['run_id']}.csv"
    path.write_text("episodes,seconds,nss,pcc\n100,1,0.5,\n100,2,0.5,\n")
    data = stats.load(Grid(results=str(tmp_path / "results")), paper)
    assert len(data.curves[stand_ins.row()["run_id"]]["nss"]) == 0, "the row counts, the curve does not"
    assert str(path) in capsys.readouterr().err
    with pytest.raises(UserError, match="runs.csv"):
        stats.load(Grid(results=str(tmp_path / "nowhere")), paper)
    shorter = tmp_path / "shorter.csv"
    lines = paper.read_text().splitlines()
    shorter.write_text("\n".join(line for line in lines if "MA-DAAC" not in line) + "\n")
    with pytest.raises(UserError, match="MA-DAAC"):
        tables.all_tables(stats.load(Grid(results=str(tmp_path / "results")), shorter))


def test_the_committed_tables_are_those_of_the_committed_rows(tmp_path):
    """`python -m reproduce report` was run after the last row came in."""
    results = tmp_path / "results"
    shutil.copytree(REPOSITORY / "results", results, ignore=shutil.ignore_patterns("tables", "figures"))
    data = stats.load(Grid(results=str(results)), results / "paper.csv")
    for table in tables.all_tables(data):
        path = REPOSITORY / "results" / "tables" / f"{table.name}.md"
        assert path.read_text(encoding="utf-8") == f"# {table.title}\n\n{tables.markdown(table)}", path.name
