"""Links, images and commands in the documentation: what a page names exists, and scripts accept the flags it shows."""

import ast
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\bsrc=\"([^\"]+)\"")
COMMAND = re.compile(r"\bpython3? ((?:[\w./-]+/)?\w+\.py)\b(.*)")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    found = [first or second for first, second in LINK.findall(without_code(page.read_text()))]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """(script, words) of every command that starts a script, whether in a block or in a sentence."""
    text = page.read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [code.replace("\n", " ") for code in inline]
    found = [match for line in lines for match in COMMAND.findall(line)]
    return [(script, shlex.split(re.split(r"[;&|#]", rest)[0])) for script, rest in found]


# A copy made by a recipe, and a study that runs a changed script
SAME_FLAGS = dict.fromkeys(("madaac_mine.py", "studies/attending_discriminators.py"), "madaac_discrete.py")


def flags(script: Path) -> set[str]:
    """The flags that a script's Args class accepts, with those of the arguments that all training scripts share."""
    classes = {}
    for source in (ROOT / "madaac_utils" / "arguments.py", script):
        nodes = ast.walk(ast.parse(source.read_text()))
        classes |= {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    if "Args" not in classes:  # a script without arguments
        return set()
    found, args = {"--help"}, classes["Args"]
    fields = [field for base in args.bases for field in classes[base.id].body] + args.body
    for field in fields:
        kind = ast.unparse(field.annotation) if isinstance(field, ast.AnnAssign) else "Suppress"
        if "Positional" not in kind and "Suppress" not in kind:
            name = field.target.id.replace("_", "-")
            found |= {f"--{name}", f"--no-{name}"} if kind == "bool" else {f"--{name}"}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_resolve(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name} links to {link}, but there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_only_flags_that_their_script_accepts(page):
    for script, words in commands(page):
        path = ROOT / SAME_FLAGS.get(script, script)
        assert path.is_file(), f"{page.name} names {script}, which does not exist"
        unknown = {word.split("=")[0] for word in words if word.startswith("--")} - flags(path)
        assert not unknown, f"{page.name}: {script} does not accept {', '.join(sorted(unknown))}"


def test_every_page_is_in_the_index():
    listed = set(links(ROOT / "docs" / "index.md"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_every_image_is_shown():
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert set((ROOT / "docs" / "images").iterdir()) <= shown


def test_the_checks_find_mistakes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](b.md#c)\n```bash\npython eval_nss.py RUN --vdeo x  # y\n```\n`python plot.py\nRUN --tag a/b`.")
    assert links(page) == ["b.md#c"]
    assert commands(page) == [("eval_nss.py", ["RUN", "--vdeo", "x"]), ("plot.py", ["RUN", "--tag", "a/b"])]
    assert "--vdeo" not in flags(ROOT / "eval_nss.py") and "--video" in flags(ROOT / "eval_nss.py")
    assert {"--seed", "--resume", "--n-demos", "--no-true-reward"} <= flags(ROOT / "madaac_discrete.py")
