"""A folder with stand-ins for the scripts, and rows of runs.csv made by hand."""

import pytest
import stand_ins


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with stand-ins for all scripts, which the package uses instead of the repository."""
    stand_ins.write_scripts(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reproduce.grid.ROOT", tmp_path)
    monkeypatch.setattr("reproduce.store.EXPERTS", tmp_path / "experts")
    return tmp_path


@pytest.fixture
def experts(tmp_path, monkeypatch):
    """Experts with round scores: 20 and -5 in Keep Away, -10 in the cooperative tasks, 120 in Rover Tower."""
    stand_ins.write_cards(tmp_path / "experts")
    monkeypatch.setattr("reproduce.store.EXPERTS", tmp_path / "experts")
    return tmp_path / "experts"
