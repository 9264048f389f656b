"""plot.py: which lines it draws, and the image that it writes."""

import json
import shutil

import imageio.v2 as imageio
import matplotlib.pyplot as plt
import numpy as np
import pytest

import plot
from tests.small_runs import make_run, run_script

TASK = "cooperative_communication"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "mairl 1": make_run(folder, "mairl_mack.py", TASK, "--seed", 1),
        "mairl 2": make_run(folder, "mairl_mack.py", TASK, "--seed", 2),
        "cloning": make_run(folder, "bc_discrete.py", TASK),
        "cloning 20": make_run(folder, "bc_discrete.py", TASK, "--n-demos", 20),
        "tag": make_run(folder, "bc_discrete.py", "simple_tag"),
    }


@pytest.fixture
def drawn(runs, tmp_path, monkeypatch):
    """Plot runs by name, and return the lines of every panel: {task: {label: (x, y)}}."""

    def drawn(*names, **options):
        plt.close("all")
        plot.main(plot.Args(tuple(str(runs[name]) for name in names), out=str(tmp_path / "plot.png"), **options))
        assert imageio.imread(tmp_path / "plot.png").std() > 0
        panels = [axis for axis in plt.gcf().axes if axis.get_title()]
        return {
            axis.get_title(): {line.get_label(): np.array(line.get_data(), dtype=float) for line in axis.get_lines()}
            for axis in panels
        }

    return drawn


def test_one_line_per_algorithm_and_a_panel_per_task(drawn):
    panels = drawn("mairl 1", "mairl 2", "cloning", "tag")
    assert panels.keys() == {TASK, "simple_tag"}
    assert len(panels[TASK]) == 2 and len(panels["simple_tag"]) == 1
    assert any("mairl_mack" in label for label in panels[TASK])
    assert any("bc_discrete" in label for label in panels[TASK])


def test_a_line_is_the_mean_over_seeds(drawn, runs):
    ((x, y),) = drawn("mairl 1", "mairl 2")[TASK].values()
    singles = [next(iter(drawn(name)[TASK].values())) for name in ("mairl 1", "mairl 2")]
    assert y == pytest.approx(np.mean([np.interp(x, *single) for single in singles], axis=0), abs=0.02)
    logged = plot.read_curves(runs["mairl 1"])
    assert singles[0][0][-1] == pytest.approx(logged["charts/episodes"][1][-1])
    assert singles[0][1][-1] == pytest.approx(logged["charts/nss"][1][-1])


def test_runs_with_other_arguments_are_other_lines(drawn):
    labels = drawn("cloning", "cloning 20")[TASK].keys()
    assert len(labels) == 2 and sum("20" in label for label in labels) == 1


def test_runs_without_episodes_are_horizontal_and_have_a_curve_over_seconds(drawn, runs):
    last = plot.read_curves(runs["cloning"])["charts/nss"][1][-1]
    ((_, y),) = drawn("cloning")[TASK].values()
    assert y == pytest.approx([last] * len(y))
    ((x, y),) = drawn("cloning", x="seconds")[TASK].values()
    assert x[-1] > x[0] and y[-1] == pytest.approx(last)


def test_a_run_without_the_tag_is_left_out_with_a_note(drawn, capsys, runs):
    panels = drawn("mairl 1", "cloning", tag="discriminator/accuracy_expert")
    assert len(panels[TASK]) == 1
    assert str(runs["cloning"]) in capsys.readouterr().err


def test_an_unknown_tag_lists_those_that_there_are(runs, tmp_path, capsys):
    assert run_script("plot.py", runs["mairl 1"], "--tag", "nss", "--out", tmp_path / "plot.png") == 2
    printed = capsys.readouterr().err
    assert len(printed.strip().splitlines()) == 1
    for tag in ("charts/nss", "charts/SPS", "discriminator/accuracy_expert"):
        assert tag in printed
    assert not (tmp_path / "plot.png").exists()


def test_a_run_that_was_retrained_is_labelled_by_its_source():
    retrained = {"env_id": TASK, "exp_name": "retrain", "seed": 1}
    sources = [f"/somewhere/{TASK}__{name}__1__170000" for name in ("madaac_discrete", "mairl_mack")]
    labels = plot.label_runs({source: retrained | {"run": source} for source in sources})
    assert "madaac_discrete" in labels[sources[0]] and "mairl_mack" in labels[sources[1]]


@pytest.mark.parametrize(
    "arguments", [[], ["nowhere"], ["EMPTY"], ["FOREIGN"], ["NO_EVENTS"], ["RUN", "--out", "plot"]]
)
def test_a_mistake_ends_in_one_line(arguments, runs, tmp_path, capsys):
    for name in ("EMPTY", "FOREIGN", "NO_EVENTS"):
        (tmp_path / name).mkdir()
    (tmp_path / "FOREIGN" / "config.json").write_text(json.dumps({"args": 5}))
    shutil.copy(runs["cloning"] / "config.json", tmp_path / "NO_EVENTS")
    folders = {path.name: path for path in tmp_path.iterdir()} | {"RUN": runs["cloning"]}
    assert run_script("plot.py", *(folders.get(part, part) for part in arguments)) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1 and printed[0].startswith("error: ")
