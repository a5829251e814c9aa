"""Results at the edge: one model or sixty, one token, no hits, no counts, half-written files, hostile texts."""

import asyncio
import csv
import gc
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.errors import ArgapError, FormatError
from argap.files.checksums import write_checksums
from argap.files.parquet import write_parquet
from argap.result import open_result
from argap.runtime.interrupt import Interrupt
from argap.view.answers import Answers
from argap.view.app import COMPUTED
from argap.view.keep import Asked
from argap.view.serve import listen, serve
from argap.view.windows import _piece
from tests.conftest import copied, copied_without_tokens, flip_bit
from tests.pages.view.conftest import HOSTILE, client_of, write_result


def test_hostile_texts_are_answered_as_visible_text(hostile_result):
    window = client_of(hostile_result).get("/api/window?window=0&model=m2").json()
    shown = dict(zip(HOSTILE, window["tokens"], strict=False))
    assert shown["markup"] == HOSTILE["markup"]
    assert shown["right to left"] == HOSTILE["right to left"]
    assert shown["override"] == "a⟨202E⟩b"
    assert shown["control"] == "␀␇␛[31m"
    assert shown["lines"] == "one↵\n→two↵\n"
    assert shown["long"] == "x" * 400 + "…"
    assert window["cut"] == {"7": 100_000, "16": 100_000}
    assert "\u200d" not in shown["emoji"]  # a joiner is a format character, and visible as one


def test_a_formula_is_text_in_kept_tokens(hostile_result):
    kept = client_of(hostile_result).get("/api/keep/tokens?where=true&model=m2&format=csv").text
    cells = {cell for row in csv.reader(kept.splitlines(keepends=True)) for cell in row}
    assert f"'{HOSTILE['formula']}" in cells
    assert [cell for cell in cells if cell.startswith("=")] == []


def test_one_token(tmp_path, tokenizer):
    made = client_of(write_result(tmp_path, tokenizer, ["a b"]))
    assert made.get("/api/overview").json()["gap"]["all"]["n"] == 1
    window = made.get("/api/window?window=0&model=m2&model=ref").json()
    assert len(window["tokens"]) == 2
    (only,) = made.get("/api/thresholds?intervals=1").json()["at"]
    assert only["threshold"] is None
    assert only["ar_hits"]["n"] == 0


def test_a_match_across_windows_hides_none_within_one(tmp_path, tokenizer):
    made = client_of(write_result(tmp_path, tokenizer, ["one ab", "abab abab"]))
    found = made.get("/api/search?text=abab").json()["matches"]
    assert [(each["window"], each["before"], each["after"]) for each in found] == [(1, "", " abab"), (1, "abab ", "")]


def test_no_hits_and_no_counts(tmp_path, tokenizer):
    made = client_of(write_result(tmp_path, tokenizer, ["one two three", "four five six", "seven eight"]))
    overview = made.get("/api/overview").json()
    assert (overview["hits"], overview["thresholds"], overview["marks"]) == ("repeated bigrams", [], [])
    assert made.get("/api/losses?where=ar_hits&model=m2").json() == {"matches": [], "more": False}
    assert "no training counts" in made.get("/api/breakdown?by=frequency").json()["error"]
    assert "no training counts" in made.get("/api/breakdown?by=distance&threshold=10").json()["error"]
    assert made.get("/api/breakdown?by=distance").json()["bars"][0]["part"]["bin"] == "not repeated"


def test_one_model(tmp_path, tokenizer):
    made = client_of(write_result(tmp_path, tokenizer, ["one two one two", "three four"], models=("ref",)))
    assert len(made.get("/api/overview").json()["gap"]["rows"]) == 1
    window = made.get("/api/window?window=0&model=ref&reference=ref").json()
    assert [each["model"] for each in window["models"]] == ["ref"]
    assert made.get("/api/breakdown?by=distance").json()["bars"][0]["part"]["models"][0]["contribution"] is None
    (scored,) = made.get("/api/slices?where=word_start&name=starts").json()
    assert [each["model"] for each in scored["models"]] == ["ref"]
    assert made.get("/api/sources").json()["reason"] == "No other model with a finite ΔNLL to compare."


