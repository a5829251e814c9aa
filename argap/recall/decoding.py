"""Greedy decoding in batches, and log-probs of given continuations.

Prompts are never padded, because a recurrent state would read the padding as text. A native model reads a batch's
prompts in parallel up to the length of the shortest and then takes recurrent steps (`argap.models.steps`), in constant
memory if its mixers allow it: longer prompts are still being read while shorter ones are answered. Other models use
their cache; a model without either reads the whole sequence again for each token. Both take prompts of equal length.

Legend: B batch, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from argap.checkpoints.family_code import family_code
from argap.checkpoints.load import check_loadable, load_model
from argap.errors import ArgapError
from argap.models.modeling import ArgapForCausalLM
from argap.models.steps import Steps
from argap.runtime.device import DTYPES, growing_keys, resolve_dtype, use_device
from argap.scoring.config import ScoreConfig
from argap.scoring.heads import find_head, of_targets
from argap.scoring.local import CheckpointSource
from argap.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Stop = Literal["stop", "eos", "length"]
Next = Callable[[torch.Tensor], torch.Tensor]
"""Maps the tokens just chosen ``[B]`` to the logits ``[B, V]`` after them."""
PROBE_TOKENS = 16


class Generation(NamedTuple):
    """An answer. ``ids`` includes the tokens that ended it; ``text`` does not include the stop sequence."""

    ids: list[int]
    text: str
    stop: Stop


class Forced(NamedTuple):
    """A continuation under teacher forcing, ``[T]`` each."""

    logprobs: list[float]
    """Nats."""
    ranks: list[int]
    """How many tokens rank higher (more likely, or a lower id in a tie): 0 is the model's own choice."""


