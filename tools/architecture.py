"""Draw the rooms of argap and the imports between them: docs/architecture.md and its picture.

``python tools/pages.py architecture`` writes both.

`FLOORS` is the only place that states the order of the rooms; the picture and the test of imports read it.
"""

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import journeys

ROOT = Path(__file__).resolve().parents[1]
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("runtime",),
    ("files",),
    ("records",),
    ("metric", "kernels"),
    ("text",),
    ("corpus",),
    ("bigram_index", "evaluation"),
    ("tokens", "models"),
    ("checkpoints",),
    ("scoring", "slices"),
    ("results", "train"),
    ("synthetics", "recall", "probe"),
    ("suite",),
    ("reports",),
    ("api",),
    ("demo", "integrations", "view"),
    ("cli",),
)
"""The rooms from the bottom up. A room imports from lower floors alone."""
API = ("argap", "argap.api", "argap.result")
"""The public surface, modules at the root that the picture shows as one room."""
WIDTH, ROW, BOX, GAP, LEFT = 1080, 62, 34, 14, 20


class Import(NamedTuple):
    """One module imports another, at its start, within a function or for types alone."""

    importer: str
    imported: str


def modules() -> dict[str, Path]:
    """Return every module of the package by name, with the linked folders at their place in it."""
    found = {}
    for folder, name in [(ROOT / "argap", "argap")] + [
        (ROOT / each, f"argap.{each}") for each in ("kernels", "bigram_index", "reports")
    ]:
        for path in sorted(folder.rglob("*.py")):
            parts = [name, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(known: dict[str, Path]) -> list[Import]:
    """Return the imports between modules, without those of a package from its own parts."""
    found: set[Import] = set()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                targets = {each if each in known else node.module for each in names}
            elif isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                continue
            found.update(Import(name, each) for each in targets if each in known and each != name)
    return sorted(found)


def room_of(module: str) -> str:
    """Return the room of a module.

    >>> room_of("argap.slices.cells"), room_of("argap.result"), room_of("argap.__main__")
    ('slices', 'api', 'cli')
    """
    if module in API:
        return "api"
    return "cli" if module == "argap.__main__" else module.split(".")[1]


def floor_of(room: str) -> int:
    """Return the floor of a room, 0 at the bottom; `ValueError` for a room that `FLOORS` lacks."""
    for number, rooms in enumerate(FLOORS):
        if room in rooms:
            return number
    raise ValueError(f"{room}: no such room in FLOORS of tools/architecture.py")


def arrows(found: Iterable[Import]) -> Counter[tuple[str, str]]:
    """Count the imports between rooms."""
    pairs = ((room_of(each.importer), room_of(each.imported)) for each in found)
    return Counter((above, below) for above, below in pairs if above != below)


def going_up(found: Iterable[Import]) -> list[str]:
    """Return the imports that do not go down, one line each."""
    wrong = []
    for each in found:
        above, below = room_of(each.importer), room_of(each.imported)
        if above != below and floor_of(below) >= floor_of(above):
            wrong.append(f"{each.importer} imports {each.imported}: {below} is not below {above}")
    return wrong


def needed(counted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the arrows that no longer way implies: the transitive reduction."""
    below: dict[str, set[str]] = {}
    for source, target in counted:
        below.setdefault(source, set()).add(target)

    def reached(room: str) -> set[str]:
        return set().union(*({each} | reached(each) for each in below.get(room, ())))

    return sorted(
        (source, target)
        for source, targets in below.items()
        for target in targets
        if not any(target in reached(other) for other in targets - {target})
    )


def purpose(room: str, known: dict[str, Path]) -> str:
    """Return the first line of a room's docstring."""
    if room == "api":
        return "The public surface: score, compare, open_result."
    for name in (f"argap.{room}", f"argap.{room}.__init__"):
        if name in known and (text := ast.get_docstring(ast.parse(known[name].read_text(encoding="utf-8")))):
            return text.splitlines()[0]
    return LINKED[room]


LINKED = {
    "kernels": "Triton kernels of the efficient mixers, each beside its PyTorch reference.",
    "bigram_index": "Count every token bigram of a training corpus, and look counts up.",
    "reports": "Write results for people: tables, figures and pages.",
}
"""The linked folders have no ``__init__.py``: a package named ``kernels`` would hide another on the import path."""


def picture(counted: Counter[tuple[str, str]], sizes: Counter[str]) -> str:
    """Return the rooms as SVG: floors as rows, a box for each room, an arrow for each import that no other implies."""
    height = len(FLOORS) * ROW + 30
    place: dict[str, tuple[float, float]] = {}
    for number, rooms in enumerate(FLOORS):
        y = height - 30 - number * ROW
        for k, room in enumerate(rooms):
            shift = 90 if number % 2 else -90
            place[room] = (WIDTH / 2 + (k - (len(rooms) - 1) / 2) * 260 + (shift if len(rooms) == 1 else 0), y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        "<style>text{fill:#1f2937}.n{font-size:15px;font-weight:600}.s{font-size:11px;fill:#6b7280}"
        ".b{fill:#eef2ff;stroke:#6366f1}.a{fill:none;stroke:#9ca3af;stroke-width:1.2;marker-end:url(#h)}"
        "@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.s{fill:#9ca3af}.b{fill:#1e1b4b}}</style>",
        '<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#9ca3af"/></marker></defs>',
    ]
    for source, target in needed(counted):
        (x0, y0), (x1, y1) = place[source], place[target]
        top, bottom = y0 + BOX / 2, y1 - BOX / 2
        bend = (bottom - top) / 2
        side = 0.0 if floor_of(source) - floor_of(target) < 2 else (150 if x1 >= x0 else -150)
        parts.append(
            f'<path class="a" d="M{x0:.0f} {top:.0f}C{x0 + side:.0f} {top + bend:.0f} {x1 + side:.0f} '
            f'{bottom - bend:.0f} {x1:.0f} {bottom:.0f}"/>'
        )
    for room, (x, y) in place.items():
        width = 8.5 * len(room) + 9 * len(str(sizes[room])) + 30
        parts.append(
            f'<rect class="b" x="{x - width / 2:.0f}" y="{y - BOX / 2:.0f}" width="{width:.0f}" height="{BOX}" rx="6"/>'
            f'<text class="n" x="{x - 8:.0f}" y="{y + 5:.0f}" text-anchor="middle">{room}</text>'
            f'<text class="s" x="{x + width / 2 - 8:.0f}" y="{y + 5:.0f}" text-anchor="end">{sizes[room]}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


FLOW = """\
1. `corpus` reads text, `text` tokenizes it; `bigram_index` counts every bigram of the training corpus.
2. `evaluation` cuts the evaluation text into windows, the same for every model.
3. `checkpoints` finds and loads a model, native (`models`, on `kernels`) or of transformers.
4. `scoring` runs it and writes the log-prob of every token: a run.
5. `tokens` labels every token (repeated, distance, training count) and reads runs and labels as one table.
6. `slices` adds up log-probs by condition, bin and document.
7. `metric` turns sums into gaps, shares and intervals.
8. `results` writes `gap.json` and what stands beside it.
9. `reports` and `view` show it.
10. `train`, `synthetics`, `recall` and `suite` make models and questions; `cli` and `argap.score` are two doors to all.
"""


def page(found: list[Import], known: dict[str, Path]) -> str:
    """Return docs/architecture.md."""
    sizes = Counter(room_of(name) for name in known)
    counted = arrows(found)
    rows = [
        f"| {floor_of(room)} | `{room}` | {sizes[room]} | {purpose(room, known)} |"
        for rooms in reversed(FLOORS)
        for room in rooms
    ]
    return "\n".join(
        [
            "# Architecture",
            "",
            "Every module stands in a room, a package named for its subject. A room imports from lower floors alone; a",
            "test holds that. This page is drawn from the imports: `python tools/pages.py architecture` writes it.",
            "",
            f"![The rooms of argap by floor, with {len(needed(counted))} arrows](images/architecture.svg)",
            "",
            f"{len(known)} modules in {len(sizes)} rooms on {len(FLOORS)} floors. {sum(counted.values())} imports",
            f"between rooms make {len(counted)} arrows; the picture shows those that no longer way implies.",
            "",
            "## From text to page",
            "",
            FLOW,
            "## Journeys",
            "",
            "Modules that five commands pass, traced by `python tools/pages.py journeys`. The same commands passed",
            "29, 75, 35, 53 and 28 before modules stood in rooms, without copy labels, sources and seeds' intervals.",
            "",
            journeys.committed(),
            "## Rooms",
            "",
            "| Floor | Room | Modules | What it is for |",
            "| ---: | --- | ---: | --- |",
            *rows,
            "",
        ]
    )


def write(docs: Path) -> None:
    """Write the page and its picture to the folder of pages."""
    known = modules()
    found = imports(known)
    drawn = picture(arrows(found), Counter(room_of(name) for name in known))
    (docs / "images" / "architecture.svg").write_text(drawn, encoding="utf-8")
    (docs / "architecture.md").write_text(page(found, known), encoding="utf-8")
