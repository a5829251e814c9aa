"""Build a text of documentation and source code from pinned packages: ``python tools/package_text.py OUT``.

``package_text.csv`` pins wheels of PyPI and packages of Debian 12 by version and SHA-256. ``pip`` and ``apt-get`` fetch
them into ``OUT/downloads``, unless they are there: a file may come from elsewhere, such as an archive of old packages.
``package_archives.py`` takes the text out of them. Duplicates are dropped, whole projects are held out, and the rest is
written shuffled to ``OUT/train/*.parquet`` and ``OUT/validation.parquet`` with the columns ``text``, ``domain`` and
``source`` (the project), and summed up in ``OUT/text.json``. The same list gives the same texts in the same order, and
with one version of pyarrow the same bytes. A killed run goes on with the downloads that it has.
"""

import argparse
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from package_archives import documents  # noqa: E402

from argap.corpus import open_corpus  # noqa: E402
from argap.corpus.tokenize import token_documents  # noqa: E402
from argap.errors import ArgapError, first_line  # noqa: E402
from argap.files.atomic import replacing, replacing_folder, write_json  # noqa: E402
from argap.files.checksums import sha256_of  # noqa: E402
from argap.runtime.progress import say  # noqa: E402
from argap.text.tokenizer import load_tokenizer  # noqa: E402

LIST = Path(__file__).with_name("package_text.csv")
CLIENTS = {
    "pypi": (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--platform=any"),
        *(f"--platform=manylinux{version}_x86_64" for version in ("_2_28", "_2_17", "2014")),
        *("--dest=.", "{name}=={version}"),
    ),
    "debian": ("apt-get", "download", "--quiet", "{name}={version}"),
}
"""The command that fetches a package of each origin into the working directory."""
HELD_OUT = 8
"""One project in so many is held out, by the hash of its name."""
HELD_OUT_BYTES = 400_000
"""Bytes of text that a held-out project gives at most, so that no project decides."""
LONGEST = 100_000
"""Characters of a document; longer files are cut at line ends into several."""
WINDOW = 5
"""Lines, without empty ones, that count as a copy if they are those of another file."""
COPIED = {"train": 0.5, "validation": 0.2}
"""A file is dropped if a larger share of its windows was in files kept before it, training files first."""
SHARD_BYTES = 64_000_000


class Package(NamedTuple):
    """A line of the list."""

    project: str
    """Where it comes from; all packages of a project are on one side."""
    origin: str
    """A key of `CLIENTS`."""
    name: str
    version: str
    share: float
    """The share of its files that is read, by the hash of their paths, so that no package is most of the text."""
    sha256: str
    file: str

    @property
    def side(self) -> str:
        """``validation`` for a held-out project, else ``train``."""
        return "validation" if _hash(self.project) % HELD_OUT == 0 else "train"

    def is_read(self, path: str) -> bool:
        """Return whether a file is in the share that is read."""
        return _hash(f"{self.name}/{path}") < self.share * 2**64


class Text(NamedTuple):
    """A document of the text."""

    order: int
    """A hash of where it comes from: sorted by it, documents are shuffled."""
    text: str
    domain: str
    source: str


def read_list(path: Path) -> list[Package]:
    """Read the pinned packages. Raises `ArgapError` for an unknown origin and for a file that is listed twice."""
    with open(path, encoding="utf-8", newline="") as file:
        packages = [Package(**{**row, "share": float(row["share"])}) for row in csv.DictReader(file)]
    for package in packages:
        if package.origin not in CLIENTS:
            raise ArgapError(f"{path}: {package.name}: origin {package.origin!r}, expected one of {', '.join(CLIENTS)}")
    if twice := [file for file, count in Counter(package.file for package in packages).items() if count > 1]:
        raise ArgapError(f"{path}: listed twice: {', '.join(twice)}")
    return packages


def fetch(package: Package, folder: Path) -> Path:
    """Return the package's file in ``folder``, downloaded if missing.

    Raises `ArgapError` if the client fails, or if the file's SHA-256 is not the listed one.
    """
    path = folder / package.file
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            _download(package, Path(fresh))
            if not (Path(fresh) / package.file).is_file():
                raise ArgapError(f"{package.name} {package.version}: fetched, but there is no {package.file}")
            os.replace(Path(fresh) / package.file, path)
    if (found := sha256_of(path)) != package.sha256:
        raise ArgapError(f"{path}: SHA-256 {found}, expected {package.sha256}; remove the file and run this again")
    return path


def _download(package: Package, folder: Path) -> None:
    command = [part.format(name=package.name, version=package.version) for part in CLIENTS[package.origin]]
    what = f"{package.name} {package.version} could not be fetched"
    place = f"put {package.file} into {folder.parent} from elsewhere, and run this again"
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ArgapError(f"{what}: no {command[0]} here; {place}") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith(("E:", "ERROR:"))]
        raise ArgapError(f"{what} ({said[0] if said else error}); {place}") from None


class Duplicates:
    """Knows the files that were kept, and says of another whether it is a copy."""

    def __init__(self) -> None:
        self._exact: set[bytes] = set()
        self._windows: set[int] = set()

    def copy_of(self, text: str, most: float) -> str:
        """Return ``exact`` or ``near`` for a copy of what was kept; else keep ``text`` and return an empty string.

        ``exact``: equal but for white space. ``near``: more than ``most`` of its windows were kept.
        """
        exact = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()
        if exact in self._exact:
            return "exact"
        windows = windows_of(text)
        if sum(each in self._windows for each in windows) > most * len(windows):
            return "near"
        self._exact.add(exact)
        self._windows.update(windows)
        return ""


