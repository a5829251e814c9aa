"""Text and token files as sources: shards, kept tokens, resuming after a kill, Megatron files."""

import json
import os
import subprocess
import sys
from copy import copy

import numpy as np
import pytest

from argap.bigram_index.build import build_from_source, tokens_beside
from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.sources import token_cache
from argap.bigram_index.sources.shard import Shard, repeated, unite
from argap.bigram_index.sources.token_source import TokenSource
from argap.corpus import megatron, open_corpus
from argap.errors import ArgapError, FormatError, MismatchError
from argap.text.tokenizer import load_tokenizer
from tests.builders.index import contents, megatron_pair
from tests.conftest import flip_bit, index_of, word_tokenizer

WORDS = ["</s>", *(f"w{i}" for i in range(40))]
RNG = np.random.default_rng(4)
DOCUMENTS = [RNG.zipf(1.4, n).clip(max=40) for n in (5, 1, 0, 300, 2, 77, 0, 0, 130, 9, 4, 50)]  # no EOS (0)


@pytest.fixture
def tokenizer(tmp_path):
    word_tokenizer(WORDS, unknown="</s>", eos="</s>").save(tmp_path / "words")
    return load_tokenizer(tmp_path / "words")


@pytest.fixture
def text(tmp_path):
    lines = [json.dumps({"text": " ".join(WORDS[i] for i in d)}) + "\n" for d in DOCUMENTS]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    return tmp_path / "text.jsonl"


def from_source(tokenizer, out, *specs, shard="0/1", **options):
    corpora = [open_corpus(spec, token_dtype=options.pop("token_dtype", None)) for spec in specs]
    return build_from_source(TokenSource(corpora, tokenizer, Shard.parse(shard)), out, **options)


def from_documents(tokenizer, out, documents, sources):
    return index_of(documents, out, tokenizer, sources=[str(s) for s in sources])


@pytest.fixture
def whole(tokenizer, text, tmp_path):
    return contents(from_documents(tokenizer, tmp_path / "whole", DOCUMENTS, [text]).folder)


def stream(documents):
    return np.concatenate([np.append(d, 0) for d in documents]).astype(np.uint16)


def test_text_equals_its_documents(tokenizer, text, tmp_path, whole):
    assert contents(from_source(tokenizer, tmp_path / "index", text).folder) == whole


@pytest.mark.parametrize("of", [2, 3, 5])
def test_shards_of_text_merge_to_the_whole(of, tokenizer, text, tmp_path, whole):
    shards = [from_source(tokenizer, tmp_path / f"{i}", text, shard=f"{i}/{of}").folder for i in range(of)]
    assert contents(merge_indexes(shards[::-1], tmp_path / "merged").folder) == whole


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shards_of_a_token_file_merge_to_the_whole(of, tokenizer, tmp_path):
    path = tmp_path / "tokens.bin"
    stream(DOCUMENTS).tofile(path)
    filled = [d for d in DOCUMENTS if len(d)]  # two EOS in a row are no document
    whole = contents(from_documents(tokenizer, tmp_path / "whole", filled, [path]).folder)
    # A document of half the file leaves some shards without a beginning; they are empty.
    shards = [from_source(tokenizer, tmp_path / f"{i}", path, shard=f"{i}/{of}").folder for i in range(of)]
    assert contents(merge_indexes(shards, tmp_path / "merged").folder) == whole


def test_merging_only_empty_shards_is_refused(tokenizer, text, tmp_path):
    empty = from_source(tokenizer, tmp_path / "empty", text, shard="2/500")  # of document 2, which is empty
    assert (empty.tokens, empty.manifest.empty_documents, empty.distinct) == (0, 1, 0)
    assert empty.count([1], [2]).tolist() == [0]
    with pytest.raises(ArgapError, match="no tokens in any"):
        merge_indexes([empty.folder], tmp_path / "merged")


def test_shards_end_at_document_boundaries():
    tokens = np.array([5, 6, 0, 7, 0, 0, 8, 9, 9, 9])
    pieces = [Shard(i, 3).cut(tokens, 0).tolist() for i in range(3)]  # nominally [:3], [3:6], [6:]
    assert pieces == [[5, 6, 0], [7, 0, 0], [8, 9, 9, 9]]
    assert np.concatenate([Shard(i, 10).cut(tokens, 0) for i in range(10)]).tolist() == tokens.tolist()


def test_shard_is_parsed():
    assert Shard.parse("2/3") == Shard(2, 3)
    for text in ("3/3", "1", "-1/2", "a/b", "1/2/3"):
        with pytest.raises(ArgapError, match="expected I/N"):
            Shard.parse(text)


def test_all_shards_together_are_the_source():
    assert unite(["b", "a#1/2", "a#0/2"]) == ["a", "b"]
    assert unite(["a#0/2", "a#0/2", "a#1/2"]) == ["a", "a#0/2"]
    assert unite(["a#0/2", "c#1/2"]) == ["a#0/2", "c#1/2"]
    assert repeated(["a", "b", "a"]) == ["a"]


