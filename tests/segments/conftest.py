"""Small tokenizers of several kinds, trained in a moment, and models with some of them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from transformers import GPT2Config, LlamaConfig

from argap.records import EvaluationSpec
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.text.tokenizer import Tokenizer
from tests.conftest import index_of, save_model

SEQ_LEN = 40
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


def llama(vocab: int, positions: int = 64) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=positions,
    )


def gpt2(vocab: int) -> GPT2Config:
    return GPT2Config(vocab_size=vocab, n_embd=16, n_layer=1, n_head=2, n_positions=64)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A GPT-2 and two Llamas with tokenizers of their own, text of several documents, an index in GPT-2's tokens."""
    place = tmp_path_factory.mktemp("place")
    of_gpt2, of_llama, words = byte_level(0, 40), byte_fallback(2, 45), word_piece(0, 100)
    save_model(place / "gpt2", gpt2(of_gpt2.vocab_size), of_gpt2, 0)
    save_model(place / "gpt2-b", gpt2(of_gpt2.vocab_size), of_gpt2, 3)
    save_model(place / "llama", llama(of_llama.vocab_size), of_llama, 12)
    save_model(place / "bert", llama(words.vocab_size, 24), words, 2)
    texts = [
        "the cat sat on the mat. hello wörld, 日本語 the cat sat on the hat \n",
        "return 12345; x = 1; the mat, the cat … naïve café the cat sat ",
        "hello world hello world 😀 hello world on the cat; on the mat",
    ]
    for domain in ("a", "b"):
        (place / "text" / domain).mkdir(parents=True)
    for k in range(8):
        (place / "text" / "ab"[k % 2] / f"{k}.txt").write_text(" ".join(texts[(k + j) % 3] for j in range(1 + k % 3)))
    index_of(of_gpt2.encode(["the cat sat on the mat " * 3, "hello world"]), place / "index", of_gpt2)
    return place


def spec(place: Path, **changed) -> EvaluationSpec:
    return EvaluationSpec(**{"data": (str(place / "text"),), "seq_len": SEQ_LEN, "packing": "packed", **changed})


@pytest.fixture(scope="module", autouse=True)
def _examples_of_random_weights():
    """Random weights know no hit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.results.example_windows.KNOWN", 0.0)
        yield


@pytest.fixture(scope="module")
def scored(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    gap = score_models(
        [str(place / "llama")],
        str(place / "gpt2"),
        out,
        ScoreConfig(text=spec(place), index=str(place / "index"), threshold=2),
    )
    return out, gap


def numbers(gap) -> list:
    """All figures of a result, by model."""
    return [[msgspec.structs.astuple(each) for each in gap.estimates if each.model == model] for model in gap.models]
