"""The demo: shipped checkpoints on the held-out modules of the standard library that it runs on.

The folder holds what the demo needs: ``tokenizer/``, ``checkpoints/NAME/`` (weights, the configuration
and log of their training) and ``index/``, the bigram counts of exactly their training text.
"""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REFERENCE = "attention"
BASE = "base_conv"


def checkpoints() -> list[str]:
    """The shipped checkpoints other than the reference."""
    folders = sorted(p for p in (HERE / "checkpoints").iterdir() if (p / "config.json").is_file())
    return [str(p) for p in folders if p.name != REFERENCE]


def run_demo(out: Path, limit_tokens: int | None = None) -> tuple[dict[str, Any], Path]:
    """Score, compare and report the shipped checkpoints; returns ``gap.json`` and the report's path.

    ``limit_tokens`` scores only the beginning of the text.
    """
    from argap.pipeline import score_models
    from argap.reports.write import write_report
    from argap.targets import Settings

    gap = score_models(checkpoints(), REFERENCE, out, settings=Settings(limit_tokens=limit_tokens), base=BASE)
    return gap, write_report(out)
