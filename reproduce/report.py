"""All tables, figures and claims from the rows that there are; the same rows give the same bytes."""

from pathlib import Path

from reproduce import writing
from reproduce.claims import claims_page
from reproduce.figures import CAPTIONS, all_figures, write_png
from reproduce.grid import Grid
from reproduce.parameters import parameters_table
from reproduce.stats import Data, load
from reproduce.tables import Table, all_tables, latex, markdown


def write_text(path: Path, text: str) -> Path:
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def index_page(data: Data, tables: list[Table], figures: list[str]) -> str:
    used = sum(map(len, [*data.runs.values(), *data.long_runs.values()]))
    parts = [
        "# Results beside the paper's",
        f"Made from {used} rows of `runs.csv`. Each cell averages the runs of one setting over seeds. "
        + " ".join(data.left_out),
        "The paper's claims with their verdicts are in [claims.md](claims.md).",
    ]
    parts += [f"## {table.title}\n\n{markdown(table).rstrip()}" for table in tables]
    parts += [f"## Figure: {name}\n\n{CAPTIONS[name]}\n\n![{name}](../figures/{name}.png)" for name in figures]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def write_report(grid: Grid, paper: Path) -> list[Path]:
    """The files that were written, in results/tables and results/figures."""
    results, data = grid.results_folder, load(grid, paper)
    for line in data.left_out:
        print(line)
    tables = [*all_tables(data), parameters_table()]
    written, drawn = [], []
    for table in tables:
        written.append(write_text(results / "tables" / f"{table.name}.md", f"# {table.title}\n\n{markdown(table)}"))
        written.append(write_text(results / "tables" / f"{table.name}.tex", latex(table)))
    for name, figure in all_figures(data).items():
        path = results / "figures" / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # made from other rows
            continue
        write_png(path, figure)
        drawn.append(name)
        written.append(path)
    written.append(write_text(results / "tables" / "claims.md", claims_page(data)))
    return [*written, write_text(results / "tables" / "index.md", index_page(data, tables, drawn))]
