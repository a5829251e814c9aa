"""What several tests share: the shipped tokenizer, tiny models, real data where it lies."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def tokenizer():
    """The demo's tokenizer: byte-level BPE with 8,192 entries; EOS is id 0."""
    from argap.tokenizer import load_tokenizer

    return load_tokenizer(ROOT / "argap" / "demo" / "tokenizer")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts and published figures, ``$ARGAP_DATA``; absent, the test is skipped."""
    folder = Path(os.environ.get("ARGAP_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; name its folder in ARGAP_DATA")
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: more threads only wait for each other, the longer the busier the machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """No test reads or writes the references of the person who runs it."""
    monkeypatch.setenv("ARGAP_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def drawn_alike():
    """What a test draws from torch's own generator does not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
