"""MQAR accuracy and perplexity of models pretrained on text (arXiv 2312.04927, appendix G).

Legend: E examples, N tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from argap.checkpoints.family_code import family_code
from argap.checkpoints.load import load_model
from argap.corpus import open_corpus
from argap.corpus.document import TextDocument
from argap.errors import ArgapError
from argap.files.resumable import environment
from argap.metric.intervals import DocumentBootstrap, interval
from argap.records import Bos, ids_of
from argap.runtime.progress import progress
from argap.scoring.bos import say_bos, text_of
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.find import find_checkpoints
from argap.synthetics.pretrained.records import FORMAT, Measures, PretrainedScores, PretrainedTest, ScoreRow
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.pretrained_mqar import build, layout
from argap.text.tokenizer import Tokenizer

LOGITS_AT_ONCE = 2**27
"""Elements in the logits of a batch: half a gigabyte in float32."""
TEXT_TOKENS = 1_000_000
"""Number of tokens used from the start of a text."""


def score_pretrained(
    checkpoints: Sequence[str],
    test: PretrainedTest,
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: ScoreConfig = DEFAULT,
) -> PretrainedScores:
    """Score every checkpoint on a test.

    ``config``: which BOS comes before each example (`argap.scoring.bos`); other options are not used.
    Raises `ArgapError` for a model that is not causal or does not support the length, for a fill that is not a single
    token, and as `argap.synthetics.tasks.pretrained_mqar.build` does.
    """
    rows: list[ScoreRow] = []
    sources = find_checkpoints(checkpoints, config)
    config.check_models([source.name for source in sources])
    before: dict[str, str] = {}
    for source in sources:
        data = _examples(source.tokenizer, test)
        bos = source.bos
        say_bos(source, config.bos.of(source.name), bos)
        if bos is not None:
            before[source.name] = text_of(source.tokenizer, bos)
        model = load_model(source.checkpoint, dtype=dtype, device=str(device))
        limit = None if source.longest is None else source.longest - len(ids_of(bos))
        _check(model, source.name, test, max(int(each.inputs.max()) for each in data), limit)
        with progress(f"scoring {source.name}", len(data) * test.examples, "examples") as advance:
            for pairs, each in zip(test.pairs, data, strict=True):
                with family_code(source.name, model, each.inputs.shape[1]):
                    logprob, correct = _score(model, each.inputs, device, bos)
                advance(test.examples)
                for name, chosen in _slices(each, pairs).items():
                    measures = msgspec.structs.asdict(_measure(logprob, correct, chosen, test.seed))
                    rows.append(ScoreRow(model=source.name, pairs=pairs, slice=name, **measures))
        del model
    fill = repr(test.fill) if test.fill else "the end-of-sequence token"
    return PretrainedScores(
        **msgspec.structs.asdict(test),
        format=FORMAT,
        between=f"the text {test.text}" if test.text else fill,
        rows=tuple(rows),
        bos=before,
        device=str(device),
        dtype=str(dtype),
        **environment(),
    )


def _slices(examples: Examples, pairs: int) -> dict[Literal["ar", "other", "pairs"], np.ndarray]:
    """Return the slices of `ScoreRow`, a partition of tokens 1 to N − 1: bool ``[E, N − 1]`` each.

    ``other`` is omitted if pairs fill the whole length.
    """
    ar = examples.labels != IGNORED
    drawn = np.zeros_like(ar)
    drawn[:, : 2 * pairs] = True
    drawn[:, :-1] |= ar[:, 1:]  # the query before each answer
    made: dict[Literal["ar", "other", "pairs"], np.ndarray] = {"ar": ar, "other": ~ar & ~drawn, "pairs": drawn & ~ar}
    return {name: chosen[:, 1:] for name, chosen in made.items() if chosen.any()}


def _examples(tokenizer: Tokenizer, test: PretrainedTest) -> list[Examples]:
    """Build the examples for each number of KV pairs."""
    vocabulary = np.array(sorted(set(tokenizer.vocabulary.values()) - tokenizer.special))
    if test.text is not None and test.fill is not None:
        raise ArgapError("`fill` and `text`: expected only one of the two")
    text = None if test.text is None else _text(tokenizer, test.text)
    fill = _fill(tokenizer, test.fill) if text is None else None
    return [
        build(
            layout(test.examples, pairs, length=test.length, alpha=test.alpha),
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
            raise ArgapError(f"{tokenizer.name}: it has no end-of-sequence token; choose another one with `fill=TEXT`")
        return tokenizer.eos
    (ids,) = tokenizer.encode([text])
    if len(ids) != 1:
        raise ArgapError(f"`fill` {text!r}: {len(ids)} tokens for {tokenizer.name}; expected one")
    return int(ids[0])


def _text(tokenizer: Tokenizer, source: str) -> np.ndarray:
    """Return the first tokens of a corpus, with its documents concatenated."""
    tokens: list[np.ndarray] = []
    for document in open_corpus(source):
        if not isinstance(document, TextDocument):
            raise ArgapError(f"{source}: it holds token ids; expected text, which each model's own tokenizer reads")
        tokens.extend(tokenizer.encode([document.text]))
        if sum(map(len, tokens)) >= TEXT_TOKENS:
            break
    return np.concatenate(tokens)[:TEXT_TOKENS] if tokens else np.empty(0, dtype=np.int32)


def _check(model: PreTrainedModel, name: str, test: PretrainedTest, highest: int, limit: int | None) -> None:
    if limit is not None and test.length > limit:
        raise ArgapError(f"{name}: takes at most {limit} tokens; use `length={limit}` and fewer `pairs`")
    entries = model.get_input_embeddings().weight.shape[0]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess, reportIndexIssue]
    if highest >= int(entries):
        raise ArgapError(
            f"{name}: it has {entries} embeddings, but its tokenizer has token {highest}; expected the "
            "tokenizer that it was trained with"
        )


@torch.inference_mode()
def _score(
    model: PreTrainedModel, inputs: np.ndarray, device: torch.device, bos: Bos = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probs (nats) of tokens 1 to N − 1, and whether each is the most probable token, ``[E, N − 1]``.

    ``bos``: what to put before each example.
    """
    before = ids_of(bos)
    first = len(before)
    inputs = np.concatenate([np.tile(np.array(before, dtype=inputs.dtype), (len(inputs), 1)), inputs], axis=1)
    size = max(1, LOGITS_AT_ONCE // (inputs.shape[1] * model.config.get_text_config().vocab_size))
    logprob, correct = [], []
    for start in range(0, len(inputs), size):
        ids = torch.from_numpy(inputs[start : start + size]).to(device, torch.int64)
        logits = model(input_ids=ids, use_cache=False).logits[:, first:-1].float()
        targets = ids[:, first + 1 :]
        picked = logits.gather(-1, targets[..., None])[..., 0]
        logprob.append((picked - torch.logsumexp(logits, dim=-1)).cpu().numpy())
        correct.append((logits.argmax(dim=-1) == targets).cpu().numpy())
    return np.concatenate(logprob), np.concatenate(correct)


def _measure(logprob: np.ndarray, correct: np.ndarray, chosen: np.ndarray, seed: int) -> Measures:
    """Compute means over the ``chosen [E, N − 1]`` tokens, with intervals from a bootstrap over examples."""
    n = chosen.sum(axis=1).astype(np.float64)
    loss = -np.where(chosen, logprob.astype(np.float64), 0).sum(axis=1)
    hits = (correct & chosen).sum(axis=1).astype(np.float64)
    bootstrap = DocumentBootstrap(len(n), seed=seed)
    drawn, losses, right = bootstrap.resample(bootstrap.by_unit(np.column_stack([n, loss, hits]))).T
    nll = float(loss.sum() / n.sum())
    return Measures(
        n=int(n.sum()),
        nll=nll,
        ppl=float(np.exp(nll)),
        ppl_ci95=interval(np.exp(losses / drawn)),
        accuracy=float(hits.sum() / n.sum()),
        accuracy_ci95=interval(right / drawn),
    )
