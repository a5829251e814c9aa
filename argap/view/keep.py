"""Read requests, and export parts of the page as files: CSV and Parquet as in `argap.result.Result`, Markdown, TeX."""

import io
import re
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from starlette.datastructures import QueryParams

from argap.errors import ArgapError
from argap.records import Estimate, Part, Unit
from argap.reports.tables.formats import Table, csv_of_frame, csv_of_rows, latex, markdown
from argap.reports.tables.numbers import DASH, nats, percent
from argap.reports.tables.result import gap_table, slices_table
from argap.results.frames import slice_frame
from argap.runtime.interrupt import Interrupt, interruptible
from argap.slices.conditions import hits_of
from argap.slices.of_tokens import select
from argap.view.answers import Answers, Setting


class Asked:
    """The parameters of a request. Raises `ArgapError` for missing or malformed ones."""

    def __init__(self, given: QueryParams, answers: Answers) -> None:
        self._given = given
        self.answers = answers

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise ArgapError(f"`{name}` is missing")
        return value

    def whole(self, name: str) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ArgapError(f"`{name}` {text[:40]}: expected a whole number")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.text(name, "0") == "1"

    @property
    def model(self) -> str:
        return self.text("model")

    @property
    def models(self) -> list[str]:
        return self._given.getlist("model")

    @property
    def named(self) -> list[tuple[str, str]]:
        """Return conditions with their names."""
        wheres, names = self._given.getlist("where"), self._given.getlist("name")
        if not wheres or len(wheres) != len(names):
            raise ArgapError(f"`where` and `name` come in pairs, found {len(wheres)} and {len(names)}")
        return list(zip(names, wheres, strict=True))

    @property
    def reference(self) -> str:
        return self.text("reference", self.answers.result.reference)

    @property
    def setting(self) -> Setting:
        own = self.answers.result.threshold
        return Setting(self.whole("threshold") if "threshold" in self._given else own, self.reference)


FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "md": "text/markdown; charset=utf-8",
    "tex": "application/x-tex; charset=utf-8",
}
KINDS = ("table", "breakdown", "slices", "tokens")
MOST_TOKENS = 1_000_000
"""Most rows in a file of tokens; the first that match the condition are kept."""


def keep(kind: str, ask: Asked, interrupt: Interrupt) -> tuple[bytes, str, str]:
    """Return a file's content, media type and name.

    ``kind``: one of `KINDS`; the request names one of `FORMATS`. Raises `ArgapError` for an unknown format, and for
    tokens as text.
    """
    wanted = ask.text("format")
    if wanted not in FORMATS:
        raise ArgapError(f"`format` {wanted}: expected {', '.join(FORMATS)}")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", ask.answers.overview.name).strip("-") or "result"
    if kind == "tokens":
        content = _tokens(wanted, ask, interrupt)
    elif wanted in ("md", "tex"):
        printed = _printed(kind, ask, interrupt)
        content = (markdown if wanted == "md" else latex)(printed).encode()
    else:
        frame = _frame(kind, ask, interrupt)
        if wanted == "csv":
            content = csv_of_frame(frame).encode()
        else:
            content = _arrow_bytes(pa.Table.from_pandas(frame, preserve_index=False), wanted)
    return content, FORMATS[wanted], f"{name}-{kind}.{wanted}"


def _printed(kind: str, ask: Asked, interrupt: Interrupt) -> Table:
    unit = ask.answers.result.record.unit
    if kind == "table":
        return gap_table(ask.answers.gap(ask.setting))
    if kind == "slices":
        return slices_table(_slices(ask, interrupt), threshold=ask.setting.threshold, unit=unit)
    by = ask.text("by")
    ask.answers.check(ask.setting, ask.models)
    bars = ask.answers.breakdown(by, ask.setting, interrupt).bars
    return parts_table(by, [bar.part for bar in bars], ask.models, unit)


def _frame(kind: str, ask: Asked, interrupt: Interrupt) -> pd.DataFrame:
    if kind == "slices":
        return slice_frame(_slices(ask, interrupt), more=True)
    restated = ask.answers.restated(ask.setting)
    if kind == "table":
        return restated.table()
    return restated.breakdown(ask.text("by"))


def _slices(ask: Asked, interrupt: Interrupt) -> tuple[Part, ...]:
    return ask.answers.slices(ask.named, ask.setting, ask.models, interrupt, empty=ask.flag("empty"))


def _tokens(wanted: str, ask: Asked, interrupt: Interrupt) -> bytes:
    if wanted not in ("csv", "parquet"):
        raise ArgapError(f"`format` {wanted}: tokens are kept as csv or parquet")
    ask.answers.check(ask.setting, ask.models)
    where = ask.text("where")
    condition = hits_of(ask.setting.threshold) if where == "ar_hits" else where
    with interruptible(interrupt):
        rows = select(ask.answers.result.token_table, condition, models=ask.models, limit=MOST_TOKENS)
    return _arrow_bytes(rows, wanted)


def _arrow_bytes(rows: pa.Table, wanted: str) -> bytes:
    if wanted == "csv":
        return csv_of_rows(rows.flatten())  # nll.MODEL
    out = io.BytesIO()
    pq.write_table(rows, out, compression="zstd")
    return out.getvalue()


def parts_table(by: str, parts: Sequence[Part], models: Sequence[str], unit: Unit) -> Table:
    """Return one row per part of a partition: its size, share, and each model's contribution with its interval."""
    known = [model for model in models if parts and all(part[model].contribution is not None for part in parts)]
    rows = []
    for part in parts:
        group = {None: "", True: ", repeated", False: ", not repeated"}[part.repeated]
        cells = [_part_cell(part[model]) for model in known]
        rows.append((part.bin + group, f"{part.n:,}", percent(part.share_of_tokens), *cells))
    titles = (f"{model}: nats" for model in known)
    note = f"Nats a {unit}: share × ΔNLL. A model's parts add up to its gap; in brackets, 95% intervals."
    return Table((by.capitalize(), f"{unit.capitalize()}s", "Share", *titles), rows, (note,))


def _part_cell(each: Estimate) -> str:
    if each.contribution is None:
        return DASH
    return nats(each.contribution) + (f" [{', '.join(map(nats, ends))}]" if (ends := each.contribution_ci95) else "")
