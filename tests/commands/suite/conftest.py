"""Two tiny models of a suite, for the tests that need them trained and scored."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from argap.cli.suite import app
from tests.conftest import figures_sketched

ROOT = Path(__file__).parents[3]
SENTENCE = "The {} of {} came to {} on day {}. "


def text(seed: int) -> str:
    names = ["Ann Kranz", "Bob Lomax", "Cid Mirov", "Dora Novak"]
    return "".join(
        SENTENCE.format(("letter", "parcel")[k % 2], names[(k * seed) % 4], names[(k + seed) % 4], k * seed)
        for k in range(40)
    )


@pytest.fixture(scope="module", autouse=True)
def _no_figures(place):
    """Commands draw none, which takes most of their time; those of ``place`` are sketched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.reports.pages.suite.draw_suite", lambda result, folder: {})
        patch.setattr("argap.reports.figures.result.draw_all", lambda gap, folder, formats: {})
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A suite of two members from two seeds, trained, scored and collected: ``suite.yaml``, ``work`` and ``out``."""
    root = tmp_path_factory.mktemp("suite")
    for split, seeds in (("train", range(1, 9)), ("val", range(20, 26))):
        for domain in ("letters", "notes"):
            folder = root / split / domain
            folder.mkdir(parents=True)
            for seed in seeds:
                (folder / f"{seed}.txt").write_text(text(seed + len(domain)))
    suite = {
        "reference": "attention",
        "base": "base_conv",
        "train": {
            "tokenizer": str(ROOT / "argap" / "demo" / "tokenizer"), "data": [str(root / "train")], "seq_len": 64,
            "batch_size": 4, "steps": 6, "warmup_steps": 1, "log_every": 1,
            "checkpoint_every": 2, "keep_checkpoints": 0,
        },
        "sizes": {"tiny": {"hidden_size": 16, "num_layers": 2}},
        "evaluation": {"data": [str(root / "val")], "seq_len": 64},
        "members": {"attention": {"seeds": [0, 1]}, "base_conv": {"seeds": [0, 1]}},
        "labels": {"base_conv": "BaseConv"},
        "mqar": {"pairs": [2, 4], "examples": 4, "length": 32, "text": str(root / "val")},
    }  # fmt: skip
    (root / "suite.yaml").write_text(yaml.safe_dump(suite))
    with figures_sketched():
        result = command(root, "run")
    assert result.exit_code == 0, result.output
    return root


def command(root: Path, name: str, *more: str):
    places = ["--work", str(root / "work")] if name != "table" else []
    places += ["--out", str(root / "out")] if name != "status" else []
    return CliRunner().invoke(app, [name, str(root / "suite.yaml"), *places, *more])
