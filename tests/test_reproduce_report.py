"""reproduce_report.py: cells, intervals and marks by hand, the same bytes every time, and errors that name the line."""

import csv
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import env_utils
import reproduce_report as report
from env_utils import UserError

PAPER = Path(__file__).resolve().parent.parent / "results" / "paper.csv"
T_2 = 12.7062047  # 97.5 % quantile of Student's t with one degree of freedom: two runs
T_3 = 4.3026527  # with two: three runs
PARAMETERS_FIGURE = report.parameters_figure  # others have a stub
OF_TODAYS_EXPERT = env_utils.of_todays_expert  # others take all rows for such
KEEP_AWAY = ("20.00;-5.00", "120.00;-25.00")  # expert and random
REFERENCES = {"keep_away": KEEP_AWAY}  # others are below


def row(task="keep_away", stage="imitate", algorithm="madaac", scores="20.00;-6.00", interval="2.00", **others):
    """A row of runs.csv as text; a single score or interval is every agent's."""
    agents = list(env_utils.load_card(task)["scores"]["expert"])

    def each(text):
        return text if ";" in text else ";".join([text] * len(agents))

    default = ("-10.00", "-60.00") if task.startswith("cooperative") else ("120.00", "0.00")
    expert, random = REFERENCES.get(task, default)
    values = {
        "stage": stage,
        "task": task,
        "algorithm": algorithm,
        "discriminator": "decentralized",
        "n_demos": "50",
        "seed": "1",
        "episodes": str(report.paper_episodes(task)),
        "arguments": "",
        "rl": report.paper_rl(task) if stage == "retrain" else "",
        "agents": ";".join(agents),
        "scores": each(scores),
        "score_intervals": each(interval),
        "greedy_scores": each(scores),
        "expert_scores": each(expert),
        "random_scores": each(random),
        "nss": "0.9000",
        "nss_greedy": "0.9000",
        "nss_last_500": "",
        "pcc": "",
        "seconds": "100.0",
        "commit": "0123456",
        "reward_episodes": str(report.paper_episodes(task)) if stage == "retrain" else "",
        "reward_arguments": "",
    } | {name: str(value) for name, value in others.items()}
    names = ("stage", "task", "algorithm", "discriminator", "n_demos", "seed", "episodes", "arguments", "rl")
    names += ("reward_episodes", "reward_arguments")
    return {"run_id": "-".join(values[name].replace(" ", "") for name in names)} | values


def write_results(folder: Path, rows: list[dict]) -> Path:
    (folder / "curves").mkdir(parents=True, exist_ok=True)
    with open(folder / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(report.RUN_COLUMNS))
        writer.writeheader()
        writer.writerows(rows)
    for one in rows:
        pcc = "0.25" if one["stage"] == "retrain" else ""
        points = [f"{x},{x / 100},{nss},{pcc}" for x, nss in ((1000, 0.2), (2000, 0.91), (3000, 0.85))]
        (folder / "curves" / f"{one['run_id']}.csv").write_text("\n".join(["episodes,seconds,nss,pcc", *points]) + "\n")
    return folder


def hand_made() -> list[dict]:
    return [
        # Two runs, and one with fewer episodes that has to stay out.
        row(seed=1, scores="20.00;-6.00", arguments="--policy_lr 0.1"),
        row(seed=2, scores="30.00;-8.00", arguments="--policy_lr 0.1"),
        row(seed=3, scores="99.00;-9.00", arguments="--policy_lr 0.1", episodes=20_000),
        # One run, of fewer episodes than the paper's.
        row(algorithm="mairl", scores="60.00;-13.00", interval="2.00;0.40", episodes=20_000),
        row("cooperative_communication", scores="-12.00", interval="1.00"),
        row("rover_tower_8", algorithm="magail", scores="60.00", interval="3.00"),
        row("rover_tower_8", algorithm="madaac", scores="110.00", interval="4.00"),
        row("rover_tower_8", "retrain", algorithm="madaac", scores="30.00", interval="4.00", rl="mack"),
        row("cooperative_navigation", "retrain", scores="-15.00", interval="4.00"),
        # On rewards of a short imitation, and of one with extra arguments; these make four values of retraining.
        row("cooperative_communication", "retrain", scores="-12.00", interval="1.00", reward_episodes=20_000),
        row("keep_away", "retrain", reward_arguments="--policy_lr 0.1"),
        # Three runs: a mark in bold.
        *(row(seed=seed, n_demos=100, scores=f"{score};-6.00") for seed, score in ((1, 28), (2, 30), (3, 32))),
    ]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Few samples, and no networks: to import and to count them takes longer than most of the rest.

    The rows here are of experts with round scores, which nobody has shipped.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env_utils, "of_todays_expert", lambda *_: True)
        patch.setattr(report, "parameters_figure", lambda: report.panels(1, 1, (1, 1))[0])
        patch.setattr(report, "BOOTSTRAP_SAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory, quick):
    """A folder with a report of the hand-made rows, tables alone."""
    folder = write_results(tmp_path_factory.mktemp("results"), hand_made())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "make_figures", lambda *_: {})
        report.write_report(folder, PAPER)
    return folder


