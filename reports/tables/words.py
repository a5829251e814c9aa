"""Name a model's ΔNLL: a gap if it is behind its reference, a lead if it is ahead."""

from argap.records import Direction, Gap

MANY = 4
"""Models compared; more of them share one summary, small multiples and tables in parts."""
WORDS: dict[Direction | None, str] = {"behind": "gap", "ahead": "lead", "level": "difference", None: "difference"}
OF: dict[Direction, str] = {"behind": "behind", "ahead": "ahead of", "level": "level with"}


def word(gap: Gap, model: str) -> str:
    """Return the word for a model's ΔNLL."""
    return WORDS[gap.directions.get(model)]


def gap_word(gap: Gap) -> str:
    """Return one word for the ΔNLLs of all models."""
    known = set(gap.directions.values()) - {"level"}
    if len(known) > 1:
        return "gap or lead"
    return WORDS[known.pop()] if known else "difference"
