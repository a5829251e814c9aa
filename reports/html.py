"""The report as one HTML file that needs no network: style, figures and text inline, no script."""

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from argap.reports.page import template
from argap.reports.sentences import detail, headline
from argap.reports.tables import nats, percent, tables_of, threshold_text
from argap.reports.tokens import show_window

CAPTIONS = {
    "nll_by_frequency": (
        "How well each model predicts a token, against how often its bigram occurs in the training text "
        "(lower is better). Left: bigrams seen before in the window, where a model can look back. Right: all others. "
        "AR hits lie left of the dashed line in the left panel. Hollow points stand for fewer than 30 tokens."
    ),
    "gap_by_frequency": (
        "Where the gap lies, by training frequency. Each bar is a bin's share of tokens times the difference in NLL; "
        "all bars of a model add up to its gap. Numbers are percent of the gap. Full colour: AR hits."
    ),
    "gap_by_distance": (
        "Where the gap lies, by how far back the bigram stood last. Pale: not repeated, hence no AR hit. "
        "The bars of a model add up to its gap."
    ),
    "gap_by_position": "Where the gap lies, by position in the window. The bars of a model add up to its gap.",
    "gap_by_domain": "Where the gap lies, by the kind of text. The bars of a model add up to its gap.",
}
BREAKDOWNS = {
    "frequency": "By training frequency of the bigram",
    "distance": "By distance to the bigram's nearest occurrence",
    "position": "By position in the window",
    "domain": "By domain",
}


def render(gap: dict[str, Any], examples: dict[str, Any] | None, figures: dict[str, Path]) -> str:
    """The whole page. ``figures``: the SVG file of each, by name; ``examples``: ``examples.json`` if any.

    Everything that comes from models, corpora and folders is escaped.
    """
    others = [row for row in gap["rows"] if not row["reference"]]
    reference = gap["reference"]
    return template("report.html.j2").render(
        reference=reference,
        headlines=[(headline(row, reference), detail(row)) for row in others],
        threshold=threshold_text(gap["threshold"]),
        share=percent(gap["rows"][0]["share_ar_hits"]),
        tables=tables_of(gap),
        figures=[(name, inline_svg(path, name), CAPTIONS[name]) for name, path in figures.items()],
        rule=examples["rule"] if examples else "",
        windows=[show_window(window, reference) for window in examples["windows"]] if examples else [],
        breakdowns=[_breakdown(gap, kind, title) for kind, title in BREAKDOWNS.items()],
        evaluation=gap["evaluation"],
        provenance=_provenance(gap),
    )


def inline_svg(path: Path, name: str) -> Markup:
    """An SVG file of ours as an element: no prologue, comments or namespaces, ids that no other figure has."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    view_box = re.search(r'viewBox="[\d. ]+"', head)
    assert view_box is not None  # matplotlib always writes one
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    return Markup(f'<svg {view_box[0]} role="img" aria-labelledby="caption-{name}">{body}')


def _breakdown(gap: dict[str, Any], kind: str, title: str) -> dict[str, Any]:
    """One partition as a table: its groups of rows, and the sums that must be the whole."""
    parts = gap["breakdowns"][kind]
    models = [row["model"] for row in gap["rows"]]
    deltas = {row["model"]: row["delta"]["nll"] for row in gap["rows"] if not row["reference"]}
    groups: dict[str, list[list[str]]] = {}
    for part in parts:
        group = "" if "repeated" not in part else "repeated" if part["repeated"] else "not repeated"
        cells = [f"{part['n']:,}", percent(part["share"])]
        cells += [f"{part['nll'][m]:.2f}" for m in models]
        cells += [_contribution(part["contribution"][m], deltas[m]) for m in deltas]
        groups.setdefault(group, []).append([part["bin"], *cells])
    total = ["all", f"{sum(p['n'] for p in parts):,}", percent(sum(p["share"] for p in parts))]
    total += [f"{sum(p['share'] * p['nll'][m] for p in parts):.2f}" for m in models]
    total += [_contribution(sum(p["contribution"][m] for p in parts), deltas[m]) for m in deltas]
    return {
        "kind": kind,
        "title": title,
        "columns": ["Tokens", "Share", *(f"NLL, {m}" for m in models), *(f"Gap, {m}" for m in deltas)],
        "groups": sorted(groups.items(), key=lambda item: item[0] != "repeated"),
        "total": total,
    }


def _contribution(value: float, delta: float) -> str:
    """``0.132 (26%)``: nats per token, and percent of the gap where there is one."""
    return f"{nats(value)} ({percent(value / delta, 0)})" if delta > 0 else nats(value)


def _provenance(gap: dict[str, Any]) -> list[tuple[str, str]]:
    """What was measured with what, as names and values."""
    evaluation, index = gap["evaluation"], gap["index"]
    versions = ", ".join(f"{name} {version}" for name, version in gap["versions"].items())
    return [
        ("Text", ", ".join(evaluation["data"])),
        (
            "Evaluation set",
            f"{evaluation['tokens']:,} tokens, {evaluation['scored']:,} of them scored; {evaluation['windows']:,} "
            f"windows of up to {evaluation['seq_len']:,} tokens ({evaluation['packing']}); "
            f"{evaluation['documents']:,} documents",
        ),
        ("Fingerprint of the evaluation set", gap["fingerprint"]),
        (
            "Training index",
            f"{index['folder']}: {index['tokens']:,} tokens, {index['documents']:,} documents, "
            f"{index['distinct']:,} distinct bigrams",
        ),
        ("Tokenizer", f"{evaluation['tokenizer']} ({evaluation['tokenizer_fingerprint']})"),
        ("Threshold τ", threshold_text(gap["threshold"])),
        ("Runs", ", ".join(row["run"] for row in gap["rows"])),
        ("Versions", versions),
        ("Date", gap["date"]),
    ]