def few_panels(patch) -> None:
    """One number of demonstrations, which is a third of the panels."""
    patch.setattr(report, "DEMOS", (50,))
    patch.setattr(report, "DEMO_CHOICES", {"50": (50,), "all": (50,)})


def few_rows() -> list[dict]:
    """Enough for something in every figure, with an interval of the interquartile mean."""
    retrained = [row(stage="retrain", seed=seed, nss=nss) for seed, nss in enumerate((0.1, 0.4, 0.7, 0.9), start=1)]
    return [row(), row("rover_tower_8", scores="60.00"), *retrained]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, quick):
    """A folder with a report of a few rows, with all figures."""
    folder = write_results(tmp_path_factory.mktemp("drawn"), few_rows())
    with pytest.MonkeyPatch.context() as patch:
        few_panels(patch)
        report.write_report(folder, PAPER)
    return folder


def cells_of(rows: list[dict], folder: Path) -> dict:
    return report.select(report.read_runs(write_results(folder, rows) / "runs.csv"))


def table_cell(results: Path, name: str, column: str, *row_names: str) -> list[str]:
    """Lines of a cell of a Markdown table."""
    lines = (results / "tables" / f"{name}.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    (found,) = [cells for cells in rows if cells[: len(row_names)] == list(row_names)]
    return found[rows[0].index(column)].split("<br>")


def test_two_runs_have_a_t_interval_and_fewer_episodes_stay_out(results):
    pusher = table_cell(results, "small_scale_imitation", "Keep Away, pusher", "50", "MA-DAAC", "decentralized")
    half = T_2 * math.sqrt(50) / math.sqrt(2)  # scores 20 and 30: variance 50
    paper = (44.329 - 114.401) / (44.449 - 114.401)
    assert pusher == [
        f"25.00 ± {half:.2f} (2 runs)",
        "paper 44.329 ± 3.457",
        f"NSS 0.950 ± {half / 100:.3f}, paper {paper:.3f} ± {3.457 / (114.401 - 44.449):.3f}",  # NSS 1.0 and 0.9
        "equal",
    ]
    reacher = table_cell(results, "small_scale_imitation", "Keep Away, reacher", "50", "MA-DAAC", "decentralized")
    assert reacher[0] == f"−7.00 ± {T_2:.2f} (2 runs)"
    assert reacher[2].startswith("NSS 0.900 ± 0.635")


def test_one_run_has_its_own_interval_and_says_how_many_episodes(results):
    pusher = table_cell(results, "small_scale_imitation", "Keep Away, pusher", "50", "MA-AIRL", "decentralized")
    assert pusher[0] == "60.00 ± 2.00 (1 run, †20,000)"
    assert pusher[2].startswith("NSS 0.600 ± 0.020, paper 0.999 ± 0.039")
    assert pusher[3] == "worse"  # although 60 is more than the paper's 44.5
    reacher = table_cell(results, "small_scale_imitation", "Keep Away, reacher", "50", "MA-AIRL", "decentralized")
    assert reacher[2].startswith("NSS 0.600 ± 0.020")
    text = (results / "tables" / "small_scale_imitation.md").read_text()
    assert "† episodes of the runs" in text
    assert "that of a single run is over its own evaluation episodes" in text
    assert "† episodes" not in (results / "tables" / "relative_imitation.md").read_text()


def test_better_is_a_higher_nss_with_intervals_apart(results):
    name = "Cooperative Communication"
    cell = table_cell(results, "small_scale_imitation", name, "50", "MA-DAAC", "decentralized")
    assert cell == [
        "−12.00 ± 1.00 (1 run)",
        "paper −20.824 ± 1.290",
        "NSS 0.960 ± 0.020, paper 0.868 ± 0.031",  # (-20.824 + 57.196) / (-15.29 + 57.196)
        "better",
    ]


def test_what_was_not_measured_says_so(results):
    cell = table_cell(results, "small_scale_imitation", "Cooperative Navigation", "200", "MA-GAIL", "centralized")
    assert cell[:2] == ["not measured", "paper −80.003 ± 4.850"]
    text = (results / "tables" / "small_scale_imitation.md").read_text()
    assert (
        "Cells: 1 better, 2 equal, 4 worse, 65 not measured; 5 of these marks rest on fewer than 3 runs, whose "
        "intervals say little or nothing about other seeds.\n"
    ) in text
    assert "Random and expert scores are taken as exact" in text


def test_marks_of_three_runs_are_bold(results):
    pusher = table_cell(results, "small_scale_imitation", "Keep Away, pusher", "100", "MA-DAAC", "decentralized")
    half = T_3 * 2 / math.sqrt(3)  # scores 28, 30 and 32: variance 4
    assert pusher[0] == f"30.00 ± {half:.2f} (3 runs)"
    assert pusher[2].startswith(f"NSS 0.900 ± {half / 100:.3f}, paper 1.017 ± 0.045")  # 71.134 and 3.137 / 69.952
    assert pusher[3] == "**worse**"
    reacher = table_cell(results, "small_scale_imitation", "Keep Away, reacher", "100", "MA-DAAC", "decentralized")
    assert reacher[2:] == ["NSS 0.950 ± 0.000, paper 1.019 ± 0.040", "**worse**"]  # 16.529 and 0.648 / 16.222
    text = (results / "tables" / "small_scale_imitation.tex").read_text()
    bold, plain = (text.count(word + r"\end{tabular}") for word in (r" \\ \textbf{worse}", r" \\ worse"))
    assert (bold, plain) == (2, 2)


def test_words_of_differences_follow_the_sign():
    def value(nss):
        return report.Value(0.0, 0.0, nss, 0.05)

    words = [report.mark(value(nss), value(-0.2), report.RELATIVE_MARKS) for nss in (-0.09, -0.11, -0.31)]
    assert words == ["larger", "equal", "smaller"]


def test_a_difference_is_bold_only_with_three_runs_of_both(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "make_figures", lambda *_: {})
    rows = [row("rover_tower_8", algorithm="magail", scores=str(score), seed=score) for score in (11, 12, 13)]
    rows += [row("rover_tower_8", algorithm="madaac", scores=str(score), seed=score) for score in (109, 110, 111)]
    rows += [row("rover_tower_8", algorithm="mairl", scores="12.00", seed=seed) for seed in (1, 2)]
    report.write_report(write_results(tmp_path, rows), PAPER)
    cell = table_cell(tmp_path, "relative_imitation", "50 demonstrations", "8", "MA-DAAC")
    assert cell[0] == f"+98.00 ± {T_3 / math.sqrt(3) * math.sqrt(2):.2f} (3 runs)"
    assert cell[3] == "**larger**"  # NSS +0.817 ± 0.029, paper +0.344 ± 0.115
    cell = table_cell(tmp_path, "relative_imitation", "50 demonstrations", "8", "MA-AIRL")
    assert cell[0].endswith("(2 against 3 runs)")
    assert cell[3] == "smaller"  # NSS 0 ± 0.021, paper +0.158 ± 0.115
    text = (tmp_path / "tables" / "relative_imitation.md").read_text()
    assert "Cells: 1 larger, 0 equal, 1 smaller, 16 not measured; 1 of these marks rests on" in text
    text = (tmp_path / "tables" / "relative_retraining.md").read_text()
    assert text.endswith("Cells: 0 larger, 0 equal, 0 smaller, 18 not measured.\n")


def test_random_and_expert_rows_are_the_card_s_and_the_paper_s(results):
    score = env_utils.load_card("keep_away")["scores"]["expert"]["pusher_0"]
    cell = table_cell(results, "small_scale_retraining", "Keep Away, pusher", "", "Expert")
    assert cell == [f"{score['mean']:.2f} ± {score['interval_95']:.2f}", "paper 44.449 ± 1.673"]
    cell = table_cell(results, "large_scale_imitation", "Rover Tower, 8 agents", "", "Random")
    mean = env_utils.random_scores("rover_tower_8").mean()
    assert cell[0].startswith(f"{mean:.2f} ± ".replace("-", "−"))
    assert cell[1] == "paper −8.350 ± 7.324"


def test_relative_tables(results):
    cell = table_cell(results, "relative_imitation", "50 demonstrations", "8", "MA-DAAC")
    half = math.hypot(9.899, 12.076)
    gap = 127.506 + 8.35
    assert cell == [
        "+50.00 ± 5.00 (1 run)",  # intervals of 3 and 4
        f"paper +46.684 ± {half:.3f}",  # as printed in the paper
        f"NSS +{50 / 120:.3f} ± {5 / 120:.3f}, paper +{46.684 / gap:.3f} ± {half / gap:.3f}",
        "equal",
    ]
    text = (results / "tables" / "relative_imitation.md").read_text()
    assert "Cells: 0 larger, 1 equal, 0 smaller, 17 not measured; 1 of these marks rests on fewer than 3 runs" in text
    assert "A larger difference is not better in itself" in text and "worse" not in text
    assert table_cell(results, "relative_imitation", "50 demonstrations", "8", "MA-AIRL")[0] == "not measured"
    assert table_cell(results, "relative_retraining", "200 demonstrations", "16", "MA-DAAC")[1].startswith(
        "paper +48.94"
    )


def test_retraining_by_another_algorithm_is_marked(results):
    cell = table_cell(results, "large_scale_retraining", "Rover Tower, 8 agents", "50", "MA-DAAC", "decentralized")
    assert cell[0] == "30.00 ± 4.00 (1 run, ‡MACK)"
    assert cell[3] == "worse"


def test_retraining_on_the_reward_of_another_budget_is_marked(results):
    names = ("50", "MA-DAAC", "decentralized")
    cell = table_cell(results, "small_scale_retraining", "Cooperative Communication", *names)
    assert cell[0] == "−12.00 ± 1.00 (1 run, †reward of 20,000)"
    assert table_cell(results, "small_scale_retraining", "Keep Away, pusher", *names)[0] == "20.00 ± 2.00 (1 run)"
    text = (results / "tables" / "small_scale_retraining.md").read_text()
    assert "†reward of: episodes of the imitation" in text and "† episodes of the runs" not in text
    assert "†reward" not in (results / "tables" / "large_scale_retraining.md").read_text()


def test_both_budgets_of_both_sides_of_a_difference_are_marked(tmp_path):
    task = "rover_tower_8"
    short = row(task, "retrain", "magail", scores="1.00", episodes=20_000, reward_episodes=30_000)
    one, other = cells_of([row(task, "retrain", scores="1.00"), short], tmp_path).values()
    text = report.episodes_mark(task, one, other)
    assert text == ", †100,000 against 20,000, †reward of 100,000 against 30,000"
    assert report.episodes_mark(task, other) == ", †20,000, †reward of 30,000"
    assert report.episodes_mark(task, one) == ""


def test_notes_of_retraining_name_the_arguments_of_the_imitation(results, tmp_path):
    start = "Extra arguments of retraining on MA-DAAC's rewards: "
    text = (results / "tables" / "small_scale_retraining.md").read_text()
    assert f"{start}none; of the imitation that they are of: `--policy_lr 0.1` (keep_away, 50, decentralized)." in text
    (note,) = report.argument_notes(cells_of([row(stage="retrain", arguments="--a", reward_arguments="--b")], tmp_path))
    assert note == f"{start}`--a`; of the imitation that they are of: `--b` (all its runs here)."
    (note,) = report.argument_notes(cells_of([row(stage="retrain", arguments="--a")], tmp_path))
    assert note == f"{start}`--a`; of the imitation that they are of: none (all its runs here)."


def test_notes_name_extra_arguments_and_other_references(results):
    text = (results / "tables" / "small_scale_imitation.md").read_text()
    assert "Extra arguments of MA-DAAC: `--policy_lr 0.1` (keep_away, 50, decentralized)." in text
    assert "Extra arguments of MA-AIRL" not in text
    assert "runs of keep_away have other random or expert scores than its card" in text


def test_latex_is_escaped_and_its_braces_match(results):
    for path in (results / "tables").glob("*.tex"):
        text = path.read_text()
        assert not set("±−†‡`") & set(text)
        assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")
        columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
        body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
        rows = [line for line in body.splitlines() if line.endswith(r"\\") and line != r"\midrule"]
        assert rows and all(line.count(" & ") == len(columns) - 1 for line in rows)
    assert r"\texttt{-{}-policy\_lr 0.1}" in (results / "tables" / "small_scale_imitation.tex").read_text()
    assert len(list((results / "tables").glob("*.tex"))) == 6


def test_sample_efficiency_is_the_first_point_at_the_goal(results):
    assert table_cell(results, "efficiency", "episodes", "Keep Away", "50", "MA-DAAC") == ["2,000"]
    assert table_cell(results, "efficiency", "seconds", "Keep Away", "50", "MA-DAAC") == ["20"]
    assert table_cell(results, "efficiency", "reached by", "Keep Away", "50", "MA-DAAC") == ["2 of 2"]


def test_runs_that_do_not_reach_the_goal_count_as_the_slowest(tmp_path):
    cells = cells_of([row(seed=seed) for seed in (1, 2, 3)], tmp_path)
    (runs,) = cells.values()
    curves = {}
    for run, nss in zip(runs, (0.95, 0.5, 0.5)):
        curves[run.run_id] = {"episodes": np.array([10.0]), "seconds": np.array([1.0]), "nss": np.array([nss])}
    (texts,) = report.efficiency_table(cells, curves).rows
    assert texts[-3:] == [["1 of 3"], ["not reached"], ["not reached"]]


def test_index_shows_all_tables_and_figures(results, drawn):
    text = (results / "tables" / "index.md").read_text()
    assert "`runs.csv` has 14 rows: 13 in the tables and figures below; 1 left out." in text
    for path in (results / "tables").glob("*.md"):
        assert path.name == "index.md" or path.read_text().split("\n", 1)[1] in text
    text = (drawn / "tables" / "index.md").read_text()
    figures = sorted(path.stem for path in (drawn / "figures").iterdir())
    assert figures == sorted(report.CAPTIONS)
    assert all(f"../figures/{name}.png" in text for name in figures)


def test_figures_are_small_and_without_metadata(drawn):
    for path in (drawn / "figures").iterdir():
        assert path.stat().st_size < 300_000
        assert Image.open(path).info.keys() <= {"transparency"}


def test_the_same_rows_give_the_same_bytes(drawn, tmp_path, monkeypatch):
    few_panels(monkeypatch)
    for name in ("curves_figure", "efficiency_figure"):  # the slow ones
        monkeypatch.setattr(report, name, lambda *_: None)
    np.random.seed(5)  # whatever was drawn before
    *written, index = report.write_report(write_results(tmp_path, few_rows()), PAPER)
    figures = {path.stem for path in written if path.suffix == ".png"}
    assert figures == {"pcc", "parameters", "interquartile_mean", "performance_profile"}
    assert all(path.read_bytes() == (drawn / path.relative_to(tmp_path)).read_bytes() for path in written)
    before = (drawn / "tables" / "index.md").read_text().split("## Figure")[0]
    assert index.read_text().split("## Figure")[0] == before


def test_no_rows_give_tables_and_no_figures_of_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "parameters_figure", lambda: None)
    write_results(tmp_path, [])
    stale = tmp_path / "figures" / "pcc.png"
    stale.parent.mkdir()
    stale.touch()
    written = report.write_report(tmp_path, PAPER)
    assert {path.suffix for path in written} == {".md", ".tex"}
    assert not stale.exists()
    assert "has 0 rows" in (tmp_path / "tables" / "index.md").read_text()


