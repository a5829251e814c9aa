"""What a user sees when something goes wrong: one line and an exit code, never a traceback."""

import errno
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
import typer.main
import yaml

from argap import cli
from argap.cli import main
from argap.errors import ArgapError
from argap.files import atomic
from argap.files.lock import LOCK, alone_in
from argap.runtime import guard, progress
from argap.runtime.guard import fail

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "argap" / "demo" / "tokenizer"


def raising(error: BaseException) -> Callable[..., None]:
    def app(**given: str) -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ArgapError("a file\nof two lines"), 1, "argap: a file of two lines"),
        (
            RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
            1,
            "argap: out of memory (CUDA error: out of memory); use less text, shorter windows or a smaller batch",
        ),
        (MemoryError(), 1, "argap: out of memory; use less text, shorter windows or a smaller batch"),
        (
            duckdb.OutOfMemoryException("full"),
            1,
            "argap: out of memory (full); use less text, shorter windows or a smaller batch",
        ),
        (OSError(errno.ENOSPC, "No space left", "x.json"), 1, "argap: x.json: No space left"),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            1,
            "argap: No usable temporary directory found in ['/tmp']; set TMPDIR to a folder that can be written",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "x.json"), 1, "argap: x.json: Permission denied"),
        (
            UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed"),
            1,
            "argap: a name or text contains '\\udce9', which is not Unicode; expected UTF-8",
        ),
        (
            type("PanicException", (BaseException,), {})("range end"),
            1,
            "argap: a library could not handle what it was given (PanicException: range end)",
        ),
        (
            RuntimeError("can't start new thread"),
            1,
            "argap: no thread could be started (can't start new thread); raise the limits `ulimit -u` and `ulimit -v`",
        ),
        (RuntimeError("Symlink loop from '/x'"), 1, "argap: Symlink loop from '/x'; remove the link"),
        (RuntimeError("Could not determine home directory."), 1, "argap: Could not determine home directory; set HOME"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failure_that_is_not_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch, capsys, error: BaseException, code: int, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "commands", lambda: raising(error))
    monkeypatch.setattr(cli, "_flags", lambda command, arguments: {})
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == code
    assert capsys.readouterr().err.strip() == line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["", "argap"])
def test_a_library_that_fails_while_it_is_imported_is_one_line(tmp_path: Path, monkeypatch, capsys, module) -> None:
    """As Numba does for NUMBA_NUM_THREADS=0."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site-packages" / "counting"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder.parent)
    (folder / "__init__.py").write_text("from counting import threads")
    (folder / "threads.py").write_text("int(':0')")
    monkeypatch.setattr(guard, "ROOT", tmp_path if module else guard.ROOT)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        importlib.import_module("counting")
    code, said = fail(caught.value, {}), capsys.readouterr().err
    why = "ValueError: invalid literal for int() with base 10: ':0'"
    if module:  # of argap's own modules
        assert (code, said.partition(", please")[0]) == (70, f"argap: internal error ({why})")
    else:
        expected = f"argap: counting cannot be loaded ({why}); check the environment variables that it reads\n"
        assert (code, said) == (1, expected)


def test_a_mistake_is_one_line_and_a_traceback_in_a_file_without_tokens(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = ["https://me:secret@host/x", "https://host/x?part=1&X-Amz-Signature=secret", "s3://b/x?key=secret&n=2"]
    monkeypatch.setattr(sys, "argv", ["argap", "score", *addresses])
    monkeypatch.setenv("ARGAP_API_KEY", "a-key-of-a-server")
    monkeypatch.setenv("db_passwd", "a-secret-of-mine")
    with pytest.raises(KeyError) as caught:
        raising(KeyError("seconds of hf_abcdefghijkl, a-key-of-a-server, a-secret-of-mine"))()
    assert fail(caught.value, {}) == 70
    (path,) = tmp_path.iterdir()
    line = capsys.readouterr().err
    assert line.startswith("argap: internal error (KeyError: 'seconds of ***, ***, ***'), please report it; ")
    assert line.endswith(f"; the traceback is in {path}\n")
    text = path.read_text()
    assert "Traceback" in text
    assert "https://host/x?part=1&X-Amz-Signature=*** s3://b/x?key=***&n=2\n" in text
    assert "secret" not in text.partition("\n")[0]
    assert "a-secret" not in text
    assert "hf_" not in text
    assert "a-key" not in text
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
    code = "import argap.cli as c; c._flags = lambda c, a: {}; "
    code += "c.commands = lambda: lambda **given: {}['key']; c.main()"
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


HOLDER = """
import sys, time
from pathlib import Path
from argap.files.lock import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``out``."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_is_in_the_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(ArgapError, match=rf"out: in use by process {holder.pid} on \S+ since 20\S+ .*another folder$"):
        enter(out)
    with alone_in(out, main=False):  # the other processes of one run
        pass
    with alone_in(tmp_path / "other"):
        pass
    assert not (tmp_path / "other").exists()
    holder.kill()
    holder.wait()
    enter(out)  # the system released the lock; the file that was left is taken over
    assert list(out.iterdir()) == []


