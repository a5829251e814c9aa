"""Write a result as a folder of static files that any web server shows: ``argap view RESULT --bundle DIR``.

The page is the one that `argap.view.serve` serves. Its data layer (``page/api.js``) looks each request up in
``answers.json``, which names the file with the answer. Files are named for their content, so equal answers are stored
once. What can be asked is finite: τ at the bounds of the cells' bins, the partitions, and the windows chosen here.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from argap.errors import ArgapError, FormatError
from argap.files.atomic import replacing_folder
from argap.reports.tables.provenance import for_others
from argap.reports.tables.tokens import visible
from argap.result import Result
from argap.results.printed import encoded
from argap.runtime.interrupt import Interrupt
from argap.runtime.progress import progress
from argap.slices.conditions import TABLE, streamed
from argap.slices.of_tokens import score_slices, shipped_slices
from argap.view import POLICY
from argap.view.answers import Answers, Setting
from argap.view.records import Matches, Overview, Shown
from argap.view.search import lost_most_in
from argap.view.windows import Window

PAGE = Path(__file__).parent / "page"
ANSWERS = "answers.json"
WINDOWS = 24
"""Windows of tokens in a bundle by default."""
MOST_MODELS = 5
"""With more models only the result's own reference is kept: each further one repeats every table at every τ."""
LISTED = 100
"""Most tokens in one list."""
DIGITS = 4
"""Decimals of an NLL in a window; the page shows three."""
FOLLOWS_TAU = ("slice", "frequency")
"""Partitions whose parts change with τ."""
AS_A_FILE = """<p class="empty" role="status">Reading the result … If nothing follows, this page was opened as a file. \
Run <code>python -m http.server</code> in its folder and open the address that it prints.</p>"""
README = """---
title: {title}
sdk: static
---

# {name}

A result of argap as a static page: `index.html` opens from any web server, such as `python -m http.server` in this \
folder, or from a static Space of the Hugging Face hub. It holds {holds}.
"""


class Asked(NamedTuple):
    """A request of the page, and its answer."""

    path: str
    parameters: dict[str, str | int | None]
    answer: Any

    @property
    def key(self) -> str:
        """Return the name of the request in ``answers.json``; ``page/api.js`` builds the same."""
        given = sorted((name, value) for name, value in self.parameters.items() if value is not None)
        return "&".join([self.path, *(f"{name}={value}" for name, value in given)])


