"""Refuse mixers that see the future: a model with one can read the next token instead of predicting it."""

from typing import NoReturn

import torch

from argap.errors import ArgapError
from argap.models.mixer import Mixer
from argap.models.modeling import ArgapForCausalLM

POSITIONS = 64
CHANGED = 0.01
"""As a share of the largest output; smaller differences count as rounding."""


def check_causal(model: ArgapForCausalLM) -> None:
    """Raise `ArgapError` for a mixer that declares itself non-causal, and for a user's mixer that turns out to be.

    A mixer turns out non-causal if outputs in the first half of a sequence change with inputs in the second. Mixers
    that cannot be probed (minimum length, no weights, non-deterministic) are trusted.
    """
    config = model.config
    length = min(POSITIONS, config.max_position_embeddings or POSITIONS)
    for mixer in (block.mixer for block in model.model.blocks):
        check_says_causal(type(mixer))
        own = not type(mixer).__module__.startswith("argap.")
        if own and _sees_later_inputs(mixer, config.hidden_size, config.vocab_size, length):
            _refuse(type(mixer), "its outputs change with later inputs")


def check_says_causal(mixer: type[Mixer]) -> None:
    """Raise `ArgapError` for a class of mixers with ``causal = False``."""
    if not mixer.causal:
        _refuse(mixer, "not causal")


def _refuse(mixer: type[Mixer], found: str) -> NoReturn:
    raise ArgapError(
        f"mixer {mixer.__name__}: {found}, so its loss would see the future; such mixers have `causal = False` and are "
        "for synthetic tasks only, `argap synthetics train`"
    )


@torch.no_grad()
def _sees_later_inputs(mixer: Mixer, width: int, vocab_size: int, length: int) -> bool:
    weight = next(mixer.parameters(), torch.empty(0))
    if weight.is_meta or length < 2:
        return False
    drawn = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 2, length, width, generator=drawn).to(weight)
    ids, others = torch.randint(vocab_size, (2, 2, length), generator=drawn).to(weight.device)
    first = torch.arange(length, device=weight.device) < length // 2
    training, given = mixer.training, (ids,) if mixer.needs_ids else ()
    changed = (torch.where(first, ids, others),) if mixer.needs_ids else ()
    try:
        with torch.random.fork_rng():
            once, again = (mixer.eval()(x, *given)[:, first].float() for _ in range(2))
            later = mixer(torch.where(first[:, None], x, other), *changed)[:, first].float()
    except Exception:  # from the user's code; if it matters, it will be raised again
        return False
    finally:
        mixer.train(training)
    return torch.equal(once, again) and bool((once - later).abs().max() > CHANGED * once.abs().max())
