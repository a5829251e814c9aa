"""Provide the hooks of mkdocs.yml, which name the site's files by their paths in the repository, not in docs/.

A link that works in the repository then works on the site. A page in docs/ that the navigation does not name is
appended to its last section, so a new page needs no change here.
"""

import re
import tempfile
from pathlib import Path

from command_reference import command_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from python_reference import python_reference
from repository import append_unnamed, as_page, linked, named, plain_bars

REPORT, OF = "docs/report-of-a-suite.html", "results/table1-mini/7m"
"""A report among the pages, and the committed result that it is built from."""
EXAMPLE = f"""# A report

What `argap report` writes for [a result of this repository](../results/table1-mini/README.md), as one file:
[open it by itself]({Path(REPORT).name}).

<iframe src="{Path(REPORT).name}" title="A report" style="width: 100%; height: 80vh; border: 1px solid #8884"></iframe>
"""
GENERATED = {
    "docs/commands.md": command_reference,
    "docs/python.md": python_reference,
    "docs/example-report.md": lambda: EXAMPLE,
}
BUTTON = re.compile(r"^\*\*(\[[^\]]+\]\([^)]+\))\*\*$", re.MULTILINE)


class RepositoryPage(File):
    """A source file, a notebook or a folder, shown as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    own = [file for file in files if file.src_dir == config.docs_dir and Path(file.src_uri).suffix != ".py"]
    in_navigation = named(config.nav)
    pages = [root / "docs" / file.src_uri for file in own if file.is_documentation_page()]
    pages += [root / name for name in in_navigation if (root / name).exists()]
    result = Files(file for file in files if file.src_dir != config.docs_dir)
    for path in linked(pages, root):
        result.append(_file(path, root, config, in_navigation))
    for file in own:
        if not file.is_documentation_page() and f"docs/{file.src_uri}" not in result.src_uris:
            result.append(_file(root / "docs" / file.src_uri, root, config, in_navigation))
    for name, write in GENERATED.items():
        page = File.generated(config, name, content=write())
        page.dest_uri = _destination(name, page.dest_uri)
        result.append(page)
    report = File.generated(config, REPORT, content=_report(root))
    report.dest_uri = _destination(REPORT, report.dest_uri)
    result.append(report)
    append_unnamed(config.nav, {f"docs/{file.src_uri}" for file in own if file.is_documentation_page()})
    return result


def on_page_markdown(markdown: str, **_: object) -> str:
    """Also turn a paragraph that is one link in bold into a button, which GitHub shows as it is."""
    return BUTTON.sub(r"\1{ .md-button .md-button--primary }", plain_bars(markdown))


def _report(root: Path) -> str:
    """Write the report of `OF`, with no other file beside it, and return the page."""
    from argap.reports.pages.write import write_report

    with tempfile.TemporaryDirectory() as folder:
        return Path(write_report(root / OF, Path(folder))).read_text(encoding="utf-8")


def _file(path: Path, root: Path, config: MkDocsConfig, in_navigation: list[str]) -> File:
    """Return the site's file for a path in the repository; pages outside docs/ are in the navigation only if named."""
    name = path.relative_to(root).as_posix()
    shown = as_page(path, root)
    listed = name in in_navigation or name.startswith("docs/")
    file = (File if shown is None else RepositoryPage)(
        name,
        src_dir=str(root),
        dest_dir=config.site_dir,
        use_directory_urls=config.use_directory_urls,
        inclusion=InclusionLevel.INCLUDED if listed else InclusionLevel.NOT_IN_NAV,
    )
    if shown is not None:
        file.content_string = shown
    file.dest_uri = _destination(name, file.dest_uri)
    return file


def _destination(name: str, usual: str) -> str:
    """Put pages of docs/ at the root of the site."""
    return usual.removeprefix("docs/") if name.startswith("docs/") else usual
