"""Send a result to a data set of the Hugging Face hub, with a card that its pages and viewer understand.

The data set then serves as a reference: ``argap score M --ref hf://datasets/ORG/NAME/RUN``. The token comes from the
environment variable ``HF_TOKEN`` alone, and is written nowhere.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from argap.errors import ArgapError, first_line
from argap.files.atomic import read_json
from argap.files.checksums import FILE as CHECKSUMS
from argap.files.checksums import check_files
from argap.files.hub import Address, parse_address
from argap.files.regular import found_in, is_there
from argap.files.resumable import folder_name
from argap.records import Gap, read_gap
from argap.reports.pages.write import card
from argap.results.layout import RESULT, report_files
from argap.tokens.runs import pass_folders, read_run, token_parts

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKEN = "HF_TOKEN"
CARD = "README.md"
"""Files of a result itself."""
LABELS = ("*.json", "*.parquet")


class File(NamedTuple):
    """A file to send."""

    path: Path
    name: str
    """Below the result's folder."""
    bytes: int


class Push(NamedTuple):
    """What is sent, and where to."""

    address: Address
    files: tuple[File, ...]
    card: str
    """``README.md``, which a data set that has one keeps."""
    elsewhere: tuple[str, ...]
    """Models whose runs are outside the result's folder, and are not sent."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files) + len(self.card.encode())


def plan(result: Path, address: str, *, tokens: bool = True) -> Push:
    """Return what `send` would send of a result; nothing is sent, and no hub is asked.

    Files that argap did not write stay. ``tokens``: also the runs and labels, which hold the evaluation text as token
    ids; the report and ``examples.json`` quote it either way. Raises `ArgapError` for a folder without a result, a
    damaged file, an unfinished run, and an address that is no data set.
    """
    to = parse_address(address)
    if to.kind != "dataset" or to.revision:
        raise ArgapError(
            f"{to}: results go to a data set as it is now; expected hf://datasets/ORG/NAME or a folder of it"
        )
    gap, result = read_gap(result), Path(result)
    paths = [path for path in (*(result / name for name in RESULT), *report_files(result)) if is_there(path)]
    inside = [model for model in gap.models if is_there(result / folder_name(model) / "run.json")]
    if tokens:
        labels = result / "labels"
        paths += [path for pattern in LABELS for path in found_in(labels, pattern)]
        for model in inside:
            paths += _files_of_run(result / folder_name(model))
    for path in paths:
        if not is_there(path):
            raise ArgapError(f"{path}: a link to nothing; expected a file")
    for folder in [path.parent for path in paths if path.name == CHECKSUMS]:  # nobody could read what is damaged
        check_files(folder, [path for path in paths if path.is_relative_to(folder)])
    for path in paths:
        if path.suffix == ".json":  # whose checksum is their own
            read_json(path)
    files = tuple(File(path, path.relative_to(result).as_posix(), path.stat().st_size) for path in paths)
    elsewhere = tuple(model for model in gap.models if tokens and model not in inside)
    return Push(to, files, _card(gap, to, [folder_name(model) for model in inside] if tokens else []), elsewhere)


def _files_of_run(folder: Path) -> Iterator[Path]:
    """Yield the files of a finished run, its passes over short contexts and its tokenizer."""
    for each in (folder, *pass_folders(folder)):
        if read_run(each).finished is None:
            raise ArgapError(f"{each}: the run is not finished; repeat its `argap score` command to complete it")
        kept = (each / "run.json", each / CHECKSUMS, each / "tokenizer.json", each / "tokenizer_config.json")
        yield from (path for path in (*kept, *token_parts(each)) if is_there(path))


def _card(gap: Gap, to: Address, runs: list[str]) -> str:
    """Return the data set's card: metadata of the hub's own format, then the result in words and tables."""
    from huggingface_hub import DatasetCardData

    below = f"{to.folder}/" if to.folder else ""
    configs = [{"config_name": "cells", "data_files": f"{below}cells.parquet", "default": True}]
    configs += [{"config_name": run, "data_files": f"{below}{run}/tokens/part-*.parquet"} for run in runs]
    name = to.folder.rpartition("/")[2] or to.repository.rpartition("/")[2]
    data = DatasetCardData(pretty_name=name, tags=["argap", "perplexity", "evaluation"], configs=configs)
    use = f"```console\n$ argap score MODEL --ref {to}/{runs[0]}\n```\n\n" if runs else ""
    about = (
        f"# {name}\n\nA result of `argap score`: {', '.join(gap.models)}, on {gap.evaluation.scored:,} {gap.unit}s.\n\n"
    )
    return f"---\n{data.to_yaml()}\n---\n\n{about}{use}{card(gap)}"


def send(push: Push, *, private: bool = True) -> str:
    """Send a result in one commit and return the commit's address.

    A data set that does not exist is created, ``private`` unless that is False; one that exists keeps its visibility,
    its other files, and its card. Raises `ArgapError` without ``HF_TOKEN``, and for what the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise ArgapError(f"{TOKEN} is not set; give a token that may write to {push.address.repository} in it")
    api, below = HfApi(token=token), f"{push.address.folder}/" if push.address.folder else ""
    try:
        api.create_repo(push.address.repository, repo_type="dataset", private=private, exist_ok=True)
        added = [CommitOperationAdd(below + each.name, each.path) for each in push.files]
        if not _has(api, push.address, below + CARD):
            added.append(CommitOperationAdd(below + CARD, push.card.encode()))
        commit = api.create_commit(
            push.address.repository, added, commit_message="Add a result of argap", repo_type="dataset"
        )
    except Exception as error:  # the library raises many types, all caused by the user or the network
        reason = first_line(error).replace(token, "…")
        raise ArgapError(f"{push.address}: the hub did not take it ({reason})") from None
    return str(commit.commit_url)


def _has(api: "HfApi", address: Address, name: str) -> bool:
    return api.file_exists(address.repository, name, repo_type="dataset")
