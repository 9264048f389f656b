"""All tables, figures and claims from the rows that there are; the same rows give the same bytes."""

from pathlib import Path

from PIL import Image

from madaac_utils.files import ROOT, UserError, writing
from reproduce.claims import claims_page
from reproduce.figures import all_figures
from reproduce.grid import SCRIPTS_WITH_ARGUMENTS, Grid
from reproduce.parameters import parameters_table
from reproduce.stats import load
from reproduce.tables import LEGEND, Table, all_tables, headline_table, markdown, pages


def write_report(grid: Grid, paper: Path) -> list[Path]:
    """The files that were written, in results/tables and results/figures."""
    folder, written, other = grid.results_folder, [], other_choices(grid)
    if other and folder.resolve() == ROOT / "results":
        raise UserError(
            f"a report with {other} would replace that of the defaults: name a copy of results/ by --results"
        )
    data = load(grid, paper)
    tables = [*all_tables(data), parameters_table()]
    first = {table.page: table for table in reversed(tables)}
    links = "".join(f"- [{table.title}]({table.page}.md)\n" for table in tables if table is first[table.page])
    in_grid = sum(len(rows) for rows in data.runs.values())
    others = sum(len(rows) for group in data.variants.values() for rows in group.values())
    index = (
        f"# Results beside the paper's\n\nMade from {in_grid} rows of `runs.csv`, and {others} with "
        f"[other settings](settings.md). {data.left_out}{f' Made with {other}.' if other else ''}\n\n"
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
    if folder.resolve() == ROOT / "results":
        refresh_readme(headline_table(data))
    return written


def other_choices(grid: Grid) -> str:
    """The choices that make rows count other than those of the default report."""
    names = ("scale", "episodes", *(f"{script}_args" for script in SCRIPTS_WITH_ARGUMENTS))
    choices = {name: getattr(grid, name) for name in names if getattr(grid, name) != getattr(Grid(), name)}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in choices.items())


def refresh_readme(headline: Table) -> None:
    """Put the headline table between its two markers in README.md."""
    path, (begin, end) = ROOT / "README.md", ("<!-- headline table: begin -->", "<!-- headline table: end -->")
    before, rest = path.read_text(encoding="utf-8").split(begin)
    table = markdown(headline.header, headline.rows)
    with writing(path) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{table}\n{end}{rest.split(end)[1]}", encoding="utf-8")
