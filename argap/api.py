"""Public functions of the package ``argap``, for notebooks, scripts and the command line."""

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
    from argap.records.difference import Difference
    from argap.scoring.config import ScoreConfig
    from argap.scoring.local import MemorySource

    Model = str | PathLike[str] | PreTrainedModel

AnyPath = str | PathLike[str]
Slices = AnyPath | Mapping[str, str]
NOT_OPTIONS = ("models", "reference", "out", "trust_remote_code")
"""Parameters of `score` that are not fields of `argap.scoring.config.ScoreConfig`."""


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
    max_length: int | Mapping[str, int] | None = None,
    dtype: str | Mapping[str, str] = "auto",
    device: str = "auto",
    device_map: bool = False,
    rank: bool = False,
    kl: bool = False,
    short_context: int | None = None,
    context_curve: bool = False,
    batch_size: int | Literal["auto"] = "auto",
    backend: Literal["auto", "native", "hf", "vllm", "sglang"] = "auto",
    trust_remote_code: bool = False,
    overwrite: bool = False,
) -> Result:
    """Score checkpoints and a reference on a text, and open the result.

    Finished runs in ``out`` are not scored again, and a run that was cut short resumes.

    Parameters
    ----------
    models
        Checkpoints: local folders, hub ids, or names of recorded references; the address of a server whose
        OpenAI-compatible completions return the log-probs of a prompt, such as vLLM (its key is read from
        ``ARGAP_API_KEY``); or transformers models in memory, which keep their device, dtype and training or evaluation
        mode. Models whose tokenizer differs from the reference's are compared in bytes (`argap.evaluation.segments`).
        A mapping names them, like ``"NAME=CKPT"``: the same checkpoint in two dtypes is two models.
    reference
        The model to compare with: as above, or the folder of a finished run, which is not scored again; also
        ``hf://datasets/ORG/NAME/RUN``, on the Hugging Face hub.
    data
        Evaluation text: files, folders, ``hub:NAME``, ``stdlib:heldout``. Default: the text recorded with the
        reference, else held-out modules of the standard library.
    index
        The bigram index of the training text. Default: the one recorded with the reference; without any, every repeated
        bigram is a hit.
    out
        Folder for the runs and the result.
    threshold
        Maximum exposures of an AR hit's bigram, or ``"scaled"``: 1,250 per 10 B training tokens.
    seq_len
        Tokens per window. Default: that of the reference's text, else 2,048, or fewer if a model takes no more.
    packing
        ``"packed"`` puts an EOS after each document and cuts the stream into windows; in ``"document"`` no window
        crosses the end of a document. Default: ``"packed"``.
    limit_tokens
        Score only the first tokens of the text. Default: all of it.
    limit_document_tokens
        Score only the first tokens of each document: more documents in the same time give narrower intervals.
    text_column
        The column with the text in JSON, CSV, Parquet and Arrow. Default: ``text``.
    token_dtype
        Type of the token ids in ``.bin`` shards without a header. Default: uint16 if the vocabulary fits.
    keep
        Columns of tables and hub data sets to keep as token columns, for slices, breakdowns and discovery: one value
        per document, or spans ``[{start, end, label}]`` of its text (in characters), which become labels of the tokens.
    base
        Also give the share of this model's gap that the others close.
    slices
        Slices to record in the result: an SQL condition for each name, or a YAML file. Default: those of an earlier
        result in ``out``.
    tokenizer
        For servers, for models in memory, and for checkpoints that have none; a mapping from model names replaces the
        checkpoints' own. A transformers tokenizer is used for the models in memory.
    model_name
        Each server's name for its model, in the order of ``models``, then ``reference``.
    concurrency
        Requests that a server gets at a time.
    bos
        A token to put before each window, as extra context without a log-prob: ``"own"`` for the tokenizer's BOS, or a
        token's text; or a mapping from model names. Default: the token that the tokenizer's own rule puts before a
        text, if any; ``"none"``: nothing. Servers may add one themselves.
    max_length
        Tokens of the longest window that a model takes, BOS included, in place of what its ``config.json`` says; or a
        mapping from model names.
    dtype
        Type of weights and activations: ``"auto"`` is float32 on a CPU and bfloat16 on a GPU; or a mapping from model
        names.
    device
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    batch_size
        Windows per forward pass; ``"auto"`` halves them when memory runs out.
    backend
        Run families that argap knows with its own code (``"native"``) or with transformers (``"hf"``); ``"auto"`` takes
        its own where it can. ``"vllm"`` and ``"sglang"`` run all by that engine.
    device_map
        Spread models that do not fit on one GPU over all GPUs, then CPU memory.
    rank
        Also keep each token's rank in the vocabulary, 1 for the most likely. This materialises logits, some rows at a
        time, and takes longer.
    kl
        Also keep KL(reference ‖ model) of each token, in nats, and each model's entropy: the columns ``kl`` and
        ``entropy``. Each model then runs beside the reference, both in memory; no logits are kept.
    short_context
        Also score every token with at most that many tokens of context, in windows with half of them as the stride:
        the token column ``gain`` is log p with the whole window minus that (`Result.context_use`). It reads about twice
        the tokens of the text; a finished run is not scored again.
    context_curve
        Also score with two, four, … times the tokens of ``short_context``, below the window's length.
    trust_remote_code
        Run code bundled with a checkpoint.
    overwrite
        Discard runs in ``out`` made with another configuration.

    Raises
    ------
    ArgapError
        One line, before any model runs, for anything that cannot be scored or compared.

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
    runs: AnyPath | Sequence[AnyPath] | Mapping[str, AnyPath],
    reference: AnyPath,
    *,
    out: AnyPath = "runs/compare",
    threshold: Threshold = PAPER_THRESHOLD,
    base: AnyPath | None = None,
    slices: Slices | None = None,
) -> Result:
    """Compare finished runs from their stored log-probs, and open the result.

    No model runs, and torch is not imported.

    Parameters
    ----------
    runs
        Run folders that `score` wrote, on the same text; a mapping, or ``"NAME=RUN"``, gives them other names.
    reference
        The run folder to compare them with.
    out
        Folder for the result.
    threshold
        Maximum exposures of an AR hit's bigram, or ``"scaled"``: 1,250 per 10 B training tokens.
    base
        A run folder: also give the share of its gap that the others close.
    slices
        Slices to record in the result: an SQL condition for each name, or a YAML file. Default: those of an earlier
        result in ``out``.

    Raises
    ------
    ArgapError
        For folders that are not finished runs, and for runs of different texts.

    Examples
    --------
    >>> import argap
    >>> argap.compare("runs/demo/base_conv", "runs/demo/attention", threshold=100)      # doctest: +SKIP
    """
    from argap.results.compare import compare_runs
    from argap.scoring.per_model import with_name
    from argap.slices.library import slice_specs

    compare_runs(
        [with_name(*each) for each in runs.items()] if isinstance(runs, Mapping) else _texts(runs),
        str(reference),
        Path(out),
        threshold=threshold,
        base=None if base is None else str(base),
        slices=None if slices is None else slice_specs(slices),
    )
    return open_result(out)


def diff(first: AnyPath, second: AnyPath, *, tolerance: float | None = None) -> "Difference":
    """Compare two runs of the same weights token by token, and say where they differ.

    For two engines, dtypes, batch sizes, backends or library versions. No model runs.

    Parameters
    ----------
    first, second
        Run folders over the same text, or ``"NAME=RUN"``.
    tolerance
        Count the tokens whose |Δ log p| exceeds this (nats).

    Returns
    -------
    Difference
        The record that ``argap diff --json`` prints (`argap.records.difference`): quantiles and agreement, the places
        where the difference lies, breakdowns, and the tokens that differ most.

    Raises
    ------
    ArgapError
        For folders that are not finished runs, and for runs of different tokens.

    Examples
    --------
    >>> import argap
    >>> found = argap.diff("runs/bf16/m", "runs/vllm/m")                                # doctest: +SKIP
    >>> found.whole.agreement, found.findings[0].where                                  # doctest: +SKIP
    """
    from argap.results.difference import compare_pair

    return compare_pair(str(first), str(second), tolerance=tolerance)


def open_index(folder: AnyPath) -> "BigramIndex":
    """Open the bigram index in ``folder``; its ``count`` returns how often one token follows another in training.

    Parameters
    ----------
    folder
        What ``argap index build`` wrote; also ``hf://datasets/ORG/NAME/FOLDER``, on the Hugging Face hub.

    Raises
    ------
    ArgapError
        For a folder without an index.

    Examples
    --------
    >>> import argap
    >>> index = argap.open_index("argap/demo/index")
    >>> index.tokens, index.vocab_size
    (59655583, 8192)
    >>> index.count([10, 20], [11, 12])  # how often 11 follows 10, and 12 follows 20   # doctest: +SKIP
    array([  31, 1690])
    """
    from argap.bigram_index.store import open_index as open_store

    return open_store(folder if isinstance(folder, str) else Path(folder))


def _named(models: "Model | Sequence[Model] | Mapping[str, Model]") -> "list[tuple[str | None, Model]]":
    """Return each model with its given name, if any."""
    if isinstance(models, Mapping):
        return list(models.items())
    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    return [(None, model) for model in several]


def _source(
    name: str | None, model: "Model", config: "ScoreConfig", in_memory: "PreTrainedTokenizerBase | None"
) -> "str | MemorySource":
    """Return a model as `argap.results.pipeline.score_models` takes it."""
    from argap.scoring.per_model import with_name

    if isinstance(model, str | PathLike):
        return str(model) if name is None else with_name(name, str(model))
    from argap.checkpoints.live import live_model
    from argap.scoring.local import MemorySource
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
