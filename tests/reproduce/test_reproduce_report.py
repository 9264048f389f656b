"""Numbers against plain formulas and SciPy, tables and verdicts of rows made by hand, and the same bytes every time."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import stand_ins
from scipy import stats as scipy_stats

from madaac_utils.files import UserError
from reproduce import claims, figures, stats, tables
from reproduce.claims import NOT_ENOUGH
from reproduce.grid import HEADLINE_TASKS, LARGE_TASKS, SMALL_TASKS, TASKS, Grid
from reproduce.parameters import count_parameters
from reproduce.report import write_report
from reproduce.stats import Value

RESULTS = Path(__file__).resolve().parent.parent.parent / "results"
PAPER = RESULTS / "paper.csv"
KEEP_AWAY = ("imitate", "keep_away", "madaac", "decentralized", 50)


@pytest.fixture
def load(tmp_path, experts):
    """The data of rows made by hand."""

    def load_rows(rows: list[dict], **grid) -> stats.Data:
        stand_ins.write_results(tmp_path / "results", rows)
        return stats.load(Grid(results=str(tmp_path / "results"), **grid), PAPER)

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


def test_differences_of_the_same_seeds_have_the_interval_of_scipys_paired_test():
    one, other = {1: 0.3, 2: 0.5, 3: 0.9, 4: 1.2}, {4: 1.0, 2: 0.45, 3: 0.7, 5: 0.1}
    difference = stats.paired(one, other)
    interval = scipy_stats.ttest_rel([0.5, 0.9, 1.2], [0.45, 0.7, 1.0]).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx(tuple(interval))
    assert difference.runs == 3
    assert stats.paired({1: 0.3}, {2: 0.5}).runs == 0, "no seed in common"


def test_differences_to_the_paper_have_the_interval_of_scipys_welch_test():
    one, other = [0.3, 0.5, 0.9, 1.2], [0.1, 0.15, 0.3]
    difference = stats.welch(stats.over_runs(one), stats.over_runs(other))
    interval = scipy_stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx(tuple(interval))
    assert difference.runs == 3
    assert math.isnan(stats.welch(stats.over_runs(one), stats.over_runs([0.5])).half), "one run has no spread"


def test_curves_are_averaged_at_equal_episodes_where_all_runs_have_values():
    one = {"episodes": np.array([0.0, 10, 20]), "seconds": np.array([0.0, 1, 2]), "nss": np.array([0.0, 1, 2])}
    other = {"episodes": np.array([5.0, 15, 30]), "seconds": np.array([5.0, 15, 30])}
    curves = [one, other | {"nss": np.array([1.5, 2.5, np.nan])}]
    for x, axis in (("episodes", [5, 10, 15]), ("seconds", [2.75, 5.5, 8.25])):
        found, value = stats.mean_curve(curves, x, "nss")
        np.testing.assert_allclose(found, axis)
        np.testing.assert_allclose(value.mean, [1.0, 1.5, 2.0])
        np.testing.assert_allclose(value.half, scipy_stats.t.ppf(0.975, 1) * 0.5)


def test_which_rows_count_depends_on_arguments_budget_expert_and_episodes_but_not_on_scores(load):
    rows = [*seeds(0.8, 0.9), stand_ins.row(n_demos=10), stand_ins.row(seed=3, episodes=20_000)]
    rows += [stand_ins.row(seed=4, arguments="--alpha 0.1", nss=0.1), stand_ins.row(budget="paper", nss=0.3)]
    rows += [stand_ins.row(seed=5, expert_scores=(20.0, -6.0), nss=0.2)]
    data = load(rows)
    assert [row.seed for row in data.get(*KEEP_AWAY)] == [1, 2]
    assert [int(word) for word in data.left_out.split() if word.isdigit()] == [1, 1]
    assert set(data.variants[KEEP_AWAY]) == {("--alpha 0.1", 10_000), ("", 20_000), ("", 50_000)}
    for grid, nss in (({"madaac_args": "--alpha 0.1"}, 0.1), ({"scale": "paper"}, 0.3)):
        assert [row.nss for row in load(rows, **grid).get(*KEEP_AWAY)] == [nss]


# Tables


def test_a_cell_has_mean_interval_and_number_of_runs_and_the_papers_stands_beside_it(load):
    data = load([*seeds(0.8, 0.9, 1.0), *seeds(0.9, n_demos=100), *seeds(0.5, algorithm="bc")])
    nss, scores = tables.paper_tables(data, "small", SMALL_TASKS, "imitate")
    place = ("Keep Away, pusher", "50", "decentralized")
    half = scipy_stats.t.ppf(0.975, 2) * 10 / math.sqrt(3)  # scores 40, 30 and 20
    assert lookup(scores, "MA-DAAC", *place) == f"30.00 ± {half:.2f} (3)"
    assert lookup(nss, "MA-DAAC", *place) == f"0.900 ± {half / 100:.3f} (3) ≈"
    assert lookup(scores, "MA-DAAC, paper", *place) == "44.329 ± 3.457"
    assert lookup(nss, "MA-DAAC", "Keep Away, pusher", "100", "decentralized") == "0.900 (1)", "no mark"
    assert lookup(scores, "MA-GAIL", *place) == "–"
    assert lookup(scores, "BC", *place) == "70.00 (1)"
    assert {len(row) for row in nss.rows} == {len(nss.header)}
    experts = tables.experts_table(data)
    assert lookup(experts, "expert", "Keep Away, pusher") == "20.00 ± 1.00"
    assert lookup(experts, "expert, paper", "Keep Away, pusher") == "44.45 ± 1.67"


def test_shared_discriminators_have_a_row_if_there_are_runs(load):
    place = {"task": "rover_tower_16", "discriminator": "shared"}
    nss, _ = tables.paper_tables(load(seeds(0.7, **place)), "large", LARGE_TASKS, "imitate")
    assert [row[:2] for row in nss.rows if row[2] == "shared"] == [["Rover Tower, 16 agents", "50"]]
    assert lookup(nss, "MA-DAAC", "Rover Tower, 16 agents", "50", "shared") == "0.700 (1)"


def test_marks_compare_nss_with_the_papers(load):
    """The paper's NSS of MA-DAAC in Keep Away is 1.00 ± 0.05 for the pusher, who wants a low score."""
    marks = [((0.5, 0.51, 0.52), "(3) ↓"), ((1.5, 1.51, 1.52), "(3) ↑"), ((1.0, 1.01, 1.02), "(3) ≈")]
    for values, mark in [*marks, ((0.5, 0.51), "(2)")]:
        nss, _ = tables.paper_tables(load(seeds(*values)), "small", SMALL_TASKS, "imitate")
        assert lookup(nss, "MA-DAAC", "Keep Away, pusher", "50", "decentralized").endswith(mark)