def test_kept_tokens_are_readable_and_give_the_same_index(tokenizer, text, tmp_path, whole, monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_TOKENS", 100)
    index = from_source(tokenizer, tmp_path / "index", text, keep=True)
    assert contents(index.folder) == whole
    folder = tokens_beside(index.folder)
    shards = sorted(folder.glob("*.bin"))
    assert len(shards) > 2
    np.testing.assert_array_equal(
        np.concatenate([np.fromfile(s, "<u2") for s in shards]), stream([d for d in DOCUMENTS if len(d)])
    )
    again = from_source(tokenizer, tmp_path / "again", folder)  # the corpus reader reads them too
    assert (again.tokens, again.bigrams, again.documents) == (index.tokens, index.bigrams, index.documents)


def test_kept_tokens_are_not_tokenized_again(tokenizer, text, tmp_path, whole, monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_TOKENS", 100)
    index = from_source(tokenizer, tmp_path / "index", text, keep=True)
    monkeypatch.setattr(type(tokenizer), "encode", None)  # would raise
    assert contents(from_source(tokenizer, index.folder, text, keep=True, overwrite=True).folder) == whole


def test_kept_tokens_of_other_text_are_refused(tokenizer, text, tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_TOKENS", 100)
    out = tmp_path / "index"
    from_source(tokenizer, out, text, keep=True)
    (tmp_path / "other.txt").write_text("w1 w2")
    with pytest.raises(MismatchError, match=r"index\.tokens/index\.json: tokens kept with sources"):
        from_source(tokenizer, out, tmp_path / "other.txt", keep=True, overwrite=True)
    shard = tokens_beside(out) / "shard-00001.bin"
    flip_bit(shard, 3)
    with pytest.raises(FormatError, match=r"shard-00001\.bin: damaged"):
        from_source(tokenizer, out, text, keep=True, overwrite=True)


def test_keeping_needs_an_eos(tokenizer, text, tmp_path):
    tokenizer = copy(tokenizer)
    tokenizer.eos = None
    with pytest.raises(ArgapError, match="no EOS"):
        from_source(tokenizer, tmp_path / "index", text, keep=True)


def test_a_repeatedly_killed_build_gives_the_same_bytes(tokenizer, text, tmp_path, whole):
    out = tmp_path / "index"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from argap.bigram_index import build\n"
        "from argap.bigram_index.sources import token_cache, token_source\n"
        "from argap.corpus import open_corpus\n"
        "from argap.text.tokenizer import load_tokenizer\n"
        "token_cache.SHARD_TOKENS = 100\n"
        "write = token_cache.write_record\n"
        "def slowly(path, value):\n"
        "    write(path, value); print('shard', flush=True); sys.stdin.readline()\n"
        "token_cache.write_record = slowly\n"
        "made = token_source.TokenSource([open_corpus(sys.argv[1])], load_tokenizer(sys.argv[2]))\n"
        "build.build_from_source(made, Path(sys.argv[3]), keep=True)\n"
        "print('done', flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(text), str(tmp_path / "words"), str(out)]
    for _ in range(2):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "shard\n"  # it waits for a line now
            child.kill()
    again = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    assert again.stdout.endswith("done\n")
    written = contents(out)
    # The tokenizer's and the text's paths are those of the undisturbed run.
    assert written == whole


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.int32, 4)])
@pytest.mark.parametrize("of", [1, 3])
def test_a_megatron_pair_is_read(dtype, code, of, tokenizer, tmp_path):
    # Two samples of 5 that overlap by a token, EOS 0 inside: documents 1 2 | 3 4 and 4 | 5 6 | (nothing) and 7.
    sequences = [[1, 2, 0, 3, 4], [4, 0, 5, 6, 0], [7]]
    path = tmp_path / "pile.bin"
    megatron_pair(path, [np.array(s) for s in sequences], dtype, code)
    documents = [np.array(d) for d in ([1, 2], [3, 4], [4], [5, 6], [7])]
    whole = from_documents(tokenizer, tmp_path / "whole", documents, [path])
    shards = [from_source(tokenizer, tmp_path / f"{i}", path, shard=f"{i}/{of}").folder for i in range(of)]
    assert contents(merge_indexes(shards, tmp_path / "merged").folder) == contents(whole.folder)


def test_broken_megatron_pairs_are_named(tokenizer, tmp_path):
    path = tmp_path / "pile.bin"
    megatron_pair(path, [np.array([1, 2, 3])] * 4)
    index = path.with_suffix(".idx")
    data = index.read_bytes()
    for broken, message in [
        (data[:-3], r"pile\.idx: .* bytes, its header announces"),
        (data[:20], r"pile\.idx: truncated at byte 20"),
        (data[:9] + b"\x07" + data[10:], r"pile\.idx: version 7"),
    ]:
        index.write_bytes(broken)
        with pytest.raises(FormatError, match=message):
            from_source(tokenizer, tmp_path / "index", path)
    index.write_bytes(data)
    os.truncate(path, 10)
    with pytest.raises(FormatError, match=r"pile\.bin: 5 tokens, but pile\.idx points to token 12"):
        megatron.open_sequences(path)


def test_token_outside_the_vocabulary_names_its_file(tokenizer, tmp_path):
    np.array([1, 2, 99], dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    with pytest.raises(FormatError, match=r"tokens\.bin: token 99 is outside the vocabulary of 41"):
        from_source(tokenizer, tmp_path / "index", tmp_path / "tokens.bin")


def test_text_and_token_files_can_be_mixed(tokenizer, text, tmp_path):
    path = tmp_path / "more.bin"
    stream([np.array([1, 2, 3]), np.array([4, 5])]).tofile(path)
    index = from_source(tokenizer, tmp_path / "index", path, text)
    documents = [*DOCUMENTS, np.array([1, 2, 3]), np.array([4, 5])]
    whole = from_documents(tokenizer, tmp_path / "whole", documents, [path, text])
    assert contents(index.folder) == contents(whole.folder)


def test_token_file_without_eos_is_one_document_of_the_first_shard(tokenizer, tmp_path):
    tokenizer = copy(tokenizer)
    tokenizer.eos = None
    np.array([1, 2, 3, 0, 4], dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    shards = [from_source(tokenizer, tmp_path / f"{i}", tmp_path / "tokens.bin", shard=f"{i}/2") for i in range(2)]
    assert [share.tokens for share in shards] == [5, 0]
    assert shards[0].documents == 1
