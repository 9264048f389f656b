"""All tables, figures and claims from the rows that there are; the same rows give the same bytes."""

from pathlib import Path

from madaac_utils.files import ROOT, writing
from reproduce.claims import claims_page
from reproduce.figures import CAPTIONS, all_figures, write_png
from reproduce.grid import Grid
from reproduce.parameters import parameters_table
from reproduce.stats import load
from reproduce.tables import all_tables, latex, markdown


def write_report(grid: Grid, paper: Path) -> list[Path]:
    """The files that were written, in results/tables and results/figures."""
    data, folder = load(grid, paper), grid.results_folder
    used = f"Made from {sum(map(len, data.runs.values()))} rows of `runs.csv`. {data.left_out}"
    index = [
        "# Results beside the paper's",
        f"{used} Each cell averages the runs of one setting over seeds.",
        "The paper's claims with their verdicts are in [claims.md](claims.md).",
    ]
    texts, written = {"claims.md": claims_page(data)}, []
    for table in [*all_tables(data), parameters_table()]:
        texts[f"{table.name}.md"] = f"# {table.title}\n\n{markdown(table)}"
        texts[f"{table.name}.tex"] = latex(table)
        index.append(f"## {table.title}\n\n{markdown(table).rstrip()}")
    for name, figure in all_figures(data).items():
        path = folder / "figures" / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # made from other rows
            continue
        write_png(path, figure)
        written.append(path)
        index.append(f"## Figure: {name}\n\n{CAPTIONS[name]}\n\n![{name}](../figures/{name}.png)")
    texts["index.md"] = "\n\n".join(index) + "\n"
    for name, text in texts.items():
        with writing(folder / "tables" / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(folder / "tables" / name)
    if folder.resolve() == ROOT / "results":
        refresh_readme(texts["headline.md"])
    return written


def refresh_readme(headline: str) -> None:
    """Put the headline table between its two markers in README.md."""
    path, (begin, end) = ROOT / "README.md", ("<!-- headline table: begin -->", "<!-- headline table: end -->")
    before, rest = path.read_text(encoding="utf-8").split(begin)
    table = headline.split("\n", 1)[1].strip()  # without its title
    with writing(path) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")