def test_parameters_are_those_of_the_table_in_docs(monkeypatch):
    monkeypatch.setattr(report, "PARAMETER_AGENTS", (8,))
    monkeypatch.setattr(torch.optim, "Adam", lambda *arguments, **options: None)  # slow to import what it needs
    lines = PARAMETERS_FIGURE().axes[0].get_lines()
    assert {line.get_label(): line.get_ydata()[0] for line in lines} == pytest.approx(
        {"MA-GAIL": 0.556088, "MA-AIRL": 0.700992, "MA-DAAC": 0.790240}
    )


# Which runs are averaged


def test_different_arguments_are_not_averaged(tmp_path):
    rows = [row(seed=seed, arguments="--b") for seed in (1, 2)] + [row(seed=seed) for seed in (1, 2)]
    rows += [row(seed=7, arguments="--a")]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [(run.arguments, run.seed) for run in runs] == [("", 1), ("", 2)]  # a draw of numbers: none
    (runs,) = cells_of([*rows, row(seed=3, arguments="--b")], tmp_path).values()
    assert [(run.arguments, run.seed) for run in runs] == [("--b", 1), ("--b", 2), ("--b", 3)]


def test_different_arguments_of_the_imitation_are_not_averaged(tmp_path):
    rows = [row(stage="retrain", seed=1), row(stage="retrain", seed=2, reward_arguments="--b")]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [(run.all_arguments, run.seed) for run in runs] == [(("", ""), 1)]
    rows += [row(stage="retrain", seed=3, reward_arguments="--b"), row(stage="retrain", seed=4, arguments="--b")]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [(run.all_arguments, run.seed) for run in runs] == [(("", "--b"), 2), (("", "--b"), 3)]


