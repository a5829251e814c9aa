"""Read the text of packages: which files of a wheel or a Debian package are documents, and what their text is.

Archives are read in memory and never unpacked on disk. `documents` yields the text of every file that passes the rules
stated here, in the archive's order: documentation and source code, without what is generated, minified, vendored,
translated, data of tests, or a copy of what stands elsewhere in the package.
"""

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from argap.errors import ArgapError, FormatError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PAGES = ("html", "htm", "xhtml")
DOMAINS = {
    "documentation": (*PAGES, "rst", "md", "txt", "pod", "info", "texi", "adoc"),
    "python": ("py", "pyi", "pyx"),
    "c": ("c", "h", "cc", "cpp", "cxx", "hpp", "hh", "ipp"),
    "other code": ("go", "rs", "java", "el", "pas", "pp", "rb", "pl", "pm", "scm", "lisp", "hs", "ml", "tcl", "sh"),
}
"""What a document counts as, by the suffix of its file."""
DOMAIN_OF = {suffix: domain for domain, suffixes in DOMAINS.items() for suffix in suffixes}
SMALLEST, LARGEST = 400, 4_000_000
"""Characters, and bytes, of a file: shorter ones say little, larger ones are data."""
LONGEST_LINE = 1000
"""Characters of a line of code; longer ones are minified or data."""
SKIPPED_FOLDERS = _words(
    "_sources _modules _static _vendor _vendored vendor vendored third_party thirdparty extern externals node_modules "
    "locale locales translations po testdata test_data test-data fixtures golden corpora licenses dist-info"
)
SKIPPED_NAMES = re.compile(
    r"(changelog|changes|news|history|release[-_]?notes?|whatsnew|copyright|copying|licen[cs]e|notice|authors|credits"
    r"|thanks|contributors|genindex|(py-|mod)?index-all|py-modindex|search|requirements|top_level|sources|record"
    r"|wordlist|unicode.*data|deprecated-list|constant-values|allclasses|overview-tree|package-(tree|use))\b"
    r"|.*(_pb2(_grpc)?\.pyi?|\.min\.\w+|[-_]members\.html|_source\.html|\.cpp\.html|\.h\.html|[-_]generated\.\w+)$"
)
LOCALE = re.compile(r"(?!en)[a-z]{2}[-_][a-z]{2}")
GENERATED = re.compile(r"generated (by|from|automatically|code|file|with)|auto-?generated|do not (edit|modify)", re.I)
WORD = re.compile(r"[^\W\d_]+")
ENGLISH = _words("the of and to is in for that with are this be as by")
OTHER_LANGUAGES = _words(
    "der die das und nicht mit von le les des est une pour dans el los las que para il che di della non per het een "
    "van och att não uma com nie jest w się og er til je se na hogy egy az ja ei tai"
)


class Document(NamedTuple):
    """The text of one file of a package."""

    path: str
    """Within the archive; a file of an archive in the archive has the path of both."""
    domain: str
    """A key of `DOMAINS`."""
    text: str


def documents(archive: Path, is_read: Callable[[str], bool] = lambda path: True) -> Iterator[Document]:
    """Yield the documents of a wheel or a Debian package among the files whose paths ``is_read`` accepts.

    Raises `FormatError` for an archive that cannot be read, and `ArgapError` for one with a path that leads out of it.
    """
    try:
        for path, data in _files(archive):
            if is_read(path) and (found := document_of(path, data)) is not None:
                yield found
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise FormatError(f"{archive}: not readable as a package ({error})") from error


def document_of(path: str, data: bytes) -> Document | None:
    """Return the document that a file holds; None if a rule leaves it out or it is not UTF-8."""
    try:
        if path.endswith(".gz"):
            path = path.removesuffix(".gz")
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST + 1)
        raw = data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError):
        return None
    suffix = path.rpartition(".")[2].lower()
    domain = DOMAIN_OF[suffix]
    text = text_of_html(raw) if suffix in PAGES else raw
    text = normalised(text)
    good = _is_prose if domain == "documentation" else _is_code
    return Document(path, domain, text) if len(text) >= SMALLEST and len(data) <= LARGEST and good(text) else None


def normalised(text: str) -> str:
    """Return text with line feeds alone, without spaces at line ends, runs of empty lines or control characters."""
    text = re.sub(r"\r\n?|\f|\x1f", "\n", text)
    text = re.sub(r"[\x00-\x08\x0b\x0e-\x1e\x7f\ufeff]", "", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t\xa0]+(?=\n|$)", "", text)).strip("\n") + "\n"


def is_wanted(path: str) -> bool:
    """Return whether a file's name and folders pass the rules.

    >>> is_wanted("sympy/core/add.py"), is_wanted("pip/_vendor/idna/core.py"), is_wanted("usr/share/doc/x/guide.txt.gz")
    (True, False, True)
    """
    pure = PurePosixPath(path.lower().removesuffix(".gz"))
    folders = {part for each in pure.parts[:-1] for part in (each, each.rpartition(".")[2])}
    if pure.suffix[1:] not in DOMAIN_OF or folders & SKIPPED_FOLDERS or SKIPPED_NAMES.match(pure.name):
        return False
    is_listing = pure.suffix[1:] in PAGES and "src" in folders  # source code as pages
    return not is_listing and all(LOCALE.fullmatch(folder) is None for folder in folders)


