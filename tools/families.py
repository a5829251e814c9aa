"""Check every causal family that transformers knows, and write the table of docs/hub.md: ``python tools/families.py``.

A tiny random model of each family goes through a checkpoint on disk, as a user's does. The log-probs of windows of one
length and of several, in batches of 1 and 4, are compared with the family's own forward pass on each window by itself.
"""

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ["TRITON_INTERPRET"] = "1"  # flash-linear-attention cannot be imported then, nor needs to be

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from transformers.utils import logging  # noqa: E402

from argap.checkpoints.causality import check_says_causal  # noqa: E402
from argap.checkpoints.find import find_checkpoint  # noqa: E402
from argap.checkpoints.load import check_loadable, load_model, runs_native  # noqa: E402
from argap.checkpoints.rebinding import use_torch_on_cpu  # noqa: E402
from argap.errors import ArgapError  # noqa: E402
from argap.scoring.batches import Batches  # noqa: E402
from tests.unit.models.hub.families import by_hand, tiny, tiny_config, windows  # noqa: E402

PAGE = ROOT / "docs" / "hub.md"
BEGIN, END = "<!-- families: written by tools/families.py -->\n", "<!-- end of families -->\n"
FAMILIES = tuple(dict.fromkeys((*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)))
"""Multimodal ones are given text alone."""
WINDOWS = {"packed": (24, 24, 24, 24, 11), "uneven": (30, 7, 19, 12)}
BATCHES = (1, 4)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Mean difference in nats. In bfloat16, rounding differs between the shapes of a window by itself and in a batch, and
may send a token of a mixture to other experts."""


class Row(NamedTuple):
    """A family in the table."""

    family: str
    runs: str
    """Whose code runs it; empty if nothing does."""
    outcome: str
    """``checked``, with what is special, or why it was not."""

    def line(self) -> str:
        return f"| `{self.family}` | {self.runs} | {self.outcome} |\n"


def check(family: str) -> Row:
    """Check a family. Raises `AssertionError` for a log-prob that is not that of the family's own forward pass."""
    built = False
    try:
        model = _small(family)
        built = True
        use_torch_on_cpu(model)
        with torch.inference_mode():
            model(input_ids=torch.arange(3, 35)[None], use_cache=False)
    except Exception:  # of the family's own code
        why = "its small model does not take text alone" if built else "no small model of it could be built"
        return _refused(family) or Row(family, "transformers", f"not checked: {why}")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        checkpoint = find_checkpoint(folder)
        try:
            check_loadable(checkpoint)
            load_model(checkpoint, dtype=torch.float32, device="cpu")
        except ArgapError as refusal:
            return _row_of(family, refusal)
        native = runs_native(checkpoint)
        notes: list[str] = []
        for dtype, tolerance in TOLERANCE.items():
            ours = load_model(checkpoint, dtype=dtype, device="cpu")
            own = load_model(checkpoint, dtype=dtype, device="cpu", backend="hf") if native else ours
            for name, lengths in WINDOWS.items():
                data = windows(*lengths)
                expected = by_hand(own, data)
                for batch in BATCHES:
                    batches = Batches(ours, data, "cpu", batch, family)
                    found = batches.score(range(data.windows)).arrays()[0]
                    error = float(np.nanmean(np.abs(found - expected)))
                    assert error < tolerance, f"{family}, {dtype}, {name}, batches of {batch}: off by {error:.2g} nats"
                    notes += ["the model's own logits"] if batches.head is None else []
                    notes += ["batches of equal length"] if batches.sharing == "equal" else []
                    notes += ["one window at a time"] if batch > 1 and batches.sharing == "none" else []
    return Row(family, "argap" if native else "transformers", "; ".join(("checked", *dict.fromkeys(notes))))


def _small(family: str) -> Any:
    """Return a small model of a family; of one with a text model of its own, that if the whole one is not small."""
    multimodal = family in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    try:
        return tiny(family, multimodal=multimodal)
    except MemoryError:
        if not multimodal or family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise
        return tiny(family)


def _refused(family: str) -> Row | None:
    """Return the row of a family whose configuration is refused; None if it is not, or there is no small one."""
    try:
        check_says_causal(family, tiny_config(family).to_dict())
    except ArgapError as refusal:
        return _row_of(family, refusal)
    except Exception:
        pass
    return None


def _row_of(family: str, refusal: ArgapError) -> Row:
    said = re.split(", so it sees|; expected", str(refusal))[0].partition(": ")[2]
    return Row(family, "", f"refused: {said}")


def table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, between its marks."""
    counts = Counter(row.outcome.partition(";")[0].partition(":")[0] for row in rows)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    head = "| model type | runs on | |\n| --- | --- | --- |\n"
    return (
        f"{BEGIN}transformers {transformers.__version__}: {said}.\n\n{head}{''.join(row.line() for row in rows)}{END}"
    )


def committed() -> dict[str, str]:
    """Return the lines of the committed table by family."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {match[1]: f"{match[0]}\n" for match in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.MULTILINE)}


def write(docs: Path) -> None:
    """Check the families and rewrite their table in the folder of pages."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rows = []
    for family in FAMILIES:
        rows.append(check(family))
        print(rows[-1].line(), end="", flush=True)
    page = docs / PAGE.name
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + table(rows) + rest.partition(END)[2])


if __name__ == "__main__":
    write(PAGE.parent)
