"""Every mixer learns: train each member of ``suites/zoo`` for some steps on a CPU."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from argap.models import registry
from argap.models.configuration import as_spec
from argap.models.presets import ARCHITECTURES
from argap.suite.config import Entry, load_suite
from argap.train import read_log, train
from argap.train.records import StepLine

FOLDER = Path(__file__).parents[3] / "suites" / "zoo"
ENTRIES = load_suite(FOLDER / "zoo.yaml").entries("toy")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that holds the toy text, as the suite's script writes it; the working folder of the module."""
    place = tmp_path_factory.mktemp("zoo")
    spec = importlib.util.spec_from_file_location("make_text", FOLDER / "make_text.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        script.main()
        yield place


def mixers_of(entry: Entry) -> list[str]:
    layers = entry.config.num_layers or 1
    listed = ARCHITECTURES[entry.config.architecture].layers(layers) if entry.config.architecture else None
    return [as_spec(mixer)["name"] for mixer in listed or entry.config.mixers or ()]


def test_every_causal_mixer_is_a_member() -> None:
    """Non-causal mixers are tested on recall tasks instead."""
    causal = {name for name in registry.MIXERS if registry.resolve(name).causal}
    assert {name for entry in ENTRIES for name in mixers_of(entry)} == causal


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_some_steps_lower_the_loss(entry: Entry, place: Path) -> None:
    """From ln 64 = 4.2 to below the frequencies of the words, 8·ln 12 / 12 + 4·ln 120 / 12 = 3.25: 8 of a sentence's 12
    words follow from the one before, and 2 are one of 20 names, 2 one of 20 values."""
    assert entry.config.total_steps == 50
    config = replace(entry.config, batch_size=4, steps=16, log_every=4)
    train(config, place / entry.name, device="cpu", tokens=place / "tokens")
    losses = [line.loss for line in read_log(place / entry.name / "log.jsonl") if isinstance(line, StepLine)]
    assert losses[0] > 3.5
    assert losses[-1] < 3.0
