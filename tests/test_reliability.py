"""What a user sees when something goes wrong: one line and an exit code, never a traceback."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from argap import cli
from argap.cli import main
from argap.cli.guard import fail
from argap.errors import ArgapError


def raising(error: BaseException) -> Callable[[], None]:
    def app() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ArgapError("a file\nof two lines"), 1, "argap: a file of two lines"),
        (MemoryError(), 1, "argap: out of memory; use less text, shorter windows or a smaller batch"),
        (OSError(errno.ENOSPC, "No space left", "x.json"), 1, "argap: x.json: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "x.json"), 1, "argap: x.json: Permission denied"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failure_that_is_not_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch, capsys, error: BaseException, code: int, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "app", raising(error))
    monkeypatch.setattr(cli, "_flags", lambda arguments: {})
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == code
    assert capsys.readouterr().err.strip() == line
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_one_line_and_a_traceback_in_a_file_without_tokens(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["argap", "score", "https://me:secret@host/x"])
    with pytest.raises(KeyError) as caught:
        raising(KeyError("seconds of hf_abcdefghijkl"))()
    assert fail(caught.value, {}) == 70
    (path,) = tmp_path.iterdir()
    line = capsys.readouterr().err
    assert line == f"argap: internal error (KeyError: 'seconds of ***'), please report it; the traceback is in {path}\n"
    text = path.read_text()
    assert "Traceback" in text
    assert "secret" not in text
    assert "hf_" not in text
    assert path.stat().st_mode & 0o077 == 0


def test_the_traceback_goes_to_the_temporary_folder_where_this_one_is_not_writable(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "absent")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fail(TypeError("x"), {}) == 70
    assert [path.name.startswith("argap-traceback-") for path in tmp_path.iterdir()] == [True]
    assert str(tmp_path) in capsys.readouterr().err


def test_the_traceback_is_shown_on_request(tmp_path: Path) -> None:
    """In a process of its own, as the shell runs it."""
    code = "import argap.cli as c; c.app = lambda: {}['key']; c._flags = lambda a: {}; c.main()"
    for shown in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"ARGAP_TRACEBACK": shown},
            check=False,
        )
        assert done.returncode == 70
        assert ("Traceback" in done.stderr) == (shown == "1")
        assert done.stderr.splitlines()[-1].startswith("argap: internal error (KeyError: 'key'), please report it;")
