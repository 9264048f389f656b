"""`pip install -e .` covers every script and package of the repository."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_installation_lists_every_script_and_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout, where a user's own scripts cannot be told apart")
    paths = [Path(name) for name in tracked]
    assert set(listed["py-modules"]) == {path.stem for path in paths if path.suffix == ".py" and len(path.parts) == 1}
    packages = {path.parent.name for path in paths if path.name == "__init__.py" and len(path.parts) == 2}
    assert set(listed["packages"]) == packages - {"tests"}
