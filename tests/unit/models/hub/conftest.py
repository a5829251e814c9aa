"""What the tests of the hub's families share: a checkpoint on disk, its native model, stepping through tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.models import ArgapForCausalLM

VOCABULARY, BATCH, LENGTH = 61, 2, 70


@pytest.fixture(autouse=True)
def quiet():
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(scope="session")
def ids() -> torch.Tensor:
    """Tokens ``[2, 70]``: more than a chunk of 64."""
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def shaken() -> Callable[[torch.nn.Module], Any]:
    """Add noise to every parameter, so that none is where its initialisation put it (biases 0, norms 1)."""

    @torch.no_grad()
    def shake(model: torch.nn.Module) -> Any:
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return model.eval()

    return shake


@pytest.fixture(scope="session")
def native() -> Callable[[Path], ArgapForCausalLM]:
    def load(folder: Path) -> ArgapForCausalLM:
        model = load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu", backend="native")
        assert isinstance(model, ArgapForCausalLM)
        return model

    return load


@pytest.fixture(scope="session")
def stepped() -> Callable[[ArgapForCausalLM, torch.Tensor], torch.Tensor]:
    """The logits of a model that meets the tokens one by one."""

    @torch.no_grad()
    def step(model: ArgapForCausalLM, ids: torch.Tensor) -> torch.Tensor:
        state, logits = model.init_state(len(ids)), []
        for token in ids.unbind(1):
            now, state = model.step(token, state)
            logits.append(now)
        return torch.stack(logits, dim=1)

    return step