class Decoder:
    """A loaded model and its tokenizer."""

    def __init__(self, model: "PreTrainedModel", tokenizer: Tokenizer, *, batch_size: int = 8) -> None:
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.recurrent = isinstance(model, ArgapForCausalLM) and all(b.mixer.recurrent for b in model.model.blocks)
        probe = torch.arange(min(PROBE_TOKENS, tokenizer.vocab_size), device=model.device)[None]
        with torch.inference_mode(), self._of_family(probe.shape[1]):
            self.head = find_head(model, probe)

    def _of_family(self, length: int) -> AbstractContextManager[None]:
        return family_code(self.tokenizer.name, self.model, length)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], *, until: Sequence[str], new_tokens: int) -> list[Generation]:
        """Generate the greedy continuation of each prompt, up to the first of ``until``, EOS, or ``new_tokens``."""
        generations: dict[int, Generation] = {}
        # A length gap within a batch costs a step per token of the gap, a separate batch the steps of its answers.
        within = new_tokens if self.recurrent else 0
        for batch in by_length(prompts, self.batch_size, within=within):
            with self._of_family(max(len(prompts[k]) for k in batch) + new_tokens):
                answers = self._continue([list(prompts[k]) for k in batch], until, new_tokens)
            generations.update(zip(batch, answers, strict=True))
        return [generations[k] for k in range(len(prompts))]

    @torch.inference_mode()
    def force(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[Forced]:
        """Compute log-prob and rank of each token of the continuations, given everything before it; none may be empty.

        Raises `ArgapError` if a log-prob is NaN or infinite.
        """
        forced: dict[int, Forced] = {}
        whole = [[*p, *c] for p, c in zip(prompts, continuations, strict=True)]
        for batch in by_length(whole, self.batch_size):
            inputs = [whole[k][:-1] for k in batch]  # the last token is only a target
            ids = torch.tensor(inputs, device=self.model.device)
            hidden = None
            if self.head is not None:
                with self._of_family(ids.shape[1]):
                    hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            for row, k in enumerate(batch):
                targets = torch.tensor(list(continuations[k]), device=ids.device)
                start = len(prompts[k]) - 1
                if hidden is None or self.head is None:
                    logits = self.model(input_ids=ids[row][None], use_cache=False).logits[0, start:].float()
                    found = of_targets(logits, targets, rank=True)
                else:
                    found = self.head.logprobs(hidden[row, start:], targets, rank=True)
                if found.rank is None or not found.logprob.isfinite().all():
                    raise ArgapError(
                        f"{self.tokenizer.name}: the log-prob of a token is NaN or infinite; the checkpoint is broken, "
                        "or its values overflow this `dtype` (try `dtype=float32`)"
                    )
                forced[k] = Forced(found.logprob.tolist(), (found.rank - 1).tolist())
        return [forced[k] for k in range(len(whole))]

    def _continue(self, prompts: list[list[int]], until: Sequence[str], new_tokens: int) -> list[Generation]:
        """Return the answers to one batch of prompts; runs until every row has stopped."""
        rows: list[list[int]] = [[] for _ in prompts]
        ends: list[Generation | None] = [None] * len(rows)
        position = min(map(len, prompts))
        logits, following = self._begin(torch.tensor([p[:position] for p in prompts], device=self.model.device))
        while True:
            chosen = logits.argmax(dim=-1).tolist()
            for row, prompt in enumerate(prompts):
                if position < len(prompt):
                    chosen[row] = prompt[position]
                elif ends[row] is None:
                    rows[row].append(chosen[row])
                    ends[row] = self._ended(rows[row], until, last=len(rows[row]) >= new_tokens)
            finished = [end for end in ends if end is not None]
            if len(finished) == len(rows):
                return finished
            logits = following(torch.tensor(chosen, device=logits.device))
            position += 1

    def _begin(self, ids: torch.Tensor) -> tuple[torch.Tensor, Next]:
        """Return the logits after the prompt, and the function that continues from there."""
        if self.recurrent:
            model: Any = self.model
            logits, state = model.prefill(ids)
            return logits, Steps(model, state)
        output = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        cache = getattr(output, "past_key_values", None)
        seen = ids

        def read_again(token: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            seen = torch.cat([seen, token[:, None]], dim=1)
            return self.model(input_ids=seen, use_cache=False, logits_to_keep=1).logits[:, -1]

        def with_cache(token: torch.Tensor) -> torch.Tensor:
            nonlocal cache
            with growing_keys():
                output = self.model(input_ids=token[:, None], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            return output.logits[:, -1]

        return output.logits[:, -1], read_again if cache is None else with_cache

    def _ended(self, row: list[int], until: Sequence[str], *, last: bool) -> Generation | None:
        """Return the answer if its newest token ended it."""
        if row[-1] == self.tokenizer.eos:
            return Generation(list(row), self.tokenizer.decode(row[:-1]), "eos")
        text = self.tokenizer.decode(row)
        if (cut := _before_stop(text, until)) is not None:
            return Generation(list(row), cut, "stop")
        return Generation(list(row), text, "length") if last else None


def load_decoder(source: CheckpointSource, config: ScoreConfig) -> Decoder:
    """Load a checkpoint for decoding."""
    device = str(use_device(config.device))
    check_loadable(source.checkpoint, config.backend, device=device, device_map=config.device_map)
    model = load_model(
        source.checkpoint,
        dtype=DTYPES[resolve_dtype(config.dtype.of(source.name) or "auto", device)],
        device=device,
        backend=config.backend,
        device_map=config.device_map,
    )
    batch_size = 8 if config.batch_size == "auto" else config.batch_size
    return Decoder(model, source.tokenizer, batch_size=batch_size)


class CopyBaseline:
    """Copies what followed the latest earlier occurrence of the prompt's longest repeated suffix.

    An induction head of unbounded length without a model: the score that looking back alone reaches.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def generate(self, prompts: Sequence[Sequence[int]], *, until: Sequence[str], new_tokens: int) -> list[Generation]:
        return [self._copy(list(prompt), until, new_tokens) for prompt in prompts]

    def force(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[None]:
        """Return no log-probs: the baseline has none."""
        return [None for _ in prompts]

    def _copy(self, prompt: list[int], until: Sequence[str], new_tokens: int) -> Generation:
        start = after_repeated_suffix(prompt)
        ids = [] if start is None else prompt[start : start + new_tokens]
        text = self.tokenizer.decode(ids)
        cut = _before_stop(text, until)
        return Generation(ids, text, "length") if cut is None else Generation(ids, cut, "stop")


def _before_stop(text: str, until: Sequence[str]) -> str | None:
    """Return ``text`` up to the first stop sequence in it; None without one."""
    cuts = [at for stop in until if stop and (at := text.find(stop)) >= 0]
    return text[: min(cuts)] if cuts else None


def after_repeated_suffix(prompt: list[int]) -> int | None:
    """Find the position after the latest earlier occurrence of the longest repeated suffix; None if nothing repeats."""
    longest, position = 0, None
    for end in range(len(prompt) - 1, 0, -1):
        length = 0
        while length < end and prompt[end - 1 - length] == prompt[-1 - length]:
            length += 1
        if length > longest:
            longest, position = length, end
    return position


def by_length(sequences: Sequence[Sequence[int]], batch_size: int, *, within: int = 0) -> Iterator[list[int]]:
    """Yield indices in batches, longest first, so that a batch that does not fit in memory fails at once.

    Sorted by length, neighbours in a batch differ by at most ``within``.
    """
    batch: list[int] = []
    for k in sorted(range(len(sequences)), key=lambda k: -len(sequences[k])):
        if batch and (len(batch) == batch_size or len(sequences[batch[-1]]) - len(sequences[k]) > within):
            yield batch
            batch = []
        batch.append(k)
    if batch:
        yield batch