def write_bundle(result: Result, out: Path, *, windows: int = WINDOWS) -> Path:
    """Write the page with every table, breakdown and curve of ``result``, and ``windows`` of its windows of tokens.

    The windows are those in which each model loses most, in turn. The folder is written whole or not at all, and
    replaces an earlier bundle. It names no folder outside the working directory. Raises `ArgapError` for a negative
    number, and for a folder that is not a bundle.
    """
    if windows < 0:
        raise ArgapError(f"`windows` {windows}: expected 0 or more")
    if out.exists() and not (out / ANSWERS).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ArgapError(f"{out}: exists and is not a bundle of argap view; name another folder")
    answers = Answers(result)
    held = _choose(answers, windows)
    with replacing_folder(out) as temporary, progress("bundle", None, "answers") as advance:
        named: dict[str, str] = {}
        (temporary / "answers").mkdir()
        for asked in _asked(answers, held):
            content = encoded(asked.answer)
            name = f"{sha256(content).hexdigest()[:16]}.json"
            (temporary / "answers" / name).write_bytes(content)
            named[asked.key] = name
            advance(1)
        _write_page(temporary, answers.overview.name, held)
        (temporary / ANSWERS).write_text(json.dumps(named, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
    return out


def _choose(answers: Answers, count: int) -> tuple[int, ...]:
    """Return the numbers of the windows to keep, ascending."""
    if answers.overview.no_tokens or not count:
        return ()
    models, reference = answers.result.models, answers.result.reference
    if len(models) == 1:
        return tuple(range(min(count, answers.result.evaluation.windows)))
    worst = (answers.worst_windows(model, reference) for model in models if model != reference)
    in_turn = chain.from_iterable(zip_longest(*([each.window for each in scores] for scores in worst)))
    return tuple(sorted(list(dict.fromkeys(each for each in in_turn if each is not None))[:count]))


def _asked(answers: Answers, held: Sequence[int]) -> Iterator[Asked]:
    result = answers.result
    overview = _overview(answers, held)
    wheres = {part.about.where for part in overview.gap.slices}
    yield Asked("overview", {}, overview)
    references = result.models if overview.own_reference is None else [result.reference]
    thresholds: Sequence[int | None] = [*overview.thresholds] or [result.threshold]
    for reference in references:
        others = [model for model in result.models if model != reference]
        if not others:
            continue
        yield Asked("thresholds", {"reference": reference}, answers.thresholds(reference, intervals=True))
        for asked in _breakdowns(answers, reference, thresholds):
            yield asked
            if asked.path == "breakdown":
                wheres |= {bar.where for bar in asked.answer.bars}
        if held:
            for model in others:
                scores = [each for each in answers.worst_windows(model, reference) if each.window in held]
                public = [replace(each, source=for_others(each.source)) for each in scores]
                yield Asked("windows", {"model": model, "reference": reference}, public)
    if held:
        for window in held:
            yield Asked("window", {"window": window}, _rounded(answers.window(window, result.models)))
        yield from _losses(answers, held, sorted(filter(None, wheres)))


def _overview(answers: Answers, held: Sequence[int]) -> Overview:
    """Return the overview with the slices that need no server: those recorded, then the bundled ones."""
    overview = answers.overview
    shown = _public(overview.gap)
    if overview.no_tokens is None:
        result = answers.result
        known = {each.about.where for each in shown.slices}
        scored = score_slices(
            result.token_table, shipped_slices(result.token_table), threshold=result.threshold, empty=True
        )
        shown = replace(shown, slices=(*shown.slices, *(each for each in scored[2:] if each.about.where not in known)))
    many = len(answers.result.models) > MOST_MODELS
    return replace(
        overview,
        gap=shown,
        thresholds=tuple(_useful(overview)),
        grouped=_grouped(answers),
        no_tokens=None if held else "This copy of the result has no tokens.",
        own_reference=overview.own_reference or ("this copy has the result's own reference only" if many else None),
        bundled=tuple(held),
    )


def _useful(overview: Overview) -> Iterator[int]:
    """Yield the τ that differ: up to the highest count that occurs, and every marked one, as the slider's steps."""
    marked = [overview.gap.threshold or 0, *(mark.threshold for mark in overview.marks)]
    highest = max([*marked, *(overview.thresholds[-1:] if overview.counted is None else [overview.counted])])
    below = -1
    for tau in overview.thresholds:
        if tau <= highest or below < highest:
            yield tau
        below = tau


def _public(shown: Shown) -> Shown:
    """Return the parts of ``gap.json`` without folders of this machine."""
    evaluation = replace(shown.evaluation, data=tuple(map(for_others, shown.evaluation.data)))
    index = shown.index and replace(shown.index, folder=for_others(shown.index.folder))
    rows = tuple(replace(row, run=for_others(row.run)) if row.run else row for row in shown.rows)
    return replace(shown, evaluation=evaluation, index=index, rows=rows)


def _breakdowns(answers: Answers, reference: str, thresholds: Sequence[int | None]) -> Iterator[Asked]:
    for by in (*answers.partitions, *_grouped(answers)):
        follows = by in FOLLOWS_TAU
        for tau in thresholds if follows else (answers.result.threshold,):
            try:
                found = answers.breakdown(by, Setting(tau, reference), Interrupt())
            except FormatError:
                raise
            except ArgapError:  # without training counts there is none by frequency; a column may have too many values
                continue
            yield Asked("breakdown", {"by": by, "reference": reference, "threshold": tau if follows else None}, found)
    for tau in thresholds:
        found = _public_sources(answers, Setting(tau, reference))
        yield Asked("sources", {"reference": reference, "threshold": tau}, found)


def _grouped(answers: Answers) -> tuple[str, ...]:
    """Return the columns that break the gap down, without that of the paths of this machine."""
    return tuple(name for name in answers.grouped if name != "source")


def _public_sources(answers: Answers, setting: Setting) -> Any:
    found = answers.sources(setting)
    return replace(found, sources=tuple(replace(row, name=for_others(row.name)) for row in found.sources))


def _rounded(window: Window) -> Window:
    """Return a window whose NLLs have `DIGITS` decimals, and whose source names no folder of this machine."""
    models = (
        replace(each, nll=tuple(None if value is None else round(value, DIGITS) for value in each.nll))
        for each in window.models
    )
    return replace(window, source=visible(for_others(window.source)), models=tuple(models))


def _losses(answers: Answers, held: Sequence[int], wheres: Sequence[str]) -> Iterator[Asked]:
    """Yield the tokens in the windows held on which each model loses most, for each condition."""
    result, reference = answers.result, answers.result.reference
    rows = _tokens_of(answers, held)
    for model in result.models:
        if model == reference:
            continue
        for where in wheres:
            found = lost_most_in(rows, result.token_table, where, model, reference, limit=LISTED + 1)
            made = Matches(tuple(found[:LISTED]), len(found) > LISTED)
            yield Asked("losses", {"where": where, "model": model, "reference": reference}, made)


def _tokens_of(answers: Answers, held: Sequence[int]) -> pa.Table:
    table = answers.result.token_table
    with streamed(table, table.columns, {}) as connection:
        numbers = ", ".join(map(str, held))
        return connection.sql(f'SELECT * FROM {TABLE} WHERE "window" IN ({numbers})').to_arrow_table()


def _write_page(folder: Path, name: str, held: Sequence[int]) -> None:
    for path in PAGE.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    for live, static in (
        ('<html lang="en">', f'<html lang="en" data-answers="{ANSWERS}">'),
        (
            '<meta charset="utf-8">',
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        ),
        ("<title>argap view</title>", f"<title>{escape(name)} · argap view</title>"),
        ('<p class="empty" role="status">Reading the result …</p>', AS_A_FILE),
    ):
        assert live in page
        page = page.replace(live, static, 1)
    (folder / "index.html").write_text(page, encoding="utf-8")
    holds = f"the tables and {len(held)} windows of the text" if held else "the tables, and no tokens"
    (folder / "README.md").write_text(README.format(title=json.dumps(name), name=name, holds=holds), encoding="utf-8")
