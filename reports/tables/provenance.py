"""List where a result comes from as names and values, for pages and model cards; paths pass through `for_others`."""

from pathlib import Path

from argap.records import Gap
from argap.reports.tables.numbers import threshold_text
from argap.synthetics.pretrained.records import PretrainedScores

SCORED = {"token": "of them scored", "byte": "bytes of the text scored"}


def provenance(gap: Gap) -> list[tuple[str, str]]:
    """List the text, index, tokenizer, runs and versions behind a result, as names and values."""
    evaluation, index = gap.evaluation, gap.index
    return [
        ("Text", ", ".join(map(for_others, evaluation.data))),
        (
            "Evaluation set",
            f"{evaluation.tokens:,} tokens, {evaluation.scored:,} {SCORED[gap.unit]}; {evaluation.windows:,} "
            f"windows of up to {evaluation.seq_len:,} tokens ({evaluation.packing}); "
            f"{evaluation.documents:,} documents",
        ),
        ("Fingerprint of the evaluation set", gap.fingerprint),
        (
            "Training index",
            "none: every repeated bigram counts"
            if index is None
            else f"{for_others(index.folder)}: {index.tokens:,} tokens, {index.documents:,} documents, "
            f"{index.distinct:,} distinct bigrams, read {_times(index.passes)}",
        ),
        ("Tokenizer", f"{for_others(evaluation.tokenizer)} ({evaluation.tokenizer_fingerprint})"),
        ("Threshold τ", "none" if gap.threshold is None else f"{threshold_text(gap.threshold)} exposures"),
        ("Runs", "; ".join(f"{row.model}: {_short(for_others(row.run))}" for row in gap.rows)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in gap.versions.items())),
        ("Date", gap.date),
    ]


def for_others(path: str) -> str:
    """Make a path fit to publish: relative to the working directory, or only the name if it lies outside.

    >>> for_others("runs/m1"), for_others("hub:org/text"), for_others("/elsewhere/data/text")
    ('runs/m1', 'hub:org/text', 'text')
    """
    if not Path(path).is_absolute():
        return path
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else Path(path).name


def between_pairs(scores: PretrainedScores) -> str:
    """Say in words what fills the space between the pairs of a recall test."""
    return scores.between.replace(scores.text, for_others(scores.text)) if scores.text else scores.between


def _short(run: str) -> str:
    """Shorten a fingerprint to twelve digits; return a folder unchanged."""
    return run[:12] if len(run) == 64 and not set(run) - set("0123456789abcdef") else run


def _times(passes: float) -> str:
    return "once" if passes == 1 else f"{passes:.4g} times"
