"""Disk errors give one line and leave no partial files."""

import subprocess
import sys

import pytest

from argap.errors import ArgapError
from tests.builders.index import build

BUILD = """
import resource, sys
from pathlib import Path
import numpy as np
from argap.bigram_index import build
from argap.errors import ArgapError
from tests.builders import index as indexes
build.chunk_tokens = lambda memory, vocab_size: int(sys.argv[2])
documents = np.random.default_rng(0).integers(0, 500, (40, 1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # what a full disk does: a write fails half-way
try:
    indexes.build(Path(sys.argv[1]), documents, vocab_size=500)
except ArgapError as error:
    print(error)
"""


@pytest.mark.parametrize("chunk", [10**6, 15_000], ids=["writing the parts", "spilling a run"])
def test_a_full_disk_is_one_line(chunk, tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path / "index"), str(chunk)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "could not be written" in printed
    assert "free some space" in printed.lower()
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgapError, match=r"file/index: could not be written \(Not a directory\)"):
        build(tmp_path / "file" / "index", [[1, 2]])
