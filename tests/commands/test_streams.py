"""Output survives a stream that is not UTF-8, and ends quietly with the reader of a pipe."""

import importlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from argap.cli import main
from argap.records import read_gap
from argap.runtime.progress import progress, say
from argap.runtime.signals import importing_whole
from argap.runtime.streams import PIPE_CLOSED, ending_with_pipe, in_ascii

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``argap`` with arguments and returns what it writes to a stdout of an encoding."""

    def run(encoding: str, *arguments: str) -> str:
        written = io.BytesIO()
        monkeypatch.setattr(sys, "argv", ["argap", *arguments])
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        return written.getvalue().decode(encoding)

    return run


def words(table: str) -> set[str]:
    """The words of a table in ASCII, without its rules."""
    plain = "".join(c if c.isascii() else in_ascii(c) for c in table.replace("─", ""))
    return set(plain.replace("|", " ").split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_tables_degrade_to_the_encoding(
    token_result: Path, run: Run, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = read_gap(token_result)
    monkeypatch.setattr("argap.results.compare.compare_runs", lambda *_, **__: gap)
    of_slice = "slice", str(token_result), "--where", "domain = 'prose'", "--name", "ƒ 言 Δ"
    for arguments in (of_slice, ("compare", "m1", "--ref", "ref")):
        found, full = run(encoding, *arguments), run("utf-8", *arguments)
        assert "ΔNLL" in full
        assert "dNLL" in found
        assert words(found) >= words(full)


def test_json_is_escaped_where_it_must_be(token_result: Path, run: Run) -> None:
    arguments = "slice", str(token_result), "--where", "domain = 'prose'", "--name", "言葉 Δé", "--json"
    assert "言葉 Δé" in run("utf-8", *arguments)
    assert json.loads(run("ascii", *arguments)) == json.loads(run("utf-8", *arguments))


@pytest.mark.parametrize("arguments", [["--help"], ["paper"]])  # one printed by typer, one by rich
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "argap", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate()
    assert (process.returncode, said) == (PIPE_CLOSED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "argap", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "argap: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["paper"]])
def test_a_disk_that_fills_up_is_one_line(tmp_path: Path, arguments: list[str], unbuffered: str) -> None:
    with open(tmp_path / "printed", "wb") as printed:
        done = subprocess.run(
            [sys.executable, "-m", "argap", *arguments],
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        )
    assert (done.returncode, done.stderr) == (1, "argap: File too large\n")


def test_streams_that_the_caller_closed_are_no_error() -> None:
    command = 'exec "$0" -m argap --version <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command, sys.executable], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], ["RuntimeWarning"]), (["-W", "default"], ["UserWarning", "FutureWarning", "RuntimeWarning"])],
)
def test_what_a_library_warns_of_is_shown_on_demand(options: list[str], expected: list[str]) -> None:
    code = """
import sys, warnings, argap.__main__
sys.argv = ["argap", "--version"]
try:
    argap.__main__.main()
finally:
    for category in (UserWarning, FutureWarning, RuntimeWarning):
        warnings.warn(f"of a library: {category.__name__}", category)
"""
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
    assert [line.rpartition(": ")[2] for line in done.stderr.splitlines() if "of a library: " in line] == expected


def test_another_broken_pipe_is_not_hidden() -> None:
    def exit_as_typer() -> None:
        try:
            raise BrokenPipeError(32, "Broken pipe")
        except OSError:
            sys.exit(1)

    with pytest.raises(BrokenPipeError), ending_with_pipe():
        exit_as_typer()


HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b1m\x7f\b\r\u202etxt"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize(
    "command",
    [
        ["slice", "RESULT", "--where", "pos < 9", "--name", HOSTILE],
        ["slice", "RESULT", "--where", "piece <> 'red\u202e\x9b1m\x1b'"],
        ["slice", "RESULT", "--where", "piece <> 'red\u202e\x9b1m\x1b'", "--markdown"],
        ["slice", "RESULT", "--where", f"piece = '{HOSTILE}' AND absent"],
        ["compare", "m1", "--ref", HOSTILE],
        ["score", HOSTILE, "--ref", "m1"],
        ["train", "HOSTILE.yaml"],
        ["train", "HOSTILE.yaml", "--set", f"{HOSTILE}=1"],
        ["ref", "remove", HOSTILE],
        ["index", "info", HOSTILE],
        ["synthetics", "sweep", "HOSTILE.yaml"],
        [HOSTILE],
        ["score", f"--{HOSTILE}"],
    ],
    ids=lambda command: " ".join(command)[:20].replace("\x1b", "ESC"),
)
def test_foreign_texts_send_no_control_sequence(
    token_result: Path, tmp_path: Path, run_command: Callable[..., tuple[int, str, str]], monkeypatch, command
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("HOSTILE.yaml").write_text(f'"{json.dumps(HOSTILE)[1:-1]}": 1\nmodel: "{json.dumps(HOSTILE)[1:-1]}"\n')
    _, printed, error = run_command(*(str(token_result) if word == "RESULT" else word for word in command))
    assert "red" in printed + error
    assert not CONTROLS.search(printed + error)


def test_json_keeps_its_values(token_result: Path, run_command: Callable[..., tuple[int, str, str]]) -> None:
    where = "piece <> '\x9b1m\u202e\x7f'"
    _, printed, error = run_command("slice", str(token_result), "--where", where, "--name", "a", "--json")
    assert printed, error
    assert not CONTROLS.search(printed)
    assert where in {each.get("where") for each in json.loads(printed)["slices"]}


def test_what_is_printed_beside_a_bar_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(f"reading {HOSTILE}", 10) as advance:
        print(HOSTILE, file=sys.stderr)
        say(HOSTILE)
        advance(10)
    assert "\x1b[31m" not in capsys.readouterr().err


@pytest.mark.parametrize("on_interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_what_a_package_prints_while_it_is_imported_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, on_interrupt
) -> None:
    """As transformers does under ``python -OO``; a shell's background job ignores interrupts."""
    (tmp_path / "printing_package.py").write_text("print('a parameter without a docstring')\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        with importing_whole():
            importlib.import_module("printing_package")
            print("a result")
    finally:
        signal.signal(signal.SIGINT, before)
        sys.modules.pop("printing_package", None)
    assert capsys.readouterr() == ("a result\n", "a parameter without a docstring\n")
