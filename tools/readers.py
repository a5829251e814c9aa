"""List every place where argap reads what it did not write, with its guard, limit and test: ``pages.py readers``.

`found` finds the calls that read (files, memory maps, other libraries' readers, the network) in the source, function by
function. A test fails when one has no row in `ROWS`, or a row names a function that reads nothing any more. The table
in SECURITY.md is written from the rows.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- readers: made by tools/pages.py -->\n", "<!-- end of readers -->\n"
READING = frozenset(
    (
        *("open", "read_text", "read_bytes", "memmap", "fromfile", "safe_open", "load_file", "from_file"),
        *("from_pretrained", "ParquetFile", "read_table", "read_schema", "read_metadata", "read_csv", "open_csv"),
        *("hf_hub_download", "snapshot_download", "load_dataset", "file_exists", "list_repo_files", "ZipFile"),
        *("open_file", "open_stream", "memory_map", "input_stream", "stream", "Config", "partial_download"),
        *("read_magic", "from_str"),
    )
)
"""Functions and methods that read; ``load`` too, of NumPy, torch and unpicklers."""
LOADS = ("np", "torch", "_MetadataUnpickler(path, file)", "manager", "csr")
PACKAGES = ("argap", "bigram_index", "reports")


class Row(NamedTuple):
    """Some readers of one kind of thing."""

    what: str
    guard: str
    limit: str
    test: str
    """A file below ``tests``."""
    readers: tuple[str, ...]
    """Functions as ``path::qualified.name``."""


ROWS = (
    Row(
        "records, results and other JSON",
        "a file, UTF-8, plain JSON, its checksum, types and ranges (`read_json`, `read_record`)",
        "256 MiB; nesting of Python's parser",
        "properties/test_reliability_mutations.py",
        (
            "argap/files/atomic.py::_read_text",
            "argap/train/log.py::read_log",
            "argap/files/lock.py::_holder",
            "argap/cli/complete.py::models_of_result",
        ),
    ),
    Row(
        "suites, sweeps, slices and training configurations in YAML",
        "a file, plain YAML without anchors, tags or duplicate keys, known keys, ranges (`read_yaml`, `build`)",
        "1 MB, 20 levels, 100,000 values",
        "commands/test_security.py",
        ("argap/files/plain_yaml.py::read_yaml", "argap/recall/lm_eval_tasks.py::_defined"),
    ),
    Row(
        "tables of runs, labels, cells and indexes in Parquet",
        "a file, checksums of file and pages, columns and their types (`readable`, `check_columns`)",
        "read in portions",
        "commands/test_reliability_files.py",
        (
            "argap/files/parquet.py::read_parquet",
            "argap/files/parquet.py::opened",
            "argap/slices/cells.py::keys_of",
            "argap/slices/cells.py::CellFile.columns",
            "bigram_index/parquet_parts.py::open_part",
            "argap/results/sources.py::read_documents",
        ),
    ),
    Row(
        "arrays of indexes and packed tokens",
        "size and checksum of what a record lists",
        "memory-mapped",
        "unit/bigram_index/test_index_files.py",
        (
            "bigram_index/counting/csr.py::load",
            "bigram_index/store.py::BigramIndex._csr",
            "bigram_index/store.py::write_index",
            "bigram_index/sources/token_cache.py::_open",
            "bigram_index/counting/sorted_runs.py::FileRun.read",
            "argap/train/tokens.py::TokenFile.ids",
        ),
    ),
    Row(
        "the bytes of any file, for its hash",
        "a file (`check_regular`)",
        "read in blocks",
        "commands/test_refusals.py",
        ("argap/files/checksums.py::sha256_of", "argap/files/checksums.py::crc32_of_blocks"),
    ),
    Row(
        "texts: plain, JSON, CSV, compressed or not",
        "a file, recognised by its first bytes; errors name file and line",
        "1,000 times its size unpacked beyond 1 GB, lines of 256 MiB",
        "unit/corpus/test_formats.py",
        (
            "argap/corpus/packed.py::opened",
            "argap/corpus/packed.py::_arrow.unpack",
            "argap/corpus/files.py::_data_files",
            "argap/corpus/stdlib.py::read",
        ),
    ),
    Row(
        "texts in Parquet and Arrow",
        "a file; errors of the reader are one line",
        "1,000 times its size unpacked beyond 1 GB",
        "unit/corpus/test_readers.py",
        ("argap/corpus/columnar.py::read_arrow", "argap/corpus/columnar.py::_open"),
    ),
    Row(
        "token ids in .bin, .npy, .npz and Megatron's pairs",
        "header, size and range of ids; flat integers alone (`map_integers`)",
        "memory-mapped; headers of 8 KiB; members of .npz as texts",
        "unit/corpus/test_token_documents.py",
        (
            "argap/corpus/formats.py::_check_shard",
            "argap/files/arrays.py::map_integers",
            "argap/corpus/shards.py::shards_of",
            "argap/corpus/shards.py::_flat",
            "argap/corpus/megatron.py::is_pair",
            "argap/corpus/megatron.py::read_header",
            "argap/corpus/megatron.py::open_sequences",
        ),
    ),
    Row(
        "texts of object stores and of the hub",
        "no credentials in addresses; then as a local file",
        "as a local file",
        "unit/corpus/test_remote.py",
        (
            "argap/corpus/remote.py::local_file",
            "argap/corpus/hub.py::_rows",
            "argap/recall/examples.py::_from_hub",
        ),
    ),
    Row(
        "bigram counts in CSV, Parquet and ARPA",
        "a file; columns, ranges and the tokenizer's vocabulary",
        "read in portions; lines of 1 MB in ARPA",
        "unit/bigram_index/test_index_external_counts.py",
        (
            "bigram_index/sources/external_counts.py::_read_counts",
            "bigram_index/sources/external_counts.py::_arpa_lines",
        ),
    ),
    Row(
        "tables of published figures",
        "a file, CSV in UTF-8",
        "1 MB, 10,000 cells",
        "unit/recall/test_recall_run.py",
        ("reports/pages/recall.py::published",),
    ),
    Row(
        "tokenizers",
        "a file; unusual parts are tried in a child with limits; a panic is one line (`argap.text.backend`)",
        "512 MiB; 100 characters of one; words of 1,000; 10 s and 2 GB in the child",
        "commands/test_refusals.py",
        (
            "argap/text/backend.py::load_backend",
            "argap/text/backend.py::copy_backend",
            "argap/text/trial.py::main",
            "argap/text/tokenizer.py::_by_transformers",
            "argap/text/tokenizer.py::_is_offline",
        ),
    ),
    Row(
        "checkpoints in safetensors",
        "whole files beside the index; shapes and names against the configuration; no remote code without trust",
        "memory-mapped",
        "unit/test_checkpoints.py",
        (
            "argap/checkpoints/convert.py::_write_safetensors",
            "argap/checkpoints/convert.py::_rewrite",
            "argap/checkpoints/find.py::check_whole",
            "argap/checkpoints/load.py::_load_by_transformers",
            "argap/models/describe.py::_count_weights",
            "argap/models/hub/load.py::stored_dtype",
            "argap/models/hub/load.py::_Shards.__init__",
            "argap/models/hub/load.py::_Shards.read",
            "argap/models/modeling.py::ArgapPreTrainedModel.from_pretrained",
            "argap/train/checkpoint.py::load_checkpoint",
            "argap/synthetics/training/unfinished.py::resume",
            "argap/synthetics/training/unfinished.py::_position",
        ),
    ),
    Row(
        "pickled weights and torch's distributed checkpoints",
        "a child with limits that ends with its parent; tensors only (`argap.checkpoints.unpickle`)",
        "10 s and 5 MB a second of processor time; 4 GB and 4 times the size; 16 bytes for each stored",
        "commands/test_convert.py",
        (
            "argap/checkpoints/unpickle.py::read_tensors",
            "argap/checkpoints/distributed.py::_read_metadata",
        ),
    ),
    Row(
        "GGUF",
        "a file; version, types and ends of its header",
        "texts of 64 MiB; lists are read when asked for",
        "unit/test_gguf.py",
        (
            "argap/checkpoints/gguf/header.py::Header.read",
            "argap/checkpoints/gguf/header.py::check_gguf",
            "argap/checkpoints/gguf/header.py::read_header",
            "argap/checkpoints/gguf/weights.py::gguf_config",
            "argap/checkpoints/gguf/weights.py::_Tensor.data",
        ),
    ),
    Row(
        "archives of a suite's weights",
        "the SHA-256 that `weights.json` lists; plain files of known names",
        "sizes as listed",
        "commands/suite/test_suite_run.py",
        ("argap/suite/weights.py::import_weights", "argap/suite/weights.py::_archive"),
    ),
    Row(
        "repositories of the hub",
        "no pickles, no code; then as local files",
        "1,000 pages of names of files",
        "unit/test_hub.py",
        (
            "argap/files/hub.py::snapshot",
            "argap/files/hub.py::listed",
            "argap/integrations/hub.py::_has",
        ),
    ),
    Row(
        "servers of log-probs",
        "types and tokens of each answer, no redirects, no proxy (`Client`)",
        "256 MiB, 512 MiB with its frames, 300 s from the first byte, 600 s without one",
        "unit/server/test_server.py",
        ("argap/scoring/server/client.py::Client._once",),
    ),
    Row(
        "requests of a browser (`argap view`)",
        "token, cookie and host; GET alone; conditions of listed functions (`argap.slices.allowed`)",
        "300 s an answer; conditions of 100,000 characters and 500 open parentheses",
        "pages/view/test_view_requests.py",
        ("argap/view/serve.py::serve",),
    ),
    Row(
        "argap's own files and those of the system",
        "part of the installation",
        "",
        "commands/test_packaging.py",
        (
            "argap/metric/paper.py::",
            "argap/metric/paper.py::read_table",
            "argap/models/hub/registry.py::fla_models",
            "argap/models/speed.py::_peak_rss",
            "argap/files/atomic.py::_settle",
            "argap/runtime/streams.py::_open",
            "argap/view/bundle.py::_write_page",
            "argap/recall/lm_eval_tasks.py::_evaluate",
            "reports/pages/page.py::render_page",
            "reports/pages/page.py::inline_svg",
        ),
    ),
)


def found() -> set[str]:
    """Return the functions of argap that read, as ``path::qualified.name``."""
    readers: set[str] = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT)
            if place.parts[1] not in ("kernels", "bigram_index", "reports"):  # links to folders beside argap
                readers |= {f"{place.as_posix()}::{name}" for name in _reading(ast.parse(path.read_text()), "")}
    return readers


def _reading(tree: ast.AST, within: str) -> Iterator[str]:
    """Yield the qualified name of the function around each call that reads."""
    for child in ast.iter_child_nodes(tree):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Call) and _reads(child):
            yield within
        yield from _reading(child, f"{within}.{child.name}".strip(".") if named else within)


def _reads(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    of = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    if name == "load":
        return of in LOADS
    if name == "Config":
        return of == "uvicorn"
    if name == "stream":
        return of == "self._http"
    modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    writes = name == "open" and (of == "os" or any(mode.rstrip("b+") in ("w", "a", "x") for mode in modes))
    return name in READING and not writes and of not in ("webbrowser", "FlaOperators")


def table() -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| what is read | guard | limit | test |", "| --- | --- | --- | --- |"]
    lines += [f"| {each.what} | {each.guard} | {each.limit or '–'} | `tests/{each.test}` |" for each in ROWS]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Rewrite the table of ``SECURITY.md`` in ``folder``."""
    page = folder / "SECURITY.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2])


def write_functions(docs: Path) -> None:
    """Rewrite the table of the functions of conditions in ``docs/slices.md``."""
    from argap.slices.allowed import FUNCTIONS

    begin, end = "<!-- functions: made by tools/pages.py -->\n", "<!-- end of functions -->\n"
    cells = {what: ", ".join(f"`{name}`".replace("|", "\\|") for name in names) for what, names in FUNCTIONS.items()}
    lines = ["| for | functions and operators |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in cells.items())]
    page = docs / "slices.md"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2])