def test_the_paper_s_number_of_episodes_comes_before_more(tmp_path):
    rows = [row(seed=seed) for seed in range(2, 11)] + [row(seed=seed, episodes=20_000) for seed in range(11, 31)]
    (runs,) = cells_of([*rows, row(seed=1, episodes=60_000)], tmp_path).values()
    assert [run.seed for run in runs] == list(range(2, 11))
    (runs,) = cells_of([*rows[9:], row(seed=1, episodes=60_000)], tmp_path).values()
    assert [(run.seed, run.episodes) for run in runs] == [(1, 60_000)]  # none of the paper's: the most


def test_rewards_of_different_numbers_of_episodes_are_not_averaged(tmp_path):
    rows = [row(stage="retrain", seed=seed, reward_episodes=20_000) for seed in (1, 2)]
    rows += [row(stage="retrain", seed=3, reward_episodes=30_000)]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [run.seed for run in runs] == [3]
    rows += [row(stage="retrain", seed=seed, reward_episodes=count) for seed, count in ((4, 50_000), (5, 90_000))]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [run.seed for run in runs] == [4]


def test_the_last_row_of_a_seed_counts_and_the_paper_s_retraining(tmp_path):
    task = "cooperative_navigation"
    rows = [row(task, "retrain", scores="-20.00"), row(task, "retrain", scores="-30.00") | {"run_id": "again"}]
    rows += [
        row(task, "retrain", scores="-40.00", rl="maac", episodes=90_000),
        row(task, "retrain", scores="-1.00", n_demos=10),
    ]
    (runs,) = cells_of(rows, tmp_path).values()
    assert [run.run_id for run in runs] == ["again"]


