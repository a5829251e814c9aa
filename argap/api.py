"""The functions of the package ``argap``: the command line is one client of them, a notebook another."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from argap.errors import ArgapError
from argap.metric.threshold import PAPER_THRESHOLD, Threshold
from argap.records import Packing
from argap.result import Result, open_result

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from argap.bigram_index.store import BigramIndex
    from argap.scoring.config import ScoreConfig
    from argap.scoring.memory import MemorySource

    Model = str | PathLike[str] | PreTrainedModel

AnyPath = str | PathLike[str]
Slices = AnyPath | Mapping[str, str]
NOT_OPTIONS = ("models", "reference", "out", "trust_remote_code")
"""Parameters of `score` that are no fields of `argap.scoring.config.ScoreConfig`."""


def score(
    models: "Model | Sequence[Model] | Mapping[str, Model]",
    reference: "Model",
    *,
    data: AnyPath | Sequence[AnyPath] = (),
    index: AnyPath | None = None,
    out: AnyPath = "runs/score",
    threshold: Threshold = PAPER_THRESHOLD,
    seq_len: int | None = None,
    packing: Packing | None = None,
    limit_tokens: int | None = None,
    limit_document_tokens: int | None = None,
    text_column: str | None = None,
    token_dtype: Literal["uint16", "uint32"] | None = None,
    keep: str | Sequence[str] = (),
    base: str | None = None,
    slices: Slices | None = None,
    tokenizer: "str | Mapping[str, str] | PreTrainedTokenizerBase | None" = None,
    model_name: str | Sequence[str] = (),
    concurrency: int = 8,
    bos: str | Mapping[str, str] | None = None,
    dtype: str | Mapping[str, str] = "auto",
    device: str = "auto",
    device_map: bool = False,
    rank: bool = False,
    batch_size: int | Literal["auto"] = "auto",
    backend: Literal["auto", "native", "hf"] = "auto",
    trust_remote_code: bool = False,
    overwrite: bool = False,
) -> Result:
    """Score checkpoints and a reference on a text, and open the result.

    Finished runs in ``out`` are not scored again, and a run that was cut short resumes.

    Parameters
    ----------
    models
        Checkpoints: local folders, hub ids, or names of recorded references; or the address of a server that answers
        OpenAI's completions with the log-probs of a prompt, such as vLLM's. Its key is read from ``ARGAP_API_KEY``.
        Or transformers models in memory, which stay on their device, in their dtype, and in training or evaluation
        mode as they were. Models of other tokenizers than the reference's are compared in bytes (`argap.segments`).
        A mapping names them, as ``"NAME=CKPT"`` does: the same checkpoint in two dtypes is two models.
    reference
        What to compare with: the same, or the folder of a finished run, which is not scored again.
    data, index
        Evaluation text (files, folders, ``hub:NAME``, ``stdlib:heldout``) and the bigram index of the training text.
        Default: those recorded with the reference; else the standard library's held-out modules, and no index: the
        hits are then all repeated bigrams.
    out
        Folder for the runs and the result.
    threshold
        Maximum exposures of an AR hit's bigram, or ``"scaled"``: 1,250 for every 10 B tokens that training read.
    seq_len, packing, limit_tokens, limit_document_tokens
        Tokens a window (2,048); ``"packed"`` with EOS between documents (default) or ``"document"``; score only the
        first tokens of the text, and of each document. Shorter documents, and more of them, give narrower intervals.
    text_column, token_dtype
        Column of JSON lines and Parquet that holds the text; element type of headerless ``.bin`` shards.
    keep
        Columns of JSON lines, Parquet and hub data sets that become columns of the tokens, for slices, breakdowns and
        discovery: a value of each document, or spans ``[{start, end, label}]`` of its text (characters), which become
        labels of the tokens.
    base
        Also give the share of this model's gap that the others close.
    slices
        Slices to record in the result: a condition in SQL for each name, or a YAML file. Default: those that an earlier
        result in ``out`` has.
    tokenizer
        Of servers, of models in memory, and of checkpoints that have none; a mapping from model names replaces
        checkpoints' own. A transformers tokenizer is that of the models in memory.
    model_name, concurrency
        The model of each server, as the server knows it, in the order of ``models`` and then ``reference``; requests
        at once.
    bos
        A token to put before each window, as one more token of context without a log-prob: ``"own"``, the tokenizer's
        BOS, or a token's text; a mapping from model names sets some. Models that were trained with a BOS need it, and
        servers may add one by themselves.
    dtype, device, batch_size, backend
        How models run: ``"auto"`` is float32 on a CPU and bfloat16 on a GPU, a mapping from model names sets some;
        windows at once; argap's own code (``"native"``) or transformers' (``"hf"``).
    device_map
        Spread models that do not fit one GPU over all of them and then the CPU's memory.
    rank
        Also keep the rank of each token in the vocabulary, 1 for the most likely one. Logits are then in memory, some
        rows at a time, which takes longer.
    trust_remote_code
        Run code that a checkpoint ships.
    overwrite
        Discard runs of another configuration in ``out``.

    Raises
    ------
    ArgapError
        One line, before any model runs, for everything that cannot be scored or compared.

    Examples
    --------
    >>> import argap
    >>> result = argap.score("my-mamba", "my-llama", data="text/", index="idx/")         # doctest: +SKIP
    >>> result.table()                                                                   # doctest: +SKIP
    >>> argap.score(model, "my-llama", tokenizer=tokenizer, data="text/")                # doctest: +SKIP
    >>> argap.score({"bf16": "my-llama"}, "my-llama", dtype={"bf16": "bfloat16"})        # doctest: +SKIP
    """
    options = {name: value for name, value in locals().items() if name not in NOT_OPTIONS}
    from argap.results.pipeline import score_models
    from argap.runtime.trust import trusting
    from argap.scoring.config import ScoreConfig

    in_memory = None if isinstance(tokenizer, str | Mapping) else tokenizer
    config = ScoreConfig.of(**options | ({} if in_memory is None else {"tokenizer": None}))
    with trusting(trust_remote_code):
        score_models(
            [_source(name, each, config, in_memory) for name, each in _named(models)],
            _source(None, reference, config, in_memory),
            Path(out),
            config,
        )
    return open_result(out)


def compare(
    runs: AnyPath | Sequence[AnyPath],
    reference: AnyPath,
    *,
    out: AnyPath = "runs/compare",
    threshold: Threshold = PAPER_THRESHOLD,
    base: AnyPath | None = None,
    slices: Slices | None = None,
) -> Result:
    """Compare finished runs from their stored log-probs, and open the result. No model runs, torch is not imported.

    Parameters
    ----------
    runs, reference
        Run folders that `score` wrote, on the same text.
    out
        Folder for the result.
    threshold, base, slices
        As in `score`; ``base`` is a run folder.

    Raises
    ------
    ArgapError
        For folders that are no finished runs, and for runs of different texts.

    Examples
    --------
    >>> import argap
    >>> argap.compare("runs/demo/base_conv", "runs/demo/attention", threshold=100)      # doctest: +SKIP
    """
    from argap.results.compare import compare_runs
    from argap.slices.library import slice_specs

    compare_runs(
        _texts(runs),
        str(reference),
        Path(out),
        threshold=threshold,
        base=None if base is None else str(base),
        slices=None if slices is None else slice_specs(slices),
    )
    return open_result(out)


def open_index(folder: AnyPath) -> "BigramIndex":
    """The bigram index in ``folder``; its ``count`` says how often one token follows another in training.

    Raises `ArgapError` for a folder without an index.

    Examples
    --------
    >>> import argap
    >>> index = argap.open_index("idx/")                                                # doctest: +SKIP
    >>> index.count([262], [976])                                                       # doctest: +SKIP
    """
    from argap.bigram_index.store import open_index as open_store

    return open_store(Path(folder))


def _named(models: "Model | Sequence[Model] | Mapping[str, Model]") -> "list[tuple[str | None, Model]]":
    """Each model with the name that it was given, if any."""
    if isinstance(models, Mapping):
        return list(models.items())
    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    return [(None, model) for model in several]


def _source(
    name: str | None, model: "Model", config: "ScoreConfig", in_memory: "PreTrainedTokenizerBase | None"
) -> "str | MemorySource":
    """Return a model as `argap.results.pipeline.score_models` takes it."""
    from argap.scoring.find import with_name

    if isinstance(model, str | PathLike):
        return str(model) if name is None else with_name(name, str(model))
    from argap.checkpoints.live import live_model
    from argap.scoring.memory import MemorySource
    from argap.text.tokenizer import load_tokenizer, tokenizer_in_memory

    live = live_model(model, name)
    source = config.tokenizer.of(live.name)
    if in_memory is not None:
        tokenizer = tokenizer_in_memory(in_memory)
    elif source is not None:
        tokenizer = load_tokenizer(source)
    else:
        raise ArgapError(f"{live.name}: a model in memory has no tokenizer; give `tokenizer=T`")
    return MemorySource(live, tokenizer, config, named=name is not None)


def _texts(values: AnyPath | Sequence[AnyPath]) -> list[str]:
    return [str(values)] if isinstance(values, str | PathLike) else [str(value) for value in values]
