"""A result as static files: what they hold, and the page over them, served by ``python -m http.server``."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError, FormatError
from argap.result import open_result
from argap.results.printed import encoded
from argap.runtime.interrupt import Interrupt
from argap.slices import sums
from argap.view import bundle
from argap.view.answers import Answers, Setting
from argap.view.bundle import write_bundle
from tests.builders.browser import expect, illegible, new_page, resize, wait_for, watch
from tests.conftest import copied_without_tokens
from tests.pages.view.test_view_browser import READY, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory, result) -> Path:
    """A bundle of three windows, two τ and one column, which takes a fraction of the time of all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bundle, "_useful", lambda _: (2, 5))
        patched.setattr(bundle, "_grouped", lambda _: ("word_start",))
        return write_bundle(result, tmp_path_factory.mktemp("bundle") / "out", windows=3)


@pytest.fixture(scope="module")
def answers(folder) -> dict[str, bytes]:
    """The file of each request."""
    names = json.loads((folder / "answers.json").read_text())
    return {key: (folder / "answers" / name).read_bytes() for key, name in names.items()}


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"port (\d+)", server.stdout.readline())
        assert found
        yield f"http://127.0.0.1:{found[1]}/"
        server.terminate()


@pytest.fixture(scope="module")
def live(token_result) -> Iterator[str]:
    """The same result, served by `argap.view.app`."""
    with serving(token_result) as address:
        yield address


def test_its_answers_are_those_of_the_server(answers, result):
    live = Answers(result)
    at = Setting(5, "m-1")
    for key, expected in {
        "thresholds&reference=m2": live.thresholds("m2", intervals=True),
        "breakdown&by=slice&reference=m-1&threshold=5": live.breakdown("slice", at, Interrupt()),
        "breakdown&by=distance&reference=m-1": live.breakdown("distance", at, Interrupt()),
        "sources&reference=m-1&threshold=5": live.sources(at),
    }.items():
        assert answers[key] == encoded(expected), key


def test_its_windows_are_those_that_lose_most_and_its_lists_stay_within_them(answers, result):
    held = json.loads(answers["overview"])["bundled"]
    worst = {model: [each.window for each in Answers(result).worst_windows(model, "ref")] for model in ("m-1", "m2")}
    assert {worst["m-1"][0], worst["m2"][0]} <= set(held)
    assert len(held) == 3
    assert [key for key in answers if key.startswith("window&")] == [f"window&window={each}" for each in held]
    losses = {key: json.loads(value)["matches"] for key, value in answers.items() if key.startswith("losses")}
    assert {each["window"] for found in losses.values() for each in found} == set(held)
    found = losses["losses&model=m2&reference=ref&where=repeated AND train_count <= 2"]
    expected = Answers(result).largest_losses(
        f"repeated AND train_count <= 2 AND \"window\" IN ({', '.join(map(str, held))})",
        Setting(2, "ref"), "m2", Interrupt(),
    )  # fmt: skip
    assert [(each["window"], each["pos"]) for each in found] == [(e.window, e.pos) for e in expected.matches]


def test_it_names_no_folder_of_this_machine(folder, token_result):
    text = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert str(token_result.parent).encode() not in text


@pytest.mark.parametrize("view", ["overview", "breakdowns", "slices", "tokens"])
def test_links_of_the_live_page_hold(browser, address, live, view):
    """The same link shows the same, and nothing is asked of another server."""
    shown = {
        "overview": ".finding, .models tbody, .sources",
        "breakdowns": "table.parts tbody",
        "slices": "#slices-title",
        "tokens": ".flow, .inspector",
    }[view]
    link = f"#view={view}&model=m2&tau=5&by=frequency"
    texts = []
    for base in (live, address):
        page = new_page(browser)
        heard = watch(page)
        page.goto(f"{base}{link}")
        wait_for(page, READY[view])
        wait_for(page, "document.querySelector('.waiting') === null")
        texts.append(
            page.evaluate(f"[...document.querySelectorAll('{shown}')].map((each) => each.textContent).join('|')")
        )
        assert heard.errors == []
        origin = base.split("/?")[0].rstrip("/")
        assert [each for each in heard.requested if not each.startswith(origin)] == []
        if base == address and view == "tokens":  # the other views look as they do live
            assert illegible(page) == []
        page.context.close()
    assert texts[0] == texts[1]