# Aggregates


def nss_rows(values: dict[str, list[float]], algorithm: str, **others) -> list[dict]:
    return [
        row(task, algorithm=algorithm, scores="1.00", seed=seed, nss=nss, **others)
        for task, found in values.items()
        for seed, nss in enumerate(found, start=1)
    ]


def test_interquartile_mean_of_three_seeds(tmp_path):
    first = {"keep_away": [0.1, 0.5, 0.6], "cooperative_navigation": [0.7, 0.8, 5.0]}
    second = {"keep_away": [0.9, 0.9, 0.9], "cooperative_navigation": [1.0, 1.0, 1.0], "rover_tower_8": [0.5]}
    cells = cells_of(nss_rows(first, "mairl") + nss_rows(second, "madaac"), tmp_path)
    found = report.aggregate(cells, "imitate", (50,))
    assert found.size == "2 settings × 3 runs"  # what both algorithms have
    np.testing.assert_array_equal(found.scores["mairl"], np.array(list(first.values())).T)
    state = np.random.get_state()[1].copy()
    means = report.interquartile_means(found)
    assert means["mairl"][0] == pytest.approx((0.5 + 0.6 + 0.7 + 0.8) / 4)  # without the lowest and the highest
    assert 0.1 <= means["mairl"][1] < means["mairl"][0] < means["mairl"][2]
    assert means["madaac"] == pytest.approx((0.95, 0.95, 0.95))  # no spread within a task, so none of the mean
    assert means == report.interquartile_means(found)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    profile = report.performance_profiles(found, np.array([0.0, 0.55, 2.0]))["mairl"]
    np.testing.assert_allclose(profile[0], [1, 4 / 6, 1 / 6])
    assert (profile[1] <= profile[0]).all() and (profile[0] <= profile[2]).all()


