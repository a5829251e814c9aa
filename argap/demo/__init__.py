"""Score the bundled checkpoints on held-out modules of the running Python's standard library.

The folder holds ``checkpoints/NAME/`` (weights, training configuration and training log), the ``tokenizer/`` shared by
all of them, and ``index/``, the bigram counts of their training text.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argap.records import Gap

HERE = Path(__file__).parent
REFERENCE = "attention"
BASE = "base_conv"


def checkpoints() -> list[str]:
    """Return the folders of the bundled checkpoints, without the reference."""
    folders = sorted(p for p in (HERE / "checkpoints").iterdir() if (p / "config.json").is_file())
    return [str(p) for p in folders if p.name != REFERENCE]


def run_demo(out: Path, limit_tokens: int | None = None) -> tuple["Gap", Path]:
    """Score, compare and report the bundled checkpoints; return the result and the report's path.

    ``limit_tokens``: score only the beginning of the text.
    """
    from argap.reports.pages.write import write_report
    from argap.results.pipeline import score_models
    from argap.scoring.config import ScoreConfig

    gap = score_models(checkpoints(), REFERENCE, out, ScoreConfig.of(limit_tokens=limit_tokens, base=BASE))
    return gap, write_report(out)