def test_retraining_has_the_correlation_of_rewards_and_no_behavioural_cloning(load):
    data = load(seeds(0.5, stage="retrain"))
    assert lookup(tables.pcc_table(data), "MA-DAAC, PCC", "Keep Away", "50", "decentralized") == "0.25 (1)"
    nss, scores = tables.paper_tables(data, "small", SMALL_TASKS, "retrain")
    assert "BC" not in nss.header + scores.header
    assert {len(row) for row in nss.rows} == {len(nss.header)}


def test_differences_to_magail(load):
    place = {"task": "rover_tower_8"}
    rows = seeds(0.1, 0.11, 0.12, algorithm="magail", **place) + seeds(0.9, 0.91, 0.92, **place)
    rows += seeds(0.5, algorithm="mairl", **place) + seeds(0.2, algorithm="bc", **place)
    table = tables.relative_table(load(rows), "imitate")
    setting = ("Rover Tower, 8 agents", "50", "decentralized")
    assert lookup(table, "MA-DAAC", *setting) == "96.00 ± 0.00 (3)", "in pairs"
    assert lookup(table, "MA-DAAC, paper", *setting).startswith("46.684 ± ")
    assert lookup(table, "MA-AIRL", *setting) == "48.00 (1)", "too few runs for an interval"
    assert lookup(table, "BC", *setting) == "12.00 (1)"
    assert "MA-GAIL" not in table.header