def _is_code(text: str) -> bool:
    return _is_text(text) and not GENERATED.search(text[:1000]) and max(map(len, text.split("\n"))) <= LONGEST_LINE


def _is_prose(text: str) -> bool:
    words = [word.lower() for word in WORD.findall(text[:20_000])]
    english, others = (sum(word in known for word in words) for known in (ENGLISH, OTHER_LANGUAGES))
    return _is_text(text) and english > others and english >= 0.01 * len(words)


def _is_text(text: str) -> bool:
    """Return whether text is mostly ASCII and has letters, unlike tables of numbers and encoded data."""
    shown = len(text) - text.count(" ") - text.count("\n")
    ascii_only = text.encode("ascii", "ignore").decode()
    letters = len(ascii_only.translate(NO_LETTERS))
    return len(ascii_only) >= 0.95 * len(text) and letters >= 0.5 * shown


NO_LETTERS = {code: None for code in range(128) if not chr(code).isalpha()}


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each wanted file of an archive, whatever it is."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for member in wheel.infolist():
                if is_wanted(_safe(archive, member.filename)) and member.file_size <= LARGEST:
                    yield member.filename, wheel.read(member)
    else:
        yield from _of_tar(archive, io.BytesIO(_data_of_deb(archive)), "")


def _of_tar(archive: Path, file: io.BytesIO, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of a tar archive and of those in it: Debian's packages of sources have one."""
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            path = prefix + str(PurePosixPath(_safe(archive, member.name)))
            inner = tar.extractfile(member) if member.isreg() else None
            if inner is None:
                continue
            if re.search(r"\.tar\.(xz|gz|bz2)$", path) and not prefix:
                yield from _of_tar(archive, io.BytesIO(inner.read()), f"{path}/")
            elif is_wanted(path) and member.size <= LARGEST:
                yield path, inner.read()


def _data_of_deb(archive: Path) -> bytes:
    """Return the archive of files in a Debian package, which is an ``ar`` archive of three."""
    with open(archive, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise FormatError(f"{archive}: not a Debian package")
        while len(header := file.read(60)) == 60:
            size = int(header[48:58])
            if header.startswith(b"data.tar") and len(data := file.read(size)) == size:
                return data
            file.seek(size + size % 2, io.SEEK_CUR)
    raise FormatError(f"{archive}: no whole data.tar in it")


def _safe(archive: Path, name: str) -> str:
    """Return the path of a member. Raises `ArgapError` if it leads out of the archive."""
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        raise ArgapError(f"{archive}: refused, its member {name!r} leads out of the archive")
    return name


BLOCKS = _words(
    "address article blockquote br dd details div dl dt figure h1 h2 h3 h4 h5 h6 hr li main ol p pre section "
    "summary table tbody tr ul"
)
SPACED = _words("h1 h2 h3 h4 h5 h6 p pre table ul ol dl blockquote")
LEFT_OUT = _words("script style head nav header footer aside form label button svg math select noscript template")
LEFT_OUT_CLASSES = re.compile(
    r"(^|\s)(headerlink|sphinxsidebar\w*|related|nav\w*|toc\w*|footer|header|breadcrumbs?|copyright|anchor|directory"
    r"|topnav|bottomnav|subnav|sidebar|src|anchorjs-link|linenos|memberdecls|searchbox|paramsummary|viewcode-link|back-to-top\w*|source-link)(\s|$)"
)
VOID = _words("area base br col embed hr img input link meta source track wbr")


def text_of_html(page: str) -> str:
    """Return the text of a page in HTML: a line for each paragraph, item and row; code as it is; no navigation.

    >>> text_of_html("<nav>Up</nav><p>One\\ntwo</p><pre>a\\n  b</pre>").split("\\n")
    ['', 'One two', '', 'a', '  b', '']
    """
    reader = _PageText()
    reader.feed(page)
    reader.close()
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" *\n", "\n", "".join(reader.parts)))


class _PageText(HTMLParser):
    """Collects the text of a page in `parts`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.within_pre = 0
        self.left_out = ""
        """The tag of an element that is left out, while it is open."""
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.left_out and tag == "h1":
            self.left_out = ""  # a page's title is not in its navigation, which may lack its end
        if self.left_out:
            self.depth += tag == self.left_out
            return
        if tag not in VOID and tag != "body":
            named = next((value for key, value in attrs if key == "class"), "") or ""
            if tag in LEFT_OUT or (named and LEFT_OUT_CLASSES.search(named)):
                self.left_out, self.depth = tag, 1
                return
        self.within_pre += tag == "pre"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.left_out:
            self.depth -= tag == self.left_out
            if not self.depth:
                self.left_out = ""
            return
        if tag == "pre":
            self.within_pre = max(0, self.within_pre - 1)
        if tag != "br":
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if self.left_out:
            return
        if not self.within_pre:
            data = re.sub(r"\s+", " ", data)
            if not self.parts or self.parts[-1].endswith(("\n", " ")):
                data = data.lstrip(" ")
        if data:
            self.parts.append(data)

    def _break(self, tag: str) -> None:
        if tag in BLOCKS and self.parts:
            if not self.parts[-1].endswith("\n"):
                self.parts.append("\n")
            if tag in SPACED:
                self.parts.append("\n")
        elif tag in ("td", "th") and self.parts and not self.parts[-1].endswith(("\n", " ")):
            self.parts.append(" ")
