"""All tables, figures and claims from the rows that there are; the same rows give the same bytes."""

from pathlib import Path

from PIL import Image

from madaac_utils.files import ROOT, writing
from reproduce.claims import claims_page
from reproduce.figures import all_figures
from reproduce.grid import Grid
from reproduce.parameters import parameters_table
from reproduce.stats import load
from reproduce.tables import LEGEND, Table, all_tables, headline_table, markdown, pages


def write_report(grid: Grid, paper: Path) -> list[Path]:
    """The files that were written, in results/tables and results/figures."""
    data, folder, written = load(grid, paper), grid.results_folder, []
    tables = [*all_tables(data), parameters_table()]
    first = {table.page: table for table in reversed(tables)}
    links = "".join(f"- [{table.title}]({table.page}.md)\n" for table in tables if table is first[table.page])
    in_grid = sum(len(rows) for rows in data.runs.values())
    others = sum(len(rows) for group in data.variants.values() for rows in group.values())
    index = (
        f"# Results beside the paper's\n\nMade from {in_grid} rows of `runs.csv`, and {others} with "
        f"[other settings](settings.md). {data.left_out}\n\n"
        f"- [The paper's claims and what was measured](claims.md)\n{links}\n## How to read the tables\n\n{LEGEND}"
    )
    for name, title, figure in all_figures(data):
        path = folder / "figures" / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # made from other rows
            continue
        with writing(path) as temporary:
            figure.savefig(temporary)
            image = Image.open(temporary).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
            image.save(temporary, optimize=True)  # a quarter of the size
        written.append(path)
        index += f"\n## {title}\n\n![{name}](../figures/{name}.png)\n"
    for name, text in (pages(tables) | {"claims.md": claims_page(data), "index.md": index}).items():
        written.append(folder / "tables" / name)
        with writing(written[-1]) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for path in (folder / "tables").glob("*.md"):
        if path not in written:
            path.unlink()  # a page of an earlier version
    if folder.resolve() == ROOT / "results":
        refresh_readme(headline_table(data))
    return written


def refresh_readme(headline: Table) -> None:
    """Put the headline table between its two markers in README.md."""
    path, (begin, end) = ROOT / "README.md", ("<!-- headline table: begin -->", "<!-- headline table: end -->")
    before, rest = path.read_text(encoding="utf-8").split(begin)
    table = markdown(headline.header, headline.rows)
    with writing(path) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{table}\n{end}{rest.split(end)[1]}", encoding="utf-8")
