"""Greedy decoding in batches of equal prompt length, and log-probs of given continuations.

Prompts are never padded on the left, because a recurrent state would read the padding as text. A native model reads
the prompt in parallel and then uses its recurrent step, in constant memory if its mixers allow; other models use
their cache; a model without either reads the whole sequence again for each token.

Legend: B batch, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from argap.device import growing_keys
from argap.errors import ArgapError
from argap.heads import find_head, of_targets
from argap.models.modeling import ArgapForCausalLM
from argap.tokenizer import Tokenizer

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
    """How many tokens come before, more likely or of lower id where equally likely: 0 is the model's own choice."""


class Decoder:
    """A loaded model and its tokenizer."""

    def __init__(self, model: "PreTrainedModel", tokenizer: Tokenizer, *, batch_size: int = 8) -> None:
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.recurrent = isinstance(model, ArgapForCausalLM) and all(b.mixer.recurrent for b in model.model.blocks)
        probe = torch.arange(min(PROBE_TOKENS, tokenizer.vocab_size), device=model.device)[None]
        with torch.inference_mode():
            self.head = find_head(model, probe)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], *, until: Sequence[str], new_tokens: int) -> list[Generation]:
        """The greedy continuation of each prompt, up to the first of ``until``, EOS, or ``new_tokens``."""
        generations: dict[int, Generation] = {}
        for batch in equal_lengths(prompts, self.batch_size):
            ids = torch.tensor([list(prompts[k]) for k in batch], device=self.model.device)
            generations.update(zip(batch, self._continue(ids, until, new_tokens), strict=True))
        return [generations[k] for k in range(len(prompts))]

    @torch.inference_mode()
    def force(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[Forced]:
        """Log-prob and rank of each token of the continuations, given everything before it; none may be empty.

        Raises `ArgapError` where a log-prob is NaN or infinite.
        """
        forced: dict[int, Forced] = {}
        whole = [[*p, *c] for p, c in zip(prompts, continuations, strict=True)]
        for batch in equal_lengths(whole, self.batch_size):
            inputs = [whole[k][:-1] for k in batch]  # the last token is only a target
            ids = torch.tensor(inputs, device=self.model.device)
            hidden = None
            if self.head is not None:
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

    def _continue(self, ids: torch.Tensor, until: Sequence[str], new_tokens: int) -> Iterator[Generation]:
        """The answers to one batch of prompts ``[B, T]``; it runs until every row has stopped."""
        rows: list[list[int]] = [[] for _ in ids]
        ends: list[Generation | None] = [None] * len(rows)
        logits, following = self._begin(ids)
        for count in range(1, new_tokens + 1):
            chosen = logits.argmax(dim=-1)
            for row, token in enumerate(chosen.tolist()):
                if ends[row] is None:
                    rows[row].append(token)
                    ends[row] = self._ended(rows[row], until, last=count == new_tokens)
            if all(end is not None for end in ends):
                break
            logits = following(chosen)
        for row, end in zip(rows, ends, strict=True):
            yield end or Generation(row, self.tokenizer.decode(row), "length")

    def _begin(self, ids: torch.Tensor) -> tuple[torch.Tensor, Next]:
        """The logits after the prompt, and the function that continues from there."""
        if self.recurrent:
            return self._begin_recurrent(ids)
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

    def _begin_recurrent(self, ids: torch.Tensor) -> tuple[torch.Tensor, Next]:
        model: Any = self.model
        logits, state = model.prefill(ids)

        def step(token: torch.Tensor) -> torch.Tensor:
            nonlocal state
            logits, state = model.step(token, state)
            return logits

        return logits, step

    def _ended(self, row: list[int], until: Sequence[str], *, last: bool) -> Generation | None:
        """The answer if its newest token ended it."""
        if row[-1] == self.tokenizer.eos:
            return Generation(list(row), self.tokenizer.decode(row[:-1]), "eos")
        text = self.tokenizer.decode(row)
        if (cut := _before_stop(text, until)) is not None:
            return Generation(list(row), cut, "stop")
        return Generation(list(row), text, "length") if last else None


class CopyBaseline:
    """Copies what followed the latest earlier occurrence of the prompt's longest repeated suffix.

    An induction head of unbounded length without a model: the score that looking back alone reaches.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def generate(self, prompts: Sequence[Sequence[int]], *, until: Sequence[str], new_tokens: int) -> list[Generation]:
        return [self._copy(list(prompt), until, new_tokens) for prompt in prompts]

    def _copy(self, prompt: list[int], until: Sequence[str], new_tokens: int) -> Generation:
        start = after_repeated_suffix(prompt)
        ids = [] if start is None else prompt[start : start + new_tokens]
        text = self.tokenizer.decode(ids)
        cut = _before_stop(text, until)
        return Generation(ids, text, "length") if cut is None else Generation(ids, cut, "stop")


def _before_stop(text: str, until: Sequence[str]) -> str | None:
    """``text`` up to the first stop sequence in it; None without one."""
    cuts = [at for stop in until if stop and (at := text.find(stop)) >= 0]
    return text[: min(cuts)] if cuts else None


def after_repeated_suffix(prompt: list[int]) -> int | None:
    """The position after the latest earlier occurrence of the longest repeated suffix; None if nothing repeats."""
    longest, position = 0, None
    for end in range(len(prompt) - 1, 0, -1):
        length = 0
        while length < end and prompt[end - 1 - length] == prompt[-1 - length]:
            length += 1
        if length > longest:
            longest, position = length, end
    return position


def equal_lengths(sequences: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of one length, longest first: a batch that does not fit in memory fails at once."""
    by_length: dict[int, list[int]] = {}
    for k, sequence in enumerate(sequences):
        by_length.setdefault(len(sequence), []).append(k)
    for length in sorted(by_length, reverse=True):
        members = by_length[length]
        for start in range(0, len(members), batch_size):
            yield members[start : start + batch_size]