def test_a_folder_is_not_entered_twice_in_one_process(tmp_path: Path) -> None:
    with alone_in(tmp_path / "out"):
        with pytest.raises(ArgapError, match=rf"in use by process {os.getpid()} on "):
            enter(tmp_path / "out")
        assert (tmp_path / "out" / LOCK).is_file()


def enter(folder: Path) -> None:
    with alone_in(folder):
        assert (folder / LOCK).is_file()


def test_a_file_system_without_locks_is_named_and_written(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("fcntl.flock", refusing(errno.ENOLCK))
    with alone_in(tmp_path / "out"):
        (tmp_path / "out" / "file").touch()
    said = capsys.readouterr().err
    assert said == f"{tmp_path / 'out'}: no lock (No locks available); do not run two commands on it at once\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]


def test_a_lock_that_another_machine_holds_is_refused(tmp_path: Path, monkeypatch) -> None:
    """NFS reports it by another number than a local file system."""
    (tmp_path / LOCK).write_text("process 7 on node3 since 2026-01-02 03:04:05 +0000")
    for number in (errno.EWOULDBLOCK, errno.EACCES):
        monkeypatch.setattr("fcntl.flock", refusing(number))
        with pytest.raises(ArgapError, match=r"in use by process 7 on node3 since .*; wait until it has ended"):
            enter(tmp_path)
    assert (tmp_path / LOCK).is_file()


def refusing(number: int) -> Callable[..., None]:
    def flock(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / LOCK).symlink_to(tmp_path / "created")
    with alone_in(out):
        pass
    assert not (tmp_path / "created").exists()


def test_commands_refuse_a_folder_in_use(tmp_path: Path, holder: subprocess.Popen[str], monkeypatch, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three two three\n" * 50)
    monkeypatch.setattr(progress, "say", lambda line: None)
    settings = {"tokenizer": str(TOKENIZER), "data": [str(text)], "architecture": "attention", "steps": 1}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"members": {"rwkv4": None}, "lengths": [16], "widths": [8]}))
    out = str(tmp_path / "out")
    for command in (
        ["score", "attention", "--ref", "attention", "--data", str(text), "--out", out],
        ["train", str(tmp_path / "train.yaml"), "--out", out, "--device", "cpu"],
        ["synthetics", "sweep", str(tmp_path / "sweep.yaml"), "--out", out, "--device", "cpu"],
        ["compare", "run", "--ref", "ref", "--out", out],
        ["label", out, "--index", "index"],
        ["import", "file", "--tokenizer", "t", "--data", str(text), "--name", "out", "--out", str(tmp_path)],
    ):
        monkeypatch.setattr(sys, "argv", ["argap", *command])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"in use by process {holder.pid} on " in line
        assert line.endswith("or choose another folder")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    gone = 2**22 + 1  # above every process id of Linux: the id of one that ended could be given to another
    machine = atomic._machine()
    left = [
        f".run.json.{gone}-{machine}00000000.tmp",
        f"tokens/.part-00000.parquet.{gone}-{machine}00000000.tmp",
        f".model.{gone}-{machine}00000000.old",
        f".labels.{gone}-{machine}00000000.old",
    ]
    stays = [
        f".run.json.{os.getpid()}-{machine}00000000.tmp",  # still running
        f".run.json.{gone}-0123456700000000.tmp",  # of another machine, and new
        ".run.json.1.tmp",  # without a machine in its name, and new
        "notes.tmp",
        f"my.run.json.{gone}-{machine}00000000.tmp",
        "tokens/part-00000.parquet",
        "model",
    ]
    for name in ("tokens", "model", left[3]):
        (tmp_path / name).mkdir()
    for name in (*left[:2], *stays[:-1]):
        (tmp_path / name).touch()
    (tmp_path / left[3] / "labels.json").touch()
    (tmp_path / left[2]).mkdir()
    outside = tmp_path.with_name("outside")
    outside.mkdir()
    (outside / f".x.{gone}-{machine}00000000.tmp").touch()
    (tmp_path / left[2] / "link").symlink_to(outside)
    (tmp_path / "linked").symlink_to(outside)
    os.utime(tmp_path / stays[2], (0, 0))
    with alone_in(tmp_path):
        pass
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    replaced = {"labels", "labels/labels.json"}  # killed before the new folder had its name
    assert found == {"tokens", "linked", *stays, *replaced} - {stays[2]}
    assert len(list(outside.iterdir())) == 1