def test_interquartile_mean_of_one_seed(tmp_path):
    rows = nss_rows({task: [nss] for task, nss in zip(report.PAPER_TASKS, (0.0, 0.4, 0.6, 0.8))}, "madaac")
    cells = cells_of(rows, tmp_path)
    found = report.aggregate(cells, "imitate", (50,))
    assert found.size == "4 settings × 1 run"
    mean, low, high = report.interquartile_means(found)["madaac"]
    assert mean == pytest.approx(0.5)
    assert math.isnan(low) and math.isnan(high)
    profile = report.performance_profiles(found, np.array([0.5]))["madaac"]
    assert profile[0] == pytest.approx(0.5) and np.isnan(profile[1:]).all()
    table = report.aggregate_table(report.all_aggregates(cells), cells)
    assert table.rows[0][-3:] == [["0.500"], ["none"], ["4 settings × 1 run"]]


def test_intervals_need_three_runs_a_setting(tmp_path):
    values = {"keep_away": [0.1, 0.4], "cooperative_navigation": [0.6, 0.9]}
    found = report.aggregate(cells_of(nss_rows(values, "mairl"), tmp_path), "imitate", (50,))
    mean, low, high = report.interquartile_means(found)["mairl"]
    assert mean == pytest.approx(0.5)  # 0.4 and 0.6 are left
    assert math.isnan(low) and math.isnan(high)
    assert np.isnan(report.performance_profiles(found, np.array([0.5]))["mairl"][1:]).all()
    axis = report.profile_figure({("imitate", "all"): (found, {})}).axes[0]
    assert len(axis.lines) == 1 and not axis.collections  # no band


def test_three_values_are_too_few(tmp_path):
    cells = cells_of(nss_rows({"keep_away": [0.1, 0.5, 0.9]}, "mairl"), tmp_path)
    aggregates = report.all_aggregates(cells)
    rows = report.aggregate_table(aggregates, cells).rows
    assert [row[-3:] for row in rows] == [[["too few"], ["none"], ["1 setting × 3 runs"]]] * 2  # 50, and all
    assert report.iqm_figure(aggregates) is None and report.profile_figure(aggregates) is None


def test_figures_of_too_few_values_are_removed(tmp_path, monkeypatch):
    for name in ("curves_figure", "pcc_figure", "efficiency_figure", "parameters_figure"):
        monkeypatch.setattr(report, name, lambda *_: None)
    monkeypatch.setattr(report, "write_png", lambda path, _: path.touch())
    paths = [tmp_path / "figures" / f"{name}.png" for name in ("interquartile_mean", "performance_profile")]
    paths[0].parent.mkdir()
    write_results(tmp_path, nss_rows({"keep_away": [0.1, 0.5, 0.7, 0.9]}, "mairl"))
    assert set(paths) <= set(report.write_report(tmp_path, PAPER))
    write_results(tmp_path, nss_rows({"keep_away": [0.1, 0.5, 0.7]}, "mairl"))
    assert not set(paths) & set(report.write_report(tmp_path, PAPER))
    assert not any(path.exists() for path in paths)


