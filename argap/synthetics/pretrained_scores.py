"""How well models that were trained on text recall pairs in their context (arXiv 2312.04927, appendix G).

Legend: E examples, N tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from argap.checkpoint import load_model, max_positions
from argap.corpus import open_corpus
from argap.corpus.document import TextDocument
from argap.errors import ArgapError
from argap.progress import progress
from argap.runs import environment
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.pretrained_mqar import PretrainedConfig, build
from argap.targets import find_target, told_apart
from argap.tokenizer import Tokenizer

PAIRS = (16, 32, 64, 128, 256)
LOGITS_AT_ONCE = 2**27
"""Numbers in the logits of a batch: half a gigabyte in float32."""
TEXT_TOKENS = 1_000_000
"""Of a text, the first so many serve."""
RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class PretrainedTest:
    """What models are tested on; every model on the same examples, where tokenizers agree."""

    pairs: tuple[int, ...] = PAIRS
    examples: int = 100
    """For each number of pairs."""
    length: int = 1024
    fill: str | None = None
    """Text of the one token between the pairs; None: EOS."""
    text: str | None = None
    """A corpus whose tokens stand between the pairs, in place of ``fill``."""
    alpha: float = 0.1
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON has them."""
        return {**vars(self), "pairs": list(self.pairs)}


def score_pretrained(
    checkpoints: Sequence[str], test: PretrainedTest, *, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """``rows``, one for each model, number of pairs and slice: ``ar``, the values after a returned key, and
    ``other``, all other scored tokens. Each has ``n``, ``nll`` (nats), ``ppl`` and ``accuracy`` (of the most
    probable token), the latter two with a 95% interval over examples.

    Raises `ArgapError` for a model that does not take the length, for one that is not causal, for a fill that is
    not one token, and as `argap.synthetics.tasks.pretrained_mqar.build` does.
    """
    rows = []
    for target in told_apart([find_target(source, reference=False) for source in dict.fromkeys(checkpoints)]):
        checkpoint = target.checkpoint
        assert checkpoint is not None  # of what is no reference
        made = _examples(target.tokenizer, test)
        model = load_model(checkpoint, dtype=dtype, device=str(device))
        _check(model, target.name, test, max(int(each.inputs.max()) for each in made))
        total = len(made) * test.examples
        with progress(f"scoring {target.name}", total, "examples") as advance:
            for pairs, each in zip(test.pairs, made, strict=True):
                logprob, right = _score(model, each.inputs, device)
                advance(test.examples)
                asked = each.labels[:, 1:] != IGNORED
                for name, chosen in (("ar", asked), ("other", ~asked)):
                    measured = _measure(logprob, right, chosen, test.seed)
                    rows.append({"model": target.name, "pairs": pairs, "slice": name, **measured})
        del model
    between = f"the text {test.text}" if test.text else f"{test.fill!r}" if test.fill else "the end-of-sequence token"
    asked_for = {**test.as_json(), "between": between}
    return {"format": 1, **asked_for, "rows": rows, "device": str(device), "dtype": str(dtype), **environment()}


def _examples(tokenizer: Tokenizer, test: PretrainedTest) -> list[Examples]:
    """The examples of each number of pairs."""
    vocabulary = np.array(sorted(set(tokenizer.vocabulary.values()) - tokenizer.special))
    fill = text = None
    if test.text is not None:
        if test.fill is not None:
            raise ArgapError("a fill and a text: expected one of the two")
        text = _text(tokenizer, test.text)
    else:
        fill = _fill(tokenizer, test.fill)
    return [
        build(
            PretrainedConfig(test.examples, pairs, length=test.length, alpha=test.alpha),
            test.seed,
            vocabulary=vocabulary,
            fill=fill,
            text=text,
        )
        for pairs in test.pairs
    ]


def _fill(tokenizer: Tokenizer, text: str | None) -> int:
    if text is None:
        if tokenizer.eos is None:
            raise ArgapError(f"{tokenizer.name}: no end-of-sequence token; say what to fill with: --fill TEXT")
        return tokenizer.eos
    (ids,) = tokenizer.encode([text])
    if len(ids) != 1:
        raise ArgapError(f"--fill {text!r}: {len(ids)} tokens for {tokenizer.name}; expected one")
    return int(ids[0])


def _text(tokenizer: Tokenizer, source: str) -> np.ndarray:
    """The first tokens of a corpus, its documents one after the other."""
    found: list[np.ndarray] = []
    for document in open_corpus(source):
        if not isinstance(document, TextDocument):
            raise ArgapError(f"{source}: tokens of some tokenizer; expected a text, for each model to read in its own")
        found.extend(tokenizer.encode([document.text]))
        if sum(map(len, found)) >= TEXT_TOKENS:
            break
    return np.concatenate(found)[:TEXT_TOKENS] if found else np.empty(0, dtype=np.int32)


def _check(model: PreTrainedModel, name: str, test: PretrainedTest, highest: int) -> None:
    limit = max_positions(model)
    if limit is not None and test.length > limit:
        raise ArgapError(f"{name}: takes at most {limit} tokens; use --length {limit} and fewer --pairs")
    entries = model.get_input_embeddings().weight.shape[0]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess, reportIndexIssue]
    if highest >= int(entries):
        raise ArgapError(f"{name}: {entries} embeddings, and its tokenizer has token {highest}; it is another's")


@torch.inference_mode()
def _score(model: PreTrainedModel, inputs: np.ndarray, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Of tokens 1 to N − 1 the log-prob (nats) and whether it is the most probable, each ``[E, N − 1]``."""
    size = max(1, LOGITS_AT_ONCE // (inputs.shape[1] * model.config.get_text_config().vocab_size))
    logprob, right = [], []
    for start in range(0, len(inputs), size):
        ids = torch.from_numpy(inputs[start : start + size]).to(device, torch.int64)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        targets = ids[:, 1:]
        picked = logits.gather(-1, targets[..., None])[..., 0]
        logprob.append((picked - torch.logsumexp(logits, dim=-1)).cpu().numpy())
        right.append((logits.argmax(dim=-1) == targets).cpu().numpy())
    return np.concatenate(logprob), np.concatenate(right)


def _measure(logprob: np.ndarray, right: np.ndarray, chosen: np.ndarray, seed: int) -> dict[str, Any]:
    """Means over the ``chosen [E, N − 1]`` tokens, and intervals by drawing examples with replacement."""
    n = chosen.sum(axis=1).astype(np.float64)
    loss = -np.where(chosen, logprob.astype(np.float64), 0).sum(axis=1)
    hits = (right & chosen).sum(axis=1).astype(np.float64)
    draws = np.random.default_rng(seed).multinomial(len(n), np.full(len(n), 1 / len(n)), size=RESAMPLES)
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    nll = float(loss.sum() / n.sum())
    return {
        "n": int(n.sum()),
        "nll": nll,
        "ppl": float(np.exp(nll)),
        "ppl_ci95": np.exp(np.quantile(draws @ loss / (draws @ n), tails)).tolist(),
        "accuracy": float(hits.sum() / n.sum()),
        "accuracy_ci95": np.quantile(draws @ hits / (draws @ n), tails).tolist(),
    }
