"""Data sets of the Hugging Face hub, streamed through `datasets`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from argap.corpus.document import Tally, TextDocument, domain_of
from argap.errors import ArgapError, extra, first_line

OPTIONS = ("config", "split", "column", "revision")


def read(spec: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of ``NAME?split=train&config=...&column=text&revision=...`` (default split: train).

    ``keep``: columns kept with each document. Raises `ArgapError` for an unknown option or column, and if the hub does
    not answer.
    """
    name, _, query = spec.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ArgapError(f"hub:{spec}: unknown option {unknown[0]!r}; known ones are {', '.join(OPTIONS)}")
    column = options.get("column", text_column)
    for number, row in enumerate(_rows(name, options)):
        text = tally.text_of(row, column, f"hub:{name}#{number}", "column=...")
        yield TextDocument(text, domain_of(row, name), f"hub:{name}#{number}", tally.kept(row, keep))


def _rows(name: str, options: dict[str, str]) -> Iterator[Mapping[str, Any]]:
    with extra("datasets"):
        import datasets

    try:
        yield from datasets.load_dataset(
            name,
            options.get("config"),
            split=options.get("split", "train"),
            revision=options.get("revision"),
            streaming=True,
        )
    except Exception as error:  # the library raises many types, all caused by the user or the network
        raise ArgapError(f"hub:{name}: the data set could not be read ({first_line(error)})") from error
