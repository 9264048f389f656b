"""Every command block and every Python snippet in README.md and docs runs with a small budget.

Those of a page run one after the other in a folder that sees the experts of the repository.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import CASES, COMMON
from tests.running import ROOT, run

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

# Commands that are not run, by how they begin
NOT_RUN = {
    "python3 -m venv": "makes a virtual environment; the tests run in one",
    "source": "activates it",
    "pip install": "installs packages",
    ".venv/bin/pip install": "installs packages",
    "mkdocs": "builds the site, as .ci/run does, or serves it",
    "python -m pytest": "these are the tests",
    ".venv/bin/python -m pytest": "these are the tests",
    "ruff": "checks the style; .ci/run does",
    ".ci/run": "runs these tests",
    "python -m tests.torture": "lasts for hours",
    "ray start": "starts a cluster",
    "python -m reproduce run --seeds 1-10 --launcher ray": "needs a cluster; tests/reproduce starts one",
}
# Blocks with these words take more than a few seconds even with small budgets
SLOW = ("simple_reference", "-m reproduce run", "studies/")

BUDGET = {name: value for name, value in COMMON.items() if name != "seed"}  # the seed is part of a run folder's name
OPTIONS = {case.script: BUDGET | case.options for case in CASES.values()}
OPTIONS["train_expert_maac.py"] |= {"eval-episodes": 50, "store-demos": 50, "experts": "my_experts"}
OPTIONS["bc_discrete.py"] = {"updates": 60, "num-envs": 20, "hidden-size": 16, "eval-episodes": 4}
OPTIONS["retrain.py"] = {"total-timesteps": 1500, "num-envs": 4, "hidden-size": 16, "eval-episodes": 4}
OPTIONS["madaac_mine.py"] = OPTIONS["studies/attending_discriminators.py"] = OPTIONS["madaac_discrete.py"]
OPTIONS["eval_nss.py"] = {"episodes": 4}
OPTIONS["studies/scaling.py"] = {"agents": 4, "max-seconds": 3}
OPTIONS["reproduce"] = {"scale": "smoke", "runs": "runs/reproduce"}


def snippets(page: Path, slow: bool | None = None) -> list[str]:
    """The commands and the Python blocks of a page in their order; a Python block ends with a line break."""
    found = []
    for kind, text in BLOCK.findall(page.read_text()):
        if slow in (None, any(word in text for word in SLOW)):
            lines = [part for line in text.splitlines() for part in line.split(" && ")]
            found += [text] if kind == "python" else lines
    return found


def reason_not_to_run(snippet: str) -> str | None:
    return next((reason for beginning, reason in NOT_RUN.items() if snippet.startswith(beginning)), None)


class Reader:
    """Somebody who follows a page in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder, self.runs = folder, {}
        (folder / "experts").symlink_to(ROOT / "experts")
        (folder / "madaac_discrete.py").symlink_to(ROOT / "madaac_discrete.py")

    def follow(self, snippet: str) -> None:
        if reason_not_to_run(snippet):
            return
        if snippet.endswith("\n"):
            self.follow_python(snippet)
        elif snippet.startswith("cp "):
            source, target = snippet.split()[1:]
            shutil.copy(self.folder / source, self.folder / target)
        else:
            self.follow_command(snippet)

    def follow_command(self, command: str) -> None:
        python, *words = shlex.split(command.replace(" [RUN ...]", ""), comments=True)
        assert python in ("python", ".venv/bin/python"), f"this test does not know how to run {command}"
        module = words[0] == "-m"
        script = words[1] if module else words[0]
        words = words[1 + module :]
        words = [str(self.finished_run(script)) if word == "RUN" else word for word in words]
        words = [name for word in words for name in self.expand(word)]
        if "--resume" in words:  # takes no arguments but a larger budget
            words = [word if word != "500000" else "1200" for word in words]
        elif "--help" not in words:
            options = OPTIONS.get(script, {})
            if "--env-id" in words:
                options = {name: value for name, value in options.items() if name != "env-id"}
            words += [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        if module:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            line = [sys.executable, "-m", script, *words]
            ended = subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, f"{command}\n{ended.stderr}"
            return
        mine = self.folder / script
        ended = run(str(mine if mine.is_file() else script), *words, cwd=self.folder, path=str(self.folder))
        assert ended.code == 0, f"{command}\n{ended.err}"

    def expand(self, word: str) -> list[str]:
        """What the shell makes of a word with a star."""
        return [str(path) for path in sorted(self.folder.glob(word))] if "*" in word else [word]

    def finished_run(self, script: str) -> Path:
        """A small run for RUN: of the script itself if it trains, otherwise of mairl_mack.py."""
        maker = script if script in OPTIONS and script not in ("retrain.py", "eval_nss.py") else "mairl_mack.py"
        if maker not in self.runs:
            self.follow_command(f"python {maker} --env-id keep_away --runs for_tests")
            self.runs[maker] = max(self.folder.glob("for_tests/*"), key=lambda path: path.stat().st_mtime)
        return self.runs[maker]

    def follow_python(self, code: str) -> None:
        code = re.sub(r"(?<=\")RUN(?=[\"/])", lambda _: str(self.finished_run("a snippet")), code)
        code = code.replace("total_timesteps=200_000", "total_timesteps=4_000")
        if match := re.match(r"# (\S+\.py)\n", code):  # a file to be saved under this name
            (self.folder / match[1]).parent.mkdir(exist_ok=True)
            (self.folder / match[1]).write_text(code)
        elif code.startswith("class Discriminators"):  # to be put into the copy of the script
            copy = self.folder / "madaac_mine.py"
            before, _, rest = copy.read_text().partition("class Discriminators(nn.Module):\n")
            after = rest[rest.index("\n\n\n") :]
            copy.write_text(before + code.rstrip() + after)
        else:
            (self.folder / "snippet.py").write_text(code)
            ended = run(str(self.folder / "snippet.py"), cwd=self.folder)
            assert ended.code == 0, f"{code}\n{ended.err}"


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


def is_optional(snippet: str) -> bool:
    return "stable_baselines3" in snippet


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, slow=False)], ids=lambda page: page.name)
def test_commands_of_a_page(reader, page):
    for snippet in snippets(page, slow=False):
        if not is_optional(snippet):
            reader.follow(snippet)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, slow=True)], ids=lambda page: page.name)
def test_slow_commands_of_a_page(reader, page):
    for snippet in snippets(page, slow=True):
        reader.follow(snippet)


@pytest.mark.skipif(not importlib.util.find_spec("stable_baselines3"), reason="needs requirements-recipes.txt")
def test_stable_baselines3_trains_on_a_recovered_reward(reader):
    [recipe] = [snippet for snippet in snippets(ROOT / "docs" / "recipes.md") if is_optional(snippet)]
    reader.follow(recipe)


def test_exceptions_are_needed():
    everything = [snippet for page in PAGES for snippet in snippets(page)]
    for beginning in NOT_RUN:
        assert any(snippet.startswith(beginning) for snippet in everything), f"no page has {beginning}"
    for word in SLOW:
        assert any(word in snippet for snippet in everything), f"no page has {word}"


def test_a_command_that_fails_is_found(reader):
    with pytest.raises(AssertionError, match="nowhere"):
        reader.follow("python eval_nss.py experts/nowhere")
    with pytest.raises(AssertionError, match="no_such_module"):
        reader.follow("import no_such_module\n")
    with pytest.raises(AssertionError, match="does not know"):
        reader.follow("make coffee")