def test_a_full_disk_that_a_library_reports_is_an_expected_failure(tmp_path: Path) -> None:
    def write() -> None:
        with atomic.replacing_folder(tmp_path / "model"):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(ArgapError, match=r"model: could not be written \(No space left on device\)"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "name"), [(typer.main, "get_command"), (cli, "guard_streams")])
def test_an_interrupt_before_the_command_begins_is_no_traceback(monkeypatch, capsys, module, name: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_name_that_is_not_utf8_is_refused_before_work_begins(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["argap", "index", "count", "nowhere", os.fsdecode(b"caf\xe9")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert capsys.readouterr().err == "argap: a name or text contains '\\udce9', which is not Unicode; expected UTF-8\n"


def test_the_configuration_of_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    from argap.models.configuration import read_native

    whole = {"model_type": "argap", "hidden_size": 8, "num_hidden_layers": 1, "mixers": ["attention"]}
    for change, message in (
        ({"dtype": []}, "config.json: "),
        ({"mixers": 1e308}, "mixers: expected a list of at least one entry, found 1e+308"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers: expected a whole number, found '2'"),
        ({"hidden_size": 16 * 10**9}, "hidden_size: expected 1 to 131,072, found 16000000000"),
        ({"pad_token_id": []}, "pad_token_id: expected a whole number, found []"),
        ({"max_position_embeddings": {}}, "max_position_embeddings: expected a whole number, found {}"),
        ({"text_config": {"vocab_size": 3}}, "config.json: 'dict' object has no attribute"),
        ({"attn_implementation": 1}, "attn_implementation: expected "),
        ({"_attn_implementation": "paged|me/planted"}, "_attn_implementation: expected "),
        ({"experts_implementation": {"": "me/planted"}}, "experts_implementation: expected "),
        ({"rms_norm_eps": 0}, "rms_norm_eps: expected above 0, at most 1e+30, found 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps: expected above 0, at most 1e+30, found -1e-05"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected above 0, at most 1e+30, found nan"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(whole | change))
        with pytest.raises(ArgapError) as error:
            read_native(tmp_path)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
