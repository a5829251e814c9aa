"""Render HTML pages: templates, the script and its data, and inline figures.

All text from models, corpora and folders is escaped, and its control characters are written out.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from argap.records import Record
from argap.reports.tables.tokens import visible
from argap.runtime import streams

TEMPLATES = Path(__file__).parent / "templates"
TEXT_AT_TAU = re.compile(r"<!-- (AR hits ◂ τ = [\d,]+|[+−][\d.]+, (?:—|\(?[−\d.]+%\)?)) -->\s*<g(?= )")
"""Text of a figure that names τ or a share at τ; matplotlib writes its words as a comment beside its paths."""


def render_page(
    name: str, data: Record, filters: Mapping[str, Callable[..., object]] | None = None, **content: Any
) -> str:
    """Render a template with the filters ``visible`` and ``filters``. Raises for undefined variables.

    ``data``: the data for the page's script. The page's content security policy contains the hash that allows only this
    script.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, "note": _note, **(filters or {})}
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    page = environment.get_template(name).render(
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        data=_data_block(data),
        **content,
    )
    return streams.visible(page)


def _note(text: str) -> Markup:
    """Escape a note, and set what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def _data_block(data: Record) -> Markup:
    """Return JSON for a script element of type ``application/json``: ASCII, with no sign that opens or closes a tag."""
    text = json.dumps(msgspec.to_builtins(data), separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def inline_svg(path: Path, name: str, caption: str | None = None) -> Markup:
    """Turn an SVG file of ours into an inline element.

    It has no prologue, comments or namespaces, its ids are unique to the figure, and its colours follow the page's
    scheme. ``caption``: the figure whose caption names it, by default itself.
    """
    from argap.reports.figures.drawing import variables

    colours = variables()
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    view_box = re.search(r'viewBox="[\d. ]+"', head)
    assert view_box is not None  # matplotlib always writes one
    body = re.sub(TEXT_AT_TAU, _mark_text, body)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    body = re.sub(r'\b(d|x|y)="[^"]+"', lambda found: re.sub(r"\d+\.\d{3,}", _rounded, found[0]), body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda colour: colours.get(colour[0], colour[0]), body)
    return Markup(f'<svg {view_box[0]} role="img" aria-labelledby="caption-{caption or name}">{body}')


def _mark_text(found: re.Match[str]) -> str:
    """Mark text for the script, which writes it anew where τ has moved."""
    return f'<g class="{"own-tau" if found[1].startswith("AR") else "own-share"}"'


def _rounded(found: re.Match[str]) -> str:
    """Round a coordinate to a hundredth of a point; matplotlib writes a millionth."""
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