def test_sixty_models(tmp_path, tokenizer):
    models = ["ref", *(f"model {k:02d} with a name that is rather long" for k in range(59))]
    made = client_of(write_result(tmp_path, tokenizer, ["one two one two " * 9, "three four " * 9], models=models))
    answer = made.get("/api/thresholds?intervals=1").json()
    assert len(answer["whole"]["models"]) == 60
    (scored,) = made.get("/api/slices", params={"where": "repeated", "name": "again", "model": models[7]}).json()
    assert [each["model"] for each in scored["models"]] == ["ref", models[7]]


def test_a_result_without_its_tokens_has_the_rest(token_result, tmp_path):
    copied_without_tokens(token_result, tmp_path)
    Answers(open_result(tmp_path)).warm(Interrupt())
    made = client_of(tmp_path)
    assert "the tokens of this result are not here" in made.get("/api/overview").json()["no_tokens"]
    assert made.get("/api/thresholds?intervals=1").json()["at"]
    assert made.get("/api/breakdown?by=distance&threshold=5").json()["bars"]
    assert {row["name"] for row in made.get("/api/sources").json()["sources"]} == {"code", "prose"}
    for path in ("window?window=0&model=m2", "slices?where=repeated&name=x", "search?text=a", "windows?model=m2"):
        assert "the tokens of this result are not here" in made.get(f"/api/{path}").json()["error"]


def test_missing_or_broken_cells_are_one_line(token_result, tmp_path):
    shutil.copytree(token_result, tmp_path / "out")
    (tmp_path / "out" / "cells.parquet").write_bytes(b"PAR1 no more")
    made = client_of(tmp_path / "out")
    assert made.get("/api/overview").json()["gap"]["rows"]
    for path in ("thresholds", "breakdown?by=distance&threshold=5", "windows?model=m2", "sources"):
        error = made.get(f"/api/{path}").json()["error"]
        assert "cells.parquet: not a complete" in error
        assert "\n" not in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no gap.json there; expected a folder"),
        ("{", "gap.json"),
        ('{"format": 99}', "written by a newer argap (format 99"),
        ('{"format": 3}', "missing required field"),
        ('{"format": 2}', "written by an older argap (format 2, expected 3); run the command that wrote it again"),
    ],
)
def test_half_written_and_newer_results_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "gap.json").write_text(content)
    with pytest.raises(FormatError) as refused:
        open_result(tmp_path)
    assert message in str(refused.value)


def test_a_broken_shard_is_one_line(token_result, tmp_path):
    copied(token_result, tmp_path / "out")
    next((tmp_path / "out" / "m2" / "tokens").glob("*.parquet")).write_bytes(b"PAR1")
    Answers(open_result(tmp_path / "out")).warm(Interrupt())
    made = client_of(tmp_path / "out")
    for path in ("window?window=0&model=m2", "slices?where=repeated&name=x&model=m2", "losses?where=ar_hits&model=m2"):
        error = made.get(f"/api/{path}").json()["error"]
        assert "/m2/tokens/part-" in error
        assert "not a complete Parquet file" in error or "damaged" in error


def test_a_changed_file_is_not_shown(token_result, tmp_path):
    """Readable, and every page's checksum right: only that of the file tells."""
    copied(token_result, tmp_path / "out")
    part = sorted((tmp_path / "out" / "m2" / "tokens").glob("*.parquet"))[0]
    table = pq.read_table(part)
    pq.write_table(table.set_column(3, "logprob", pa.nulls(len(table), pa.float32())), part)
    error = client_of(tmp_path / "out").get("/api/window?window=0&model=m2").json()["error"]
    assert "/m2/tokens/part-" in error
    assert "damaged between bytes 0 and" in error


@pytest.mark.parametrize("recorded", [True, False])
def test_a_text_is_not_looked_for_among_damaged_tokens(token_result, tmp_path, recorded):
    copied(token_result, tmp_path / "out")
    part = sorted((tmp_path / "out" / "ref" / "tokens").glob("*.parquet"))[0]
    table = pq.read_table(part)
    tokens = pa.array([None, *table["token"].to_pylist()[1:]], pa.int32())
    pq.write_table(table.set_column(table.column_names.index("token"), "token", tokens), part)
    if not recorded:
        (tmp_path / "out" / "ref" / "checksums.json").unlink()
    error = client_of(tmp_path / "out").get("/api/search?text=a").json()["error"]
    assert "/ref/tokens/part-" in error
    assert ("damaged between bytes" if recorded else "token is null in 1 rows") in error