def test_episodes_and_seconds_to_the_goal(load):
    fast, slow = ((400, 4, 0.1), (1000, 10, 0.95)), ((500, 5, 0.2), (2000, 20, 0.7), (3000, 30, 0.8))
    rows = [row | {"curve": fast} for row in seeds(0.9, 0.9, 0.9)]
    rows += [row | {"curve": slow} for row in seeds(0.9, 0.9, algorithm="mairl")]
    rows += [row | {"curve": slow} for row in seeds(0.9, algorithm="mairl", task="cooperative_communication")]
    table = tables.efficiency_table(load(rows))
    place = ("Keep Away", "50", "decentralized")
    assert lookup(table, "episodes to the goal", *place, "MA-DAAC") == "1,000 ± 200 (3)", "no finer than the curves"
    assert lookup(table, "seconds to the goal", *place, "MA-DAAC") == "10 ± 0 (3)"
    assert lookup(table, "episodes to the goal", *place, "MA-AIRL") == "missed by 2 of 2"
    early = "NSS during training, at 2,000 episodes"
    assert lookup(table, early, *place, "MA-AIRL") == "0.70 (2)"
    assert lookup(table, early, *place, "MA-DAAC") == "–", "these runs end before"
    fine = [(number, number / 100, number / 1000) for number in range(400, 1000, 20)]
    table = tables.efficiency_table(load([stand_ins.row(curve=fine)]))
    assert lookup(table, "episodes to the goal", *place, "MA-DAAC") == "980 (1)", "the last point counts too"
    coarse = [(number, number / 100, 0.95 - abs(number - 900) / 1000) for number in range(400, 2000, 20)]
    table = tables.efficiency_table(load([stand_ins.row(curve=coarse)]))
    assert lookup(table, "episodes to the goal", *place, "MA-DAAC") == "missed by 1 of 1", "it is above only at 900"
    table = tables.efficiency_table(load([stand_ins.row(curve=coarse), stand_ins.row(seed=2, curve=fast)]))
    assert lookup(table, "episodes to the goal", *place, "MA-DAAC") == "1,000; missed by 1 of 2"
    table = tables.efficiency_table(load(rows))
    communication = ("Cooperative Communication", "50", "decentralized", "MA-AIRL")
    assert lookup(table, "episodes to the goal", *communication) == "2,000 (1)", "the goal is 0.7 there"


def test_the_headline_has_50_demonstrations_that_are_not_centralized_and_few_columns(load):
    rows = seeds(0.9) + seeds(0.8, n_demos=100) + seeds(0.7, discriminator="centralized") + seeds(0.6, algorithm="bc")
    rows += seeds(0.5, task="rover_tower_12")
    table = tables.headline_table(load(rows))
    nss = table.header.index("final NSS")
    assert [(*row[:2], row[nss]) for row in table.rows] == [
        ("Keep Away", "MA-DAAC", "0.900 (1)"),
        ("Keep Away", "BC", "0.600 (1)"),
    ]
    assert table.header[:2] == ["task", "algorithm"] and len(table.rows[0]) == len(table.header)
    assert "50 demonstrations" in table.title and "decentralized" in table.title


def test_other_arguments_stand_beside_the_same_seeds_without_them(load):
    curve, better = ((800, 8, 0.2), (2000, 20, 0.5)), ((800, 8, 0.4), (2000, 20, 0.9))
    rows = [row | {"curve": curve} for row in seeds(0.9, 0.9, 0.9)]
    rows += [row | {"curve": better} for row in seeds(0.9, 0.9, arguments="--alpha 0.1")]
    rows += seeds(0.7, 0.8, 0.9, stage="retrain") + seeds(0.6, stage="retrain", reward_arguments="--alpha 0.1")
    rows += seeds(0.1, stage="retrain", reward_arguments="--alpha 0.1", arguments="--rl maac")
    rows += seeds(0.9, n_demos=100, arguments="--alpha 0.1")
    rows += seeds(0.9, arguments="--gamma 0.9") + seeds(0.2, budget="paper", episodes=50_000)
    table = tables.settings_table(load(rows))
    assert [row[2:7] for row in table.rows] == [
        ["1", "none", "10,000", "0.20 (1)", "0.50 (1)"],
        ["1", "none", "50,000", "–", "0.91 (1)"],
        ["1", "`--gamma 0.9`", "10,000", "–", "0.91 (1)"],
        ["1, 2", "none", "10,000", "0.20 (2)", "0.50 (2)"],
        ["1, 2", "`--alpha 0.1`", "10,000", "0.40 (2)", "0.90 (2)"],
    ]
    assert [row[-1] for row in table.rows] == ["0.700 (1)", "–", "–", "0.750 (2)", "0.600 (1)"]
    assert {len(row) for row in table.rows} == {len(table.header)}


