"""``argap index``: build, merge and query the table of training bigram counts."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from argap.cli.engine import check_engine
from argap.cli.index_output import Meter, describe, parse_bytes, parse_tokens

app = typer.Typer(help="Count the bigrams of a training corpus.", no_args_is_help=True)

TokenizerOption = Annotated[str, typer.Option(help="Folder or hub id of the tokenizer.")]
MovedTokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help="Where the index's tokenizer lies now; default: where it lay then.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the new index.")]
MemoryOption = Annotated[
    str, typer.Option("--memory", help="Most memory to use; what does not fit is spilled beside --out.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    data: Annotated[list[str], typer.Argument(help="Text, JSON lines, Parquet, token shards, hub:NAME.")],
    tokenizer: TokenizerOption,
    out: OutOption,
    memory: MemoryOption = "2GB",
    overwrite: OverwriteOption = False,
    text_column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    token_dtype: Annotated[str | None, typer.Option(help="uint16 or uint32: element type of .bin shards.")] = None,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Keep the tokens in OUT.tokens; a rerun goes on behind them.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Also count single tokens and the documents that have them.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; a GPU sorts the pairs.")] = "cpu",
    engine: Annotated[str, typer.Option(help="local, or ray: shares as tasks of a Ray cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; without it, this machine alone.")] = None,
    work: Annotated[str | None, typer.Option(help="ray: fsspec path that all nodes reach (OUT.shares).")] = None,
    shares: Annotated[int, typer.Option(min=1, help="ray: number of shares.")] = 16,
    shard: Annotated[str, typer.Option(help="I/N: count share I of N; merge the N indexes afterwards.")] = "0/1",
) -> None:
    """Count every token bigram of DATA, document by document."""
    from argap.bigram_index.build import build_from_source, tokens_beside
    from argap.bigram_index.folder import refuse_existing
    from argap.bigram_index.share import Share
    from argap.bigram_index.source import Source
    from argap.corpus import open_corpus
    from argap.tokenizer import load_tokenizer

    limit = parse_bytes(memory)
    check_engine(
        engine,
        local={"--device": device != "cpu", "--shard": shard != "0/1", "--keep-tokens": keep_tokens},
        ray={"--address": address, "--work": work},
    )
    if engine == "ray":
        from argap.bigram_index.cluster import Job, build_on_ray

        folder = work or str(out.absolute().with_name(f"{out.name}.shares"))
        job = Job(tuple(data), tokenizer, folder, shares, text_column, token_dtype, stats, limit)
        print(describe(build_on_ray(job, out, address=address, overwrite=overwrite)))
        return
    refuse_existing(out, overwrite=overwrite)
    corpora = [open_corpus(spec, text_column=text_column, token_dtype=token_dtype) for spec in data]
    source = Source(corpora, load_tokenizer(tokenizer), Share.parse(shard))
    meter = Meter(source.share_read)
    index = build_from_source(
        source,
        out,
        keep=keep_tokens,
        stats=stats,
        memory=limit,
        device=device,
        overwrite=overwrite,
        progress=meter,
    )
    for remark in (line for corpus in corpora for line in corpus.tally.remarks()):
        print(f"argap: {remark}", file=sys.stderr)
    meter.finish(index)
    if keep_tokens:
        print(f"argap: tokens kept in {tokens_beside(out)}", file=sys.stderr)
    print(describe(index))


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Indexes of one tokenizer.")],
    out: OutOption,
    memory: MemoryOption = "2GB",
    overwrite: OverwriteOption = False,
) -> None:
    """Add up indexes that were counted apart."""
    from argap.bigram_index.merge import merge_indexes
    from argap.bigram_index.share import repeated

    index = merge_indexes(folders, out, memory=parse_bytes(memory), overwrite=overwrite)
    for source in repeated(index.sources):
        print(f"argap: {source} was counted more than once", file=sys.stderr)
    print(describe(index))


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(help="An index.")],
    json: JsonOption = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of every part.")] = False,
) -> None:
    """Print what an index was counted from."""
    import json as json_library
    from dataclasses import asdict

    from argap.bigram_index.store import open_index

    index = open_index(folder)
    if verify:
        index.verify()
    if json:
        value = asdict(index.manifest)
        value["parts"] = [{k: v for k, v in part.items() if k != "crc32"} for part in value["parts"]]
        print(json_library.dumps(value, indent=2, ensure_ascii=False))
    else:
        print(describe(index))


@app.command()
def count(
    folder: Annotated[Path, typer.Argument(help="An index.")],
    text: Annotated[str, typer.Argument(help="The text whose bigrams are looked up.")],
    tokenizer: MovedTokenizerOption = None,
    json: JsonOption = False,
) -> None:
    """Print how often each bigram of TEXT occurs in training."""
    import json as json_library

    from argap.bigram_index.store import open_index, require_tokenizer
    from argap.tokenizer import load_tokenizer

    index = open_index(folder)
    loaded = load_tokenizer(tokenizer or index.tokenizer)
    require_tokenizer(index, loaded.fingerprint, loaded.name)
    (ids,) = loaded.encode([text])
    counts = index.count(ids[:-1], ids[1:])
    rows = [
        {"first": int(a), "second": int(b), "text": [loaded.decode([a]), loaded.decode([b])], "count": int(n)}
        for a, b, n in zip(ids[:-1], ids[1:], counts, strict=True)
    ]
    if json:
        print(json_library.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        first, second = (repr(piece) for piece in row["text"])
        print(f"{row['count']:>15,}  {row['first']:>7} {row['second']:>7}  {first} {second}")
    if not rows:
        print(f"no bigram: the text is {len(ids)} token long", file=sys.stderr)


@app.command()
def from_counts(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with columns first, second (ids) and count.")],
    tokenizer: TokenizerOption,
    out: OutOption,
    overwrite: OverwriteOption = False,
) -> None:
    """Make a proxy index from a table of counts.

    For models whose training data is not at hand.
    """
    from argap.bigram_index.foreign import index_from_counts
    from argap.tokenizer import load_tokenizer

    print(describe(index_from_counts(file, out, load_tokenizer(tokenizer), overwrite=overwrite)))


@app.command()
def from_arpa(
    file: Annotated[Path, typer.Argument(help="An n-gram model of tokens in the ARPA format (KenLM).")],
    tokenizer: TokenizerOption,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens the model was trained on.")],
    out: OutOption,
    overwrite: OverwriteOption = False,
) -> None:
    """Make a proxy index from an n-gram model in ARPA format.

    For models whose training data is not at hand.
    """
    from argap.bigram_index.foreign import index_from_arpa
    from argap.tokenizer import load_tokenizer

    print(describe(index_from_arpa(file, out, load_tokenizer(tokenizer), tokens=tokens, overwrite=overwrite)))


@app.command()
def profile(
    folder: Annotated[Path, typer.Argument(help="An index.")],
    data: Annotated[list[str], typer.Argument(help="Text, JSON lines, Parquet, token shards, hub:NAME.")],
    tokenizer: MovedTokenizerOption = None,
    text_column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    json: JsonOption = False,
) -> None:
    """Print how DATA's bigrams spread over training frequency.

    Of each bin of training counts: how many, and which share of them.
    """
    import json as json_library
    from dataclasses import asdict

    from argap.bigram_index.profile import frequency_profile
    from argap.bigram_index.store import open_index, require_tokenizer
    from argap.corpus import open_corpus
    from argap.corpus.tokenize import token_documents
    from argap.tokenizer import load_tokenizer

    index = open_index(folder)
    loaded = load_tokenizer(tokenizer or index.tokenizer)
    require_tokenizer(index, loaded.fingerprint, loaded.name)
    corpora = [open_corpus(spec, text_column=text_column) for spec in data]
    bins = frequency_profile(index, (document.ids for document in token_documents(corpora, loaded)))
    if json:
        print(json_library.dumps([asdict(row) for row in bins], indent=2))
        return
    print(f"{'training count':>27}  {'bigrams':>15}   share" + ("   (proxy index)" if index.proxy else ""))
    for row in bins:
        span = (
            f"{row.low:,}" if row.low == row.high else f"{row.low:,} to {'' if row.high is None else f'{row.high:,}'}"
        )
        print(f"{span:>27}  {row.bigrams:>15,}  {row.share:>6.1%}")


@app.command()
def plan(
    tokens: Annotated[str, typer.Option(help="Size of the corpus: 10B, 1T or a plain number.")],
    nodes: Annotated[int, typer.Option(min=1, help="Shares that are counted at the same time.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = 2,
    vocab_size: Annotated[int, typer.Option(min=2, help="Entries of the vocabulary.")] = 50_257,
    memory: MemoryOption = "2GB",
) -> None:
    """Estimate what counting a corpus takes.

    Time, memory, disk and network, from measured rates.
    """
    from argap.bigram_index.plan import estimate

    made = estimate(parse_tokens(tokens), nodes=nodes, cores=cores, vocab_size=vocab_size, memory=parse_bytes(memory))
    rows = [
        ("tokenize", f"{made.tokenize / 3600:,.2f} h on each node (nothing where the tokens are kept)"),
        ("count", f"{made.count / 3600:,.2f} h on each node"),
        ("merge", f"{made.merge / 3600:,.2f} h on one node"),
        ("memory", f"{made.memory / 1e9:,.1f} GB on each node"),
        ("tokens", f"{made.token_bytes / 1e9:,.1f} GB on disk, where they are kept"),
        ("spilled", f"{made.spill_bytes / 1e9:,.1f} GB on each node's disk"),
        ("shuffle", f"{made.shuffle_bytes / 1e9:,.1f} GB over the network"),
        ("index", f"{made.index_bytes / 1e9:,.2f} GB, {made.distinct / 1e6:,.0f} M distinct bigrams"),
    ]
    print("\n".join(f"{name:<9} {value}" for name, value in rows))


@app.command()
def ngrams(
    data: Annotated[list[str], typer.Argument(help="The training corpus.")],
    query: Annotated[str, typer.Option(help="The text whose n-grams are counted in DATA.")],
    tokenizer: TokenizerOption,
    out: Annotated[Path, typer.Option(help="Parquet file: n, tokens, count.")],
    longest: Annotated[int, typer.Option(min=2, max=5, help="Longest n-gram, in tokens.")] = 5,
    text_column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
) -> None:
    """Count one text's n-grams in a training corpus."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from argap.atomic import replacing
    from argap.bigram_index.ngrams import NgramCounter
    from argap.corpus import open_corpus
    from argap.corpus.tokenize import token_documents
    from argap.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)

    def documents(*specs: str):
        corpora = [open_corpus(spec, text_column=text_column) for spec in specs]
        return (document.ids for document in token_documents(corpora, loaded))

    counter = NgramCounter(documents(query), vocab_size=loaded.vocab_size, longest=longest)
    counter.add(documents(*data))
    schema = pa.schema([("n", pa.int8()), ("tokens", pa.list_(pa.int32())), ("count", pa.int64())])
    with replacing(out) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for n in range(2, longest + 1):
            grams, counts = counter.result(n)
            rows = [[n] * len(grams), grams.tolist(), counts]
            writer.write_table(pa.table(dict(zip(schema.names, rows, strict=True)), schema=schema))
            print(f"{n}-grams  {len(grams):>12,}  of them in the corpus  {int((counts > 0).sum()):>12,}")
