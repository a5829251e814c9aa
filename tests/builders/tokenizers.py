"""Small tokenizers of several kinds, trained in a moment."""

import numpy as np

from argap.text.tokenizer import Tokenizer

# Texts with characters of one to four bytes, white space at both ends, and characters that some tokenizers drop.
TEXTS = [
    "the cat sat on the mat.\n\nThe Cat  sat; x = 1\t",
    "héllo wörld … 日本語 the 😀 end ",
    " a",
    "Ångström naïve café\u200b e\u0301 ﬁn 12345",
]
WORDS = ["the cat sat on the mat", "hello world naive cafe", "the 日本語 wörld héllo", "x = 1; return 12345"]


def byte_level(seed: int, entries: int) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(seed % 2))
    backend.post_processor = processors.ByteLevel(trim_offsets=True)  # as GPT-2's
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=257 + entries,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<e>"],
        show_progress=False,
    )
    backend.train_from_iterator(drawn_words(seed), trainer)
    return Tokenizer(backend, name=f"byte-level {seed}", eos=0)


def byte_fallback(seed: int, entries: int) -> Tokenizer:
    """As Llama's: a space before the text, ``▁`` for spaces, bytes for unknown characters."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, trainers

    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        drawn_words(seed),
        trainers.BpeTrainer(vocab_size=len(special) + entries, special_tokens=special, show_progress=False),
    )
    return Tokenizer(backend, name=f"byte fallback {seed}", eos=0)


def word_piece(seed: int, entries: int) -> Tokenizer:
    """As BERT's: lower case, accents and white space dropped, whole words unknown."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=60 + entries, special_tokens=["[SEP]", "[UNK]"], show_progress=False)
    backend.train_from_iterator([*drawn_words(seed), *(TEXTS if seed % 2 else ())], trainer)
    return Tokenizer(backend, name=f"word piece {seed}", eos=0)


def unigram(seed: int, entries: int) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60 + entries, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([*drawn_words(seed), *TEXTS], trainer)
    return Tokenizer(backend, name=f"unigram {seed}", eos=0)


def characters(seed: int, entries: int) -> Tokenizer:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    known = sorted(set("".join(TEXTS)))[seed % 3 :: 1 + seed % 3]
    vocabulary = {"</s>": 0, "[UNK]": 1} | {c: 2 + k for k, c in enumerate(known)}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, name=f"characters {seed}", eos=0)


FAMILIES = (byte_level, byte_fallback, word_piece, unigram, characters)


def drawn_words(seed: int) -> list[str]:
    return np.random.default_rng(seed).permutation(WORDS * 3).tolist()
