"""Choose what the site shows of the repository: pages named in the navigation, and everything pages link to.

The pages are read on the site and in the repository, so their links are relative paths that work in both.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
CODE = re.compile(r"`[^`]+`")
LANGUAGES = {".py": "python", ".yaml": "yaml"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def named(nav: object) -> list[str]:
    """Return the files that the navigation names, in order."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [name for entry in entries for name in named(entry)]


def append_unnamed(nav: list[dict[str, list]], pages: set[str]) -> None:
    """Append pages that the navigation does not name to its last section."""
    (last,) = nav[-1].values()
    last += sorted(pages - set(named(nav)))


def linked(pages: list[Path], root: Path) -> list[Path]:
    """Return the pages below ``root`` and everything there that they link to, directly or indirectly; sorted."""
    found = {page.resolve() for page in pages}
    queue = list(found)
    while queue:
        page = queue.pop()
        new = set(_targets(page, root)) - found if page.suffix == ".md" else set()
        found |= new
        queue += new
    return sorted(found)


def _targets(page: Path, root: Path) -> Iterator[Path]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        if ":" not in link and target.exists() and target.is_relative_to(root):  # a broken link fails the build
            yield target


def as_page(path: Path, root: Path) -> str | None:
    """Return Markdown that shows a notebook, a source file or a folder; None for files copied unchanged."""
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in path.iterdir())
        return f"{UNSEARCHED}# `{name}/`\n\nA folder of the repository:\n\n" + "".join(
            f"- `{each}`\n" for each in names
        )
    if path.suffix == ".ipynb":
        return _notebook(path, name)
    if language := LANGUAGES.get(path.suffix):
        return f"{UNSEARCHED}# `{name}`\n\n~~~~{language}\n{path.read_text(encoding='utf-8').rstrip()}\n~~~~\n"
    return None


def plain_bars(markdown: str) -> str:
    r"""Code in tables with ``|`` for ``\|``: GitHub needs the backslash, Python-Markdown shows it."""
    return re.sub(r"(?m)^\|.*$", lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def _notebook(path: Path, name: str) -> str:
    """Return the cells of a notebook as Markdown, with the outputs of one that is committed with them."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"~~~~python\n{text}\n~~~~")
        parts += map(_output, cell.get("outputs", []))
    title, *rest = parts
    return "\n\n".join([title, f"This page shows the cells of `{name}`.", *rest]) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown: a figure, a table or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        source = f"data:image/png;base64,{''.join(data['image/png']).strip()}"
        return f'<img alt="figure drawn by the cell above" src="{source}">'
    if "text/html" in data:  # a data frame; Markdown would end it at an empty line
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return re.sub(r"\n\s*\n", "\n", table.replace(' border="1" class="dataframe"', ""))  # the site's own look
    return f"~~~~text\n{''.join(data['text/plain']).rstrip()}\n~~~~"
