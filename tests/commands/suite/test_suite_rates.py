"""Short trainings of a suite's members at several learning rates, and the table of them."""

import shutil
from dataclasses import replace

import msgspec
import pytest

from argap.errors import ArgapError, MismatchError
from argap.records import write_record
from argap.reports.tables.suites.suite import rates_table, write_rates
from argap.suite.config import load_suite
from argap.suite.layout import Layout
from argap.suite.rates import RateRow, Rates, begun, collect_rates, read_rates, run_rates
from argap.train.optimizer import learning_rate
from tests.commands.suite.conftest import command


def row(member: str, lr: float, *losses: float, diverged: bool = False) -> RateRow:
    return RateRow(member, lr, losses, 10, 640, diverged, "native", "cpu", {}, None, None if diverged else 1.0)


@pytest.fixture(scope="module")
def swept(place, tmp_path_factory):
    """A folder with the suite, half of whose steps each member has taken at two rates, 10³⁰ times apart."""
    root = tmp_path_factory.mktemp("rates")
    shutil.copy(place / "suite.yaml", root)
    result = command(root, "rates", "--factor", "1", "--factor", "1e30", "--fraction", "0.5")
    assert result.exit_code == 0, result.output
    return root, result.output


def test_short_trainings_leave_a_table_and_no_weights(swept):
    root, output = swept
    found = read_rates(root / "out" / "tiny" / "rates.json")
    assert (found.rate, found.fraction, found.members) == (1e-3, 0.5, ["attention", "base_conv"])
    assert [(each.lr, each.steps, len(each.losses), each.diverged) for each in found.rows[:2]] == [
        (1e-3, 3, 3, False),
        (1e27, 3, 1, True),
    ]
    assert found.best("attention") == 1e-3
    assert "diverged" in output
    assert not list((root / "work" / "tiny" / "rates").rglob("*.safetensors"))
    assert (root / "out" / "rates.md").read_text().count("| diverged |") == 2


def test_nothing_is_trained_twice_and_rows_from_elsewhere_stay(swept):
    root, _ = swept
    work, out = root / "work" / "tiny" / "rates", root / "out" / "tiny" / "rates.json"
    before = out.read_bytes()
    shutil.rmtree(work / "base_conv")  # trained on another machine
    trained = (work / "attention" / "lr-0.001" / "train.json").stat().st_mtime_ns
    flags = ("--member", "attention", "--factor", "1", "--factor", "1e30", "--fraction", "0.5")
    assert command(root, "rates", *flags).exit_code == 0
    assert out.read_bytes() == before
    assert (work / "attention" / "lr-0.001" / "train.json").stat().st_mtime_ns == trained


def test_another_sweep_is_refused(swept):
    root, _ = swept
    suite = load_suite(root / "suite.yaml")
    with pytest.raises(MismatchError, match="trained with stop_after 3, asked for 6; remove the folder"):
        run_rates(suite, Layout(root / "work"), root, members=["attention"], factors=[1], fraction=1)
    with pytest.raises(
        MismatchError,
        match=r"on 0\.5 of the steps with the whole schedule, here around 0\.001 on 0\.25 w",
    ):
        collect_rates(suite, "tiny", Layout(root / "elsewhere"), root / "out" / "tiny", 0.25)
    before = msgspec.structs.replace(read_rates(root / "out" / "tiny" / "rates.json"), schedule="shortened")
    write_record(root / "earlier" / "rates.json", before)
    with pytest.raises(MismatchError, match="with the shortened schedule"):
        collect_rates(suite, "tiny", Layout(root / "elsewhere"), root / "earlier", 0.5)
    (root / "earlier").rename(root / "tiny")
    with pytest.raises(MismatchError, match="with the shortened schedule"):  # before anything is trained
        run_rates(suite, Layout(root / "elsewhere"), root, fraction=0.5)
    assert not (root / "elsewhere").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"members": ["nobody"]},
            "`member` nobody: not a member of the suite with seed 0; those are attention, base_conv",
        ),
        ({"fraction": 1.5}, "`fraction` 1.5: expected a number above 0 and at most 1"),
        ({"factors": [1, -1]}, "`factor` 1, -1: expected numbers above 0"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_training(place, tmp_path, options, message):
    with pytest.raises(ArgapError) as error:
        run_rates(load_suite(place / "suite.yaml"), Layout(tmp_path), tmp_path, **options)
    assert str(error.value) == message


def test_a_short_training_is_the_beginning_of_the_whole(place):
    config = load_suite(place / "suite.yaml").entries("tiny")[0].config
    short = begun(config, 0.5, 0.34)
    assert (short.lr, short.last_step, short.total_steps, short.checkpoint_every) == (0.5, 2, config.total_steps, 0)
    whole = replace(config, lr=0.5)
    assert [learning_rate(step, short) for step in range(2)] == [learning_rate(step, whole) for step in range(2)]
    with pytest.raises(ArgapError, match=r"`fraction` 0\.34: 2 steps end within the warm-up of 2; expected more"):
        begun(replace(config, warmup_steps=2), 0.5, 0.34)


def test_the_table_names_the_best_rate_and_its_gain(tmp_path, place):
    # Of ten losses the last two count: means 3.0 and 2.9 for a, and 4.1 and 4.0 for b, which diverges at 2.
    early = (9.0,) * 8
    rows = (
        row("a", 1.0, *early, 3.1, 2.9), row("a", 2.0, *early, 3.0, 2.8), row("b", 0.5, *early, 4.1, 4.1),
        row("b", 1.0, *early, 4.0, 4.0), row("b", 2.0, 5.0, diverged=True), row("c", 2.0, diverged=True),
    )  # fmt: skip
    rates = Rates(1, 1.0, 0.1, 0.38, rows)
    table = rates_table(rates, "7m")
    assert table.columns == ("Model", "0.5", "1", "2", "Best rate", "Gain")
    assert table.rows == [
        ("a", "—", "3.000", "2.900", "2", "+0.100"),
        ("b", "4.100", "4.000", "diverged", "1", "—"),
        ("c", "—", "—", "diverged", "—", "—"),
    ]
    assert table.best == {(0, 3), (1, 2)}
    assert "last 20% of 10 steps (640 tokens, 0.38 passes over the text)" in table.notes[0]
    assert "shortened alike, which may rank the rates otherwise" in table.notes[0]
    assert "Best at an end of the rates tried, so one beyond may be better: a." in table.notes
    assert "left early" in rates_table(msgspec.structs.replace(rates, schedule="whole"), "7m").notes[0]
    write_record(tmp_path / "tiny" / "rates.json", rates)
    assert [each.rows for each in write_rates(load_suite(place / "suite.yaml"), tmp_path)] == [table.rows]
