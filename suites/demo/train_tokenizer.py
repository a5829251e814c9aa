"""Train the demo's tokenizer: byte-level BPE, 8,192 entries, on the demo's own training text.

    python suites/demo/train_tokenizer.py --out argap/demo/tokenizer stdlib:train CORPUS...

Sources are read in the given order; repeat one to double its weight. Training is deterministic.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from argap.corpus import open_corpus
from argap.corpus.document import TextDocument

VOCABULARY = 8192
END_OF_TEXT = "<|endoftext|>"


def texts(sources: list[str]) -> Iterator[str]:
    for source in sources:
        for document in open_corpus(source):
            if isinstance(document, TextDocument):
                yield document.text


def train(sources: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts(sources), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train(arguments.sources).save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