def test_a_text_is_found_in_the_highest_window_of_its_type(token_result, tmp_path, monkeypatch):
    copied(token_result, tmp_path / "out")
    (tmp_path / "out" / "ref" / "checksums.json").unlink()
    part = sorted((tmp_path / "out" / "ref" / "tokens").glob("*.parquet"))[-1]
    table = pq.read_table(part)
    windows, highest = table["window"].to_numpy().copy(), 2 ** (table.schema.field("window").type.bit_width - 1) - 1
    windows[windows == windows[-1]] = highest
    pq.write_table(table.set_column(table.column_names.index("window"), "window", pa.array(windows)), part)
    monkeypatch.setattr("argap.view.answers.LISTED", 10**6)
    found = client_of(tmp_path / "out").get("/api/search?text=e").json()
    assert highest in {match["window"] for match in found["matches"]}


def test_changed_cells_are_not_summed(token_result, tmp_path):
    copied(token_result, tmp_path / "out")
    cells = tmp_path / "out" / "cells.parquet"
    write_checksums(tmp_path / "out", [cells])
    table = pq.read_table(cells)
    pq.write_table(pa.concat_tables([table, table]), cells)
    made = client_of(tmp_path / "out")
    for path in ("thresholds?intervals=1", "windows?model=m2"):
        assert "cells.parquet: damaged" in made.get(f"/api/{path}").json()["error"]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["ref", "labels"])
def test_windows_of_another_type_are_one_line(token_result, tmp_path, name, recorded):
    copied(token_result, tmp_path / "out")
    folder = tmp_path / "out" / name
    for path in [*folder.glob("tokens/*.parquet"), *folder.glob("labels.parquet")]:
        table = pq.read_table(path)
        index = table.column_names.index("window")
        pq.write_table(table.set_column(index, "window", table["window"].cast(pa.string())), path)
    if not recorded:
        (folder / "checksums.json").unlink()
    made = client_of(tmp_path / "out")
    for path in ("window?window=0&model=m2", "slices?where=repeated&name=x&model=m2"):
        error = made.get(f"/api/{path}").json()["error"]
        assert f"/{name}/" in error
        assert "damaged between bytes" in error or "window is string; expected integers" in error


def test_a_document_without_a_source_is_one_line(token_result, tmp_path):
    """In files without checksums, which are read unchecked."""
    copied(token_result, tmp_path / "out")
    (tmp_path / "out" / "checksums.json").unlink(missing_ok=True)
    cells, labels = tmp_path / "out" / "cells.parquet", tmp_path / "out" / "labels" / "labels.json"
    table = pq.read_table(cells)
    documents = pa.array([*table["document"].to_pylist()[:-1], 10**6], table.schema.field("document").type)
    pq.write_table(table.set_column(table.column_names.index("document"), "document", documents), cells)
    error = client_of(tmp_path / "out").get("/api/windows?model=m2").json()["error"]
    assert "cells.parquet: a document that the " in error
    record = json.loads(labels.read_text())
    del record["checksum"], record["sources"][0]
    labels.write_text(json.dumps(record))
    for path in ("windows?model=m2", "window?window=0&model=m2", "slices?where=repeated&name=x&model=m2"):
        error = client_of(tmp_path / "out").get(f"/api/{path}").json()["error"]
        assert "`sources` for " in error
        assert "labels/labels.json: " in error


def test_a_shard_without_checksums_is_read_or_refused(token_result, tmp_path):
    copied(token_result, tmp_path / "out")
    (tmp_path / "out" / "m2" / "checksums.json").unlink()
    part = sorted((tmp_path / "out" / "m2" / "tokens").glob("*.parquet"))[0]
    table = pq.read_table(part)
    for change, said in (
        (table.drop_columns(["window"]), "no column window; expected window"),
        (table.drop_columns(["top1"]), "no column top1; expected window"),
        (table.set_column(0, "window", pa.nulls(len(table), pa.int32())), "no bounds of its windows"),
        (table.slice(len(table) - 1), "no window 0"),
    ):
        pq.write_table(change, part)
        assert said in client_of(tmp_path / "out").get("/api/window?window=0&model=m2").json()["error"]
    write_parquet(part, table)
    column = pq.read_metadata(part).row_group(0).column(0)
    flip_bit(part, column.data_page_offset + column.total_compressed_size - 2)
    error = client_of(tmp_path / "out").get("/api/window?window=0&model=m2").json()["error"]
    assert "not a complete Parquet file" in error