def test_aggregates_name_algorithms_and_their_episodes(tmp_path):
    tasks = ("keep_away", "cooperative_navigation", "rover_tower_8", "rover_tower_12")
    rows = nss_rows({task: [0.5] for task in tasks}, "mairl")
    rows += nss_rows({task: [0.5] for task in tasks}, "madaac", episodes=20_000)
    rows += nss_rows({"keep_away": [0.5]}, "magail", n_demos=100)
    cells = cells_of(rows, tmp_path)
    aggregates = report.all_aggregates(cells)
    table = report.aggregate_table(aggregates, cells)
    assert table.notes == [
        "Algorithms of imitation (50): MA-AIRL, MA-DAAC; missing: MA-GAIL.",
        "Algorithms of imitation (100): MA-GAIL; missing: MA-AIRL, MA-DAAC.",
        "Algorithms of imitation (all): no number, as there is no setting that all of MA-GAIL, MA-AIRL, MA-DAAC have.",
    ]
    found, _ = aggregates["imitate", "50"]
    assert report.settings_text(found).startswith(
        "keep_away 50 (seed 1; MA-AIRL 50,000, MA-DAAC 20,000 episodes); cooperative_navigation 50"
    )
    episodes = "episodes: MA-AIRL 50,000 to 100,000, MA-DAAC 20,000"
    assert report.scope_text(found) == f"4 settings × 1 run; without MA-GAIL; {episodes}"
    assert [row[-1] for row in table.rows] == [[f"4 settings × 1 run; {episodes}"]] * 2 + [["1 setting × 1 run"]]
    left, right = report.iqm_figure(aggregates).axes
    lines = left.get_title().replace("\n", " ").split(": ", 1)[1]
    assert lines.startswith(f"{report.scope_text(found)} 100: 1 setting × 1 run; without MA-AIRL, MA-DAAC; too few 200")
    assert [text.get_text() for text in left.texts] == ["too few", "not measured", "not measured"]
    assert [text.get_text() for text in right.texts] == ["not measured"] * 4
    assert report.profile_figure(aggregates) is None  # of all numbers of demonstrations together, there is nothing


def test_aggregates_of_retraining_name_short_rewards(tmp_path):
    rows = nss_rows({"keep_away": [0.5]}, "mairl", stage="retrain")
    rows += nss_rows({"keep_away": [0.5]}, "madaac", stage="retrain", reward_episodes=20_000)
    cells = cells_of(rows, tmp_path)
    notes = report.aggregate_table(report.all_aggregates(cells), cells).notes
    assert notes == [
        "Algorithms of retraining (50, all): MA-AIRL, MA-DAAC; missing: MA-GAIL.",
        "Settings of retraining, all demonstrations: "
        "keep_away 50 (seed 1; 50,000 episodes; rewards of MA-AIRL 50,000, MA-DAAC 20,000).",
    ]


def test_aggregates_keep_as_many_runs_as_they_can(tmp_path):
    one_with_three = {
        "keep_away": [0.1, 0.2, 0.3],
        "cooperative_navigation": [0.4],
        **{task: [0.5] for task in report.LARGE},
    }
    found = report.aggregate(cells_of(nss_rows(one_with_three, "madaac"), tmp_path), "imitate", (50,))
    assert found.size == "5 settings × 1 run"
    assert found.seeds["keep_away", 50] == [1]
    assert report.aggregate({}, "imitate", (50,)) is None


def test_curves_of_different_points_are_averaged_where_all_have_values():
    one = {"episodes": np.array([0.0, 10, 20]), "nss": np.array([0.0, 1, 2])}
    other = {"episodes": np.array([5.0, 15, 30]), "nss": np.array([1.5, 2.5, np.nan])}
    x, mean, half = report.mean_curve([one, other], "nss")
    np.testing.assert_allclose(x, [5, 10, 15])
    np.testing.assert_allclose(mean, [1.0, 1.5, 2.0])
    np.testing.assert_allclose(half, T_2 * 0.5, rtol=1e-6)


# Mistakes


def test_no_runs_file_says_what_makes_one(tmp_path):
    with pytest.raises(UserError, match="runs.csv.*python reproduce.py"):
        report.write_report(tmp_path, PAPER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "simple_spread"}, "runs.csv, line 3, column task: 'simple_spread' is none of"),
        ({"episodes": "many"}, "runs.csv, line 3, column episodes"),
        ({"scores": "nan;1"}, "runs.csv, line 3, column scores: 'nan' is not a finite number"),
        ({"scores": "1;2;3"}, "runs.csv, line 3, column scores: 3 values for 2 agents"),
        ({"agents": "reacher_0;pusher_0"}, "runs.csv, line 3, column agents: keep_away has pusher_0;reacher_0"),
        ({"expert_scores": "120.00;-5.00"}, "runs.csv, line 3: an expert score is equal"),
        ({"rl": "mack"}, "runs.csv, line 3, column rl"),
        ({"reward_episodes": "50000"}, "runs.csv, line 3, column reward_episodes: above 0 for retrain, empty for"),
        ({"reward_arguments": "--a"}, "runs.csv, line 3, column reward_arguments: empty for imitate, got '--a'"),
        ({"stage": "retrain", "rl": "mack"}, "runs.csv, line 3, column reward_episodes: above 0 for retrain"),
        ({"run_id": row()["run_id"]}, "runs.csv, line 3: run_id .* is that of line 2"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, changes, message):
    write_results(tmp_path, [row(), row(seed=2) | changes])
    with pytest.raises(UserError, match=message):
        report.read_runs(tmp_path / "runs.csv")


