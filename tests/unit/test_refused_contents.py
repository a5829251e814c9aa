"""Models, tokenizers, conditions, requests and machines that argap does not expect: one line, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pyarrow as pa
import pytest
from starlette.datastructures import QueryParams

from argap.errors import ArgapError
from argap.recall.prompts import Protocol, build_prompt
from argap.records.columns import schema_of
from argap.reports.tables.formats import csv_of_rows
from argap.result import open_result
from argap.runtime import streams
from argap.runtime.guard import LONGEST_LINE
from argap.runtime.interrupt import Interrupt
from argap.slices.conditions import check_condition
from argap.view.answers import Answers, Setting
from argap.view.app import page_of
from argap.view.keep import Asked, keep

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "today-7m" / "7m"


# Models and tokenizers


def test_a_gold_whose_characters_no_token_covers_is_not_in_the_prompt() -> None:
    tokenizer: Any = SimpleNamespace(encode_spans=lambda text: ([1, 2], [(0, 1), (len(text) - 1, len(text))]))
    example: Any = SimpleNamespace(text="a gold thing. Another.\nname:", gold="gold", id=0)
    prompt = build_prompt(example, "fda", tokenizer, Protocol())
    assert prompt.gold_in_text
    assert (prompt.golds, prompt.distance) == ([], None)


def test_an_example_without_tokens_is_refused() -> None:
    tokenizer: Any = SimpleNamespace(encode_spans=lambda text: ([], []))
    example: Any = SimpleNamespace(text="\u2028", gold="gold", id=3)
    with pytest.raises(ArgapError, match="example 3: the tokenizer makes no token"):
        build_prompt(example, "fda", tokenizer, Protocol())


def test_an_error_in_the_package_of_a_family_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from argap.checkpoints.family_code import family_code

    package = tmp_path / "argap_test_family"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "outputs.py").write_text("def check(): raise TypeError('an option of text')\n")
    (package / "modeling.py").write_text(
        "from torch import nn\nfrom .outputs import check\nclass Model(nn.Module):\n    forward = staticmethod(check)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from argap_test_family.modeling import Model  # pyright: ignore[reportMissingImports]
    from argap_test_family.outputs import check  # pyright: ignore[reportMissingImports]

    with pytest.raises(ArgapError, match="an option of text"), family_code("x", Model(), 8):
        check()  # as a decorator does, without a frame of the class's own file


def test_a_soft_cap_of_text_is_no_proposal() -> None:
    from torch import nn

    from argap.scoring.heads import SOFT_CAPS, _proposals

    config = SimpleNamespace(**dict.fromkeys(SOFT_CAPS, "x"))
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    assert [head.softcap for head in _proposals(model, nn.Linear(2, 2))] == [None]


# Conditions, the viewer and its files


@pytest.mark.parametrize("digits", [39, 1000, 5000])
def test_a_number_that_duckdb_compares_wrongly_is_refused(digits: int) -> None:
    schema = schema_of(["a"])
    assert check_condition(f"pos > {'9' * 38}", schema).sql
    for sign in ("", "-"):
        with pytest.raises(ArgapError, match="digits; expected at most 38"):
            check_condition(f"pos > {sign}{'9' * digits}", schema)


def test_a_breakdown_of_a_model_that_is_not_compared_is_refused() -> None:
    answers = Answers(open_result(RESULT))
    for wanted in ("md", "tex"):
        ask = Asked(QueryParams(f"format={wanted}&by=domain&model=nosuch"), answers)
        with pytest.raises(ArgapError, match="nosuch: not compared here"):
            keep("breakdown", ask, Interrupt())


def test_labels_of_spans_are_text_in_csv() -> None:
    labels = pa.array([["a", "b"], [], None, ["=1"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    assert csv_of_rows(pa.table({"spans": labels})).decode().splitlines() == ['"spans"', '"a, b"', '""', "", '"\'=1"']


def test_the_line_of_a_refusal_in_the_viewer_is_short() -> None:
    class Refusing:
        @property
        def overview(self) -> Any:
            raise ArgapError("x" * 100_000)

    body = bytearray()

    async def ask() -> None:
        arrived = anyio.Event()

        async def receive() -> Any:
            if not arrived.is_set():
                arrived.set()
                return {"type": "http.request"}
            await anyio.sleep_forever()

        async def send(message: Any) -> None:
            body.extend(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": "/api/overview", "query_string": b"", "headers": []}
        await page_of(Refusing())(scope, receive, send)  # pyright: ignore[reportArgumentType]

    anyio.run(ask)
    assert len(json.loads(body)["error"]) <= LONGEST_LINE


# The machine


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_the_exit_code_stays_where_stderr_is_full(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "argap", "push", "nothing", "hf://datasets/a/b"]
    with open("/dev/full", "w") as full:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        assert subprocess.run(command, stderr=full, stdout=full, cwd=tmp_path, env=environment).returncode == 1


def test_an_encoding_of_no_text_is_written_as_ascii() -> None:
    found = {}
    for name in ("idna", "latin-1", "utf-8"):
        stream: Any = SimpleNamespace(encoding=name)
        streams.codecs.register_error(streams.HANDLER, streams._replaced)
        found[name] = streams._encoding_of(stream, streams.HANDLER)
    assert found == {"idna": "ascii", "latin-1": "latin-1", "utf-8": "utf-8"}


def test_a_partition_of_no_result_is_refused_at_the_results_own_setting() -> None:
    result = open_result(RESULT)
    with pytest.raises(ArgapError, match="`by` repeated: expected slice, frequency"):
        Answers(result).parts("repeated", Setting(result.record.threshold, result.record.reference))
