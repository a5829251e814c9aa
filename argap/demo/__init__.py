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


def copy_checkpoints(out: Path) -> list[Path]:
    """Copy each bundled checkpoint, with the tokenizer that they share, to a folder of its own in ``out``.

    Raises `ArgapError` if one of these folders exists, or could not be written.
    """
    import shutil
    from contextlib import ExitStack

    from argap.errors import ArgapError
    from argap.files.atomic import replacing_folder, tidy

    tidy(out)
    copies = {HERE / "checkpoints" / REFERENCE: out / REFERENCE}
    copies |= {Path(folder): out / Path(folder).name for folder in checkpoints()}
    for copy in copies.values():
        if copy.exists():
            raise ArgapError(f"{copy}: already exists; choose another folder")
    with ExitStack() as stack:  # all get their names once all are written
        for source, copy in copies.items():
            new = stack.enter_context(replacing_folder(copy))
            for path in (*source.iterdir(), *(HERE / "tokenizer").iterdir()):
                shutil.copyfile(path, new / path.name)
    return list(copies.values())


def run_demo(out: Path, limit_tokens: int | None = None) -> tuple["Gap", Path]:
    """Score, compare and report the bundled checkpoints; return the result and the report's path.

    ``limit_tokens``: score only the beginning of the text.
    """
    from argap.reports.pages.write import write_report
    from argap.results.pipeline import score_models
    from argap.scoring.config import ScoreConfig

    gap = score_models(checkpoints(), REFERENCE, out, ScoreConfig.of(limit_tokens=limit_tokens, base=BASE))
    return gap, write_report(out)
