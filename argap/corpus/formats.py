"""Recognise what a file is by its first bytes; its name decides only what they cannot say.

That is which kind of text it is, and that a ``.bin`` without a header holds tokens. The suffix that counts is the one
before that of a compression.
"""

import codecs
import re
from functools import cache
from pathlib import Path
from typing import Literal

from argap.corpus import megatron
from argap.corpus.jsonl import first_object
from argap.corpus.packed import HEAD, Opened, compression_of, opened
from argap.errors import FormatError
from argap.files.regular import is_there

Kind = Literal["text", "json", "csv", "parquet", "arrow", "tokens"]

TEXT = (
    ".txt", ".text", ".md", ".rst", ".tex", ".html", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu",
    ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh", ".sql",
)  # fmt: skip
"""Suffixes of plain text."""
LINES = (".jsonl", ".ndjson")
NAMED: dict[str, Kind] = {
    **dict.fromkeys(TEXT, "text"),
    **dict.fromkeys((*LINES, ".json"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
    **dict.fromkeys((".bin", ".npy", ".npz"), "tokens"),
}
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4")
READ: tuple[tuple[bytes, Kind, str], ...] = (
    (rb"PAR1[\0-\x1f]", "parquet", "Parquet"),
    (rb"ARROW1\0\0|\xff{4}", "arrow", "Arrow"),
    (rb"\x93NUMPY", "tokens", "an .npy array"),
    (rb"PK\x03\x04.{26}[^\0/]*?\.npy", "tokens", "an .npz archive"),
)
"""Binary files that are read: pattern of the first bytes, kind, and name."""
REFUSED = {
    rb"version https://git-lfs": "a Git LFS pointer in place of the file, which `git lfs pull` fetches",
    rb"MMIDIDX\0\0": "the index of a Megatron pair, which is read with its .bin",
    rb"TNTIDX\0\0": "an index of Megatron's older format",
    rb"PK\x03\x04|PK\x05\x06": "a zip archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"Rar!\x1a\x07": "a RAR archive",
    rb".{257}ustar(\0|  \0)": "a tar archive",
    rb"WARC/[01]\.\d+\r\n": "a WARC archive",
    rb"%PDF-": "a PDF document",
    rb"\{\\rtf": "an RTF document",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "a document of Microsoft Office",
    rb"\x89PNG|\xff\xd8\xff[\xc0-\xff]|GIF8[79]a.{4}[\x80-\xff]|II\*\0|MM\0\*": "a picture",
    rb"RIFF.{4}(WEBP|WAVE|AVI )|OggS\0|fLaC\0|ID3[\x02-\x04]\0|\0{3}.ftyp": "a picture, recording or video",
    rb"\x7fELF|MZ.{0,62}\0|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe|\0asm": "an executable",
    rb"SQLite format 3\0|.{8}DUCK[\0-\xff]\0": "a database",
    rb"\x89HDF\r\n": "an HDF5 file",
    rb"GGUF[\x01-\x0f]\0|.{5}\0{3}\{\"": "a checkpoint",
    rb"FEA1\0": "Feather of version 1",
    rb"Obj\x01": "Avro",
    rb"\x80\x02\x8a\nl\xfc": "a pickle of torch",
    rb"\x80[\x02-\x05]": "a pickle",
}
"""Files that are not read: pattern of the first bytes, and what they say."""
SURE = 4
"""Bytes of a pattern that overrules the name of a ``.bin``, whose tokens can begin with any two or three."""
UNREADABLE = 0.3
"""Share of invalid and control characters above which bytes are not text."""
CONTROL = re.compile("[\0-\x07\x0e-\x1a\x1c-\x1f\x7f\udc80-\udcff]")
"""Characters that text does not contain, and invalid bytes; escape colours the logs of terminals."""
OBJECTS = re.compile(rb"\s*\[\s*\{\s*\"")
EXPECTED = "text, JSON, CSV, Parquet, Arrow, or token files (.npy, .npz, .bin)"


class NotRead(FormatError):
    """A file that is none of the kinds that are read. ``what``: what it is instead."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}; expected {EXPECTED}")
        self.what = what


def suffix_of(path: Path) -> str:
    """Return the suffix of a name without that of its compression, in lower case."""
    name = path.name.lower()
    name = next((name.removesuffix(suffix) for suffix in PACKED_SUFFIXES if name.endswith(suffix)), name)
    return Path(name).suffix


def recognise(path: Path, text_column: str, *, headerless: bool) -> Kind:
    """Return the kind of the file ``path``.

    ``text_column``: a first line that is a JSON object with it makes JSON lines of any file. ``headerless``: the
    element type of ``.bin`` is given, so their first bytes are not doubted. Raises `NotRead`, and `FormatError` as
    `argap.corpus.packed.opened` does.
    """
    suffix = suffix_of(path)
    if suffix == ".bin" and path.suffix.lower() == ".bin":
        _check_shard(path, headerless=headerless)
        return "tokens"
    with opened(path) as text:
        kind, what = _content(path, suffix, text, text_column)
    if text.packed and kind not in ("text", "json", "csv"):
        raise NotRead(path, f"{text.packed} of {what}, which is read unpacked")
    return kind


def _check_shard(path: Path, *, headerless: bool) -> None:
    """Raise `NotRead` for a ``.bin`` whose first bytes, or those of the ``.idx`` beside it, deny that it holds tokens.

    The element type, if given, settles the doubt.
    """
    if megatron.is_pair(path):
        megatron.read_header(path)
        return
    with path.open("rb") as file:
        head = file.read(HEAD)
    if headerless:
        return
    if path.suffix == ".bin" and is_there(index := path.with_suffix(".idx")):
        what = f"tokens of an unknown type, as the {index.name} beside it is not Megatron's"
        raise NotRead(path, f"{what}; give `token_dtype`")
    what = compression_of(head) or _refused(head, SURE)
    if what is None and len(head) >= 16 and _is_text(head):
        what = f"text ({head[:24]!r} …)"
    if what is not None:
        raise NotRead(path, f"{what}, in spite of its suffix; `token_dtype` says that it holds tokens")


def _content(path: Path, suffix: str, text: Opened, text_column: str) -> tuple[Kind, str]:
    """Return the kind of a file's unpacked bytes and what they are. Raises `NotRead`."""
    head = text.head
    if suffix == ".bin":
        return "tokens", "a token file"
    for pattern, kind, what in READ:
        if _pattern(pattern).match(head):
            return kind, what
    packed = f"{text.packed} of " if text.packed else ""
    if (what := compression_of(head) or _refused(head)) is not None:
        raise NotRead(path, packed + what)
    if not _is_text(head):
        raise NotRead(path, f"{packed}no text in UTF-8 (it begins with {head[:12]!r}); convert other encodings")
    named = NAMED.get(suffix, "text")
    if named in ("json", "csv") or not head:
        return named, ""
    if named != "text":
        raise NotRead(path, f"{packed}text ({head[:24]!r} …), in spite of its suffix")
    plain = suffix in TEXT
    row = first_object(text.file) if head.startswith(b"{") else None
    if (row is not None and (text_column in row or not plain)) or (OBJECTS.match(head) and not plain):
        return "json", ""
    return "text", ""


def _refused(head: bytes, shortest: int = 0) -> str | None:
    """Return what the first bytes of a file that is not read say, by patterns of at least ``shortest`` bytes."""
    for pattern, what in REFUSED.items():
        if (match := _pattern(pattern).match(head)) and len(match[0]) >= shortest:
            return what
    return None


@cache
def _pattern(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def _is_text(head: bytes) -> bool:
    """Return whether first bytes are mostly UTF-8 without control characters."""
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(head)
    return len(CONTROL.findall(text)) <= UNREADABLE * len(text)
