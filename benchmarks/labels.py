"""Measure tokens per second of the copy labels (`argap.tokens.copies`), repeated bigrams and all labels on one core.

    python benchmarks/labels.py [--data FILE] [--tokenizer DIR] [--rounds N] [--json FILE]

Text: FILE in packed windows, of 2,048 tokens for the comparison with `argap.tokens.labels.find_repeats` and with all
labels of `argap.tokens.labels.label` without an index, which include both, and of other lengths. Then text on which
simple methods take quadratic time: one token, random bits, a Fibonacci word, and blocks of 1,000 tokens repeated with
errors; and random ids. The passes alternate; a rate is the tokens of a pass over its least CPU seconds, which depend
less on other load than wall time. Both passes must find the same repeated bigrams.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measured import parser, save, timed

if TYPE_CHECKING:
    import numpy as np

SHARED = Path("../shared/data")
LENGTH = 2048
LENGTHS = (128, 512, 8192, 32_768, 131_072)
CONSTRUCTED = 2**20


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=SHARED / "corpus" / "validation-00000-of-00001.parquet")
    options.add_argument("--tokenizer", default=str(SHARED / "gpt2"))
    options.add_argument("--rounds", type=int, default=7)
    arguments = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import numpy as np

    from argap.corpus import open_corpus
    from argap.evaluation.windows import build_evaluation_set
    from argap.text.tokenizer import load_tokenizer
    from argap.tokens.copies import find_copies
    from argap.tokens.labels import find_repeats, label

    tokenizer = load_tokenizer(arguments.tokenizer)
    data = build_evaluation_set(open_corpus(str(arguments.data)), tokenizer, seq_len=LENGTH)

    def copies_of(tokens: np.ndarray, length: int, eos: int | None = None) -> Callable[[], Any]:
        offsets = np.append(np.arange(0, len(tokens), length), len(tokens))
        return lambda: find_copies(tokens, offsets, eos)

    passes = {
        "copies": copies_of(data.tokens, LENGTH, data.eos),
        "repeats": lambda: find_repeats(data),
        "label": lambda: label(data),
    }
    rates = rates_of(passes, len(data.tokens), arguments.rounds)
    assert np.array_equal(passes["copies"]().match_length > 0, passes["repeats"]().repeated)
    lengths = {length: copies_of(data.tokens, length, data.eos) for length in LENGTHS}
    of_lengths = rates_of(lengths, len(data.tokens), arguments.rounds)
    constructed = {
        f"{name}, windows of {length:,}": copies_of(tokens, length)
        for name, tokens in constructed_texts().items()
        for length in (LENGTH, CONSTRUCTED)
    }
    of_constructed = rates_of(constructed, CONSTRUCTED, arguments.rounds)
    report = {
        "tokens": len(data.tokens),
        "window": LENGTH,
        "million_tokens_per_cpu_second": rates,
        "copies_over_repeats": round(rates["copies"] / rates["repeats"], 2),
        "share_of_label": round(rates["label"] / rates["copies"], 2),
        "by_window": of_lengths,
        "constructed": of_constructed,
    }
    for name, value in report.items():
        print(name, value)
    save(arguments.json, ("argap", "numba", "numpy"), **report)


def constructed_texts() -> dict[str, np.ndarray]:
    """Construct texts, int32 tokens ``[2²⁰]``, by name."""
    import numpy as np

    random = np.random.default_rng(0)
    shorter, word = np.array([0]), np.array([0, 1])
    while len(word) < CONSTRUCTED:
        shorter, word = word, np.concatenate([word, shorter])
    blocks = np.tile(np.arange(1000), CONSTRUCTED // 1000 + 1)[:CONSTRUCTED]
    blocks[random.integers(0, CONSTRUCTED, CONSTRUCTED // 500)] = 1000
    texts = {
        "one token": np.zeros(CONSTRUCTED),
        "random bits": random.integers(0, 2, CONSTRUCTED),
        "random ids below 256,000": random.integers(0, 256_000, CONSTRUCTED),
        "Fibonacci word": word[:CONSTRUCTED],
        "repeated blocks with errors": blocks,
    }
    return {name: tokens.astype(np.int32) for name, tokens in texts.items()}


def rates_of(passes: dict[Any, Callable[[], Any]], tokens: int, rounds: int) -> dict[Any, float]:
    """Measure millions of tokens per CPU second of each pass over ``tokens``, after one that compiles."""
    best = dict.fromkeys(passes, float("inf"))
    for work in passes.values():
        work()
    for _ in range(rounds):
        for name, work in passes.items():
            best[name] = min(best[name], timed(work)[0].cpu)
    return {name: round(tokens / seconds / 1e6, 2) for name, seconds in best.items()}


if __name__ == "__main__":
    main()
