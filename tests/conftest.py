"""Threads and workers of the tests, and the fixtures that several of them share."""

import itertools
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_WORKERS = 8
"""Each worker imports torch and transformers, about 1 GB."""

# Before torch, numba or tokenizers start their threads: the tensors here are small, and pytest-xdist runs a worker
# for each core. OMP_NUM_THREADS=2 runs the tests with two threads of torch.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: a worker for each core that this process may use, up to `MAX_WORKERS`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


@pytest.fixture(scope="session")
def tokenizer():
    """The demo's tokenizer: byte-level BPE with 8,192 entries; EOS is id 0."""
    from argap.tokenizer import load_tokenizer

    return load_tokenizer(ROOT / "argap" / "demo" / "tokenizer")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts and published figures, ``$ARGAP_DATA``. Without it the test is skipped."""
    folder = Path(os.environ.get("ARGAP_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set ARGAP_DATA to its folder")
    return folder


HOMES = itertools.count()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """Each test has an ``ARGAP_HOME`` of its own, created only if it is written to."""
    monkeypatch.setenv("ARGAP_HOME", str(tmp_path_factory.getbasetemp() / f"home-{next(HOMES)}"))


@pytest.fixture(autouse=True)
def drawn_alike():
    """A test's draws from torch's global generator do not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