# Claims


def verdict(data: stats.Data, words: str) -> str:
    """Of the one claim that has these words in its title."""
    (claim,) = [claim for title, claim in claims.CLAIMS.items() if words in title]
    return claims.verdict(claim.comparisons(data))


def three_each(tasks, demos, stage: str, own: float, others: float) -> list[dict]:
    """Three runs each of MA-DAAC and of the baselines, around these values of NSS."""
    found = []
    for task, n, name in itertools.product(tasks, demos, ("magail", "mairl", "madaac")):
        nss = own if name == "madaac" else others
        found += seeds(nss, nss + 0.01, nss + 0.02, task=task, n_demos=n, stage=stage, algorithm=name)
    return found


def test_verdicts_follow_the_rows(load):
    empty, of_rows = load([]), [claim for claim in claims.CLAIMS.values() if isinstance(claim, claims.Claim)]
    assert {claims.verdict(claim.comparisons(empty)) for claim in of_rows} == {NOT_ENOUGH}
    as_well, better = "small tasks MA-DAAC imitates", "small tasks MA-DAAC's rewards lead"
    rows = three_each(SMALL_TASKS, (50, 100, 200), "retrain", 0.9, 0.5)
    rows += three_each(SMALL_TASKS, (50, 100, 200), "imitate", 0.9, 0.9)
    data = load(rows)
    assert verdict(data, as_well) == verdict(data, better) == "holds"
    data = load([row for row in rows if row["seed"] < 3 or row["task"] != "keep_away"])
    assert verdict(data, better) == "undecided"
    (claim,) = [claim for title, claim in claims.CLAIMS.items() if better in title]
    results = [one.result for one in claim.comparisons(data)]
    assert (results.count("yes"), results.count(NOT_ENOUGH)) == (12, 6)
    rows = three_each(["keep_away"], (50,), "imitate", 0.5, 0.9) + three_each(["keep_away"], (50,), "retrain", 0.9, 0.9)
    data = load(rows)
    assert verdict(data, as_well) == "does not hold", "one comparison is enough"
    assert verdict(data, better) == "undecided", "as good is not better, and not worse"


@pytest.mark.parametrize(
    "relation, results",
    [  # of differences of -0.2, -0.06, -0.03, 0, 0.03, 0.06 and 0.2, all ± 0.02, and 0 ± 0.1
        ("above", "no no no undecided yes yes yes undecided"),
        ("below", "yes yes yes undecided no no no undecided"),
        (claims.NOT_WORSE, "no undecided yes yes yes yes yes undecided"),
        (claims.EQUAL, "no undecided yes yes yes undecided no undecided"),
    ],
)
def test_a_comparison_holds_or_is_refuted_by_its_whole_interval(relation, results):
    values = [Value(mean, 0.02, 3) for mean in (-0.2, -0.06, -0.0299, 0, 0.0299, 0.06, 0.2)] + [Value(0.0, 0.1, 3)]
    assert [claims.holds(value, relation) for value in values] == results.split()
    assert claims.holds(Value(0.2, 0.0, 2), relation) == NOT_ENOUGH


def test_the_page_of_claims_has_the_verdicts_first_and_leaves_out_comparisons_without_runs(load):
    lines = claims.claims_page(load(three_each(["keep_away"], (50,), "imitate", 0.5, 0.9))).splitlines()
    (summary,) = [line for line in lines if line.startswith("| 3 |")]
    verdict, *counts = summary.split(" | ")[3:]
    assert verdict == "does not hold"
    for text in counts:  # our comparisons, and those of the paper's own numbers
        assert sum(int(part.split()[0]) for part in text.strip(" |").split(", ")) == 18
    section = lines[next(i for i, line in enumerate(lines) if line.startswith("## 3.")) :]
    assert lines.index(summary) < lines.index(section[0])
    rows = [line for line in section[: section.index("", 2)] if line.startswith("| Keep Away")]
    assert len(rows) == 2 and all(row.endswith("| no |") for row in rows), "one for each baseline"


