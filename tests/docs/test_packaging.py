"""`pip install -e .` covers every script and package of the repository."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_installation_lists_every_script_and_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(listed["py-modules"]) == {path.stem for path in ROOT.glob("*.py")}
    assert set(listed["packages"]) == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
