"""A hook of mkdocs.yml: the site also has the pages and figures outside docs/ that the pages link to.

README.md becomes start.md, because a site takes a file of that name for its index. All others keep their paths.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = ["README.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff"]
OUTSIDE += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("results/tables/*.md"))
OUTSIDE += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("results/figures/*.png"))


def on_files(files, config):
    for name in OUTSIDE:
        files.append(File.generated(config, name.replace("README.md", "start.md"), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links as they are in the repository become links as they are in the site."""
    markdown = re.sub(r"(?<=\]\()\.\./(?=README|CONTRIBUTING|results/)", "", markdown)
    if page.file.src_uri in ("start.md", "CONTRIBUTING.md"):
        markdown = re.sub(r"(?<=\]\()docs/", "", markdown)
    return re.sub(r"(?<=\]\()README\.md", "start.md", markdown)
