"""Write the zoo suite's toy text and its tokenizer of 64 words to ``runs/zoo``, in a second.

    python suites/zoo/make_text.py

Each document assigns every name a value, then uses names and values in sentences of fixed words. In 50 steps a model
learns the words; the values are left to recall.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from argap.files.atomic import replacing

FOLDER = Path("runs/zoo")
NAMES = [f"name{k}" for k in range(20)]
VALUES = [f"value{k}" for k in range(20)]
SENTENCE = "the {} is {} and then we see that {} ."
WORDS = ["the", "is", "and", "then", "we", "see", "that", "."]
END = "<end>"
SPLITS = {"train": 400, "heldout": 40}
"""Number of documents in each part."""
SENTENCES = 12


def document(random: np.random.Generator) -> str:
    """One document, in which every name keeps its value; other documents assign other values."""
    means = dict(zip(NAMES, random.permutation(VALUES), strict=True))
    used = random.choice(NAMES, 4, replace=False)
    said = random.choice(used, (SENTENCES, 2))
    return " ".join(SENTENCE.format(one, means[one], f"{other} {means[other]}") for one, other in said)


def main() -> None:
    vocabulary = {word: k for k, word in enumerate([END, *WORDS, *NAMES, *VALUES])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    (FOLDER / "tokenizer").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer" / "tokenizer.json"))
    (FOLDER / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    random = np.random.default_rng(0)
    for name, documents in SPLITS.items():
        with replacing(FOLDER / "text" / f"{name}.jsonl") as temporary:
            temporary.write_text("".join(json.dumps({"text": document(random)}) + "\n" for _ in range(documents)))


if __name__ == "__main__":
    main()