def test_above_the_expert_is_no_better_where_agents_compete(load):
    rows = seeds(1.2, 1.21, 1.22) + seeds(0.9, 0.91, 0.92, algorithm="magail")
    rows += seeds(1.2, task="cooperative_navigation")
    data = load(rows)
    navigation = ("imitate", "cooperative_navigation", *KEEP_AWAY[2:])
    assert [stats.likeness(row) for row in data.get(*KEEP_AWAY)] == pytest.approx([0.8, 0.79, 0.78])
    assert [stats.likeness(row) for row in data.get(*navigation)] == pytest.approx([1.2])
    assert verdict(data, "small tasks MA-DAAC imitates") == "does not hold"


def test_sample_efficiency_is_judged_by_episodes_to_the_goal(load):
    def judge(own: int, others: int) -> str:
        """MA-DAAC is at the goal after `own` episodes, if it has so many, and the baselines after `others`."""
        rows = []
        for row in three_each(HEADLINE_TASKS, (50,), "imitate", 0.9, 0.9):
            at, budget = (own, 10_000) if row["algorithm"] == "madaac" else (others, row["episodes"])
            rows.append(row | {"curve": [(1000, 10, 0.2), (at, 20, 0.95) if at <= budget else (budget, 20, 0.2)]})
        return verdict(load(rows), "fewer episodes")

    assert judge(2000, 20_000) == "holds"
    assert judge(2000, 200_000) == "holds", "a baseline that never gets there needs more than its budget"
    assert judge(9000, 4000) == "does not hold"
    assert judge(20_000, 4000) == "does not hold", "MA-DAAC needs more than its budget"
    assert judge(20_000, 30_000) == "undecided", "MA-DAAC might need any number"
    assert judge(1200, 1500) == "undecided", "read as 1,200 and 1,600 episodes, which may be less apart"


def test_differences_are_those_of_the_same_seeds(load):
    place = {"task": "rover_tower_8"}
    rows = seeds(0.5, 0.7, 0.9, **place) + seeds(0.4, 0.6, 0.79, algorithm="mairl", **place)
    rows += seeds(0.9, 0.7, 0.5, algorithm="magail", **place)
    (claim,) = [claim for title, claim in claims.CLAIMS.items() if "Rover Tower MA-DAAC imitates better" in title]
    results = {one.second.split(":")[0]: one for one in claim.comparisons(load(rows)) if "8 agents" in one.setting}
    assert results["MA-AIRL"].result == "yes" and results["MA-AIRL"].difference.startswith("0.103 ± 0.014")
    assert results["MA-GAIL"].result == "undecided"


def test_the_papers_own_numbers_are_compared_in_the_same_order(load):
    """In the paper, MA-DAAC imitates better on Rover Tower with 50 demonstrations, by 0.34 of NSS with 8 agents."""
    (claim,) = [claim for title, claim in claims.CLAIMS.items() if "Rover Tower MA-DAAC imitates better" in title]
    assert claim.in_paper(load([])) == "6 yes"
    assert claim._replace(relation="below").in_paper(load([])) == "6 no"


def test_a_retraining_counts_only_on_the_reward_of_a_whole_imitation(load):
    rows = seeds(0.9, stage="retrain") + [stand_ins.row(stage="retrain", seed=2, reward_episodes=2000)]
    data = load(rows)
    assert [row.seed for row in data.get("retrain", *KEEP_AWAY[1:])] == [1] and "1 with" in data.left_out


def test_rows_count_although_scripts_train_whole_rounds(load):
    data = load([stand_ins.row(episodes=10_040), stand_ins.row(seed=2, episodes=10_400)])
    assert [row.seed for row in data.get(*KEEP_AWAY)] == [1]


def test_discriminators_are_judged_by_a_margin_on_small_tasks_and_by_order_on_large_ones(load):
    rows = three_each(SMALL_TASKS, (50,), "imitate", 0.9, 0.9) + three_each(LARGE_TASKS, (50,), "imitate", 0.2, 0.2)
    rows = [row | {"discriminator": "centralized", "run_id": row["run_id"].replace("dec", "c")} for row in rows]
    rows += three_each(TASKS, (50,), "imitate", 0.9, 0.9)
    data = load(rows)
    assert verdict(data, "kind of discriminator") == verdict(data, "decentralized discriminators imitate") == "holds"


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