def test_wrong_columns_and_fields_are_named(tmp_path):
    path = write_results(tmp_path, [row()]) / "runs.csv"
    text = path.read_text()
    path.write_text(text.replace("commit", "revision", 1))
    with pytest.raises(UserError, match="line 1: wrong columns: 'revision' is unknown or twice; 'commit' is missing"):
        report.read_runs(path)
    path.write_text(text + "imitate,keep_away\n")
    with pytest.raises(UserError, match="line 3: 2 fields, the header has 24"):
        report.read_runs(path)


def test_a_curve_that_is_missing_or_malformed_is_named(tmp_path):
    path = write_results(tmp_path, [row()]) / "curves" / f"{row()['run_id']}.csv"
    path.write_text("episodes,seconds,nss,pcc\n100,1,0.5,\n100,2,0.5,\n")
    with pytest.raises(UserError, match=r"\.csv, line 3, column episodes: 100 is not above"):
        report.write_report(tmp_path, PAPER)
    path.unlink()
    with pytest.raises(UserError, match="there is no .*curves"):
        report.write_report(tmp_path, PAPER)


def test_paper_numbers_that_are_missing_are_named(tmp_path):
    write_results(tmp_path, [])
    paper = tmp_path / "paper.csv"
    paper.write_text("\n".join(line for line in PAPER.read_text().splitlines() if "MA-DAAC" not in line) + "\n")
    with pytest.raises(UserError, match="have no imitate keep_away pusher_0 .*MA-DAAC"):
        report.write_report(tmp_path, paper)


def test_the_committed_tables_are_those_of_the_committed_rows(tmp_path, monkeypatch):
    """`python reproduce.py report` was run after the last row came in."""
    root = Path(report.__file__).parent
    results = tmp_path / "results"
    shutil.copytree(root / "results", results, ignore=shutil.ignore_patterns("tables", "figures"))
    drawn = {path.stem: None for path in sorted((root / "results/figures").glob("*.png"))}
    monkeypatch.setattr(report, "make_figures", lambda *_: drawn)  # without the time that drawing takes
    monkeypatch.setattr(report, "BOOTSTRAP_SAMPLES", 2000)  # as it is outside of tests
    monkeypatch.setattr(env_utils, "of_todays_expert", OF_TODAYS_EXPERT)
    report.write_report(results, results / "paper.csv")
    for path in sorted((root / "results/tables").iterdir()):
        if path.name != "index.md":  # it names the figures too
            assert path.read_bytes() == (results / "tables" / path.name).read_bytes(), path.name


def test_the_tables_of_the_docs_are_those_of_the_committed_rows():
    script = env_utils.ROOT / "docs/results_table.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, encoding="utf-8", check=True)
    pages = [(env_utils.ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("results", "retrain")]
    tables = done.stdout.strip().split("\n\n")
    assert len(tables) == 5
    for table in tables:
        assert any(table in page for page in pages), f"run python docs/results_table.py again: {table[:300]}"


def test_runs_of_an_expert_that_was_replaced_are_left_out_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(env_utils, "of_todays_expert", OF_TODAYS_EXPERT)
    monkeypatch.setattr(report, "make_figures", lambda *_: {})
    scores = [score["mean"] for score in env_utils.load_card("keep_away")["scores"]["expert"].values()]
    today = ";".join(f"{score:.4f}" for score in scores)
    earlier = ";".join(f"{score + 0.01:.4f}" for score in scores)
    kept = row(expert_scores=today, scores="31.00;-6.00")
    own = row(n_demos=100, expert_scores=earlier, scores="32.00;-6.00", arguments="--demos mine.npz")
    former = row(n_demos=200, expert_scores=earlier, scores="33.00;-6.00")
    report.write_report(write_results(tmp_path, [kept, own, former]), PAPER)
    table = (tmp_path / "tables" / "small_scale_imitation.md").read_text()
    assert "31.0" in table and "32.0" in table and "33.0" not in table
    index = (tmp_path / "tables" / "index.md").read_text()
    assert "3 rows: 2 in the tables and figures below; 1 left out, because their experts have been replaced" in index
    assert "since (keep_away 1)" in index
