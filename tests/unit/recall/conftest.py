"""What the tests of recall share."""

from pathlib import Path

import pytest
import torch

CHECKPOINTS = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"


@pytest.fixture(scope="package")
def decoder():
    """The demo's hybrid, which has attention and convolutions, in float32."""
    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.load import load_model
    from argap.recall.decoding import Decoder
    from argap.text.tokenizer import load_tokenizer

    folder = CHECKPOINTS / "hybrid"
    model = load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu")
    return Decoder(model, load_tokenizer(folder))