def test_a_mistake_is_an_answer_and_a_line_in_the_terminal(token_result, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("argap.view.answers.Answers.window", lambda *arguments: {}["key"])
    answer = client_of(token_result).get("/api/window?window=0&model=m2")
    assert (answer.status_code, answer.json()["error"]) == (
        500,
        "could not be answered; the terminal of argap view says why",
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("argap: internal error (KeyError: 'key'), please report it; the traceback is in")


def test_an_answer_that_takes_too_long_is_ended(token_result, monkeypatch):
    ended = threading.Event()

    def search(ask: Asked, stop: Interrupt) -> None:
        for _ in range(500):
            if stop.asked:
                return ended.set()
            time.sleep(0.01)

    monkeypatch.setattr("argap.view.app.LONGEST", 0.05)
    monkeypatch.setitem(COMPUTED, "search", search)
    answer = client_of(token_result).get("/api/search?text=a")
    assert answer.json() == {"error": "not answered within 0.05 s; ask for less"}
    assert ended.wait(10)


def test_an_answer_is_given_when_the_server_stops(token_result, monkeypatch):
    """The second Ctrl-C cancels what is being computed."""
    begun, ended, sent = threading.Event(), threading.Event(), []

    def search(ask: Asked, stop: Interrupt) -> None:
        begun.set()
        while not stop.asked:
            time.sleep(0.01)
        ended.set()

    async def never() -> dict:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: dict) -> None:
        sent.append(message)

    async def stopped(app, scope) -> None:
        task = asyncio.ensure_future(app(scope, never, send))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await task

    monkeypatch.setitem(COMPUTED, "search", search)
    client = client_of(token_result)
    request = client.build_request("GET", "/api/search?text=a")
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {"type": "http", "method": "GET", "path": "/api/search", "query_string": b"text=a", "headers": headers}
    asyncio.run(stopped(client.app, scope))
    assert (sent[0]["status"], json.loads(sent[1]["body"])) == (503, {"error": "argap view was stopped"})
    assert ended.wait(10)


def test_few_answers_are_computed_at_once_and_all_are_given(token_result, monkeypatch):
    running, most = [], []

    def search(ask: Asked, stop: Interrupt) -> str:
        running.append(ask)
        most.append(len(running))
        time.sleep(0.05)
        running.remove(ask)
        return ask.text("text")

    monkeypatch.setattr("argap.view.app.AT_ONCE", 2)
    monkeypatch.setattr("argap.view.app.LONGEST", 0.5)  # not counted while an answer waits
    monkeypatch.setitem(COMPUTED, "search", search)
    with client_of(token_result) as client, ThreadPoolExecutor(24) as pool:
        given = pool.map(lambda k: client.get(f"/api/search?text={k}").json(), range(24))
        assert list(given) == [str(k) for k in range(24)]
    assert max(most) == 2


def test_a_taken_port_is_one_line():
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgapError, match=rf"^`port` {port}: Address already in use on 127.0.0.1; use `port=0`"):
            listen(port)
    with pytest.raises(ArgapError, match="`port` 70000: expected 0 to 65535"):
        listen(70000)


def test_a_missing_package_is_one_line(token_result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(ArgapError, match=r"^uvicorn is not installed; run `pip install starlette uvicorn`$"):
        serve(token_result, browser=False, ready=print)


def test_an_interrupt_before_the_page_is_served_is_silent(token_result, monkeypatch, recwarn):
    def interrupted(*_args: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio.Runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        serve(token_result, port=0, browser=False, ready=lambda _: None)
    gc.collect()
    assert not [str(each.message) for each in recwarn]


def test_two_listeners_get_two_ports():
    with listen(None) as one, listen(None) as other:
        assert one.getsockname()[1] != other.getsockname()[1]
        assert one.getsockname()[0] == "127.0.0.1"


def test_an_id_beyond_the_tokenizer_is_shown_as_it_is() -> None:
    """A model's vocabulary may be padded."""
    assert [_piece(token, ["a", "b\n"]) for token in (0, 1, 2, 2**31 - 1)] == ["a", "b↵\n", "⟨2⟩", "⟨2147483647⟩"]