def test_shared_weights_are_counted_once_per_kind_and_biases_per_agent():
    # Rovers see 13 numbers and 5 actions, towers 8 and 5: weights of g and h of one rover and one tower, with 8 biases
    weights = sum(128 * (size + 5) + 128 * size + 2 * (128 * 128 + 128) for size in (13, 8))
    assert count_parameters("madaac", 8, "shared")["discriminators"] == weights + 8 * 2 * (128 + 128 + 1)


# The whole report


@pytest.fixture
def quick(monkeypatch):
    """Without counting the parameters of large networks."""
    for module in ("figures", "parameters"):
        monkeypatch.setattr(f"reproduce.{module}.AGENTS", (8, 16))
    for title, claim in list(claims.CLAIMS.items()):
        if isinstance(claim, claims.ParameterClaim):
            monkeypatch.delitem(claims.CLAIMS, title)


def test_the_report_has_all_files_and_the_same_bytes_again(load, tmp_path, quick):
    rows = three_each(("keep_away", "rover_tower_8"), (50,), "imitate", 0.9, 0.8) + seeds(0.5, 0.6, algorithm="bc")
    load(rows + three_each(("keep_away",), (50,), "retrain", 0.9, 0.8))
    results = tmp_path / "results"
    old = results / "figures" / "imitation_large.png"
    first = {path: path.read_bytes() for path in write_report(Grid(results=str(results)), PAPER)}
    names = {path.relative_to(results).as_posix() for path in first}
    scores = [f"{scale}_scale_{stage}" for scale in ("small", "large") for stage in ("imitation", "retraining")]
    for name in (
        *scores,
        "relative_imitation",
        "relative_retraining",
        "headline",
        "efficiency",
        "settings",
        "parameters",
    ):
        assert f"tables/{name}.md" in names
    assert {"tables/claims.md", "tables/index.md"} <= names
    for name in ("headline", "imitation_small", "imitation_large", "retraining", "pcc", "parameters"):
        assert f"figures/{name}.png" in names
    again = {path: path.read_bytes() for path in write_report(Grid(results=str(results)), PAPER)}
    assert again == first
    load([row for row in rows if row["task"] == "keep_away"])
    assert old.exists() and old not in write_report(Grid(results=str(results)), PAPER) and not old.exists()


def test_a_figure_without_data_is_not_drawn(load):
    assert figures.curves_figure(load([]), "retrain", SMALL_TASKS) is None
    assert figures.headline_figure(load([])) is None


def test_missing_and_damaged_files_are_named(load, tmp_path, capsys):
    load(seeds(0.5, 0.6))
    run_id = stand_ins.row()["run_id"]
    path = tmp_path / "results" / "curves" / f"{run_id}.csv"
    path.write_text("episodes,seconds,nss,pcc\n100,1,0.5,\n100,2,0.5,\n")
    data = stats.load(Grid(results=str(tmp_path / "results")), PAPER)
    assert len(data.get(*KEEP_AWAY)) == 2 and len(data.curves[run_id]["nss"]) == 0, "the row counts, the curve does not"
    assert str(path) in capsys.readouterr().err
    with pytest.raises(UserError, match="runs.csv"):
        stats.load(Grid(results=str(tmp_path / "nowhere")), PAPER)


def test_a_report_of_other_runs_does_not_replace_that_of_the_defaults(load, tmp_path, quick):
    load(seeds(0.9, arguments="--alpha 0.1"))
    with pytest.raises(UserError, match="--madaac-args --alpha 0.1"):
        write_report(Grid(madaac_args="--alpha 0.1", results=str(RESULTS)), PAPER)
    write_report(Grid(madaac_args="--alpha 0.1", results=str(tmp_path / "results")), PAPER)
    assert "--alpha 0.1" in (tmp_path / "results" / "tables" / "index.md").read_text()


def test_the_committed_tables_are_those_of_the_committed_rows():
    """`python -m reproduce report` was run after the last row came in."""
    data = stats.load(Grid(results=str(RESULTS)), PAPER)
    for name, text in tables.pages(tables.all_tables(data)).items():
        assert (RESULTS / "tables" / name).read_text(encoding="utf-8") == text, name
    assert (RESULTS / "tables" / "claims.md").read_text(encoding="utf-8") == claims.claims_page(data)
