"""A result as a section of a model card."""

from argap.records import Gap
from argap.reports.formats import in_markdown, markdown
from argap.reports.overview import overview
from argap.reports.provenance import provenance
from argap.reports.sentences import headlines
from argap.reports.tables import tables_of


def card(gap: Gap) -> str:
    """Markdown: the finding in words, the tables and where they come from."""
    summary = overview(gap)
    sentences = [sentence for sentence, _ in headlines(gap)]
    if summary is not None:
        sentences = [f"{summary.title}.", *summary.sentences]
    parts = [
        "## Associative recall",
        " ".join(in_markdown(sentence) for sentence in sentences),
        *(markdown(table).strip() for table in tables_of(gap)),
        "### Where it comes from",
        "\n".join(f"- {name}: {in_markdown(value)}" for name, value in provenance(gap)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
