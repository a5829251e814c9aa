"""Configuration: precedence, conversion, and one-line errors that list valid keys."""

from pathlib import Path

import pytest

from argap.errors import ArgapError
from argap.files.configs import check_field
from argap.train.config import DataSource, TrainConfig, load_config, parse_settings

FILE = """
tokenizer: some/tokenizer
architecture: attention
data:
  - some/folder
  - {path: other, repeat: 3}
steps: 1000
lr: 1e-3
betas: [0.9, 0.99]
compile: true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def test_the_file_overrides_defaults(file: Path) -> None:
    config = load_config(file, {})
    assert config.data == (DataSource("some/folder"), DataSource("other", repeat=3))
    assert config.lr == 1e-3  # YAML 1.1 reads 1e-3 as text
    assert config.betas == (0.9, 0.99)
    assert config.compile == "true"
    assert config.seq_len == TrainConfig.seq_len == 1024
    assert config.total_steps == 1000


def test_flags_override_the_file(file: Path) -> None:
    config = load_config(file, parse_settings(["lr=3e-4", "grad_clip=null", "betas=[0.8, 0.9]"]) | {"seed": 3})
    assert (config.lr, config.grad_clip, config.betas, config.seed) == (3e-4, None, (0.8, 0.9), 3)


def test_flag_for_one_alternative_replaces_the_other(file: Path) -> None:
    config = load_config(file, {"tokens": 100_000, "batch_size": 3, "seq_len": 16})
    assert config.steps is None
    assert config.total_steps == 2084  # 100,000 / 48 = 2083.3
    assert load_config(file, {"mixers": ["attention"]}).architecture is None


def test_json_round_trip(file: Path) -> None:
    config = load_config(file, {})
    values = config.as_json()
    assert values["data"][1] == {"path": "other", "repeat": 3, "text_column": "text"}
    assert load_config(None, values) == config


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (20, 2), (99, 9), (100, 100), (1000, 100)])
def test_the_default_warm_up_fits_the_steps(file: Path, steps: int, warmup: int) -> None:
    config = load_config(file, {"steps": steps})
    assert config.warmup_steps == config.as_json()["warmup_steps"] == warmup
    assert load_config(file, {"steps": steps, "warmup_steps": 1}).warmup_steps == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "learning_rate: 3", "unknown key learning_rate; known are tokenizer, data, architecture"),
        (FILE.replace("repeat: 3", "times: 2"), "unknown key times; known are path, repeat, text_column"),
        (FILE.replace("steps: 1000", "tokens: 9\nsteps: 1000"), "exactly one of steps and tokens"),
        (FILE.replace("steps: 1000", ""), "exactly one of steps and tokens"),
        (FILE + "mixers: [attention]", "exactly one of architecture and mixers"),
        (FILE.replace("tokenizer: some/tokenizer", ""), "tokenizer: missing"),
        (FILE.replace("lr: 1e-3", "lr: fast"), "lr: expected a number, found 'fast'"),
        (FILE.replace("lr: 1e-3", "lr: .nan"), "lr: expected above 0, at most 1e+30, found nan"),
        (FILE + "seq_len: 10.5", "seq_len: expected a whole number, found 10.5"),
        (FILE + "seq_len: true", "seq_len: expected a whole number, found True"),
        (FILE + "seq_len: 0", "seq_len: expected 1 to 16,777,216, found 0"),
        (FILE + "batch_size: 1000000000", "batch_size: expected 1 to 1,048,576, found 1000000000"),
        (FILE + "seq_len: 100000000000", "seq_len: expected 1 to 16,777,216, found 100000000000"),
        (
            FILE + f"seed: {2**64}",
            "seed: expected 0 to 9,223,372,036,854,775,807, found 18446744073709551616",
        ),
        (FILE + "grad_clip: .inf", "grad_clip: expected above 0, at most 1e+30, found inf"),
        (FILE.replace("repeat: 3", "repeat: 0"), "repeat: expected 1 to 1,000,000,000, found 0"),
        (FILE + "dtype: float64", "dtype: expected auto or bfloat16 or float32, found 'float64'"),
        (FILE.replace("[0.9, 0.99]", "[0.9]"), "betas: expected a list of length 2"),
        (FILE.replace("[0.9, 0.99]", "[0.9, 1.0]"), "betas: expected two numbers from 0 to below 1"),
        (FILE + "warmup_steps: 1001", "warmup_steps: 1001 exceeds the run's 1000 steps"),
        (FILE + "model: 3", "model: expected KEY: VALUE lines, found 3"),
        ("data: [unclosed", "not readable as YAML"),
        ("just text", "expected KEY: VALUE lines, found str"),
    ],
)
def test_errors_are_one_line_starting_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ArgapError) as caught:
        load_config(path, {})
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "\n" not in line


def test_a_number_beyond_float64_is_refused() -> None:
    with pytest.raises(ArgapError, match=r"^lr: expected above 0, at most 1e\+30, found 1000"):
        check_field(TrainConfig, "lr", 10**400, "lr")


def test_a_missing_file_and_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ArgapError, match=r"none\.yaml: not readable \(No such file or directory\)"):
        load_config(tmp_path / "none.yaml", {})
    with pytest.raises(ArgapError, match="--set lr: expected KEY=VALUE"):
        parse_settings(["lr"])
    with pytest.raises(ArgapError, match="the value is not valid YAML"):
        parse_settings(["betas=[0.9"])
