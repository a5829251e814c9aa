"""Build the tokenizer of a GGUF file.

Byte-level BPE is built here, with the pre-tokenizer that the file names; transformers converts SentencePiece's.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from argap.checkpoints.gguf.header import Header, check_gguf, read_header
from argap.checkpoints.gguf.pre_tokenizers import pre_tokenizer, rule_of
from argap.errors import ArgapError, first_line, within
from argap.files.regular import is_there
from argap.text.tokenizer import Tokenizer, load_tokenizer

ADDING_BOS = frozenset(
    (
        *("chameleon", "falcon3", "falcon-h1", "jina-v5-nano", "lfm2", "llama3", "llama-bpe", "llama-v3"),
        *("midm-2.0", "pixtral", "tekken"),
    )
)
"""Pre-tokenizers with which llama.cpp (src/llama-vocab.cpp) puts a BOS before a text unless the file says otherwise."""
KEY = "tokenizer.ggml"
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens: not recognised in text, and recognised before it is cut."""
THEIRS = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
    **{x: x for x in ("scores", "token_type", "merges", "precompiled_charsmap", "bos_token_id", "eos_token_id")},
}
"""transformers' names for the entries of ``tokenizer.ggml`` that it reads."""


@cache
def gguf_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a ``tokenizer.json`` beside the file, else the file's own.

    Raises `ArgapError` for a pre-tokenizer that is not known, and a tokenizer that transformers does not convert.
    """
    check_gguf(path)
    header = read_header(path)
    if is_there(path.parent / "tokenizer.json"):
        made = load_tokenizer(path.parent, name=str(path))
        _follow_rule(made, header.values)
        return made
    tokens = header.read(f"{KEY}.tokens")
    if not tokens:
        raise ArgapError(f"{path}: has no vocabulary; give `tokenizer=T`")
    byte_level = header.values.get(f"{KEY}.model") == "gpt2"
    with within(path):
        backend = _byte_level(header, tokens) if byte_level else _converted(header, tokens)
    _add_tokens(backend, tokens, header.read(f"{KEY}.token_type") or [])
    eos = header.values.get(f"{KEY}.eos_token_id")
    made = Tokenizer(backend, name=str(path), eos=eos if isinstance(eos, int) and eos < len(tokens) else None)
    _follow_rule(made, header.values)
    if made.adds_bos and made.bos is not None:
        backend.post_processor = _adding(made.bos, tokens[made.bos])
        made.before = (made.bos,)
    return made


def _follow_rule(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    """Give ``tokenizer`` the BOS of a file, and its rule for it: the one written there, else llama.cpp's default."""
    bos = values.get(f"{KEY}.bos_token_id", tokenizer.bos)
    model, pre = values.get(f"{KEY}.model"), values.get(f"{KEY}.pre")
    rule = values.get(f"{KEY}.add_bos_token", model in ("llama", "bert") or pre in ADDING_BOS)
    if isinstance(bos, int) and 0 <= bos < tokenizer.vocab_size:
        tokenizer.bos, tokenizer.adds_bos = bos, bool(rule)


def _adding(bos: int, spelled: str) -> Any:
    """Return the post-processor that puts ``bos`` before a text, for others that read the tokenizer."""
    from tokenizers.processors import TemplateProcessing

    # Under a name of its own in the template, whose syntax has "$" and ":".
    token: Any = {"id": "<bos>", "ids": [bos], "tokens": [spelled]}
    return TemplateProcessing(single=["<bos>", "$A"], pair=["<bos>", "$A", "$B"], special_tokens=[token])


def _byte_level(header: Header, tokens: list[str]) -> Any:
    """Build byte-level BPE. llama.cpp's rule for a file that names no pre-tokenizer is ``default``."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    rule = rule_of(str(header.values.get(f"{KEY}.pre", "default")))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in header.read(f"{KEY}.merges") or ()]
    try:
        backend: Any = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.whole))  # pyright: ignore[reportArgumentType]
    except Exception as error:  # the Rust library raises plain Exceptions
        raise ArgapError(f"its vocabulary and merges do not fit ({first_line(error)}); give `tokenizer=T`") from None
    backend.pre_tokenizer = pre_tokenizer(rule)
    backend.decoder = decoders.ByteLevel()
    return backend


def _converted(header: Header, tokens: list[str]) -> Any:
    """Let transformers convert another tokenizer. Raises `ArgapError` if it does not."""
    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer  # pyright: ignore[reportPrivateImportUsage]
    except ImportError:  # before version 5.20
        from transformers.integrations.ggml import convert_gguf_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    found = {THEIRS[name]: value for name in THEIRS if (value := header.values.get(f"{KEY}.{name}")) is not None}
    for name in THEIRS:
        if (listed := header.read(f"{KEY}.{name}")) is not None:
            found[THEIRS[name]] = listed
    try:
        return convert_gguf_tokenizer(header.architecture, found | {"tokens": tokens})[0]
    except Exception as error:  # it raises whatever the entries lead to
        raise ArgapError(
            f"transformers does not convert its tokenizer ({first_line(error)}); give `tokenizer=T`"
        ) from None


def _add_tokens(backend: Any, tokens: list[str], types: list[int]) -> None:
    """Add the tokens that are not made of merges."""
    from tokenizers import AddedToken

    known = backend.get_added_tokens_decoder()
    new = [
        (i, kind) for i, kind in enumerate(types[: len(tokens)]) if kind in (CONTROL, USER_DEFINED) and i not in known
    ]
    for chosen, add in ((CONTROL, backend.add_special_tokens), (USER_DEFINED, backend.add_tokens)):
        spelled = [backend.id_to_token(i) or tokens[i] for i, kind in new if kind == chosen]
        add([AddedToken(token, normalized=False, special=chosen == CONTROL) for token in spelled])
