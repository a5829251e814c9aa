"""The files of a corpus: which of a folder's are read, how each is read, and what is left out."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from argap.corpus import columnar, delimited, jsonl, shards, text
from argap.corpus.document import NoText, Tally, TextDocument, TokenShard
from argap.corpus.formats import EXPECTED, LINES, TEXT, Kind, NotRead, recognise, suffix_of
from argap.errors import ArgapError, FormatError
from argap.files.regular import check_regular

Reader = Callable[[Path, str, str, Tally, Sequence[str]], Iterator[TextDocument]]

READERS: dict[Kind, Reader] = {
    "text": text.read,
    "json": jsonl.read,
    "csv": delimited.read,
    "parquet": columnar.read_parquet,
    "arrow": columnar.read_arrow,
}
"""A reader takes (path, domain, text column, tally, columns to keep)."""
COMPANIONS = ("dataset_dict.json", "dataset_info.json", "state.json", "index.json")
"""Files that `datasets` and `argap index build --keep-tokens` write beside their data; not worth a remark."""
MOST_STATE = 2**24  # bytes
THREADS = 16
"""Files whose beginnings are read at a time; an object store takes long to answer."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file that is read."""

    path: Path
    kind: Kind
    domain: str


def find_files(
    root: Path, text_column: str, keep: Sequence[str], *, headerless: bool
) -> tuple[list[CorpusFile], dict[str, str]]:
    """Return the files of the corpus ``root``, sorted by path, and what the others of a folder are, by name.

    The first rows are read, so that what lacks the text column is found here. ``.json`` and CSV without it are left out
    of a folder, where they describe data as often as they hold it; JSON lines, Parquet and Arrow are not.
    ``headerless``: as in `recognise`. Raises `ArgapError` if nothing is left, and `FormatError` for a file that is
    broken or refused.
    """
    if not root.is_dir():
        check_regular(root)
    if root.is_file():
        kind = recognise(root, text_column, headerless=headerless)
        _check(file := CorpusFile(root, kind, root.name.split(".")[0]), text_column, keep)
        return [file], {}
    if not root.is_dir():
        raise ArgapError(
            f"{root}: no such file or folder; expected {EXPECTED}, a folder of them, `hub:NAME?split=...` or "
            "`stdlib:heldout`"
        )
    below, left_out = _below(root)
    found: list[CorpusFile] = []
    with ThreadPoolExecutor(THREADS) as pool:
        look = partial(_look, root=root, text_column=text_column, keep=keep, headerless=headerless)
        for path, each in zip(below, pool.map(look, below), strict=True):
            if not isinstance(each, str):
                found.append(each)
            elif path.name not in COMPANIONS:
                left_out[path.relative_to(root).as_posix()] = each
    if not found:
        names = [f"{name} ({what})" for name, what in left_out.items()]
        raise ArgapError(
            f"{root}: no file that can be read as a corpus; found {', '.join(names[:3]) or 'nothing'}; expected "
            f"{EXPECTED}"
        )
    return found, left_out


def read_file(
    file: CorpusFile, text_column: str, dtype: np.dtype | None, tally: Tally, keep: Sequence[str]
) -> Iterator[TextDocument | TokenShard]:
    """Yield the documents or token shards of a file. Raises `FormatError` for a broken one."""
    if file.kind == "tokens":
        yield from shards.shards_of(file.path, dtype, file.domain)
    else:
        yield from READERS[file.kind](file.path, file.domain, text_column, tally, keep)


def _look(path: Path, *, root: Path, text_column: str, keep: Sequence[str], headerless: bool) -> CorpusFile | str:
    """Return a file of the folder ``root`` that is read, or what another one is."""
    parts = path.relative_to(root).parts
    suffix = suffix_of(path)
    try:
        kind = recognise(path, text_column, headerless=headerless)
    except NotRead as error:
        return error.what
    except FileNotFoundError:
        return "gone since the folder was listed"
    if kind == "text" and suffix not in TEXT:
        return "text with a suffix that is not read" if suffix else "text without a suffix"
    file = CorpusFile(path, kind, parts[0] if len(parts) > 1 else root.name.split(".")[0])
    try:
        _check(file, text_column, keep)
    except FormatError as error:
        if isinstance(error, NoText) and kind in ("json", "csv") and suffix not in LINES:
            return error.what
        if kind == "json" and suffix not in LINES:
            return str(error).removeprefix(str(path)).lstrip(",: ")
        raise
    return file


def _check(file: CorpusFile, text_column: str, keep: Sequence[str]) -> None:
    """Raise the error of a file's first row or of its columns."""
    if file.kind == "parquet":
        columnar.check_parquet(file.path, text_column, keep)
    elif file.kind not in ("text", "tokens"):
        next(READERS[file.kind](file.path, file.domain, text_column, Tally(), keep), None)


def _below(root: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the visible files below ``root``, except indexes of token files, and the caches of `datasets`, by name.

    Results of ``map`` lie beside the data: a saved data set lists its own files, and in a cache they have names. Raises
    `FormatError` for what is neither a file nor a folder, such as a pipe or a link to nothing.
    """
    try:
        listed = {path: path.is_file() for path in sorted(root.rglob("*"))}
    except FileNotFoundError as error:
        raise ArgapError(f"{root}: {error.filename} was removed while the folder was listed") from None
    visible = [path for path in listed if not any(part.startswith(".") for part in path.relative_to(root).parts)]
    below = [path for path in visible if listed[path]]
    for path in visible:
        if isinstance(path, Path) and (listed[path] or not path.is_dir()):
            check_regular(path)
            if not listed[path]:
                raise FormatError(f"{path}: a link to nothing; expected a file")
    left_out: dict[str, str] = {}
    for folder in {path.parent for path in below if path.name == "dataset_info.json"}:
        own = _data_files(folder / "state.json")
        arrow = [path for path in below if path.parent == folder and path.suffix == ".arrow"]
        cached = [p for p in arrow if (p.name.startswith("cache-") if own is None else p.name not in own)]
        left_out |= {path.relative_to(root).as_posix(): "a cache of `datasets`" for path in cached}
        below = [path for path in below if path not in cached]
    pairs = {path.with_suffix(".idx") for path in below if path.suffix == ".bin"}
    return [path for path in below if path not in pairs], left_out


def _data_files(state: Path) -> set[str] | None:
    """Return the names of a saved data set's files; None without a ``state`` that lists them."""
    try:
        with state.open("rb") as file:
            return {each["filename"] for each in json.loads(file.read(MOST_STATE))["_data_files"]}
    except (OSError, ValueError, TypeError, LookupError):
        return None
