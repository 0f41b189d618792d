#!/usr/bin/env bash
# doc.sh FOLDER: copies the README, and the pages that it links to, below FOLDER. Every relative
# link of a copied page leads to another copied file. Links to source files, which a package lacks,
# become plain text.
set -euo pipefail
[ $# = 1 ] || { echo "usage: doc.sh FOLDER" >&2; exit 2; }
python3 - "$(cd "$(dirname "$0")/.." && pwd)" "$1" <<'PYTHON'
import re
import shutil
import sys
from pathlib import Path

tree, to = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
SOURCE = re.compile(r'(src|srcset)="([^":]+)"')


def is_page(path: Path) -> bool:
    """Whether this is a page for users: docs without the decisions, or a page beside the README.
    Not the changelog, because each package system has its own name for that file."""
    if not path.is_file() or not path.is_relative_to(tree) or path == tree / "CHANGELOG.md":
        return False
    place = path.relative_to(tree)
    return len(place.parts) == 1 or place.parts[0] == "docs" and "decisions" not in place.parts


def place_of(page: Path, link: str) -> Path:
    return (page.parent / link.split("#")[0]).resolve()


found, todo = set(), [tree / "README.md"]
while todo:
    page = todo.pop()
    if page in found:
        continue
    found.add(page)
    target = to / page.relative_to(tree)
    target.parent.mkdir(parents=True, exist_ok=True)
    if page.suffix != ".md":
        shutil.copyfile(page, target)
        target.chmod(0o644)
        continue

    def kept(match: re.Match[str]) -> str:
        link = match[3]
        if ":" in link or link.startswith("#"):
            return match[0]
        path = place_of(page, link)
        if is_page(path):
            todo.append(path)
            return match[0]
        return match[2]

    text = page.read_text()
    todo += [path for _, link in SOURCE.findall(text) if is_page(path := place_of(page, link))]
    target.write_text(LINK.sub(kept, text))
    target.chmod(0o644)
PYTHON
