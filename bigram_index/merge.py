"""Adding up indexes: counting shards apart and merging them equals counting them at once."""

from collections.abc import Sequence
from pathlib import Path

from argap.bigram_index import kway
from argap.bigram_index.count import chunk_tokens
from argap.bigram_index.folder import replacing_folder
from argap.bigram_index.parts import ParquetRun
from argap.bigram_index.share import unite
from argap.bigram_index.stats import sum_stats
from argap.bigram_index.store import BigramIndex, open_index
from argap.bigram_index.write import write_index
from argap.errors import ArgapError, MismatchError


def merge_indexes(
    folders: Sequence[str | Path],
    out: Path,
    *,
    memory: int | None = None,
    overwrite: bool = False,
    may_be_empty: bool = False,
) -> BigramIndex:
    """Write the sum of the indexes in ``folders`` to ``out``, in any order to the same bytes.

    Streams: of each index one row group is in memory at a time. Raises `MismatchError` naming two indexes
    of different tokenizers, `FormatError` for a damaged one, `ArgapError` for none, for
    nothing but empty shares (unless ``may_be_empty``), and for an existing ``out``.
    """
    if not folders:
        raise ArgapError("no index to merge; expected at least one folder")
    indexes = [open_index(folder) for folder in folders]
    head = indexes[0]
    for index in indexes[1:]:
        same = index.tokenizer_fingerprint == head.tokenizer_fingerprint
        if not same or index.vocab_size != head.vocab_size:
            raise MismatchError(
                f"{head.folder} was counted with tokenizer {head.tokenizer} "
                f"({head.tokenizer_fingerprint[:12]}, {head.vocab_size} entries), {index.folder} with "
                f"{index.tokenizer} ({index.tokenizer_fingerprint[:12]}, {index.vocab_size} entries): "
                "only indexes of one tokenizer can be merged"
            )
    if not may_be_empty and not any(index.tokens for index in indexes):
        raise ArgapError(f"{', '.join(str(f) for f in folders)}: no tokens in any of them; expected a corpus with text")
    entries = min(kway.ENTRIES, chunk_tokens(memory, head.vocab_size))
    manifests = [index.manifest for index in indexes]
    with replacing_folder(Path(out), overwrite=overwrite) as folder:
        runs = [ParquetRun(index.folder, index.manifest.parts, index.vocab_size) for index in indexes]
        write_index(
            folder,
            kway.merge_runs(runs, entries),
            tokenizer=min(m.tokenizer for m in manifests),  # one tokenizer, perhaps by several paths
            tokenizer_fingerprint=head.tokenizer_fingerprint,
            vocab_size=head.vocab_size,
            documents=sum(m.documents for m in manifests),
            empty_documents=sum(m.empty_documents for m in manifests),
            tokens=sum(m.tokens for m in manifests),
            sources=unite(source for m in manifests for source in m.sources),
            origin="+".join(sorted({origin for m in manifests for origin in m.origin.split("+")})),
            stats=(lambda: sum_stats(indexes)) if all(m.stats for m in manifests) else None,
        )
    return open_index(out)
