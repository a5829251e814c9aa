"""Why a recall succeeded or failed: what stood where, and how likely the gold was token by token."""

from itertools import pairwise
from typing import Any

import numpy as np

from argap.bigram_index.store import BigramIndex
from argap.recall.decoding import Forced, Generation
from argap.recall.examples import Example
from argap.recall.prompts import Prompt
from argap.recall.protocol import contains, whole_word
from argap.tokenizer import Tokenizer


def gold_ids(example: Example, tokenizer: Tokenizer) -> list[int]:
    """The tokens of the gold as they would follow the query: after a space."""
    return tokenizer.encode([f" {example.gold}"])[0].tolist()


def explain(
    row: int,
    example: Example,
    prompt: Prompt,
    generation: Generation,
    gold: list[int],
    forced: Forced | None,
    tokenizer: Tokenizer,
    counts: BigramIndex | None,
    threshold: int,
) -> dict[str, Any]:
    """One row of the samples; ``forced``: of the gold after the prompt, None for what has no log-probs."""
    repeated, trained = repeats_of_gold(prompt.ids, gold), None
    if counts is not None:
        before = np.array([prompt.ids[-1], *gold[:-1]])
        trained = counts.count(before, np.array(gold)).tolist()
    return {
        "row": row,
        "id": example.id,
        "document": example.document,
        "key": example.key,
        "gold": example.gold,
        "prompt": tokenizer.decode(prompt.ids),
        "prompt_tokens": len(prompt.ids),
        "truncated_tokens": prompt.truncated,
        "query_position": prompt.query,
        "gold_in_text": prompt.gold_in_text,
        "gold_survived": bool(prompt.golds),
        "gold_positions": [start for start, _ in prompt.golds],
        "distance": prompt.distance,
        "gold_tokens": gold,
        "gold_logprobs": None if forced is None else forced.logprobs,
        "gold_rank": None if forced is None else forced.ranks[0],
        "gold_repeated": repeated,
        "gold_ar_hit": None
        if trained is None
        else [seen and count <= threshold for seen, count in zip(repeated, trained, strict=True)],
        "generation": generation.text,
        "generated_tokens": len(generation.ids),
        "stop": generation.stop,
        "contains": contains(generation.text, example.gold),
        "whole_word": whole_word(generation.text, example.gold),
    }


def repeats_of_gold(prompt: list[int], gold: list[int]) -> list[bool]:
    """Of each token of the gold, whether it ends a bigram that stood before in prompt and gold."""
    whole = [*prompt, *gold]
    bigrams = list(pairwise(whole))
    start = len(prompt) - 1  # of the bigram that the first token of the gold ends
    seen, found = set(bigrams[:start]), []
    for bigram in bigrams[start:]:
        found.append(bigram in seen)
        seen.add(bigram)
    return found
