"""Format the text output of ``argap index``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argap.bigram_index.frequency_profile import FrequencyBin
    from argap.bigram_index.store import BigramIndex


def describe(index: "BigramIndex") -> str:
    """Describe an index in a few lines."""
    manifest = index.manifest
    size = sum(part.bytes for part in manifest.parts)
    lines = [
        ("index", str(index.folder)),
        ("tokenizer", f"{index.tokenizer} ({index.tokenizer_fingerprint[:12]}, {index.vocab_size:,} ids)"),
        *([("proxy", f"not counted from documents: {manifest.origin}")] if index.proxy else []),
        ("documents", f"{index.documents:,} (and {manifest.empty_documents:,} without a token)"),
        ("tokens", f"{index.tokens:,}"),
        ("bigrams", f"{index.bigrams:,} ({index.distinct:,} distinct)"),
        ("size", f"{size:,} bytes in {len(manifest.parts)} part{'s' * (len(manifest.parts) > 1)}"),
        ("passes", f"{index.passes:g}"),
        ("sources", ", ".join(index.sources)),
        *[("weight", f"{each.weight:g}: {', '.join(each.sources)}") for each in manifest.weights],
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in lines)


def describe_bins(bins: "Sequence[FrequencyBin]", *, proxy: bool) -> str:
    """Return one line per bin of exposures."""
    lines = [f"{'exposures':>27}  {'bigrams':>15}   share" + ("   (proxy index)" if proxy else "")]
    for row in bins:
        end = "" if row.high is None else f"{row.high:,}"
        span = f"{row.low:,}" if row.low == row.high else f"{row.low:,} to {end}"
        lines.append(f"{span:>27}  {row.bigrams:>15,}  {row.share:>6.1%}")
    return "\n".join(lines)
