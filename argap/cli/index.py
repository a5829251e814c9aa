"""``argap index``: build, merge and query a table of training bigram counts."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argap.cli.options import Address, Commands, Engine, Json, Overwrite, check_engine, parse_bytes
from argap.cli.output import print_json

if TYPE_CHECKING:
    from argap.bigram_index.frequency_profile import FrequencyBin
    from argap.bigram_index.store import BigramIndex
    from argap.corpus import Corpus
    from argap.text.tokenizer import Tokenizer


TOKENS_PER_REPORT = 2**16
"""Tokens between progress updates: one per document would cost more than counting it."""
app = Commands(help="Count the bigrams of a training corpus.", no_args_is_help=True)

IndexFolder = Annotated[Path, typer.Argument(help="An index.")]
DataArgument = Annotated[list[str], typer.Argument(help="Text, JSON, CSV, Parquet, Arrow, token files or hub:NAME.")]
TokenizerOption = Annotated[str, typer.Option(help="Folder or hub id of the tokenizer.")]
MovedTokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help="Folder or hub id of the index's tokenizer, if it moved.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the new index.")]
MemoryOption = Annotated[str, typer.Option("--memory", help="Memory limit; the rest is spilled to disk next to --out.")]
TextColumnOption = Annotated[str, typer.Option(help="Column that holds the text.")]


@app.command()
def build(
    data: DataArgument,
    tokenizer: TokenizerOption,
    out: OutOption,
    memory: MemoryOption = "2GB",
    overwrite: Overwrite = False,
    text_column: TextColumnOption = "text",
    token_dtype: Annotated[str | None, typer.Option(metavar="uint16|uint32", help="Type of .bin shards.")] = None,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Keep the tokens in OUT.tokens, so that a rerun can resume.")
    ] = False,
    passes: Annotated[
        float, typer.Option(help="How often the training run reads DATA: exposures = count x passes.")
    ] = 1.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; a GPU speeds up sorting.")] = "cpu",
    engine: Engine = "local",
    address: Address = None,
    work: Annotated[str | None, typer.Option(help="ray: fsspec path that all nodes can access [OUT.shards].")] = None,
    shards: Annotated[int, typer.Option(min=1, help="ray: number of shards.")] = 16,
    shard: Annotated[str, typer.Option(help="I/N: count shard I of N; merge the N indexes afterwards.")] = "0/1",
) -> None:
    """Count every token bigram of DATA, document by document."""
    limit = parse_bytes(memory)
    check_engine(
        engine,
        local={"--device": device != "cpu", "--shard": shard != "0/1", "--keep-tokens": keep_tokens},
        ray={"--address": address, "--work": work, "--shards": shards != 16},
    )
    if engine == "ray":
        from argap.bigram_index.ray_tasks import Job, build_on_ray

        folder = work or str(out.absolute().with_name(f"{out.name}.shards"))
        job = Job(tuple(data), tokenizer, folder, shards, text_column, token_dtype, limit, passes)
        print(describe(build_on_ray(job, out, address=address, overwrite=overwrite)))
        return
    from argap.bigram_index.build import tokens_beside
    from argap.bigram_index.manifest import refuse_existing
    from argap.corpus import open_corpus

    refuse_existing(out, overwrite=overwrite)
    corpora = [open_corpus(spec, text_column=text_column, token_dtype=token_dtype) for spec in data]
    options = {"memory": limit, "device": device, "passes": passes, "overwrite": overwrite}
    index = _build_with_progress(corpora, tokenizer, shard, out, keep=keep_tokens, **options)
    if keep_tokens:
        print(f"argap: tokens kept in {tokens_beside(out)}", file=sys.stderr)
    print(describe(index))


def _build_with_progress(
    corpora: "list[Corpus]", tokenizer: str, shard: str, out: Path, **options: Any
) -> "BigramIndex":
    """Build on this machine, with progress and warnings on stderr. ``options``: as in `build_from_source`."""
    from argap.bigram_index.build import build_from_source
    from argap.bigram_index.sources.shard import Shard
    from argap.bigram_index.sources.token_source import TokenSource
    from argap.corpus import say_remarks
    from argap.runtime.progress import progress
    from argap.text.tokenizer import load_tokenizer

    source = TokenSource(corpora, load_tokenizer(tokenizer), Shard.parse(shard))
    reported = 0
    with progress("counting", None, fraction=source.fraction_read) as advance:

        def report(documents: int, tokens: int) -> None:
            nonlocal reported
            if tokens - reported >= TOKENS_PER_REPORT:
                advance(tokens - reported)
                reported = tokens

        index = build_from_source(source, out, progress=report, **options)
    say_remarks(corpora)
    return index


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Indexes with the same tokenizer.")],
    out: OutOption,
    weights: Annotated[
        list[float] | None,
        typer.Option("--weight", help="How often training reads an index's corpus; one per index."),
    ] = None,
    memory: MemoryOption = "2GB",
    overwrite: Overwrite = False,
) -> None:
    """Merge indexes by adding their counts.

    With weights, the sums are exposures, rounded half to even.
    """
    from argap.bigram_index.merge import merge_indexes
    from argap.bigram_index.sources.shard import repeated

    index = merge_indexes(folders, out, weights=weights or None, memory=parse_bytes(memory), overwrite=overwrite)
    for source in repeated(index.sources):
        print(f"argap: {source} was counted more than once", file=sys.stderr)
    print(describe(index))


@app.command()
def info(
    folder: IndexFolder,
    as_json: Json = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of every part.")] = False,
) -> None:
    """Print the sources and size of an index."""
    from argap.bigram_index.store import open_index
    from argap.records import as_json as plain

    index = open_index(folder)
    if verify:
        index.verify()
    if as_json:
        value = plain(index.manifest) | {"origin": index.manifest.origin, "passes": index.passes}
        for part in value["parts"]:
            del part["crc32"]
        print_json(value)
    else:
        print(describe(index))


@app.command()
def count(
    folder: IndexFolder,
    text: Annotated[str, typer.Argument(help="Text whose bigrams to look up.")],
    tokenizer: MovedTokenizerOption = None,
    as_json: Json = False,
) -> None:
    """Print how often each bigram of TEXT occurs in training."""
    index, loaded = _with_tokenizer(folder, tokenizer)
    (ids,) = loaded.encode([text])
    counts = index.count(ids[:-1], ids[1:])
    rows = [
        {"first": int(a), "second": int(b), "text": [loaded.decode([a]), loaded.decode([b])], "count": int(n)}
        for a, b, n in zip(ids[:-1], ids[1:], counts, strict=True)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        first, second = (repr(piece) for piece in row["text"])
        print(f"{row['count']:>15,}  {row['first']:>7} {row['second']:>7}  {first} {second}")
    if not rows:
        print(f"no bigram: the text has {len(ids)} token{'s' * (len(ids) != 1)}", file=sys.stderr)


def _with_tokenizer(folder: Path, tokenizer: str | None) -> "tuple[BigramIndex, Tokenizer]":
    """Open an index and its tokenizer; ``tokenizer``: its current place, if it moved."""
    from argap.bigram_index.store import check_tokenizer, open_index
    from argap.text.tokenizer import load_tokenizer

    index = open_index(folder)
    loaded = load_tokenizer(tokenizer or index.tokenizer)
    check_tokenizer(index, loaded.name, loaded.fingerprint)
    return index, loaded


@app.command()
def from_counts(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with columns first, second (ids) and count.")],
    tokenizer: TokenizerOption,
    out: OutOption,
    overwrite: Overwrite = False,
) -> None:
    """Make a proxy index from a table of counts.

    For models whose training data is not available.
    """
    from argap.bigram_index.sources.external_counts import index_from_counts
    from argap.text.tokenizer import load_tokenizer

    print(describe(index_from_counts(file, out, load_tokenizer(tokenizer), overwrite=overwrite)))


@app.command()
def from_arpa(
    file: Annotated[Path, typer.Argument(help="An n-gram model of tokens in the ARPA format (KenLM).")],
    tokenizer: TokenizerOption,
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens that the model was trained on.")],
    out: OutOption,
    overwrite: Overwrite = False,
) -> None:
    """Make a proxy index from an n-gram model in ARPA format.

    For models whose training data is not available.
    """
    from argap.bigram_index.sources.external_counts import index_from_arpa
    from argap.text.tokenizer import load_tokenizer

    print(describe(index_from_arpa(file, out, load_tokenizer(tokenizer), tokens=tokens, overwrite=overwrite)))


@app.command()
def profile(
    folder: IndexFolder,
    data: DataArgument,
    tokenizer: MovedTokenizerOption = None,
    text_column: TextColumnOption = "text",
    as_json: Json = False,
) -> None:
    """Print how often training saw DATA's bigrams.

    For each range of exposures (count x passes), prints the number and share of DATA's bigrams.
    """
    from argap.bigram_index.frequency_profile import frequency_profile
    from argap.corpus.tokenize import encode_corpora

    index, loaded = _with_tokenizer(folder, tokenizer)
    bins = frequency_profile(index, encode_corpora(data, loaded, text_column=text_column))
    if as_json:
        print_json(bins)
    else:
        print(describe_bins(bins, proxy=index.proxy))


def describe(index: "BigramIndex") -> str:
    """Describe an index in a few lines."""
    manifest = index.manifest
    size = sum(part.bytes for part in manifest.parts)
    lines = [
        ("index", str(index.folder)),
        ("tokenizer", f"{index.tokenizer} ({index.tokenizer_fingerprint[:12]}, {index.vocab_size:,} ids)"),
        *([("proxy", f"not counted from documents: {manifest.origin}")] if index.proxy else []),
        ("documents", f"{index.documents:,} (and {manifest.empty_documents:,} without a token)"),
        ("tokens", f"{index.tokens:,}"),
        ("bigrams", f"{index.bigrams:,} ({index.distinct:,} distinct)"),
        ("size", f"{size:,} bytes in {len(manifest.parts)} part{'s' * (len(manifest.parts) > 1)}"),
        ("passes", f"{index.passes:g}"),
        ("sources", ", ".join(index.sources)),
        *[("weight", f"{each.weight:g}: {', '.join(each.sources)}") for each in manifest.weights],
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in lines)


def describe_bins(bins: "Sequence[FrequencyBin]", *, proxy: bool) -> str:
    """Return one line per bin of exposures."""
    lines = [f"{'exposures':>27}  {'bigrams':>15}   share" + ("   (proxy index)" if proxy else "")]
    for row in bins:
        end = "" if row.high is None else f"{row.high:,}"
        span = f"{row.low:,}" if row.low == row.high else f"{row.low:,} to {end}"
        lines.append(f"{span:>27}  {row.bigrams:>15,}  {row.share:>6.1%}")
    return "\n".join(lines)