def test_a_window_that_it_lacks_is_said_to_be_missing(browser, address, answers):
    held = json.loads(answers["overview"])["bundled"]
    lacking = next(k for k in range(99) if k not in held)
    page = new_page(browser, 390, 844)
    page.goto(f"{address}#view=tokens&model=m2&window={lacking}")
    assert f"window {lacking} is not in this copy" in wait_for(
        page, "document.querySelector('[role=alert]')?.innerText"
    )
    page.goto(f"{address}#view=tokens&model=m2&window={held[0]}&pos=1")
    expect(page, "document.querySelector('.flow .current')?.pos", 1)
    top = "document.querySelector('{}').getBoundingClientRect().top"
    assert page.evaluate(f"{top.format('.flow')} < {top.format('.lists')}")  # on a phone the text comes first
    resize(page, 1440, 900)
    page.keyboard.press("j")
    wait_for(page, f"location.hash.includes('window={held[1]}')")


def test_a_result_without_tokens_has_its_tables(tmp_path, token_result, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_MODELS", 2)
    monkeypatch.setattr(bundle, "_useful", lambda _: (2,))
    out = write_bundle(open_result(copied_without_tokens(token_result, tmp_path / "bare")), tmp_path / "out")
    names = json.loads((out / "answers.json").read_text())
    assert "thresholds&reference=ref" in names
    assert not any(key.startswith("window") for key in names)
    assert not any("reference=m2" in key for key in names)
    assert "no tokens" in json.loads((out / "answers" / names["overview"]).read_bytes())["no_tokens"]


def test_what_has_no_breakdown_is_left_out_and_damage_is_not(result, monkeypatch):
    monkeypatch.setattr(bundle, "_grouped", lambda _: ("word_start",))
    monkeypatch.setattr(sums, "MOST_BINS", 1)  # word_start has two
    answers = Answers(result)
    asked = [each.parameters["by"] for each in bundle._breakdowns(answers, "ref", (5,)) if each.path == "breakdown"]
    assert set(asked) == set(answers.partitions)

    def damaged(*_: object) -> None:
        raise FormatError("cells.parquet: damaged")

    monkeypatch.setattr(Answers, "breakdown", damaged)
    with pytest.raises(FormatError):
        list(bundle._breakdowns(answers, "ref", (5,)))


def test_a_result_without_counts_has_no_thresholds():
    overview: Any = SimpleNamespace(gap=SimpleNamespace(threshold=None), marks=(), thresholds=(), counted=None)
    assert list(bundle._useful(overview)) == []


def test_it_is_whole_or_absent_and_replaces_nothing_else(tmp_path, result, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("kept")
    with pytest.raises(ArgapError, match="is not a bundle"):
        write_bundle(result, other)
    with pytest.raises(ArgapError, match="`windows` -1"):
        write_bundle(result, tmp_path / "out", windows=-1)

    def broken(*_: object, **__: object) -> None:
        raise ArgapError("the disk is full")

    monkeypatch.setattr(bundle, "_breakdowns", broken)
    with pytest.raises(ArgapError, match="the disk is full"):
        write_bundle(result, tmp_path / "out", windows=1)
    assert [each.name for each in tmp_path.iterdir()] == ["other"]


def test_the_command_refuses_options_of_the_server(token_result, tmp_path):
    done = CliRunner().invoke(app, ["view", str(token_result), "--bundle", str(tmp_path / "out"), "--port", "1"])
    assert isinstance(done.exception, ArgapError)
    done = CliRunner().invoke(app, ["view", str(token_result), "--windows", "3"])
    assert isinstance(done.exception, ArgapError)
