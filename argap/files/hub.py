"""Folders of the Hugging Face hub, ``hf://datasets/ORG/NAME/FOLDER``: addresses, and downloads to the hub's cache.

The addresses are those of huggingface_hub's file system. A revision follows the repository: ``NAME@REVISION``.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from argap.errors import ArgapError, first_line

ADDRESS = re.compile(
    r"hf:/{1,2}(?P<datasets>datasets/)?(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.%-]+))?(?P<folder>(?:/[^/?#]+)*)/?"
)
"""`Path` turns ``hf://`` into ``hf:/``."""
PAGES = 1000
"""Most pages of the list of a repository's files, each of up to 1,000 names."""
FORMS = "hf://datasets/ORG/NAME/FOLDER, or hf://ORG/NAME/FOLDER in a model's repository"


class Address(NamedTuple):
    """A folder of a repository."""

    kind: Literal["dataset", "model"]
    repository: str
    """``ORG/NAME``."""
    revision: str | None
    """None: the newest."""
    folder: str
    """Below the repository, without slashes at the ends; empty for the repository itself."""

    def __str__(self) -> str:
        repository = f"{'datasets/' if self.kind == 'dataset' else ''}{self.repository}"
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{repository}{revision}{f'/{self.folder}' if self.folder else ''}"


def is_hub(source: object) -> bool:
    """Return whether ``source`` is an address of the hub."""
    return str(source).startswith("hf:/")


def parse_address(source: object) -> Address:
    """Parse an address. Raises `ArgapError` for anything else, without repeating what may be a password in it."""
    match = ADDRESS.fullmatch(str(source))
    if match is None or ".." in match["folder"].split("/"):
        shown = "an address with a user name or password" if "@" in str(source).partition("/")[0] else str(source)
        raise ArgapError(f"{shown}: expected {FORMS}")
    revision = match["revision"]
    return Address(
        "dataset" if match["datasets"] else "model",
        match["repository"],
        revision and revision.replace("%2F", "/"),
        match["folder"].strip("/"),
    )


def fetched(source: object, beside: Sequence[str] = ()) -> Path:
    """Download a folder of the hub to its cache, unless it is there, and return its path.

    ``beside``: patterns of files outside it, from the folder that it is in, that are fetched too. The environment
    variable ``HF_TOKEN`` opens a private repository, ``HF_ENDPOINT`` names another hub. Raises `ArgapError` for an
    address that is none, and if the hub does not have the folder or does not answer.
    """
    address = parse_address(source)
    above = address.folder.rpartition("/")[0]
    patterns = [f"{address.folder}/**" if address.folder else "**"]
    patterns += [f"{above}/{each}" if above else each for each in beside]
    try:
        root = snapshot(address.repository, address.revision, patterns, kind=address.kind)
    except Exception as error:  # the library raises many types, all caused by the user or the network
        raise ArgapError(f"{address}: the hub does not give it ({first_line(error)})") from error
    if not (root / address.folder).is_dir():
        raise ArgapError(f"{address}: the repository has no such folder")
    return root / address.folder


def snapshot(
    repository: str, revision: str | None, patterns: Sequence[str], *, kind: Literal["dataset", "model"] = "model"
) -> Path:
    """Download the files of a repository that match ``patterns`` to the hub's cache, and return its folder there.

    Raises any type, caused by the user, the network or the hub, and `ArgapError` for more than `PAGES` pages.
    """
    from huggingface_hub import snapshot_download

    with _ending():
        return Path(snapshot_download(repository, repo_type=kind, revision=revision, allow_patterns=list(patterns)))


def listed(repository: str, revision: str | None) -> list[str]:
    """Return the names of the files in a model's repository. Raises what `snapshot` raises."""
    from huggingface_hub import HfApi

    with _ending():
        return HfApi().list_repo_files(repository, revision=revision)


@contextmanager
def _ending() -> Iterator[None]:
    """Raise `ArgapError` in the block once a list of files has more than `PAGES` pages: one may lead to itself."""
    from huggingface_hub import get_session

    pages = count(1)

    def check(request: Any) -> None:
        if "/tree/" in request.url.path and "/resolve/" not in request.url.path and next(pages) > PAGES:
            raise ArgapError(f"its list of files has more than {PAGES:,} pages")

    client = get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks["request"], check]}
    try:
        yield
    finally:
        client.event_hooks = hooks
