"""The generated parts of README.md are up to date."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_headline_table_is_the_generated_one():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- headline table: begin -->")[1].split("<!-- headline table: end -->")[0]
    generated = (ROOT / "results" / "tables" / "headline.md").read_text(encoding="utf-8")
    assert block.strip() == generated[generated.index("| task") :].strip()