def windows_of(text: str) -> list[int]:
    """Return a 64-bit hash of each distinct run of `WINDOW` lines, without empty lines and indentation.

    A text of fewer lines is one window.
    """
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    hashes = np.array([_hash(line) for line in lines], dtype=np.uint64)
    count = max(1, len(lines) - WINDOW + 1)
    windows = np.zeros(count, dtype=np.uint64)
    for place in range(min(WINDOW, len(lines))):
        windows = windows * np.uint64(0x9E3779B97F4A7C15) + hashes[place : place + count]
    return np.unique(windows).tolist()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def gather(packages: Sequence[Package], folder: Path) -> tuple[dict[str, list[Text]], dict[str, Counter[str]]]:
    """Return the texts of each side, shuffled, and how many files of each were copies.

    Packages of training projects are read first, so that a held-out file that is like one of theirs is dropped.
    """
    duplicates = Duplicates()
    texts: dict[str, list[Text]] = {side: [] for side in COPIED}
    copies: dict[str, Counter[str]] = {side: Counter() for side in COPIED}
    ordered = sorted(packages, key=lambda package: package.side)  # stable; "train" is before "validation"
    for number, package in enumerate(ordered, 1):
        side, before = texts[package.side], len(texts[package.side])
        for document in documents(fetch(package, folder), package.is_read):
            if copy := duplicates.copy_of(document.text, COPIED[package.side]):
                copies[package.side][copy] += 1
                continue
            side += [
                Text(_hash(f"{package.name}/{document.path}:{piece}"), text, document.domain, package.project)
                for piece, text in enumerate(pieces(document.text))
            ]
        read = sum(len(each.text) for each in side[before:])
        say(f"{number} of {len(ordered)}: {package.file}: {len(side) - before:,} documents, {read / 1e6:.1f} MB")
    texts["validation"] = list(_limited(sorted(texts["validation"])))
    return {side: sorted(found) for side, found in texts.items()}, copies


def pieces(text: str) -> Iterator[str]:
    """Cut a text at line ends into parts of at most `LONGEST` characters; a longer line is cut where it is."""
    while len(text) > LONGEST:
        end = text.rfind("\n", 0, LONGEST) + 1 or LONGEST
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _limited(texts: Iterable[Text]) -> Iterator[Text]:
    """Yield texts while their project has given at most `HELD_OUT_BYTES`."""
    given: Counter[str] = Counter()
    for each in texts:
        size = len(each.text.encode())
        if given[each.source] + size <= HELD_OUT_BYTES:
            given[each.source] += size
            yield each


def write(texts: dict[str, list[Text]], out: Path) -> None:
    """Write the texts of both sides as Parquet, the training side in shards of about `SHARD_BYTES`."""
    with replacing_folder(out / "train") as folder:
        shard: list[Text] = []
        size = number = 0
        for each in texts["train"]:
            shard.append(each)
            size += len(each.text)
            if size >= SHARD_BYTES:
                _write_table(shard, folder / f"{number:05}.parquet")
                shard, size, number = [], 0, number + 1
        if shard:
            _write_table(shard, folder / f"{number:05}.parquet")
    with replacing(out / "validation.parquet") as temporary:
        _write_table(texts["validation"], temporary)


def _write_table(texts: Sequence[Text], path: Path) -> None:
    columns = {name: pa.array([getattr(each, name) for each in texts], pa.string()) for name in Text._fields[1:]}
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=1000)


def summary(
    packages: Sequence[Package], texts: dict[str, list[Text]], copies: dict[str, Counter[str]], tokens: dict[str, int]
) -> dict[str, object]:
    """Return what `text.json` says of the text: bytes of UTF-8, documents and, if counted, tokens, by side."""
    sides: dict[str, object] = {}
    for side, found in texts.items():
        domains: defaultdict[str, Counter[str]] = defaultdict(Counter)
        digest = hashlib.sha256()
        for each in found:
            data = each.text.encode()
            domains[each.domain].update(documents=1, bytes=len(data))
            digest.update(hashlib.sha256(data).digest())
        projects = sorted({each.source for each in found})
        sides[side] = {
            "packages": sum(package.side == side for package in packages),
            "projects": projects if side == "validation" else len(projects),
            "documents": len(found),
            "bytes": sum(domain["bytes"] for domain in domains.values()),
            **({"tokens": tokens[side]} if side in tokens else {}),
            "domains": {name: dict(domains[name]) for name in sorted(domains)},
            "dropped_copies": dict(sorted(copies[side].items())),
            "sha256_of_texts": digest.hexdigest(),
        }
    return sides


def count_tokens(path: Path, tokenizer: str) -> int:
    """Return the tokens of a text as `argap train` packs them, with one EOS after each document."""
    return sum(len(document.ids) + 1 for document in token_documents(open_corpus(str(path)), load_tokenizer(tokenizer)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write, such as packages")
    parser.add_argument("--downloads", type=Path, help="folder of the packages; OUT/downloads if not given")
    parser.add_argument("--list", type=Path, default=LIST, help="the pinned packages")
    parser.add_argument("--tokenizer", help="count the tokens, too, with this tokenizer")
    chosen = parser.parse_args()
    packages = read_list(chosen.list)
    texts, copies = gather(packages, chosen.downloads or chosen.out / "downloads")
    write(texts, chosen.out)
    places = {"train": chosen.out / "train", "validation": chosen.out / "validation.parquet"}
    tokens = {side: count_tokens(path, chosen.tokenizer) for side, path in places.items()} if chosen.tokenizer else {}
    write_json(chosen.out / "text.json", summary(packages, texts, copies, tokens), seal=False)
    say(f"{chosen.out}: {len(texts['train']):,} documents to train on, {len(texts['validation']):,} held out")


if __name__ == "__main__":
    try:
        main()
    except (ArgapError, OSError) as error:
        sys.exit(f"package_text: {first_line(error)}")
