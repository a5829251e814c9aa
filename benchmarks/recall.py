"""Time to generate 48 tokens after prompts of about 1,000: argap's decoder against lm-eval's transformers model.

    python benchmarks/recall.py [--checkpoints DIR ...] [--prompts 4] [--tokens 48] [--length 970]

Both decode greedily, with the same float32 weights and prompts and without a stop sequence, first one prompt at a time,
then in one batch. Prints seconds (the better of two rounds), their ratio, and the number of equal answers, which should
be all. The demo's convolutions take at most 1,024 positions, so prompts have 970 tokens by default.
"""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from measured import DEMO, parser, save, timed
from transformers import AutoTokenizer

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.recall.decoding import Decoder
from argap.recall.fixture import fixture_rows
from argap.recall.lm_eval_model import ArgapLM
from argap.text.tokenizer import load_tokenizer, tokenizer_folder


def prompts_of(folder: Path, count: int, length: int) -> list[str]:
    """Cut prompts of exactly ``length`` tokens from the concatenated texts of the fixture."""
    tokenizer = load_tokenizer(folder)
    texts = []
    for seed in range(count):
        text = "\n\n".join(row["text"] for row in fixture_rows("fda", rows=40, seed=seed))
        ids = tokenizer.encode([text])[0]
        cut = next(
            tokenizer.decode(ids[k : k + length]) for k in range(len(ids)) if _round_trips(tokenizer, ids, k, length)
        )
        texts.append(cut)
    return texts


def _round_trips(tokenizer: Any, ids: Any, start: int, length: int) -> bool:
    """Return whether a span of tokens survives decoding and re-encoding."""
    part = ids[start : start + length]
    return tokenizer.encode([tokenizer.decode(part)])[0].tolist() == part.tolist()


def best_of_two(lm: Any, prompts: list[str], tokens: int) -> tuple[float, list[str]]:
    options = {"until": [], "max_gen_toks": tokens, "do_sample": False}
    requests = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(options)), idx=0) for prompt in prompts
    ]
    seconds, answers = [], []
    for _ in range(2):
        with contextlib.redirect_stderr(io.StringIO()):
            took, answers = timed(lambda: lm.generate_until(requests))
        seconds.append(took.wall)
    return min(seconds), answers


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--checkpoints", nargs="*", type=Path, default=sorted((DEMO / "checkpoints").iterdir()))
    flags.add_argument("--prompts", type=int, default=4)
    flags.add_argument("--tokens", type=int, default=48)
    flags.add_argument("--length", type=int, default=970)
    arguments = flags.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {arguments.prompts} prompts of "
        f"{arguments.length} tokens, {arguments.tokens} new tokens"
    )
    rows = []
    for folder in arguments.checkpoints:
        model = load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu")
        prompts = prompts_of(folder, arguments.prompts, arguments.length)
        peer_class: Any = HFLM
        stock_tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(folder))
        for batch in sorted({1, arguments.prompts}):
            own = ArgapLM(Decoder(model, load_tokenizer(folder), batch_size=batch), folder.name)
            peer = peer_class(pretrained=model, tokenizer=stock_tokenizer, batch_size=batch)
            seconds, answers = best_of_two(own, prompts, arguments.tokens)
            theirs, expected = best_of_two(peer, prompts, arguments.tokens)
            agree = sum(a == b for a, b in zip(answers, expected, strict=True))
            rows.append({"model": folder.name, "batch": batch, "argap_s": seconds, "lm_eval_s": theirs, "same": agree})
            print(
                f"{folder.name}, batch {batch}: argap {seconds:.2f} s, lm-eval {theirs:.2f} s, "
                f"{theirs / seconds:.1f} times; {agree} of {len(answers)} answers the same"
            )
    save(arguments.json, ("torch", "transformers", "lm_eval"), rows=rows)


if __name__ == "__main__":
    main()
