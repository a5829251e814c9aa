"""A full disk while training: one line, nothing half-written, and the rerun ends with the undisturbed weights."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from argap.errors import ArgapError
from argap.train import load_config, read_log, train


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "stopped"),
    [
        (150_000, "checkpoints/step-10"),  # the weights fit (140 kB), the optimizer's moments do not
        (100_000, "checkpoints/step-10"),
    ],
)
def test_a_full_disk_in_the_writer_of_safetensors_is_one_line(
    toy_values: dict, tmp_path: Path, size: int, stopped: str
) -> None:
    config = load_config(None, toy_values)
    train(config, tmp_path / "whole", device="cpu")
    out = tmp_path / "out"
    with largest_file(size), pytest.raises(ArgapError, match=r"could not be written \(File too large\)") as raised:
        train(config, out, device="cpu")
    assert str(raised.value).startswith(str(out / stopped))
    assert "\n" not in str(raised.value)
    assert not list(out.rglob("*.tmp"))
    train(config, out, device="cpu")
    whole, again = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", out))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert [line.step for line in read_log(out / "log.jsonl")] == list(range(4, 41, 4))
