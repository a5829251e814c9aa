"""Files are written completely or not at all."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from argap.errors import ArgapError, FormatError
from argap.files.atomic import parse_json, read_json, replacing, replacing_folder, write_json


def write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_half(path, ZeroDivisionError())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_error_is_an_expected_failure(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(ArgapError, match=r"file: could not be written \(No space left"):
        write_half(path, OSError(28, "No space left on device"))
    with (
        pytest.raises(ArgapError, match=rf"^{tmp_path}/folder/file: could not be written \(No space left"),
        replacing_folder(tmp_path / "folder") as temporary,
    ):
        write_half(temporary / "file", OSError(28, "an Arrow library's words"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_an_expected_failure(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(ArgapError, match=r"b\.json: could not be written .*, or choose a folder that can be written"):
        write_json(tmp_path / "file" / "a" / "b.json", {})
    assert (tmp_path / "file").read_text() == "old"


def test_folders_are_made_and_files_replaced(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2, "name": "é"})
    assert read_json(path) == {"x": 2, "name": "é"}
    assert "é" in path.read_text()


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o027, 0o640)])
def test_what_a_library_keeps_to_itself_is_shared_as_any_new_file(umask, expected, tmp_path):
    """safetensors creates its files with the permissions 0600, whatever the umask."""
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "file") as temporary:
            temporary.chmod(0o600)
        with replacing_folder(tmp_path / "folder") as temporary:
            (temporary / "file").touch(0o600)
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("file", "folder/file")] == [oct(expected)] * 2


def test_a_share_with_fixed_permissions_is_written(tmp_path, monkeypatch):
    def fixed(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", fixed)
    with replacing(tmp_path / "file") as temporary:
        os.chmod(temporary, 0o600)
    assert (tmp_path / "file").is_file()


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[1]", "\x00\xff", "[" * 10**5, r'{"x": "\ud800"}', r'{"\udfff\ud800": 1}'])
def test_broken_json_is_named(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FormatError, match=r"a\.json: "):
        read_json(tmp_path / "a.json")
    with pytest.raises(FormatError, match="no such file"):
        read_json(tmp_path / "b.json")


def test_two_escaped_surrogates_are_a_character():
    assert parse_json(r'{"x": "\ud83d\ude00", "y": "\\ud800"}') == {"x": "\U0001f600", "y": "\\ud800"}


def replace_folder(target: Path, error: BaseException | None = None, **options) -> None:
    with replacing_folder(target, **options) as temporary:
        (temporary / "file").write_text("new")
        if error is not None:
            raise error


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(ZeroDivisionError):
        replace_folder(target, ZeroDivisionError())
    with pytest.raises(ArgapError, match=r"folder: could not be written \(No space left on device\); .*buy a disk"):
        replace_folder(target, OSError(28, "No space left on device"), remedy="buy a disk")
    assert [path.name for path in target.iterdir()] == ["old"]
    replace_folder(target)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_that_leads_through_the_folder_that_is_replaced(tmp_path):
    for name in ("folder", "other"):
        target = tmp_path / "folder" / ".." / name
        (tmp_path / name).mkdir()
        replace_folder(target)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["file"]
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "other"}


KILLED_BETWEEN_THE_RENAMES = """
import os, signal, sys
from pathlib import Path
from argap.files import atomic

target, rename = Path(sys.argv[1]), os.rename
atomic.os.rename = lambda old, new: os.kill(os.getpid(), signal.SIGKILL) if new == target else rename(old, new)
with atomic.replacing_folder(target) as temporary:
    (temporary / "file").write_text("killed")
"""


def test_the_next_writer_removes_what_a_killed_process_left(tmp_path):
    """A process that is killed between its two renames leaves no folder under its name; the next one puts the old one
    back before it writes."""
    target = tmp_path / "folder"
    replace_folder(target)
    killed = subprocess.run([sys.executable, "-c", KILLED_BETWEEN_THE_RENAMES, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".old", ".tmp"]
    with pytest.raises(ZeroDivisionError):
        replace_folder(target, ZeroDivisionError())
    assert (target / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_sole_writer_removes_what_another_machine_left(tmp_path):
    left = tmp_path / ".folder.999999999-0123456789abcdef.tmp"  # no process of this machine has the number
    left.mkdir()
    replace_folder(tmp_path / "folder")
    assert left.exists()  # another machine's process may be writing it
    replace_folder(tmp_path / "folder", sole_writer=True)
    assert not left.exists()
